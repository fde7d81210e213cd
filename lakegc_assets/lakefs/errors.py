"""Errors of calls to lakeFS, one exception for each kind of failure.

Each is made from one message, so it survives pickling. The message never holds a credential.
"""

from __future__ import annotations

from lakegc_assets.errors import LakegcError, RefusedError


class LakeFSError(LakegcError):
    """Every failure of a call to lakeFS.

    Attributes:
        never_sent: whether it is certain that the server did not see the request.
        away: whether the server, or the network to it, is down: it may be back in a minute.
        retry_after_s: seconds that the server asks to wait; None if it does not ask.
        body: the server's answer; empty if there is none.
    """

    never_sent: bool = False
    away: bool = False
    retry_after_s: float | None = None
    body: bytes = b""


class ConnectionFailedError(LakeFSError):
    """The connection failed, or broke before the answer was complete."""

    transient = True


class TimedOutError(LakeFSError):
    """The server did not answer, or did not finish its work, within the time-out."""

    transient = True


class BadRequestError(LakeFSError):
    """The server rejects the request (400 and other 4xx)."""


class AuthenticationError(LakeFSError):
    """The credentials are wrong (401)."""


class ForbiddenError(LakeFSError):
    """The credentials are valid, but lack a permission (403, or a 401 with that message)."""


class ReadOnlyRepositoryError(ForbiddenError, RefusedError):
    """The repository is read-only, so nothing can be collected in it."""


class NotFoundError(LakeFSError):
    """The repository, branch, commit, object, ... does not exist (404)."""


class EndpointNotFoundError(NotFoundError):
    """The server does not have this call (404 "invalid API endpoint"; before 1.75 a 500)."""


class ConflictError(LakeFSError):
    """The thing exists already, or changed meanwhile (409, 412)."""


class GoneError(LakeFSError):
    """The metadata is there, the object is not (410)."""


class RepositoryInDeletionError(GoneError):
    """The repository is being deleted, and is still listed (410, for every call about it)."""


class ThrottledError(LakeFSError):
    """The server asks to slow down (429)."""

    transient = True


class ServerError(LakeFSError):
    """The server failed (5xx)."""

    transient = True


class PrepareCommitsFailedError(LakeFSError):
    """The server's own computation of active commits failed."""


class NoRulesError(PrepareCommitsFailedError):
    """The repository has no retention rules, so the server lists no active commits."""


class UnexpectedAnswerError(LakeFSError):
    """An answer that lakeFS does not give, or that contradicts another one."""


class AnswerTooLargeError(UnexpectedAnswerError):
    """An answer that is larger than any answer of lakeFS."""


class UnsupportedServerError(LakeFSError):
    """The server is older than the calls that a collector needs."""


_NEEDS_A_POLICY = "the user of this access key needs a policy that allows it"
_CHANGED = "it exists already, or was changed meanwhile: check its state, then run again"
_BY_STATUS: dict[int, tuple[type[LakeFSError], str]] = {
    401: (AuthenticationError, "check key and secret, and that both belong to this server"),
    403: (ForbiddenError, _NEEDS_A_POLICY),
    404: (NotFoundError, ""),
    409: (ConflictError, _CHANGED),
    410: (GoneError, ""),
    412: (ConflictError, _CHANGED),
    429: (ThrottledError, "the server is busy: run again later"),
    504: (
        ServerError,
        "a proxy ended the wait: read the server's log, and let the proxy wait for longer",
    ),
}
#: Statuses of a proxy whose server is away, and of a server that starts or is overloaded.
AWAY = frozenset({502, 503, 504})
_LONGEST = 500
_ENDPOINT = "Check that the endpoint is that of a lakeFS server"


def read_only(repository: str) -> ReadOnlyRepositoryError:
    """The error for a repository (or call) that is refused because it is read-only."""
    return ReadOnlyRepositoryError(
        f"{repository}: the repository is read-only. A collector writes to it and deletes from "
        "it, so it cannot be collected; collect the repository that owns the storage namespace"
    )


def of_status(call: str, status: int, message: str | None) -> LakeFSError:
    """The error for an answer with a status of 400 or more.

    ``message`` is the message in lakeFS's error body; None if the answer has no such body.
    """
    said = message[:_LONGEST] if message is not None else "(no lakeFS error message)"
    text = f"{call} answered {status}: {said}"
    if status == 403 and message is not None and "read-only" in message:  # noqa: PLR2004 # HTTP's own number
        return read_only(text)
    if status == 404 and message is None:  # noqa: PLR2004 # HTTP's own number
        # A proxy gave this answer, so it must not pass for a fact about the repository.
        return UnexpectedAnswerError(f"{text}. {_ENDPOINT}")
    if status in {404, 500} and said.lower() == "invalid api endpoint":
        return EndpointNotFoundError(f"{text}. The server is older than this call")
    if status == 401 and said.startswith("insufficient permissions"):  # noqa: PLR2004 # HTTP's own number
        # lakeFS reports a missing policy by this answer only.
        return ForbiddenError(f"{text}. {_NEEDS_A_POLICY.capitalize()}")
    if status == 410 and "repository in deletion" in said:  # noqa: PLR2004 # HTTP's own number
        return RepositoryInDeletionError(text)
    bad = (BadRequestError, _ENDPOINT if message is None else "")
    failed = (ServerError, "read the server's log")
    kind, advice = _BY_STATUS.get(status, failed if status >= 500 else bad)  # noqa: PLR2004 # HTTP's own number
    failure = kind(f"{text}. {advice[:1].upper()}{advice[1:]}" if advice else text)
    failure.away = status in AWAY
    return failure
