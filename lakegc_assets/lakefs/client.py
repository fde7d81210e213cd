"""The client of a collector: the reads of lakeFS's REST API, and what the server prepares.

A prepare call makes the server write a list to the storage namespace, and returns its place.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from functools import partial
from time import monotonic, sleep
from typing import TypeVar

import requests
from pydantic import ValidationError

from lakegc_assets.lakefs.errors import (
    LakeFSError,
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
    TaskCreated,
    TaskStatus,
    UncommittedPage,
)
from lakegc_assets.lakefs.reads import LakeFSReads
from lakegc_assets.lakefs.transport import parse

logger = logging.getLogger(__name__)

_START_OF_COMMIT_ID = re.compile(r"[0-9a-fA-F]{1,64}")
Status = TypeVar("Status", bound=TaskStatus)
FIRST_POLL_S = 0.1
#: The most starts of a task that fails; each start has the full time-out of such a task.
_TASKS = 3
#: Seconds until a task that has not ended is begun once more; each next time, four times as many.
_LOST_S = 300.0
_LONGEST_POLL_S = 10.0


def utc_now() -> datetime:
    """Return the time by this machine's clock."""
    return datetime.now(timezone.utc)


def branch_ref(branch: str) -> str:
    """The ref of a branch with its staged objects.

    lakeFS reads hexadecimal digits as the commit whose id starts with them. A ref that ends in
    ``$`` is a branch or an error.
    """
    return f"{branch}$" if _START_OF_COMMIT_ID.fullmatch(branch) else branch


class LakeFSClient(LakeFSReads):
    """The calls of a collector: all reads, and the server's prepare calls.

    Every call may raise any ``LakeFSError``. A prepare call answers when its work is done: a page
    of staged addresses takes a real server up to a minute.
    """

    def prepare_commits(self, repository: str) -> PreparedCommits:
        """Make the server compute its active commits and write them to the namespace.

        Read the commits behind all HEADs before: from 1.76 to 1.84 at least, the whole server ends
        with a panic if it does not find one of them.

        Raises NoRulesError, PrepareCommitsFailedError, ReadOnlyRepositoryError and TimedOutError.
        """
        attempt = 1
        while True:
            try:
                return self._prepared_commits(repository)
            except NoRulesError:
                raise
            except PrepareCommitsFailedError as error:
                # Before 1.39 the task fails if a commit is added meanwhile (lakeFS #8261).
                pause = self._pause(attempt, error, 0.0)
                if pause is None or attempt == _TASKS:
                    raise
            sleep(pause)
            attempt += 1

    def _prepared_commits(self, repository: str) -> PreparedCommits:
        path = ("repositories", repository, "gc", "prepare_commits")
        try:
            task_id = self._begin(*path, "async")
        except NotFoundError:
            # An older server has only the synchronous call. This never means that there are no
            # rules.
            self.repository(repository)
        else:
            return self._await(repository, task_id)
        try:
            # The older server does in this one call the work of a newer server's task.
            limit_s = self._limits.active_commits_s
            return parse(self._prepare(*path, limit_s=limit_s), PreparedCommits)
        except NotFoundError as error:
            if self.gc_rules(repository) is None:
                raise _no_rules(repository, str(error)) from error
            raise
        except LakeFSError as error:
            return _behind(error)

    def _await(self, repository: str, task_id: str) -> PreparedCommits:
        path = ("repositories", repository, "gc", "prepare_commits")
        what = f"preparing the commits of {repository!r} (task {task_id})"
        limit_s = self._limits.active_commits_s
        # A server that was restarted (1.72 to 1.84, by the source) leaves its task unfinished.
        states = partial(self._get, PrepareCommitsStatus, *path, "status")
        again = partial(self._begin, *path, "async")
        status = self._ended(states, "id", task_id, limit_s, what, again)
        if status.error is not None:
            if self.gc_rules(repository) is None:
                raise _no_rules(repository, status.error.message)
            raise PrepareCommitsFailedError(
                f"{what} failed on the server: {status.error.message}. Read the server's log, and "
                "run again"
            )
        if status.result is None:
            raise UnexpectedAnswerError(
                f"{what} is completed, with neither result nor error. Read the server's log, and "
                "run again"
            )
        return status.result

    def dump_refs(self, repository: str) -> DumpedRefs:
        """Make the server dump commits, branches and tags below ``_lakefs/``; return their places.

        Raises ForbiddenError; NotFoundError: the server is too old; TimedOutError; and
        UnexpectedAnswerError.
        """
        path = ("repositories", repository, "dump")
        task_id = self._begin(*path)
        limit_s, what = self._limits.one_prepare_s, f"listing all commits of {repository!r}"
        status = self._ended(
            partial(self._get, DumpStatus, *path), "task_id", task_id, limit_s, what
        )
        if status.refs is None:
            raise UnexpectedAnswerError(
                f"{what} failed on the server: {status.error}. Read the server's log, and run again"
            )
        return status.refs

    def _begin(self, *path: str) -> str:
        """Start a task and return its id."""
        return parse(self._prepare(*path), TaskCreated).id

    def _ended(
        self,
        state_of: Callable[..., Status],
        param: str,
        task_id: str,
        limit_s: float,
        what: str,
        again: Callable[[], str] | None = None,
    ) -> Status:
        """Wait for a task and return its state. Raises TimedOutError and UnexpectedAnswerError.

        ``again``: begins the same task once more, in case that the server has lost it; the first
        one that ends counts.
        """
        began, pause, tasks, lost_s = monotonic(), FIRST_POLL_S, [task_id], _LOST_S
        while True:
            for one in tasks:
                status = state_of(params={param: one})
                if status.task_id != one:
                    raise UnexpectedAnswerError(
                        f"{what}: the server was asked for the task {one} and answered for "
                        f"{status.task_id}. Check the proxies"
                    )
                if status.completed:
                    return status
            waited = monotonic() - began
            if waited + pause > limit_s:
                raise TimedOutError(
                    f"{what} was not completed in {limit_s:.0f} s: run again, or raise "
                    "read_timeout_seconds beyond that"
                )
            if again is not None and waited > lost_s:
                tasks.append(again())
                lost_s += 4 * lost_s
                logger.warning(
                    "%s is not completed after %.0f s, as if the server had been restarted: "
                    "begun once more, as task %s", what, waited, tasks[-1],
                )  # fmt: skip
            sleep(pause)
            pause = min(pause * 1.5, _LONGEST_POLL_S)

    def prepare_uncommitted(self, repository: str) -> Iterator[UncommittedPage]:
        """Make the server write the staged addresses to the namespace, page by page.

        Yields every page as received, with or without a location. Only the last page completes the
        snapshot: after an error, start again. Raises NotFoundError, also if a branch is deleted
        meanwhile; ReadOnlyRepositoryError; and UnexpectedAnswerError: pages of different runs, or a
        repeated token.
        """
        seen: set[str] = set()
        run_id = None
        body: dict[str, str] = {}
        while True:
            path = ("repositories", repository, "gc", "prepare_uncommited")
            page = parse(self._prepare(*path, body=body), UncommittedPage)
            if run_id not in (None, page.run_id):
                raise UnexpectedAnswerError(
                    f"preparing the staged objects of {repository!r}: a page of run "
                    f"{page.run_id} came after one of run {run_id}. Run again"
                )
            run_id = page.run_id
            token = page.continuation_token
            if token in seen:
                raise UnexpectedAnswerError(
                    f"preparing the staged objects of {repository!r} (run {run_id}) does not "
                    f"advance: after {len(seen)} pages the server repeated a continuation "
                    "token. Check ugc.prepare_max_file_size in the server's configuration"
                )
            yield page
            if token is None:
                return
            seen.add(token)
            body = {"continuation_token": token}

    def _prepare(
        self, *path: str, body: Mapping[str, str] | None = None, limit_s: float | None = None
    ) -> requests.Response:
        # A repeated prepare call writes a second run, of which nobody reads the first: no harm.
        limit_s = limit_s or self._limits.one_prepare_s
        return self.call("POST", *path, json=body, repeatable=True, read_timeout_s=limit_s)


def _behind(error: LakeFSError) -> PreparedCommits:
    """The answer behind an error, which is raised if there is none.

    From 1.54 to 1.71, a server whose storage signs no URLs writes the list of active commits, and
    then sends both: the error of the URL, and in a second line the location of the list.
    """
    said, _, answer = error.body.partition(b"\n")
    if b"operation not supported" not in said:
        raise error
    try:
        return PreparedCommits.model_validate_json(answer)
    except ValidationError:
        raise error from None


def _no_rules(repository: str, said: str) -> NoRulesError:
    return NoRulesError(
        f"{repository!r} has no retention rules, so the server lists no active commits ({said}). "
        "Every commit counts as active; set rules to collect committed objects"
    )
