"""Error answers of a lakeFS server as exceptions, with lakeFS's own messages."""

from __future__ import annotations

from functools import partial

from lakegc_assets.errors import LakegcError


class ApiError(LakegcError):
    """An answer with an error status and the body ``{"message": ...}``.

    Attributes:
        status: the HTTP status.
        message: in the body.
        extra: further fields of the body.
    """

    def __init__(self, status: int, message: str, **extra: object) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.extra = extra


class ProtectedBranchError(ApiError):
    """403 for a change that branch protection forbids."""

    def __init__(self, message: str) -> None:
        super().__init__(403, message)


bad_request = partial(ApiError, 400)
conflict = partial(ApiError, 409)
ref_not_found = partial(ApiError, 404, "ref: not found")
read_only = partial(ApiError, 403, "read-only repository")
#: The entry exists, but its object was swept.
gone = partial(ApiError, 410, "No data")
#: The branch's HEAD changed between the start and the end of an operation.
moved_meanwhile = partial(ApiError, 412, "Precondition failed")
#: A merge or revert onto a branch with staged changes.
dirty_branch = partial(ApiError, 400, "uncommitted changes (dirty branch)")


def bad_body(schema: str, field: str, reason: str) -> ApiError:
    """400 for a body that does not match lakeFS's schema, as lakeFS words it (its first line)."""
    return bad_request(
        "request body has an error: doesn't match schema "
        f'#/components/schemas/{schema}: Error at "/{field}": {reason}'
    )


def not_found(what: str = "") -> ApiError:
    """404: ``what`` is the kind of object, such as ``branch``, or empty."""
    return ApiError(404, f"{what} not found".lstrip())


def no_changes(operation: str = "") -> ApiError:
    """400: nothing to commit, merge or revert."""
    return bad_request(f"{operation}: no changes" if operation else "no changes")
