"""The codes in which stores answer, and the error that each of them stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from lakegc_assets.errors import ConfigurationError, LakegcError
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    ChangedError,
    ObjectLockedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreFullError,
    StoreThrottledError,
    StoreUnavailableError,
)

#: Our own: a request came after the deadline that it was signed for, and was not carried out.
EXPIRED: Final = "Expired"
#: Our own: a lock or a hold keeps the object, where the store's code is that of a denied request.
LOCKED: Final = "ObjectLocked"

_MISSING: Final = frozenset({"NoSuchKey", "BlobNotFound", "notFound"})
_CHANGED: Final = frozenset({
    "412", "PreconditionFailed", "BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet",
    "conditionNotMet",
})  # fmt: skip
_LOCKED: Final = frozenset({
    LOCKED, "BlobImmutableDueToLegalHold", "BlobImmutableDueToPolicy", "LeaseIdMissing",
    "ObjectUnderActiveHold", "RetentionPolicyNotMet", "objectUnderActiveHold",
    "retentionPolicyNotMet",
})  # fmt: skip
#: Messages of S3, MinIO and GCS (for holds) about locks, whose codes say no more than "denied".
_LOCK: Final = re.compile(
    r"because object protected by object lock|object is WORM protected"
    r"|is under active [\w-]+ hold and cannot be deleted",
    re.IGNORECASE,
)
_OLD: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_DENIED: Final = _OLD | {
    "403", "401", "AccessDenied", "AccessDeniedException", "AccountProblem", "AllAccessDisabled",
    "Forbidden", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch", "Unauthorized",
    "AccountIsDisabled", "AuthenticationFailed", "AuthorizationFailure",
    "AuthorizationPermissionMismatch", "AuthorizationProtocolMismatch",
    "AuthorizationResourceTypeMismatch", "AuthorizationServiceMismatch",
    "AuthorizationSourceIPMismatch", "InsufficientAccountPermissions", "InvalidAuthenticationInfo",
    "KeyBasedAuthenticationNotPermitted", "NoAuthenticationInformation",
    "PublicAccessNotPermitted", "accountDisabled", "authError", "forbidden",
    "insufficientPermissions", "required",
}  # fmt: skip
_THROTTLED: Final = frozenset({
    "429", "503", "BandwidthLimitExceeded", "EC2ThrottledException", "RequestLimitExceeded",
    "ServiceUnavailable", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests",
    "TooManyRequestsException", "ServerBusy", "rateLimitExceeded", "userRateLimitExceeded",
})  # fmt: skip
_UNAVAILABLE: Final = frozenset({
    "408", "500", "502", "504", "BadGateway", "ConnectionFailed", "GatewayTimeout",
    "InternalError", "InternalServerError", "NoAnswer", "OperationAborted", "OperationTimedOut",
    "RequestTimeout", "Timeout", "backendError", "internalError", EXPIRED,
})  # fmt: skip
_FULL: Final = frozenset({
    "507", "InsufficientStorage", "QuotaExceeded", "StorageFull", "XMinioStorageFull",
    "XMinioAdminBucketQuotaExceeded", "AccountLimitExceeded", "quotaExceeded",
})  # fmt: skip
_KINDS: Final[Mapping[frozenset[str], type[LakegcError]]] = {
    _MISSING: ObjectNotFoundError,
    _CHANGED: PreconditionFailedError,
    frozenset({"SourceConditionNotMet"}): ChangedError,
    _LOCKED: ObjectLockedError,
    _DENIED: AccessDeniedError,
    _FULL: StoreFullError,
    _THROTTLED: StoreThrottledError,
    _UNAVAILABLE: StoreUnavailableError,
}
_MISCONFIGURED: Final = {
    "NoSuchBucket": "the bucket does not exist: check its name and the endpoint",
    "ContainerNotFound": "the container does not exist: check its name and the account",
    "ContainerBeingDeleted": "the container is being deleted",
    "ContainerDisabled": "the container is disabled",
    "InvalidBucketName": "this cannot be the name of a bucket",
    "InvalidResourceName": "this cannot be the name of a container",
    "301": "the bucket is in another region: set the region",
    "RedirectLoop": "set the endpoint to where it leads, with its scheme, and the region",
    "PermanentRedirect": "the bucket is in another region: set the region",
    "AuthorizationHeaderMalformed": "the bucket is in another region: set the region",
    "IllegalLocationConstraintException": "the bucket is in another region: set the region",
    "NoCredentials": (
        "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or "
        "credentials_file"
    ),
    "RequestTimeTooSkewed": "this machine's clock is wrong: set it",
}


def error_class(code: str) -> type[LakegcError]:
    """The error that stands for a store's code, also for ``DeleteOutcome.error_code``."""
    for codes, kind in _KINDS.items():
        if code in codes:
            return kind
    return ConfigurationError if code in _MISCONFIGURED else StorageError


def usual_code(code: str, status: str, message: object = None) -> str:
    """A store's own code, or the HTTP status where only that says what to do.

    On S3 a lock differs from missing permissions by the message alone.
    """
    if error_class(code) is StorageError and error_class(status) is not StorageError:
        code = status
    code = code or status
    # Messages quote keys, so that of a missing object may read like one about a lock.
    unclear = error_class(code) in {AccessDeniedError, StorageError}
    return LOCKED if unclear and _LOCK.search(str(message)) else code


def explained(code: str, message: object, where: str) -> LakegcError:
    """The error for a store's code and message; ``where`` names the URL and the key."""
    kind = error_class(code)
    advice = _MISCONFIGURED.get(code, "")
    if code in _OLD:
        advice = "the credentials have expired: renew them and run again"
    elif kind is AccessDeniedError:
        advice = "check the credentials, and what the bucket's policy lets them do"
    elif kind is ObjectLockedError:
        advice = (
            "a lock, a hold or a retention policy keeps it: it can be neither replaced nor removed "
            "before that ends"
        )
    elif kind is StoreFullError:
        advice = "the store is full, or its quota is used up: make room, or choose another one"
    elif kind is ObjectNotFoundError:
        advice = "it does not exist"
    return kind(": ".join(filter(None, (where, advice, f"{code} ({message})"))))
