"""Reads of lakeFS's REST API that refuse answers that contradict themselves or each other.

The calls are those of lakeFS's REST API (https://docs.lakefs.io/latest/reference/api).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cache
from itertools import chain
from typing import Any, TypeVar

import requests

from lakegc_assets.lakefs.errors import (
    AuthenticationError,
    BadRequestError,
    EndpointNotFoundError,
    ForbiddenError,
    LakeFSError,
    NotFoundError,
    RepositoryInDeletionError,
    UnexpectedAnswerError,
    UnsupportedServerError,
    read_only,
)
from lakegc_assets.lakefs.models import (
    Branch,
    Change,
    Commit,
    DiffEntry,
    GracePeriod,
    ObjectStats,
    Page,
    Repository,
    ServerConfig,
    Tag,
    UsageReport,
    VersionConfig,
    as_made,
    is_changed,
)
from lakegc_assets.lakefs.transport import LARGEST_PAGE, Listing, Transport, server_date
from lakegc_assets.wording import counted

logger = logging.getLogger(__name__)

#: The oldest supported version. Older servers list active commits without their metaranges.
#: (Servers before 0.90 accept a link to an address at any time.)
OLDEST_VERSION = (0, 100)
#: Commits in the first page of a log: most branches left the known commits only recently.
_FIRST_OF_LOG = 30
_COMMIT_ID = re.compile(r"[0-9a-f]{64}")
_UNREAD = (
    "Run again: lakeFS may not find a commit that was cherry-picked until it reads it again, after "
    "ten minutes"
)
_LOST_HEAD = (
    "{!r} of {!r} points to commit {}, which the server does not find. Run again in ten minutes, "
    "when it has read anew what was cherry-picked. If nothing can be read by that name even then, "
    "lakeFS has made it from the id of a commit that was just cherry-picked: delete it"
)
Item = TypeVar("Item")


@cache
def _log_odd_version(endpoint: str, version: str) -> None:
    """Log once per process that a version is no number: every stage of a run asks for it."""
    logger.warning(
        "%s has version %r, which cannot be compared with %d.%d: taken for a newer one",
        endpoint, version, *OLDEST_VERSION,
    )  # fmt: skip


class LakeFSReads(Transport):
    """The calls of a collector that only read: the server, repositories, references, objects.

    Every call may raise any ``LakeFSError``.
    """

    # The server

    def server_config(self) -> ServerConfig:
        """The version of the server."""
        try:
            return self._get(ServerConfig, "config")
        except EndpointNotFoundError:
            # Older servers have a separate call for the version.
            return ServerConfig(version_config=self._get(VersionConfig, "config", "version"))

    def check_supported(self) -> str:
        """The server's version, perhaps no number. Raises UnsupportedServerError: below 0.100."""
        version = self.server_config().version_config.version
        numbers = re.match(r"v?(\d+)\.(\d+)", version)
        if numbers is None:
            _log_odd_version(self.endpoint, version)
        elif (int(numbers[1]), int(numbers[2])) < OLDEST_VERSION:
            raise UnsupportedServerError(
                f"{self.endpoint} is lakeFS {version}; garbage collection needs "
                f"{OLDEST_VERSION[0]}.{OLDEST_VERSION[1]} or newer: upgrade the server"
            )
        return version

    def installation_id(self) -> str | None:
        """The id of the server's installation; None if the server does not tell it to this user."""
        try:
            return self._get(UsageReport, "usage-report", "summary").installation_id or None
        except (BadRequestError, ForbiddenError, NotFoundError, UnexpectedAnswerError):
            return None

    def grace_period(self) -> timedelta:
        """The time in which a client may link an address that the server handed out."""
        found = self._get(GracePeriod, "config", "garbage-collection")
        return timedelta(seconds=found.grace_period)

    def server_time(self) -> datetime:
        """The server's clock, in UTC, to the second (from the ``Date`` header)."""
        return server_date(self.call("GET", "healthcheck"))

    # Repositories and refs

    def repository(self, repository: str) -> Repository:
        """A repository."""
        found = self._get(Repository, "repositories", repository)
        if found.id != repository:
            raise UnexpectedAnswerError(
                f"{self.endpoint} was asked for repository {repository!r} and "
                f"answered with {found.id!r}. Check the proxies"
            )
        return found

    def may_have_repository(self, name: str) -> bool:
        """Return False only if the server says that the repository does not exist, or no longer."""
        try:
            self.repository(name)
        except (AuthenticationError, ForbiddenError):
            return True
        except EndpointNotFoundError:
            raise
        except (NotFoundError, RepositoryInDeletionError):
            return False
        return True

    def writable_repository(self, repository: str) -> Repository:
        """A repository that can be collected. Raises ReadOnlyRepositoryError."""
        found = self.repository(repository)
        if found.read_only:
            raise read_only(f"{self.endpoint}, {repository!r}")
        return found

    def repositories(self, prefix: str = "") -> Iterator[Repository]:
        """All repositories that the user may see, by name.

        Any repository may name objects of another, or share its namespace. If the server ends a
        list early, the list is read to its end.
        """
        params = {"prefix": prefix} if prefix else {}
        return self._list_to_the_end(Listing(Page[Repository], ("repositories",), "id", params))

    def branches(
        self, repository: str, *, after: str = "", show_hidden: bool = True
    ) -> Iterator[Branch]:
        """All branches after a name, by name; by default the hidden ones, too."""
        params = {"show_hidden": "true"} if show_hidden else {}
        path = ("repositories", repository, "branches")
        return self._list(Listing(Page[Branch], path, "id", params, after))

    def branch(self, repository: str, branch: str) -> Branch:
        """A branch."""
        return self._get(Branch, "repositories", repository, "branches", branch)

    def tags(self, repository: str, *, after: str = "") -> Iterator[Tag]:
        """All tags after a name, by name."""
        path = ("repositories", repository, "tags")
        return self._list(Listing(Page[Tag], path, "id", {}, after))

    def tag(self, repository: str, tag: str) -> Tag:
        """A tag."""
        return self._get(Tag, "repositories", repository, "tags", tag)

    def commit(self, repository: str, commit_id: str, *, by_name: bool = True) -> Commit:
        """A commit.

        ``by_name``: whether a commit that the server does not find by its id is read by the name of
        a branch or tag that points to it. This lists all branches and tags.

        Raises UnexpectedAnswerError: the server answers this id with another commit.
        """
        missing: LakeFSError
        try:
            told = self._get(Commit, "repositories", repository, "commits", commit_id)
        except EndpointNotFoundError:
            raise
        except NotFoundError as error:
            missing = error
        else:
            found = as_made(told, commit_id)
            if found.id == commit_id:
                return found
            missing = UnexpectedAnswerError(
                f"{self.endpoint} was asked for commit {commit_id} of {repository!r} and answered "
                f"with {found.id}, as lakeFS may in the ten minutes after a cherry-pick. Run again "
                "after that"
            )
        named = self._named(repository, commit_id) if by_name else None
        if named is None:
            raise missing
        return named

    def log(
        self, repository: str, ref: str, *, first_parent: bool = True, by_name: bool = True
    ) -> Iterator[Commit]:
        """The commits from a ref on, newest first; at least one.

        Servers that do not know ``first_parent`` list all ancestors. ``by_name`` is as in
        ``commit``. Raises UnexpectedAnswerError at the end of the log: a first parent is missing.
        """
        begun = False
        try:
            for commit in self._log(repository, ref, ref, first_parent=first_parent):
                begun = True
                yield commit
        except EndpointNotFoundError:
            raise
        except NotFoundError as error:
            # The server may find a cherry-picked commit only by the name of a branch or tag.
            name = self._name_of(repository, ref) if by_name and not begun else None
            if name is None:
                if _COMMIT_ID.fullmatch(ref):
                    error.args = (f"{error}. {_UNREAD}",)
                raise
            behind = self._log(repository, name, ref, first_parent=first_parent)
            try:
                first = next(behind)
            except NotFoundError as lost:
                # A branch may be created from, or set to, the id of a commit in the ten minutes
                # after a cherry-pick of that commit. It then points to one that does not exist.
                lost.args = (f"{lost}. {_LOST_HEAD.format(name, repository, ref)}",)
                raise
            # The branch may have moved since it was listed.
            if first.id != ref:
                raise
            yield from chain((first,), behind)

    def _log(
        self, repository: str, ref: str, commit_id: str, *, first_parent: bool
    ) -> Iterator[Commit]:
        """Read a ``log``; ``commit_id`` is the id of the first commit, if it is known."""
        params = {"first_parent": "true"} if first_parent else {}
        seen: set[str] = set()
        awaited: set[str] = set()
        asked: set[str] = set()
        rest = ref
        while rest and rest not in seen | asked:
            asked.add(rest)
            path = ("repositories", repository, "refs", rest, "commits")
            listing = Listing(
                Page[Commit], path, key=None, params=params, amount=_FIRST_OF_LOG, growing=True
            )
            rest = ""
            for told in self._list(listing):
                commit = as_made(as_made(told, told.id), commit_id)
                commit_id = next(iter(commit.parents), "")
                seen.add(commit.id)
                # In a merge from before the parents were switched, either parent may be the main
                # one.
                if commit.version >= 1 or len(commit.parents) == 1:
                    awaited.update(commit.parents[:1])
                yield commit
                # lakeFS finds no next page by the id of a cherry-picked commit, and ends the log.
                rest = commit_id if first_parent and is_changed(told) else ""
        if not seen or not awaited <= seen:
            raise UnexpectedAnswerError(
                f"the log of {ref!r} in {repository!r} ends after {counted(len(seen), 'commit')}, "
                f"although {len(awaited - seen)} of their first parents have not come: run again"
            )

    def _named(self, repository: str, commit_id: str) -> Commit | None:
        """Read a commit by the name of a branch or tag that points to it; None if there is none."""
        name = self._name_of(repository, commit_id)
        if name is None:
            return None
        found = next(self._log(repository, name, commit_id, first_parent=True), None)
        return found if found is not None and found.id == commit_id else None

    def _name_of(self, repository: str, commit_id: str) -> str | None:
        """The name of a branch or tag that points to a commit; None without one, or for no id."""
        if not _COMMIT_ID.fullmatch(commit_id):
            return None
        branches = (one.id for one in self.branches(repository) if one.commit_id == commit_id)
        tags = (one.id for one in self.tags(repository) if one.commit_id == commit_id)
        return next(chain(branches, tags), None)

    # Objects

    def stat(self, repository: str, ref: str, path: str) -> ObjectStats:
        """The object that a ref serves at a path, staged or committed."""
        segments = ("repositories", repository, "refs", ref, "objects", "stat")
        params = {"path": path, "user_metadata": "true", "presign": "false"}
        try:
            found = self._get(ObjectStats, *segments, params=params)
        except EndpointNotFoundError as error:
            # "Nothing is served there" would be a fact about the object, and this error is none.
            raise UnexpectedAnswerError(str(error)) from error
        if found.path != path:
            raise UnexpectedAnswerError(
                f"{self.endpoint} was asked for {path!r} of {ref!r} in {repository!r} and answered "
                f"with {found.path!r}. Check the proxies"
            )
        return found

    def objects(
        self, repository: str, ref: str, prefix: str = "", amount: int = LARGEST_PAGE
    ) -> Iterator[ObjectStats]:
        """The objects that a ref serves, staged or committed, by path; read in pages as needed.

        If the server ends a list early, the list is read to its end: a restore would miss the rest.
        """
        return self._list_to_the_end(_served(repository, ref, amount, prefix=prefix))

    def objects_page(
        self, repository: str, ref: str, after: str = "", amount: int = LARGEST_PAGE
    ) -> tuple[list[ObjectStats], bool]:
        """The page of ``objects`` after a path (in byte order), and whether more follow."""
        page = self.first_page(_served(repository, ref, amount, after=after))
        return page.results, page.pagination.has_more

    def get_object(self, repository: str, ref: str, path: str) -> bytes:
        """The bytes of an object; ``GoneError`` if they were collected."""
        segments = ("repositories", repository, "refs", ref, "objects")
        return self.call("GET", *segments, params={"path": path}).content

    def diff_branch(self, repository: str, branch: str, after: str = "") -> Iterator[DiffEntry]:
        """Staged changes of a branch, in the order of their paths."""
        pages = self._diff(Page[DiffEntry], repository, branch, after)
        return chain.from_iterable(page.results for page in pages)

    def changes(self, repository: str, branch: str) -> Iterator[list[Change]]:
        """The whole of ``diff_branch`` in pages, for callers that read much of it."""
        return (page.results for page in self._diff(Page[Change], repository, branch))

    def _diff(
        self, model: type[Page[Item]], repository: str, branch: str, after: str = ""
    ) -> Iterator[Page[Item]]:
        """The changes from the HEAD of a branch to what it has staged, in pages.

        lakeFS's own call for the diff of a branch drops the error of a scan of the key-value store,
        and answers with the changes so far, or with none. This comparison of two references reports
        such an error.
        """
        path = ("repositories", repository, "refs", f"{branch}@", "diff", f"{branch}$")
        try:
            yield from self._pages_to_the_end(
                Listing(model, path, "path", {"type": "two_dot"}, after)
            )
        except BadRequestError:
            # A branch that is gone may have the name of a tag, or of the start of a commit's id.
            self.branch(repository, branch)
            raise

    # Retention rules

    def gc_rules(self, repository: str) -> dict[str, Any] | None:
        """The server's retention rules; None if, and only if, it has none."""
        path = ("repositories", repository)
        try:
            try:
                response = self.call("GET", *path, "settings", "gc_rules")
            except EndpointNotFoundError:
                # Older servers have the same call at another path.
                response = self.call("GET", *path, "gc", "rules")
        except EndpointNotFoundError:
            raise
        except NotFoundError:
            self.repository(repository)
            return None
        return _rules(response)


def _served(
    repository: str, ref: str, amount: int, *, prefix: str = "", after: str = ""
) -> Listing[ObjectStats]:
    path = ("repositories", repository, "refs", ref, "objects", "ls")
    params = {"user_metadata": "true", "presign": "false"}
    if prefix:
        params["prefix"] = prefix
    return Listing(Page[ObjectStats], path, "path", params, after, amount)


def _rules(response: requests.Response) -> dict[str, Any]:
    try:
        rules = response.json()
    except (ValueError, RecursionError):
        rules = None
    if not isinstance(rules, dict) or "branches" not in rules:
        raise UnexpectedAnswerError(
            f"{response.url} answered, but not with retention rules. Check the endpoint and the "
            "server's version"
        )
    # The server writes a list without items as null.
    return {**rules, "branches": [] if rules["branches"] is None else rules["branches"]}
