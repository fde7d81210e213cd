"""The errors of object stores, in one tree for all stores, and the stores' codes for each.

A bucket, container or directory that does not exist is a ``ConfigurationError``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from lakegc_assets.errors import ConfigurationError, LakegcError


class StorageError(LakegcError):
    """An object store did not carry out an operation."""


class ObjectNotFoundError(StorageError):
    """The object does not exist."""


class InvalidKeyError(StorageError):
    """The store cannot hold this key, or the key cannot be sent safely."""


class PreconditionFailedError(StorageError):
    """A conditional write found another state than required; nothing was written."""


class ChangedError(StorageError):
    """The object is not the one that was asked for."""


class ObjectLockedError(StorageError):
    """A lock, a hold or a retention policy keeps the object as it is."""


class ArchivedError(StorageError):
    """The object is in an archive: it exists, but its content cannot be read now."""


class AccessDeniedError(StorageError):
    """The credentials are wrong, expired, or lack the permission."""


class StoreFullError(StorageError):
    """The store has no space left, or a quota is used up."""


class StoreThrottledError(StorageError):
    """The store asks for fewer requests."""

    transient = True


class StoreUnavailableError(StorageError):
    """The store did not answer, or its answer does not tell whether the request was carried out."""

    transient = True


#: Our own code: a request came after its signed deadline, and was not carried out.
EXPIRED: Final = "Expired"
#: Our own code: a lock or a hold keeps the object, although the store's code is "denied".
LOCKED: Final = "ObjectLocked"

#: Messages about locks of S3, MinIO, Ceph and GCS (for holds), whose codes say only "denied".
_LOCK: Final = re.compile(
    r"because object protected by object lock|object is WORM protected|^forbidden by object lock"
    r"|is under active [\w-]+ hold and cannot be deleted",
    re.IGNORECASE,
)
_OLD: Final = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired")
_CODES: Final[Mapping[type[LakegcError], str]] = {
    ObjectNotFoundError: "NoSuchKey BlobNotFound notFound",
    PreconditionFailedError: """
        412 PreconditionFailed BlobAlreadyExists ConditionNotMet TargetConditionNotMet
        conditionNotMet
    """,
    ChangedError: "SourceConditionNotMet",
    ObjectLockedError: f"""
        {LOCKED} BlobImmutableDueToLegalHold BlobImmutableDueToPolicy LeaseIdMissing
        ObjectUnderActiveHold RetentionPolicyNotMet objectUnderActiveHold retentionPolicyNotMet
        SnapshotsPresent ObjectLockedByBucketPolicy ObjectUnderRetention FileImmutable
    """,
    # S3 sends its codes with 403, as for missing permissions.
    ArchivedError: "InvalidObjectState ObjectNotInActiveTierError BlobArchived BlobBeingRehydrated",
    AccessDeniedError: f"""
        {" ".join(_OLD)} 403 401 AccessDenied AccessDeniedException AccountProblem AllAccessDisabled
        Forbidden InvalidAccessKeyId InvalidToken SignatureDoesNotMatch Unauthorized
        AccountIsDisabled AuthenticationFailed AuthorizationFailure AuthorizationPermissionMismatch
        AuthorizationProtocolMismatch AuthorizationResourceTypeMismatch AuthorizationServiceMismatch
        AuthorizationSourceIPMismatch InsufficientAccountPermissions InvalidAuthenticationInfo
        KeyBasedAuthenticationNotPermitted NoAuthenticationInformation PublicAccessNotPermitted
        accountDisabled authError forbidden insufficientPermissions required
    """,
    StoreFullError: """
        507 InsufficientStorage QuotaExceeded StorageFull XMinioStorageFull
        XMinioAdminBucketQuotaExceeded AccountLimitExceeded quotaExceeded
    """,
    StoreThrottledError: """
        429 503 BandwidthLimitExceeded EC2ThrottledException RequestLimitExceeded ServiceUnavailable
        SlowDown SlowDownRead SlowDownWrite Throttling ThrottlingException TooManyRequests
        TooManyRequestsException ServerBusy rateLimitExceeded userRateLimitExceeded
    """,
    StoreUnavailableError: f"""
        408 500 502 504 BadGateway ConnectionFailed GatewayTimeout InternalError InternalServerError
        NoAnswer OperationAborted OperationTimedOut RequestTimeout Timeout backendError
        internalError {EXPIRED}
    """,
}
_KINDS: Final = {code: kind for kind, codes in _CODES.items() for code in codes.split()}
_ADVICE: Final[Mapping[type[LakegcError], str]] = {
    AccessDeniedError: "check the credentials, and what the bucket's policy lets them do",
    ObjectLockedError: (
        "a lock, a hold, a retention policy or a snapshot keeps it: it can be neither replaced nor "
        "removed before that ends"
    ),
    ArchivedError: "it is in an archive: bring it back to a storage class that can be read",
    StoreFullError: "the store is full, or its quota is used up: make room, or choose another one",
    ObjectNotFoundError: "it does not exist",
    StoreThrottledError: "the store asks for fewer requests: run again later",
    StoreUnavailableError: (
        "the store did not answer, or its answer cannot be used: run again; if that does not help, "
        "check the network, the proxies, and the store's log"
    ),
    StorageError: "the store refused it: check the endpoint, and look up the code",
}
_ADVICE_BY_CODE: Final[Mapping[str, str]] = {
    **dict.fromkeys(_OLD, "the credentials have expired: renew them and run again"),
    EXPIRED: "it came after its deadline, and the store did not carry it out: run again",
}
_MISCONFIGURED: Final = {
    **dict.fromkeys(
        (
            "301", "PermanentRedirect", "AuthorizationHeaderMalformed",
            "IllegalLocationConstraintException",
        ),
        "the bucket is in another region: set the region",
    ),
    "NoSuchBucket": "the bucket does not exist: check its name and the endpoint",
    "ContainerNotFound": "the container does not exist: check its name and the account",
    "ContainerBeingDeleted": "the container is being deleted: check the URL",
    "ContainerDisabled": "the container is disabled: let the owner of the account enable it",
    "InvalidBucketName": "no bucket can have this name: check the URL",
    "InvalidResourceName": "no container can have this name: check the URL",
    "RedirectLoop": "set the endpoint to where it leads, with its scheme, and the region",
    "NoCredentials": (
        "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or "
        "credentials_file"
    ),
    "RequestTimeTooSkewed": "this machine's clock is wrong: set it",
}  # fmt: skip


def error_class(code: str) -> type[LakegcError]:
    """The error for a store's code, also for ``DeleteOutcome.error_code``."""
    return _KINDS.get(code, ConfigurationError if code in _MISCONFIGURED else StorageError)


def usual_code(code: str, status: str, message: object = None) -> str:
    """The store's code, or the HTTP status if only the status has a meaning here.

    On S3 only the message tells a lock from missing permissions.
    """
    if error_class(code) is StorageError and error_class(status) is not StorageError:
        code = status
    code = code or status
    # Messages quote keys, so the message for a missing object may read like one about a lock.
    unclear = error_class(code) in {AccessDeniedError, StorageError}
    return LOCKED if unclear and _LOCK.search(str(message)) else code


def explained(code: str, message: object, where: str) -> LakegcError:
    """The error for a store's code and message; ``where`` names the URL and the key."""
    kind = error_class(code)
    advice = _MISCONFIGURED.get(code) or _ADVICE_BY_CODE.get(code) or _ADVICE.get(kind, "")
    return kind(": ".join(filter(None, (where, advice, f"{code} ({message})"))))
