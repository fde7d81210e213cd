"""Requests to Azure and Google Cloud Storage: signed, retried if harmless, failures classified.

With the services' own libraries this client would still be needed for three things. It reads pages
of listings as the service wrote them, so that a page that is cut or contradicts itself is an error.
azure-core and google-cloud-storage assign the answers of a batch of deletes to the requests by
position; ``delete_batch`` uses the id in each answer. And its signatures end at a time by the
service's clock.
"""

from __future__ import annotations

import logging
import os
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email import message_from_bytes
from email.message import Message
from email.utils import parsedate_to_datetime
from functools import lru_cache, wraps
from os import getpid
from threading import Lock
from typing import ClassVar, Final, NamedTuple, ParamSpec, TypeVar
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential
from urllib3.exceptions import HTTPError, NameResolutionError, ReadTimeoutError, SSLError

from lakegc_assets import outages, traffic
from lakegc_assets.errors import LakegcError
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
    error_class,
    explained,
)

_LOG: Final = logging.getLogger(__name__)
#: Good statuses; 206, a part of a content, is not one.
_OK: Final = {
    "GET": {200}, "HEAD": {200}, "PUT": {201, 202}, "POST": {200, 202}, "DELETE": {200, 202, 204},
}  # fmt: skip
_PARTIAL: Final = (206,)
_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(\d+)")
#: The most seconds before the second try, twice as many before each next one, and the most of all:
#: with these, services get as long to recover as S3 gets from botocore.
_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 10.0
#: Methods of the requests that wait for a service that is away; none of them deletes.
_PATIENT: Final = frozenset({"GET", "HEAD", "PUT"})
_CONNECTIONS: Final = 32

_Answer = TypeVar("_Answer")
_Asked = ParamSpec("_Asked")
_Made = TypeVar("_Made")
_Token = TypeVar("_Token", bound=Hashable)
#: The most clients that are kept.
_MOST: Final = 16
_ID: Final = re.compile(r"<?(?:response-)?(\d+)>?", re.IGNORECASE)
_STATUS: Final = re.compile(rb"HTTP/[\d.]+ (\d{3})[^\r\n]*")


@dataclass
class Request:
    """One request before its signature: a signer adds headers, or parameters to the query."""

    method: str
    url: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


#: Add the proof of identity to a request; called for each attempt.
Sign = Callable[[Request], None]


class HttpFailure(Exception):  # noqa: N818 - it becomes an error, or the outcome of a key
    """A request that was not carried out, or that may not have been.

    Its code is the store's; or ``Timeout``, ``ConnectionFailed`` or ``NoAnswer``.
    """

    def __init__(self, code: str, message: object, status: int | None = None) -> None:
        super().__init__(code, message, status)
        self.code = code
        self.message = message
        self.status = status

    @property
    def kind(self) -> type[LakegcError]:
        """The class of the error for the caller."""
        return error_class(self.code)

    def explained(self, where: str) -> LakegcError:
        """The error for the caller; ``where`` names the URL and the key."""
        return explained(self.code, self.message, where)


def is_awaited(
    failure: HttpFailure, method: str, server: str, waited: float, wait_s: float
) -> bool:
    """True if a request is sent again although its usual attempts have failed; logs long waits.

    Unknown hosts and wrong certificates do not pass by waiting. Requests of this process wait
    together: what others have waited for the same server counts.

    Args:
        failure: of the last attempt.
        method: of HTTP.
        server: host and port; each of its answers is noted in ``outages``.
        waited: seconds since the first attempt.
        wait_s: see ``StoreConfig``.
    """
    if method not in _PATIENT or not is_away(failure) or _is_misdirected(failure):
        return False
    away, due = outages.note_away(server, time.monotonic())
    waited = max(waited, away)
    if waited >= wait_s:
        return False
    if due and waited >= outages.QUIET_S:
        _LOG.warning(
            "the object store is away: waiting for it, %.0f s of %.0f s: %s (%s)",
            waited, wait_s, failure.code, failure.message,
        )  # fmt: skip
    return True


def is_away(failure: HttpFailure) -> bool:
    """True if a service is down or overloaded: it may answer in a minute."""
    return failure.kind in {StoreThrottledError, StoreUnavailableError}


def _is_misdirected(error: BaseException | None) -> bool:
    """True if an error comes from the name of a host, or from a certificate."""
    while error is not None:
        if isinstance(error, (NameResolutionError, SSLError)):
            return True
        error = error.__cause__ or error.__context__
    return False


def repeated(
    send: Callable[[], _Answer],
    tries: int,
    again: Callable[[HttpFailure], bool],
    awaited: Callable[[HttpFailure, float], bool] = lambda _failure, _waited: False,
) -> _Answer:
    """Send at most ``tries`` times, if ``again`` allows it, with growing pauses.

    ``awaited``: whether to send again after that, by the failure and the seconds since the start.
    """

    def ends(state: RetryCallState) -> bool:
        failure = state.outcome and state.outcome.exception()
        passed = state.seconds_since_start or 0.0
        return state.attempt_number >= tries and not (
            isinstance(failure, HttpFailure) and awaited(failure, passed)
        )

    return Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, HttpFailure) and again(error)),
        stop=ends,
        wait=wait_random_exponential(multiplier=_PAUSE_S, max=LONGEST_PAUSE_S),
        reraise=True,
    )(send)


@contextmanager
def explaining(where: str) -> Iterator[None]:
    """Raise failures of a request as the store's errors; ``where`` names URL and key."""
    try:
        yield
    except HttpFailure as failure:
        raise failure.explained(where) from failure


@contextmanager
def writing_once() -> Iterator[None]:
    """Raise the failure of a conditional put, which is not repeated blindly."""
    try:
        yield
    except ObjectNotFoundError as error:
        raise PreconditionFailedError(str(error)) from error
    except StoreUnavailableError as error:
        raise StoreUnavailableError(f"{error}; it is not known whether it was written") from error


def each_page(
    ask: Callable[[_Token | None], tuple[_Made, _Token | None]], what: str
) -> Iterator[_Made]:
    """The pages of a list of ``what``, by ``ask``, which takes and returns a continuation token.

    The token is None for the first page and after the last. Raises HttpFailure: a token repeats.
    """
    token: _Token | None = None
    seen = set[_Token]()
    while True:
        page, token = ask(token)
        yield page
        if token is None:
            return
        if token in seen:
            raise HttpFailure("NoAnswer", f"the list of {what} does not go on: a token came twice")
        seen.add(token)


def once_per_process(
    *variables: str,
) -> Callable[[Callable[_Asked, _Made]], Callable[_Asked, _Made]]:
    """Make a function build its result once for its (hashable) arguments.

    The result is built again after a change of an environment variable whose name starts with one
    of ``variables``, and in a forked process, which must not use sockets and locks of its parent.
    """

    def decorate(make: Callable[_Asked, _Made]) -> Callable[_Asked, _Made]:
        locks: dict[int, Lock] = {}
        names = tuple(os.fsencode(name) for name in variables)

        made = lru_cache(maxsize=_MOST)(lambda _pid, _seen, *args, **kwargs: make(*args, **kwargs))

        @wraps(make)
        def shared(*args: _Asked.args, **kwargs: _Asked.kwargs) -> _Made:
            pid = getpid()
            # To decode all variables would take as long as to sign a request.
            seen = frozenset((k, os.environb.get(k)) for k in os.environb if k.startswith(names))
            # A thread of the parent may have held its lock at the moment of the fork.
            with locks.setdefault(pid, Lock()):
                return made(pid, seen, *args, **kwargs)  # type: ignore[arg-type]  # hashable

        return shared

    return decorate


class HttpClient(ABC):
    """One pool of connections to a service, which threads may share."""

    #: Statuses of a deleted key in the answer to a batch.
    deleted: ClassVar[Collection[int]]

    def __init__(
        self, config: StoreConfig, sign: Sign, headers: Mapping[str, str] | None = None
    ) -> None:
        """Args: timeouts and tries, the signer, headers of all requests."""
        self._sign = sign
        self._headers = dict(headers or {})
        self._timeout = (config.connect_timeout_s, config.read_timeout_s)
        self._tries = config.max_attempts
        self._wait_s = config.wait_s
        self.session = requests.Session()
        # Without a handler of its own, requests would send the credentials in ~/.netrc.
        self.session.auth = lambda request: request
        self.session.headers.clear()
        self.session.headers["User-Agent"] = "lakegc-assets"
        self.session.headers["Accept-Encoding"] = "identity"
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, HTTPAdapter(0, _CONNECTIONS, max_retries=0))

    @abstractmethod
    def failure(self, status: int, headers: Mapping[str, str] | Message, text: str) -> HttpFailure:
        """The failure in an answer of the service that is not good."""

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        repeatable: bool = True,
        sign: Sign | None = None,
        also_good: Collection[int] = (),
        stream: bool = False,
    ) -> requests.Response:
        """Send a request, repeat it if that is harmless, and return the good answer.

        Args:
            method: of HTTP.
            url: with its query, percent-encoded.
            headers: without those that signers add.
            body: all of it.
            repeatable: False if it may be sent again only after an answer that it was not carried
                out.
            sign: instead of the usual signer.
            also_good: more good statuses for this request.
            stream: leave the body unread; the caller reads and closes the answer.

        Raises:
            HttpFailure: the last attempt failed.
        """
        server = urlsplit(url).netloc

        def attempt() -> requests.Response:
            # Signers add to the headers, for each attempt.
            named = {**self._headers, **(headers or {})}
            answer = self._once(Request(method, url, named, body), sign, stream)
            if answer.status_code in _OK[method] or answer.status_code in also_good:
                outages.note_answer(server, time.monotonic())
                return answer
            with answer:
                failure = self._read_failure(answer)
            if not is_away(failure):
                outages.note_answer(server, time.monotonic())
            raise failure

        def again(failure: HttpFailure) -> bool:
            kind = failure.kind
            return kind is StoreThrottledError or (repeatable and kind is StoreUnavailableError)

        def awaited(failure: HttpFailure, waited: float) -> bool:
            return repeatable and is_awaited(failure, method, server, waited, self._wait_s)

        return repeated(attempt, self._tries, again, awaited)

    def sign(self, request: Request, sign: Sign | None = None) -> None:
        """Sign a request. Raises HttpFailure: there are no credentials, or they took too long."""
        started = seconds()
        (sign or self._sign)(request)
        require_soon(started, self._timeout[0])

    def opened(
        self, url: str, headers: Mapping[str, str], offset: int
    ) -> tuple[requests.Response, int | None]:
        """Begin to read the stored bytes at a URL, from an offset on. Raises HttpFailure.

        Returns the answer, to be read by ``pieces_of`` and closed, and the whole size in bytes, or
        None.
        """
        ranged = {"Range": f"bytes={offset}-"} if offset else {}
        # Otherwise Google's service would decompress an object that is stored as gzip.
        headers = {"Accept-Encoding": "gzip", **headers, **ranged}
        answer = self.send("GET", url, headers, also_good=_PARTIAL * bool(offset), stream=True)
        length = answer.headers.get("Content-Length", "")
        if not offset:
            return answer, int(length) if length.isdecimal() else None
        size = size_behind(offset, answer.headers.get("Content-Range"))
        if answer.status_code not in _PARTIAL or size is None:
            answer.close()
            raise HttpFailure("NoAnswer", f"the answer does not begin at byte {offset}")
        return answer, size

    def delete_batch(
        self, url: str, deletes: Mapping[str, Request]
    ) -> Mapping[str, HttpFailure | None]:
        """Send deletes of some keys in one request; return a failure, or None, for each named key.

        Raises HttpFailure: the answer is not about this batch, or refuses it as a whole.
        """
        content_type, body = _joined(deletes.values())
        answer = self.send("POST", url, {"Content-Type": content_type}, body)
        parts, unnamed = _parts(answer.headers.get("Content-Type", ""), answer.content)
        failures = [self._failure_in(part) for part in unnamed]
        # Azure names no request in the error for a whole batch, and in some errors for one request.
        if failures and not parts:
            raise failures[0] or HttpFailure("NoAnswer", "an answer has no number")
        keys, found = list(deletes), {}
        for number, part in parts.items():
            if number >= len(keys):
                message = f"a batch of {len(keys)} was answered with a part named {number}"
                raise HttpFailure("NoAnswer", message)
            found[keys[number]] = self._failure_in(part)
        rest = [key for key in keys if key not in found]
        # As many answers as keys, and all the same: then it is clear which one each key has.
        if len(rest) == len(failures) and len({one and one.code for one in failures}) == 1:
            found |= {key: one for key, one in zip(rest, failures, strict=True) if one is not None}
        return found

    def _failure_in(self, part: Part) -> HttpFailure | None:
        return None if part.status in self.deleted else self.failure(*part)

    def _read_failure(self, answer: requests.Response) -> HttpFailure:
        try:
            text = answer.content.decode(errors="replace")
        except requests.RequestException as error:
            return _of_exception(error)
        return self.failure(answer.status_code, answer.headers, text)

    def _once(self, request: Request, sign: Sign | None, stream: bool) -> requests.Response:  # noqa: FBT001 - send's
        self.sign(request, sign)
        traffic.add(traffic.STORE, request.method)
        try:
            # A redirect could carry the credentials elsewhere, so none is followed.
            answer = self.session.request(
                request.method, request.url, headers=request.headers, data=request.body,
                timeout=self._timeout, allow_redirects=False, stream=stream,
            )  # fmt: skip
        except requests.RequestException as error:
            raise _of_exception(error) from error
        # urllib3 compares the two only from version 2 on.
        length = answer.headers.get("Content-Length", "")
        whole = stream or request.method == "HEAD" or not length.isdigit()
        if not whole and len(answer.content) < int(length):
            raise HttpFailure("ConnectionFailed", "the answer broke off")
        return answer


def size_behind(offset: int, header: str | None) -> int | None:
    """The whole size in a ``Content-Range`` that begins at an offset; None for another range."""
    found = _RANGE.fullmatch(header or "")
    return int(found[2]) if found and int(found[1]) == offset else None


def pieces_of(answer: requests.Response, size: int) -> Iterator[bytes]:
    """The body of an answer as it was sent, in pieces of ``size``. Raises HttpFailure."""
    try:
        yield from answer.raw.stream(size, decode_content=False)
    except ReadTimeoutError as error:
        raise HttpFailure("Timeout", "the rest of the answer did not come in time") from error
    except (HTTPError, OSError) as error:
        raise HttpFailure(
            "ConnectionFailed", f"the answer broke off: {type(error).__name__}"
        ) from error


def seconds() -> float:
    """Seconds since boot, by a clock that nobody sets and that counts suspension."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def require_soon(started: float, limit: float) -> None:
    """Raises HttpFailure: a signature took too long, so its request may be outdated."""
    if seconds() - started > limit:
        raise HttpFailure(
            "ConnectionFailed",
            f"nothing was sent: the source of the credentials took longer than {limit:g} s",
        )


def _of_exception(error: requests.RequestException) -> HttpFailure:
    cause = error.args[0] if error.args else error
    if isinstance(error, requests.Timeout) or isinstance(cause, ReadTimeoutError):
        return HttpFailure("Timeout", "no answer in time")
    # The text of such errors quotes the URL, whose query may hold a signature.
    reason = getattr(cause, "reason", None)
    host = error.request.url.split("?")[0] if error.request and error.request.url else ""
    return HttpFailure(
        "ConnectionFailed", f"{type(error).__name__} {type(reason or cause).__name__}, {host}"
    )


def etag_in(header: str | None) -> str:
    """An etag without its quotes. Raises HttpFailure: an answer without one is not a store's."""
    etag = (header or "").strip('"')
    if not etag:
        raise HttpFailure("NoAnswer", "the answer has no ETag")
    return etag


def time_in(header: str | None, where: str) -> datetime:
    """The time in a header of an answer, UTC. Raises StorageError."""
    try:
        found = parsedate_to_datetime(header or "")
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise StorageError(
            f"{where}: the answer's time is {header!r}: check the endpoint and the proxies"
        )
    return found.astimezone(timezone.utc)


class Part(NamedTuple):
    """The answer to one request of a batch."""

    status: int
    headers: Message
    body: str


def _joined(batch: Iterable[Request]) -> tuple[str, bytes]:
    """Content type and body of a batch, whose requests have numbers as ids."""
    boundary = f"batch_{uuid.uuid4()}"
    lines: list[str] = []
    for number, request in enumerate(batch):
        path = request.url.split("/", 3)[3]
        lines += [
            f"--{boundary}", "Content-Type: application/http", "Content-Transfer-Encoding: binary",
            f"Content-ID: {number}", "", f"{request.method} /{path} HTTP/1.1",
        ]  # fmt: skip
        lines += [f"{name}: {value}" for name, value in request.headers.items()]
        lines += ["", ""]
    body = "\r\n".join([*lines, f"--{boundary}--", ""]).encode()
    return f"multipart/mixed; boundary={boundary}", body


def _parts(content_type: str, body: bytes) -> tuple[dict[int, Part], list[Part]]:
    """The parts of an answer by the number of their request, and the parts without a number."""
    answer = message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    if answer.get_content_type() != "multipart/mixed" or not answer.is_multipart():
        raise HttpFailure("NoAnswer", f"a batch was answered with {content_type!r}")
    parts: dict[int, Part] = {}
    unnamed: list[Part] = []
    for one in answer.walk():
        payload = b"" if one.is_multipart() else bytes(one.get_payload(decode=True) or b"")
        status = _STATUS.match(payload.lstrip())
        if status is None:
            continue
        said = message_from_bytes(payload.lstrip()[status.end() :].lstrip(b"\r\n"))
        content = bytes(said.get_payload(decode=True) or b"").decode(errors="replace")
        part = Part(int(status[1]), said, content.strip())
        named = _ID.fullmatch(one.get("Content-ID", "").strip())
        if named is None:
            unnamed.append(part)
        elif parts.setdefault(int(named[1]), part) is not part:
            raise HttpFailure("NoAnswer", f"a batch was answered with two parts named {named[1]}")
    return parts, unnamed
