"""The gateway's error answers, with S3's codes, or lakeFS's own codes where they exist."""

from __future__ import annotations

from functools import partial

from lakegc_assets.embedded.errors import ApiError, ProtectedBranchError
from lakegc_assets.errors import LakegcError


class S3Error(LakegcError):
    """An answer with an error status and S3's ``<Error>`` document.

    Attributes:
        status: the HTTP status.
        code: for programs.
        message: for people.
        headers: further headers of the answer.
    """

    def __init__(
        self, status: int, code: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}


invalid_argument = partial(S3Error, 400, "InvalidArgument")
#: Fewer or more bytes than were announced, or a broken chunk.
incomplete_body = partial(
    S3Error, 400, "IncompleteBody",
    "You did not provide the number of bytes specified by the Content-Length HTTP header.",
)  # fmt: skip
malformed_xml = partial(
    S3Error, 400, "MalformedXML",
    "The XML you provided was not well-formed or did not validate against our published schema.",
)  # fmt: skip
#: With lakeFS's code.
read_only = partial(
    S3Error, 403, "ErrReadOnlyRepository", "Attempted to write to a read-only repository"
)
unknown_access_key = partial(
    S3Error, 403, "InvalidAccessKeyId",
    "The access key ID you provided does not exist in our records.",
)  # fmt: skip
signature_does_not_match = partial(
    S3Error, 403, "SignatureDoesNotMatch",
    "The request signature we calculated does not match the signature you provided. Check your key "
    "and signing method.",
)  # fmt: skip
no_such_key = partial(S3Error, 404, "NoSuchKey", "The specified key does not exist.")
#: The key has no upload with this id.
no_such_upload = partial(
    S3Error, 404, "NoSuchUpload",
    "The specified multipart upload does not exist. The upload ID may be invalid, or the upload "
    "may have been aborted or completed.",
)  # fmt: skip
#: The entry exists, but its object was swept. lakeFS's gateway sends this code with 404.
gone = partial(
    S3Error, 410, "NoSuchVersion",
    "Indicates that the version ID specified in the request does not match an existing version.",
)  # fmt: skip
precondition_failed = partial(
    S3Error, 412, "PreconditionFailed",
    "At least one of the pre-conditions you specified did not hold",
)  # fmt: skip


def access_denied(message: str = "Access Denied.") -> S3Error:
    """403."""
    return S3Error(403, "AccessDenied", message)


def bad_digest(what: str) -> S3Error:
    """400: the content does not match the client's checksum."""
    return S3Error(400, "BadDigest", f"The {what} you specified did not match what we received.")


def entity_too_large(limit: int) -> S3Error:
    """400: more bytes than this server accepts."""
    return S3Error(
        400,
        "EntityTooLarge",
        "Your proposed upload exceeds the maximum allowed object size: this server takes "
        f"{limit} bytes (its setting max_upload_bytes).",
    )


def invalid_part(number: int) -> S3Error:
    """400: a part that was not uploaded, or that has another ETag."""
    return S3Error(
        400,
        "InvalidPart",
        f"Part {number} could not be found. It may not have been uploaded, or the specified "
        "entity tag may not match the part's entity tag.",
    )


def no_such_bucket(message: str = "The specified bucket does not exist") -> S3Error:
    """404: no such repository, or for a write no such branch."""
    return S3Error(404, "NoSuchBucket", message)


def not_implemented(what: str) -> S3Error:
    """501."""
    return S3Error(501, "NotImplemented", f"This server does not implement {what}.")


def of_api(error: ApiError) -> S3Error:
    """The gateway's error for an error of an operation that the REST API shares."""
    if isinstance(error, ProtectedBranchError):
        return S3Error(403, "ErrWriteToProtectedBranch", "Attempted to write to a protected branch")
    known = {
        403: access_denied(error.message),
        404: no_such_key(),
        409: S3Error(409, "OperationAborted", error.message),
        410: gone(),
        412: precondition_failed(),
    }
    if error.status in known:
        return known[error.status]
    code = "InvalidArgument" if error.status < 500 else "InternalError"  # noqa: PLR2004 - HTTP
    return S3Error(error.status, code, error.message)
