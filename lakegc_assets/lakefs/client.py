"""The client of a collector: all that can be read, retention rules, and what the server prepares.

The calls are those of lakeFS's REST API (https://docs.lakefs.io/latest/reference/api). The calls
that change a repository are in ``writes``; none of them is needed to collect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from time import monotonic, sleep
from typing import Any, TypeVar

import requests

from lakegc_assets.lakefs.errors import (
    EndpointNotFoundError,
    NoRulesError,
    NotFoundError,
    PrepareCommitsFailedError,
    TimedOutError,
    UnexpectedAnswerError,
)
from lakegc_assets.lakefs.models import (
    DumpedRefs,
    DumpStatus,
    PrepareCommitsStatus,
    PreparedCommits,
    PreparedCommitsResult,
    TaskCreated,
    UncommittedPage,
)
from lakegc_assets.lakefs.reads import Reads
from lakegc_assets.lakefs.transport import Transport, parse, path_of

T = TypeVar("T")

_FIRST_POLL_S = 0.1
_LONGEST_POLL_S = 10.0


class LakeFSClient(Reads):
    """The calls of a collector; every one may raise any ``LakeFSError``.

    The prepare calls answer when the work is done: a page of staged addresses takes a real server
    up to a minute. The task that computes the active commits has a timeout as a whole.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        prepare_read_timeout_s: float = 300.0,
        prepare_commits_timeout_s: float = 3600.0,
    ) -> None:
        super().__init__(transport)
        self._prepare_read_timeout_s = prepare_read_timeout_s
        self._prepare_commits_timeout_s = prepare_commits_timeout_s

    def gc_rules(self, repository: str) -> dict[str, Any] | None:
        """The retention rules as the server has them; None if, and only if, it has none."""
        path = path_of("repositories", repository)
        try:
            try:
                response = self.transport.call("GET", f"{path}/settings/gc_rules")
            except EndpointNotFoundError:
                # Older servers have the same call at another path.
                response = self.transport.call("GET", f"{path}/gc/rules")
        except EndpointNotFoundError:
            raise
        except NotFoundError:
            self.repository(repository)
            return None
        return _rules(response)

    def prepare_commits(self, repository: str) -> PreparedCommits:
        """Let the server compute its active commits, and write them to the namespace.

        Raises:
            NoRulesError: the repository has no retention rules.
            PrepareCommitsFailedError: the computation failed; with the server's words.
            ReadOnlyRepositoryError: the repository is read-only.
            TimedOutError: it was not completed in time.
        """
        path = ("repositories", repository, "gc", "prepare_commits")
        try:
            task = parse(self._prepare(path_of(*path, "async")), TaskCreated)
        except NotFoundError:
            # An older server has only the synchronous call. It never means that there are no rules.
            self.repository(repository)
        else:
            return self._await(repository, task.id)
        try:
            done = parse(self._prepare(path_of(*path)), PreparedCommitsResult)
        except NotFoundError as error:
            if self.gc_rules(repository) is None:
                raise _no_rules(repository, str(error)) from error
            raise
        return PreparedCommits(how="sync", **done.model_dump())

    def _await(self, repository: str, task_id: str) -> PreparedCommits:
        path = ("repositories", repository, "gc", "prepare_commits", "status")

        def ended() -> PrepareCommitsStatus | None:
            status = self._get(PrepareCommitsStatus, *path, params={"id": task_id})
            if status.task_id != task_id:
                raise UnexpectedAnswerError(
                    f"asked for the task {task_id}, the server answered for {status.task_id}"
                )
            return status if status.completed else None

        status = _poll(ended, self._prepare_commits_timeout_s)
        if status is None:
            raise TimedOutError(
                f"preparing the commits of {repository!r} (task {task_id}) was not completed "
                f"in {self._prepare_commits_timeout_s:.0f} s: run again, or raise "
                "prepare_commits_timeout_s"
            )
        if status.error is not None:
            if self.gc_rules(repository) is None:
                raise _no_rules(repository, status.error.message)
            raise PrepareCommitsFailedError(
                f"the server failed to prepare the commits of {repository!r} (task {task_id}): "
                f"{status.error.message}"
            )
        if status.result is None:
            raise UnexpectedAnswerError(
                f"task {task_id} of {repository!r} is completed, with neither result nor error"
            )
        return PreparedCommits(how="async", **status.result.model_dump())

    def dump_refs(self, repository: str) -> DumpedRefs:
        """Let the server list all commits, branches and tags that it has; where the lists are.

        It writes them below ``_lakefs/`` of the namespace, as it does for a backup of refs.

        Raises:
            ForbiddenError: the user may not list commits, branches and tags.
            NotFoundError: the server is too old.
            TimedOutError: it was not done in time.
            UnexpectedAnswerError: it failed, with the server's words.
        """
        path = ("repositories", repository, "dump")
        task = parse(self._prepare(path_of(*path)), TaskCreated)

        def ended() -> DumpStatus | None:
            status = self._get(DumpStatus, *path, params={"task_id": task.id})
            return status if status.done else None

        status = _poll(ended, self._prepare_read_timeout_s)
        if status is None:
            raise TimedOutError(f"the list of all commits of {repository!r} takes too long")
        if status.refs is None:
            raise UnexpectedAnswerError(
                f"the server did not list the commits of {repository!r}: {status.error}"
            )
        return status.refs

    def prepare_uncommitted(self, repository: str) -> Iterator[UncommittedPage]:
        """Let the server write the staged addresses to the namespace, page by page.

        Every page is given as it came, with or without a location. Only when the last one has
        come is the snapshot complete: after an error, begin again.

        Raises:
            NotFoundError: the repository is missing, or a branch went away in the middle.
            ReadOnlyRepositoryError: the repository is read-only.
            UnexpectedAnswerError: pages of different runs, or a token that does not advance.
        """
        path = path_of("repositories", repository, "gc", "prepare_uncommited")
        seen: set[str] = set()
        run_id = None
        body: dict[str, str] = {}
        while True:
            page = parse(self._prepare(path, body), UncommittedPage)
            if run_id not in (None, page.run_id):
                raise UnexpectedAnswerError(
                    f"preparing the staged objects of {repository!r}: a page of run "
                    f"{page.run_id} came after one of run {run_id}. Begin again"
                )
            run_id = page.run_id
            token = page.continuation_token
            if token in seen:
                raise UnexpectedAnswerError(
                    f"preparing the staged objects of {repository!r} (run {run_id}) does not "
                    f"advance: after {len(seen)} pages the server gave a continuation token "
                    "again. Check ugc.prepare_max_file_size in the server's configuration"
                )
            yield page
            if token is None:
                return
            seen.add(token)
            body = {"continuation_token": token}

    def _prepare(self, path: str, body: Mapping[str, str] | None = None) -> requests.Response:
        # A prepare call that is made twice writes two runs, of which one is never looked at.
        return self.transport.call(
            "POST", path, json=body, repeatable=True, read_timeout_s=self._prepare_read_timeout_s
        )


def _poll(ended: Callable[[], T | None], timeout_s: float) -> T | None:
    """Ask whether a task has ended, more and more seldom; None if it has not in time."""
    deadline, pause = monotonic() + timeout_s, _FIRST_POLL_S
    while (found := ended()) is None and monotonic() + pause <= deadline:
        sleep(pause)
        pause = min(pause * 1.5, _LONGEST_POLL_S)
    return found


def _rules(response: requests.Response) -> dict[str, Any]:
    try:
        rules = response.json()
    except ValueError:
        rules = None
    if not isinstance(rules, dict) or "branches" not in rules:
        raise UnexpectedAnswerError(f"{response.url} answered, but not with retention rules")
    # The server writes a list without items as null.
    return {**rules, "branches": [] if rules["branches"] is None else rules["branches"]}


def _no_rules(repository: str, said: str) -> NoRulesError:
    return NoRulesError(
        f"{repository!r} has no retention rules, so the server lists no active commits ({said}). "
        "Every commit counts as active; set rules to collect committed objects"
    )
