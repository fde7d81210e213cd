"""Serve what a real lakeFS answered about one recorded repository, over HTTP, to any client.

An answer that was recorded for the very request is given as it was. Others are derived where the
recording holds enough truth for it: lists in any page size, logs of any commit, ``stat`` from the
listing of a branch. What cannot be told is refused with 400 and the word "recorded", never guessed.
"""

from __future__ import annotations

import base64
import heapq
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import format_datetime
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets_tests import http_server
from lakegc_assets_tests.http_server import Asked, serving

if TYPE_CHECKING:
    from typing_extensions import Self

GOLDEN = Path(__file__).parent / "golden"
API = "/api/v1"
ACCESS_KEY = "replay-access-key"
SECRET_KEY = "replay-secret-key"


@dataclass(frozen=True)
class Request:
    """A request as it came; ``path`` is that below ``/api/v1``, still quoted."""

    method: str
    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @cached_property
    def segments(self) -> tuple[str, ...]:
        return tuple(unquote(part) for part in self.path.strip("/").split("/"))

    @cached_property
    def json(self) -> Any:
        return json.loads(self.body) if self.body else None


@dataclass(frozen=True)
class Answer:
    """Status, body (bytes and str as they are, None for no body, else as JSON) and headers."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


Override = Answer | tuple[int, Any] | Callable[[Request], Answer | None]


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def wrong(status: int, message: str) -> Answer:
    return Answer(status, {"message": message})


def paged(items: Iterable[dict[str, Any]], key: str, params: Mapping[str, str]) -> Answer:
    """One page of a list that is sorted by a field, as lakeFS cuts it."""
    after, prefix = params.get("after", ""), params.get("prefix", "")
    rest = [i for i in items if i[key].startswith(prefix) and (not after or i[key] > after)]
    return _page(rest, key, params)


def _page(rest: list[dict[str, Any]], key: str, params: Mapping[str, str]) -> Answer:
    amount = int(params.get("amount", "100"))
    if amount > 1000:
        return wrong(400, 'parameter "amount" in query has an error: number must be at most 1000')
    amount = {0: 100, -1: 1000}.get(amount, amount)
    results, has_more = rest[:amount], len(rest) > amount
    pagination = {
        "has_more": has_more,
        "max_per_page": 1000,
        "next_offset": results[-1][key] if has_more else "",
        "results": len(results),
    }
    return Answer(200, {"pagination": pagination, "results": results})


class Recording:
    """The recorded answers about one repository, and what follows from them."""

    def __init__(self, repository: str) -> None:
        self.repository = repository
        self.root = GOLDEN / repository
        self.calls = {
            path.stem: json.loads(path.read_text("utf-8"))
            for path in sorted((self.root / "api").glob("*.json"))
        }
        self.exact: dict[tuple[str, str, frozenset[tuple[str, str]]], Answer] = {}
        self.stats: dict[tuple[str, str], Answer] = {}
        for call in self.calls.values():
            request, answer = call["request"], Answer(call["status"], call["body"])
            path = request["path"].removeprefix(API)
            params = request["params"] or {}
            if request["method"] == "GET" and answer.status != 401:
                pairs = frozenset((name, str(value)) for name, value in params.items())
                self.exact[request["method"], path, pairs] = answer
            if path.endswith("/objects/stat"):
                self.stats[unquote(path.split("/")[4]), params["path"]] = answer

    def body(self, name: str) -> Any:
        return self.calls[name]["body"]

    def recorded(self, name: str) -> Answer:
        call = self.calls[name]
        return Answer(call["status"], call["body"])

    def variant(self, name: str) -> list[dict[str, Any]]:
        """The answers to the prepare calls, in order."""
        found: list[dict[str, Any]] = json.loads((self.root / name / "answers.json").read_text())
        return found

    def branches(self, *, hidden: bool = True) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.body("branches_show_hidden" if hidden else "branches")[
            "results"
        ]
        return found

    @cached_property
    def commits(self) -> dict[str, dict[str, Any]]:
        logs = (c for n, call in self.calls.items() if n.startswith("log") for c in _items(call))
        single = (call["body"] for n, call in self.calls.items() if n.startswith("commit."))
        return {commit["id"]: commit for commit in [*logs, *single]}

    @cached_property
    def refs(self) -> dict[str, str]:
        named = [*self.branches(), *self.body("tags")["results"]]
        return {**{c: c for c in self.commits}, **{n["id"]: n["commit_id"] for n in named}}

    def log(self, ref: str, *, first_parent: bool) -> Iterator[dict[str, Any]]:
        """Ancestors by falling date, as lakeFS lists them; or first parents only."""
        heads = [self.commits[self.refs[ref]]]
        heap = [(-heads[0]["creation_date"], -heads[0]["generation"], heads[0]["id"])]
        seen = {heads[0]["id"]}
        while heap:
            commit = self.commits[heapq.heappop(heap)[2]]
            yield commit
            for parent in commit["parents"][: 1 if first_parent else None]:
                if parent not in seen:
                    seen.add(parent)
                    found = self.commits[parent]
                    heapq.heappush(heap, (-found["creation_date"], -found["generation"], parent))


@cache
def recording(repository: str) -> Recording:
    """The recording of a repository, read once; its answers are not to be changed."""
    return Recording(repository)


def _items(call: dict[str, Any]) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = call["body"]["results"]
    return results


class ReplayServer(ExitStack):
    """An HTTP server with the recorded answers of one repository; use it in a ``with``.

    Args:
        repository: a directory of ``golden/``.
        prepare: which recorded variant answers ``prepare_uncommited``.
        has_async: whether the server is new enough for the async prepare call.

    Attributes:
        endpoint: URL of the server, without ``/api/v1``.
        clock: gives the ``Date`` of answers; may be replaced at any time.
        prepare: as above; may be replaced at any time.
        has_async: as above.
        overrides: (method, regex of the whole path below ``/api/v1``) -> what to answer instead; a
            callable may return None to leave a request to the recording. Looked at before the
            credentials are.
        requests: all requests in the order they came.
    """

    def __init__(
        self, repository: str, *, prepare: str = "prepare", has_async: bool = True
    ) -> None:
        super().__init__()
        self.repository = repository
        self.recording = recording(repository)
        self.prepare = prepare
        self.has_async = has_async
        self.clock: Callable[[], datetime] = utc_now
        self.overrides: dict[tuple[str, str], Override] = {}
        self.requests: list[Request] = []
        self._polls = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self.endpoint = self.enter_context(serving(self._respond))
        return self

    def _respond(self, asked: Asked) -> http_server.Answer:
        path = asked.path.removeprefix(API)
        answer = self.answer(
            Request(asked.method, path, asked.query, dict(asked.headers), asked.body)
        )
        body, kind = answer.body, "text/html"
        if not isinstance(body, (bytes, str, type(None))):
            body, kind = json.dumps(body), "application/json"
        raw = body.encode() if isinstance(body, str) else body or b""
        date = format_datetime(self.clock().astimezone(timezone.utc), usegmt=True)
        headers = {"Date": date, "Content-Type": kind, **answer.headers}
        return http_server.Answer(answer.status, raw, [*headers.items()])

    def config(self, directory: Path, **settings: Any) -> LakeFSConfig:
        """Settings of a client of this server, whose credentials are written to a directory."""
        path = directory / "lakectl.yaml"
        path.write_text(
            f"server:\n  endpoint_url: {self.endpoint}\ncredentials:\n"
            f"  access_key_id: {ACCESS_KEY}\n  secret_access_key: {SECRET_KEY}\n"
        )
        path.chmod(0o600)
        fast = {"first_backoff_s": 0.01, **settings}
        return LakeFSConfig(endpoint=self.endpoint, credentials_file=str(path), **fast)

    def asked(self, method: str, pattern: str) -> list[Request]:
        """The requests so far whose whole path matches."""
        return [r for r in self.requests if r.method == method and re.fullmatch(pattern, r.path)]

    def answer(self, request: Request) -> Answer:
        """What the server says to a request."""
        with self._lock:
            self.requests.append(request)
        for (method, pattern), override in list(self.overrides.items()):
            if method == request.method and re.fullmatch(pattern, request.path):
                found = override(request) if callable(override) else override
                if found is not None:
                    return found if isinstance(found, Answer) else Answer(*found)
        if request.segments == ("healthcheck",):
            return Answer(204)
        if request.headers.get("Authorization") != _authorization():
            return self.recording.recorded("err.repo_wrong_secret_401")
        exact = (request.method, request.path, frozenset(request.params.items()))
        return self.recording.exact.get(exact) or self.derived(request)

    def derived(self, request: Request) -> Answer:
        """What the recording implies for a request that it has not; overrides do not count."""
        repository, path = request.segments[1:2], "/".join(request.segments[2:])
        if request.segments == ("repositories",) and request.method == "GET":
            return paged(self.recording.body("repositories")["results"], "id", request.params)
        if request.segments[0] != "repositories" or not repository:
            return wrong(404, "invalid API endpoint")
        if repository[0] != self.repository:
            return self._other(request)
        for method, pattern, route in _ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method == request.method:
                return route(self, request, *match.groups())
        return wrong(404, "invalid API endpoint")

    def _other(self, request: Request) -> Answer:
        known = self.recording.body("repositories")["results"]
        found = [repository for repository in known if repository["id"] == request.segments[1]]
        if not found:
            return self.recording.recorded("err.repo_404")
        return Answer(200, found[0]) if len(request.segments) == 2 else _untold(request)

    def _branches(self, request: Request) -> Answer:
        hidden = request.params.get("show_hidden") == "true"
        return paged(self.recording.branches(hidden=hidden), "id", request.params)

    def _branch(self, _request: Request, name: str) -> Answer:
        found = [branch for branch in self.recording.branches() if branch["id"] == name]
        return Answer(200, found[0]) if found else self.recording.recorded("err.branch_404")

    def _diff(self, request: Request, left: str, right: str) -> Answer:
        """Answer with the recorded diff of a branch: lakeFS has the same items in both calls."""
        branch = left.removesuffix("@")
        if right != f"{branch}$" or request.params.get("type") != "two_dot":
            return _untold(request)
        diff = self.recording.calls.get(f"diff_uncommitted.{branch}")
        if diff is None:
            return self.recording.recorded("err.branch_404")
        return paged(_items(diff), "path", request.params)

    def _tags(self, request: Request) -> Answer:
        return paged(self.recording.body("tags")["results"], "id", request.params)

    def _commit(self, _request: Request, ref: str) -> Answer:
        commit = self.recording.commits.get(self.recording.refs.get(ref, ""))
        return Answer(200, commit) if commit else self.recording.recorded("err.commit_404")

    def _log(self, request: Request, ref: str) -> Answer:
        if ref not in self.recording.refs:
            return wrong(404, "ref: not found")
        first_parent = request.params.get("first_parent") == "true"
        commits = list(self.recording.log(ref, first_parent=first_parent))
        after = request.params.get("after")
        if after:
            ids = [commit["id"] for commit in commits]
            if after not in ids:
                return _untold(request)
            commits = commits[ids.index(after) + 1 :]
        return _page(commits, "id", request.params)

    def _ls(self, request: Request, ref: str) -> Answer:
        listing = self.recording.calls.get(f"ls.{ref}")
        if listing is None or request.params.get("delimiter"):
            return self._untold_of(request, ref)
        return paged(_items(listing), "path", request.params)

    def _stat(self, request: Request, ref: str) -> Answer:
        path = request.params["path"]
        listing = self.recording.calls.get(f"ls.{ref}")
        if listing is None:
            return self._untold_of(request, ref)
        if (ref, path) in self.recording.stats:
            return self.recording.stats[ref, path]
        found = [item for item in _items(listing) if item["path"] == path]
        return Answer(200, found[0]) if found else self.recording.recorded("err.stat_404")

    def _untold_of(self, request: Request, ref: str) -> Answer:
        return _untold(request) if ref in self.recording.refs else wrong(404, "ref: not found")

    def _location(self, _request: Request, name: str) -> Answer:
        return Answer(200, {"location": f"_lakefs/{name}"})

    def _prepare_sync(self, _request: Request) -> Answer:
        return self._prepared("prepare_commits_sync")[0]

    def _prepare_async(self, _request: Request) -> Answer:
        if not self.has_async:
            return wrong(500, "invalid API endpoint")
        self._polls = 0
        return self._prepared("prepare_commits_async")[0]

    def _status(self, request: Request) -> Answer:
        answers = self._prepared("prepare_commits_status")
        if not self.has_async or request.params.get("id") != answers[0].body["task_id"]:
            return self.recording.recorded("err.prepare_status_unknown")
        with self._lock:
            poll = min(self._polls, len(answers) - 1)
            self._polls += 1
        return answers[poll]

    def _prepared(self, name: str) -> list[Answer]:
        calls = self.recording.variant("prepare")
        return [Answer(c["status"], c["body"]) for c in calls if c["name"].startswith(name)]

    def _uncommitted(self, request: Request) -> Answer:
        token = (request.json or {}).get("continuation_token", "")
        if token is None:
            return wrong(400, "request body has an error: Value is not nullable")
        for call in self.recording.variant(self.prepare):
            if call["name"].startswith("prepare_uncommitted"):
                asked = (call["request"]["body"] or {}).get("continuation_token", "")
                if asked == token:
                    return Answer(call["status"], call["body"])
        return self.recording.recorded("err.prepare_uncommitted_bad_token")


_Route = Callable[..., Answer]
_ROUTES: tuple[tuple[str, str, _Route], ...] = (
    ("GET", r"branches", ReplayServer._branches),
    ("GET", r"branches/([^/]+)", ReplayServer._branch),
    ("GET", r"refs/([^/]+)/diff/([^/]+)", ReplayServer._diff),
    ("GET", r"tags", ReplayServer._tags),
    ("GET", r"commits/([^/]+)", ReplayServer._commit),
    ("GET", r"refs/([^/]+)/commits", ReplayServer._log),
    ("GET", r"refs/([^/]+)/objects/ls", ReplayServer._ls),
    ("GET", r"refs/([^/]+)/objects/stat", ReplayServer._stat),
    ("GET", r"metadata/(?:meta_)?range/([^/]+)", ReplayServer._location),
    ("POST", r"gc/prepare_commits", ReplayServer._prepare_sync),
    ("POST", r"gc/prepare_commits/async", ReplayServer._prepare_async),
    ("GET", r"gc/prepare_commits/status", ReplayServer._status),
    ("POST", r"gc/prepare_uncommited", ReplayServer._uncommitted),
)


def _untold(request: Request) -> Answer:
    return wrong(400, f"replay: nothing recorded tells {request.method} {request.path}")


def _authorization() -> str:
    return "Basic " + base64.b64encode(f"{ACCESS_KEY}:{SECRET_KEY}".encode()).decode()
