"""Commits with the values that retention uses: id, date, parents, metarange and metadata.

See ``Commit`` for lakeFS's rules about them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Final

from lakegc_assets.errors import IntegrityError

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: The first and the last second of a datetime, since 1970: clients give lakeFS dates beyond them,
#: some of them in milliseconds.
FIRST_SECOND: Final = (datetime.min.replace(tzinfo=timezone.utc) - _EPOCH) // timedelta(seconds=1)
LAST_SECOND: Final = (datetime.max.replace(tzinfo=timezone.utc) - _EPOCH) // timedelta(seconds=1)

_PARENT_SWITCH = 1
"""First version of a commit whose first parent is the branch it was made on."""


@dataclass(frozen=True)
class Commit:
    """A commit of a lakeFS repository.

    Attributes:
        id: its id, 64 hexadecimal digits on a real server.
        parents: ids of its parents, as the API orders them; empty for the first commit.
        creation_date: epoch seconds. Users may give it, so it can be earlier than the parents' or
            in the future.
        metarange_id: id of its metarange; empty if the commit has no entries.
        version: lakeFS's version of the commit's form.
        committer: name of the user who made it; empty if it is unknown.
        metadata: its keys and values.
    """

    id: str
    parents: tuple[str, ...]
    creation_date: int
    metarange_id: str = ""
    version: int = 1
    committer: str = ""
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def main_parent(self) -> str | None:
        """The commit that was the branch's HEAD before this one; None for the first commit.

        It is the first parent. Commits from before lakeFS's parent switch (version below 1) name
        the merged branch first, so for them it is the last parent.
        """
        if not self.parents:
            return None
        return self.parents[0] if self.version >= _PARENT_SWITCH else self.parents[-1]


def main_ancestry(commits: Mapping[str, Commit], commit_id: str) -> Iterator[Commit]:
    """Yield a commit and its main ancestors, the newest first.

    Raises:
        IntegrityError: one of them is not among the commits.
    """
    current: str | None = commit_id
    while current is not None:
        if current not in commits:
            raise IntegrityError(
                f"commit {current} is not among the commits read: the log was not read in full. "
                "Run again"
            )
        yield commits[current]
        current = commits[current].main_parent


def dangling_commits(commits: Mapping[str, Commit], heads: Mapping[str, str]) -> frozenset[str]:
    """Return the ids of the commits that are no commit's main parent and no HEAD.

    These are the last commits of deleted or reset branches, and of branches that were merged and
    deleted. Each of them starts a main ancestry that no branch reaches.

    Args:
        commits: id → commit, all that are known.
        heads: branch → id of its HEAD.
    """
    main_parents = {commit.main_parent for commit in commits.values()}
    return frozenset(commits.keys() - main_parents - set(heads.values()))


def instant(epoch_seconds: float) -> datetime:
    """Return the aware UTC time of ``epoch_seconds``, or the nearest that a datetime can hold."""
    return _EPOCH + timedelta(seconds=min(max(epoch_seconds, FIRST_SECOND), LAST_SECOND))
