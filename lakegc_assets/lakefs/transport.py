"""Send one call to lakeFS: time-outs, retries, pages, and one exception for each kind of failure.

Retries are made here rather than by urllib3. requests reads the body after urllib3's part is over,
so urllib3 would retry neither an answer that breaks off in the middle, nor a ``POST`` that is known
to be harmless.

If the settings allow it, all clients of this process wait together for a server that is away. A
process that Spark starts for a task counts its wait anew.
"""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from itertools import pairwise
from operator import attrgetter, itemgetter, lt
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import pydantic
import requests
from requests.adapters import HTTPAdapter
from requests.auth import HTTPBasicAuth
from urllib3.exceptions import (
    InvalidHeader,
    MaxRetryError,
    NameResolutionError,
    NewConnectionError,
    ReadTimeoutError,
)
from urllib3.util import Retry

from lakegc_assets import outages, traffic
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.lakefs.errors import (
    AWAY,
    AnswerTooLargeError,
    ConnectionFailedError,
    LakeFSError,
    ServerError,
    ThrottledError,
    TimedOutError,
    UnexpectedAnswerError,
    of_status,
)
from lakegc_assets.lakefs.models import Page

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

REPEATABLE = frozenset({"GET", "HEAD"})
LONGEST_WAIT_S = 120.0
#: The longest pause in seconds before a server that is away is tried again.
_LONGEST_POLL_S = 10.0
#: Seconds of waiting for an answer after which a call is not sent again.
_PATIENCE_S: Final = 900.0
_MAY_PASS = (ConnectionFailedError, TimedOutError, ThrottledError, ServerError)
_REDIRECT = range(300, 400)
_LONGEST_CALL = 400

#: The most bytes of one answer, decompressed. Pages of a thousand long commits or paths take some
#: megabytes. A page that takes more is read again with fewer items.
LARGEST_ANSWER: Final = 64 * 2**20
_PIECE: Final = 64 * 2**10
LARGEST_PAGE = 1000
_GROWTH = 8
#: The most times that a list that may end early is read on after its last item.
ENDS: Final = 1000

_UNUSABLE: Final = "Run again; if that does not help, check the proxies and the server's log"

M = TypeVar("M", bound=pydantic.BaseModel)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Time-outs and retries of calls, in seconds.

    Attributes:
        read_timeout_s: between two bytes of an answer.
        max_attempts: the most attempts of a call that may be repeated.
        first_backoff_s: before the second attempt; each later pause is twice as long.
        wait_s: the longest wait of all calls together for a server that is away; 0 to make only
            ``max_attempts`` attempts.
        prepare_read_timeout_s: time-out of one prepare call; ``read_timeout_s`` if that is more.
        prepare_commits_timeout_s: time-out of the computation of active commits, by a task or by an
            older server's one call; ``read_timeout_s`` if that is more.
    """

    connect_timeout_s: float = 10.0
    read_timeout_s: float = 10.0
    max_attempts: int = 5
    first_backoff_s: float = 0.5
    wait_s: float = 0.0
    prepare_read_timeout_s: float = 300.0
    prepare_commits_timeout_s: float = 3600.0

    def __post_init__(self) -> None:
        """Refuse values that would wait for ever or never try."""
        prepare = min(self.prepare_read_timeout_s, self.prepare_commits_timeout_s)
        shortest = min(self.connect_timeout_s, self.read_timeout_s, prepare)
        if shortest <= 0 or self.first_backoff_s < 0:
            raise ConfigurationError(f"timeouts must be above 0 s: {self}")
        if not 0 <= self.wait_s < float("inf"):
            raise ConfigurationError(f"wait_s must be 0 s or more, and end: {self}")
        if self.max_attempts < 1:
            raise ConfigurationError(f"max_attempts must be 1 or more: {self}")

    @property
    def one_prepare_s(self) -> float:
        """The time-out of one prepare call."""
        return max(self.prepare_read_timeout_s, self.read_timeout_s)

    @property
    def active_commits_s(self) -> float:
        """The time-out of the server's computation of active commits."""
        return max(self.prepare_commits_timeout_s, self.read_timeout_s)


@dataclass(frozen=True)
class Access:
    """Endpoint (ending in ``/api/v1``) and key pair of a server; its repr shows no secret."""

    endpoint: str
    access_key_id: str
    secret_access_key: str = field(repr=False)


def path_of(*segments: str) -> str:
    """A path below the endpoint. Raises ConfigurationError: a segment would name another call."""
    for segment in segments:
        if segment in ("", ".", ".."):
            raise ConfigurationError(f"a name is {segment!r} in a call of {'/'.join(segments)!r}")
    return "".join(f"/{quote(segment, safe='')}" for segment in segments)


@dataclass(frozen=True)
class Listing(Generic[T]):
    """A list that the server returns in pages of a model, by the segments of its path.

    Attributes:
        key: the field by which the list is sorted; None for logs, which have no such field.
        params: beyond those of paging.
        amount: items in a page.
        growing: whether each page is larger than the one before it.
    """

    model: type[Page[T]]
    path: tuple[str, ...]
    key: str | None
    params: Mapping[str, str] = field(default_factory=dict)
    after: str = ""
    amount: int = LARGEST_PAGE
    growing: bool = False


class Transport:
    """One server, one key pair, one pool of connections, which threads may share; never pickled."""

    def __init__(self, access: Access, limits: Limits) -> None:
        self.endpoint = access.endpoint
        self._limits = limits
        self.session = requests.Session()
        self.session.auth = HTTPBasicAuth(
            access.access_key_id.encode(), access.secret_access_key.encode()
        )
        # The hook sees an answer before its body is read.
        self.session.hooks["response"].append(_bound)
        self.session.headers.update(
            {
                "Accept": "application/json",
                "User-Agent": "lakegc-assets",
                "Cache-Control": "no-cache",
            }
        )
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, HTTPAdapter(max_retries=0))
        # There is one server, but requests would look up its proxy and certificates at each call.
        found = self.session.merge_environment_settings(self.endpoint, {}, None, None, None)
        self.session.trust_env = False
        self.session.proxies, self.session.verify = found["proxies"], found["verify"]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.endpoint!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lakeFS client holds a secret: send its LakeFSConfig instead")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.session.close()

    def call(
        self,
        method: str,
        *segments: str,
        params: Mapping[str, str | int] | None = None,
        json: object = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
        read_timeout_s: float | None = None,
    ) -> requests.Response:
        """Send a call, repeat it if that is harmless, and return the successful answer.

        The ``segments`` of the path are quoted here. ``repeatable``: whether the server may see the
        call twice, by default for GET and HEAD only. Any other call is sent again only if no
        connection was made. Raises a subclass of LakeFSError if the last attempt failed; and
        ConfigurationError, as ``path_of``.
        """
        path = path_of(*segments)
        repeatable = method in REPEATABLE if repeatable is None else repeatable
        name = f"{method} {self.endpoint}{path}" + (f"?{urlencode(params)}" if params else "")
        call = name[:_LONGEST_CALL]
        timeout = (self._limits.connect_timeout_s, read_timeout_s or self._limits.read_timeout_s)
        send: dict[str, Any] = {
            "params": params, "json": json, "data": data, "headers": headers, "timeout": timeout,
        }  # fmt: skip
        attempt, began = 1, 0.0
        while True:
            try:
                return self._once(call, method, path, send)
            except _MAY_PASS as error:
                began = began or monotonic()
                pause = self._pause(attempt, error, began)
                again = repeatable and not (
                    isinstance(error, TimedOutError) and timeout[1] > _PATIENCE_S
                )
                if pause is None or not (again or error.never_sent):
                    raise
            sleep(pause)
            attempt += 1

    def _pause(self, attempt: int, error: LakeFSError, began: float) -> float | None:
        """Log and return the seconds until the attempt after this (from 1); None for no more."""
        limits, waits = self._limits, error.away and self._limits.wait_s > 0
        longest = min(
            _LONGEST_POLL_S if waits else LONGEST_WAIT_S,
            limits.first_backoff_s * 2.0 ** (attempt - 1),
        )
        # Jitter keeps the tasks of a run from coming back at the same time.
        pause = longest * random.uniform(0.5, 1.0)
        pause = max(pause, min(error.retry_after_s or 0.0, LONGEST_WAIT_S))
        if not waits:
            if attempt >= limits.max_attempts:
                return None
            logger.warning(
                "attempt %d of %d failed, next in %.1f s: %s",
                attempt, limits.max_attempts, pause, error,
            )  # fmt: skip
            return pause
        # Other calls may have waited longer; a single call without an answer must end, too.
        away, due = outages.note_away(self.endpoint, monotonic())
        waited = max(away, monotonic() - began)
        left = limits.wait_s - waited
        if attempt >= limits.max_attempts and left <= 0:
            error.args = (f"{error}. lakegc waited for {waited:.0f} s (lakefs_wait_seconds)",)
            return None
        if due:
            logger.warning(
                "lakeFS at %s is away: waiting for it, %.0f s of %.0f s: %s",
                self.endpoint, waited, limits.wait_s, error,
            )  # fmt: skip
        return min(pause, left) if left > 0 else pause

    def _once(
        self, call: str, method: str, path: str, send: Mapping[str, Any]
    ) -> requests.Response:
        traffic.add(traffic.LAKEFS, method)
        try:
            # A redirect could carry the credentials elsewhere, so none is followed.
            response = self.session.request(
                method, self.endpoint + path, allow_redirects=False, **send
            )
        except requests.RequestException as error:
            raise failure_of(call, error) from error
        if response.status_code not in AWAY and (
            seconds := outages.note_answer(self.endpoint, monotonic())
        ):
            logger.warning("lakeFS at %s answers again, after %.0f s", self.endpoint, seconds)
        if response.ok and response.status_code not in _REDIRECT:
            return response
        if response.status_code in _REDIRECT:
            target = urlsplit(response.headers.get("Location", ""))
            raise UnexpectedAnswerError(
                f"{call} answered {response.status_code}, a redirect to "
                f"{target.scheme}://{target.hostname}{target.path}. Redirects are not followed: "
                "set the endpoint to the server's own address"
            )
        failure = of_status(call, response.status_code, _message(response))
        failure.retry_after_s, failure.body = _retry_after_s(response), response.content
        raise failure

    def _get(self, model: type[M], *path: str, params: Mapping[str, str] | None = None) -> M:
        return parse(self.call("GET", *path, params=params), model)

    def _list(self, listing: Listing[T]) -> Iterator[T]:
        """Every item of a list, read in pages as needed."""
        for page in self._pages(listing):
            yield from page.results

    def _list_to_the_end(self, listing: Listing[T]) -> Iterator[T]:
        """Every item of a sorted list that the server may end early, read in pages as needed."""
        for page in self._pages_to_the_end(listing):
            yield from page.results

    def _pages(self, listing: Listing[T]) -> Iterator[Page[T]]:
        """The pages of a list. Raises UnexpectedAnswerError also if an offset is repeated.

        A sorted list continues after its last item, not at the server's offset: a later offset
        would hide the items between, and an earlier one would repeat items.
        """
        seen = {listing.after}
        while True:
            page = self.first_page(listing)
            yield page
            if not page.pagination.has_more:
                return
            after, amount = page.pagination.next_offset, listing.amount
            if listing.key is not None:
                after = _keys_of(page.results[-1:], listing)[0]
            if listing.growing:
                amount = min(_GROWTH * amount, LARGEST_PAGE)
            if after in seen:
                raise UnexpectedAnswerError(
                    f"{self._url_of(listing)}: the list does not advance: {after!r} came again as "
                    f"the offset. {_UNUSABLE}"
                )
            seen.add(after)
            listing = replace(listing, after=after, amount=amount)

    def _pages_to_the_end(self, listing: Listing[T]) -> Iterator[Page[T]]:
        """The pages with items of a sorted list that the server may end early.

        Such a list looks complete, so it is read on after its last item until nothing follows.
        Raises UnexpectedAnswerError also if items follow each time.
        """
        after: str | None = listing.after
        asked = 0
        while after is not None:
            asked += 1
            if asked > ENDS:
                raise UnexpectedAnswerError(
                    f"{self._url_of(listing)}: the list does not end, since items are added after "
                    "its last item again and again. Run again at a quieter time"
                )
            listing, after = replace(listing, after=after), None
            for page in self._pages(listing):
                if page.results:
                    after = _keys_of(page.results[-1:], listing)[0]
                    yield page

    def first_page(self, listing: Listing[T]) -> Page[T]:
        """The first page of a list, with fewer items if the answer is too large.

        Raises UnexpectedAnswerError: another number of items than announced, items out of order, or
        more items announced without an item to continue after.
        """
        after = listing.after
        asked: dict[str, str | int] = {**listing.params, "amount": listing.amount}
        if after:
            asked["after"] = after
        try:
            answer = self.call("GET", *listing.path, params=asked)
        except AnswerTooLargeError:
            if listing.amount == 1:
                raise
            return self.first_page(replace(listing, amount=max(listing.amount // _GROWTH, 1)))
        page = parse(answer, listing.model)
        paging = page.pagination
        where = f"{self._url_of(listing)} after {after!r}"
        if paging.results != len(page.results):
            raise UnexpectedAnswerError(
                f"{where}: the page says that it has {paging.results} items, and has "
                f"{len(page.results)}. {_UNUSABLE}"
            )
        if paging.has_more and not page.results:
            raise UnexpectedAnswerError(
                f"{where}: the page is empty, and says that more follow. {_UNUSABLE}"
            )
        if listing.key is not None:
            # Python compares code points, which gives the order of UTF-8 bytes, by which lakeFS
            # sorts.
            keys = _keys_of(page.results, listing)
            seen = [after, *keys] if after else keys
            if not all(map(lt, seen, seen[1:])):
                low, high = next(pair for pair in pairwise(seen) if pair[0] >= pair[1])
                raise UnexpectedAnswerError(f"{where}: {high!r} came after {low!r}. {_UNUSABLE}")
        return page

    def _url_of(self, listing: Listing[Any]) -> str:
        return self.endpoint + path_of(*listing.path)


class _BoundedBody:
    """The body of an answer; beyond ``LARGEST_ANSWER`` it raises AnswerTooLargeError."""

    def __init__(self, response: requests.Response) -> None:
        self._call = f"{response.request.method} {response.url}"[:_LONGEST_CALL]
        self._raw = response.raw

    def __getattr__(self, name: str) -> object:
        found: object = getattr(self._raw, name)
        return found

    def stream(self, _: int, *, decode_content: bool) -> Iterator[bytes]:
        size = 0
        for piece in self._raw.stream(_PIECE, decode_content=decode_content):
            size += len(piece)
            if size > LARGEST_ANSWER:
                self._raw.close()
                raise AnswerTooLargeError(
                    f"{self._call}: the answer is larger than {LARGEST_ANSWER:,} bytes, which no "
                    "lakeFS server sends. Check the endpoint and the proxies"
                )
            yield piece


def _bound(response: requests.Response, **_: object) -> None:
    response.raw = _BoundedBody(response)


def _keys_of(items: Sequence[Any], listing: Listing[Any]) -> list[str]:
    """The sort field of each item of a list."""
    key = listing.key or ""
    named: Callable[[Any], str] = attrgetter(key)
    if items and isinstance(items[0], dict):
        named = itemgetter(key)
    return list(map(named, items))


def failure_of(call: str, error: requests.RequestException) -> LakeFSError:
    """The error for a call without a complete answer."""
    reason = error.args[0] if error.args else None
    if isinstance(error, requests.ConnectTimeout):
        failure: LakeFSError = TimedOutError(
            f"{call}: no connection in time. Check the endpoint, and whether the server is up"
        )
        failure.never_sent = failure.away = True
    elif isinstance(error, requests.Timeout) or isinstance(reason, ReadTimeoutError):
        failure = TimedOutError(
            f"{call}: the answer did not come in time. Try again, or raise read_timeout_seconds "
            "of lakefs in the component"
        )
        failure.away = True
    elif isinstance(error, requests.exceptions.SSLError):
        cause = reason.reason if isinstance(reason, MaxRetryError) else reason
        failure = ConnectionFailedError(
            f"{call}: the server's certificate or TLS is not accepted ({cause}). Write http:// if "
            "it has none, or name the file of its CA in REQUESTS_CA_BUNDLE"
        )
        failure.transient = False
    else:
        cause = reason.reason if isinstance(reason, MaxRetryError) else reason
        failure = ConnectionFailedError(
            f"{call}: {type(error).__name__}: {cause}. Check the endpoint and the network"
        )
        failure.never_sent = isinstance(cause, NewConnectionError)
        failure.away = (
            isinstance(error, (requests.ConnectionError, requests.exceptions.ChunkedEncodingError))
            and not isinstance(error, requests.exceptions.ProxyError)
            and not isinstance(cause, NameResolutionError)
        )
        failure.transient = not _is_unknown_host(cause)
    return failure


def _is_unknown_host(cause: object) -> bool:
    """True if the host name is known not to exist; a silent name server proves nothing."""
    if not isinstance(cause, NameResolutionError):
        return False
    error = cause.__cause__
    return not (isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN)


def parse(response: requests.Response, model: type[M]) -> M:
    """Parse an answer's body as a model. Raises UnexpectedAnswerError: another body, or no JSON."""
    call = f"{response.request.method} {response.url}"[:_LONGEST_CALL]
    try:
        return model.model_validate_json(response.content)
    except pydantic.ValidationError as error:
        problem = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise UnexpectedAnswerError(
            f"{call} answered {response.status_code} with "
            f"{response.headers.get('Content-Type', 'no content type')}, which is not the answer "
            f"of a lakeFS server: {where + ': ' if where else ''}{problem['msg']}. Check the "
            "endpoint and the server's version"
        ) from None


def server_date(response: requests.Response) -> datetime:
    """The server's clock at its answer, in UTC, to the second. Raises UnexpectedAnswerError."""
    value = response.headers.get("Date", "")
    try:
        date = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        raise UnexpectedAnswerError(
            f"{response.url} answered with the Date header {value!r}, so the server's clock cannot "
            "be compared with this machine's. Check the proxies"
        ) from None
    return (
        date.replace(tzinfo=timezone.utc) if date.tzinfo is None else date.astimezone(timezone.utc)
    )


def _message(response: requests.Response) -> str | None:
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return None
    message = body.get("message") if isinstance(body, dict) else None
    return message if isinstance(message, str) else None


def _retry_after_s(response: requests.Response) -> float | None:
    try:
        return Retry().parse_retry_after(response.headers["Retry-After"])
    except (KeyError, ValueError, OverflowError, InvalidHeader):
        return None
