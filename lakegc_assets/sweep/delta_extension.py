"""The extension of a delta mark by branches that have moved since, as a pure function.

A branch that moved forward tells by its log what it has now. One that is gone, or that stands
somewhere else than behind its last HEAD, may have held commits in between that no branch leads to
any more, and that are inside their retention: only lakeFS's list of active commits names these.
What was alive stays alive, whatever the branches do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime

from lakegc_assets.errors import IntegrityError
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.retain import NO_RETAIN, Retain
from lakegc_assets.retention.retained import path_commits, retained_commits
from lakegc_assets.retention.rules import Rules


@dataclass(frozen=True)
class Known:
    """The known commits of a repository.

    Attributes:
        rules: the retention rules; None where there are none, so that all commits are active.
        now: the moment against which ages are taken.
        heads: HEAD of each branch.
        commits: all commits that were reached, by id; with a commit all those behind it.
        active: ids of those that are active.
        retain: rules that keep more than lakeFS's.
        paths: for each pattern of paths the commits of which stays what lies below it, but for
            active ones.
    """

    rules: Rules | None
    now: datetime
    heads: Mapping[str, str]
    commits: Mapping[str, Commit]
    active: AbstractSet[str]
    retain: Retain = NO_RETAIN
    paths: Mapping[str, AbstractSet[str]] = field(default_factory=dict)

    def metaranges(self) -> set[str]:
        """The metaranges of the active commits."""
        return {self.commits[commit].metarange_id for commit in self.active} - {""}


def unread(known: Known, commits: Collection[str]) -> list[str]:
    """Of some commits those whose logs are to be read."""
    return sorted(set(commits) - known.commits.keys())


def with_commits(known: Known, read: Mapping[str, Commit]) -> Known:
    """The same with more commits, none of which is active yet."""
    return replace(known, commits={**known.commits, **read})


def moved_aside(known: Known, heads: Mapping[str, str]) -> list[str]:
    """Branches that are gone, or whose last HEAD is not in their main ancestry any more.

    Args:
        known: with the commits of the new HEADs.
        heads: HEAD of each branch now.
    """
    return sorted(
        branch
        for branch, head in known.heads.items()
        if branch not in heads or not _is_behind(known.commits, head, heads[branch])
    )


def _is_behind(commits: Mapping[str, Commit], earlier: str, head: str) -> bool:
    current: str | None = head
    while current is not None and current != earlier:
        current = commits[current].main_parent
    return current == earlier


def extended(known: Known, heads: Mapping[str, str], listed: Mapping[str, str]) -> Known:
    """Extend the known commits by the current branches; live commits stay live.

    Args:
        known: with the commits of the new HEADs, and of the list.
        heads: HEAD of each branch now.
        listed: lakeFS's list of active commits with their metaranges, where it was asked for.

    Raises:
        IntegrityError: the list contradicts the log, or commits are missing.
    """
    for commit, metarange in listed.items():
        if known.commits[commit].metarange_id != metarange:
            raise IntegrityError(
                f"commit {commit} has metarange {known.commits[commit].metarange_id!r} in the log, "
                f"but {metarange!r} in the list of active commits: the list cannot be trusted",
            )
    if known.rules is None:
        active: AbstractSet[str] = known.commits.keys()
    else:
        # Tags have not changed, or the delta mark is over.
        active = retained_commits(
            known.commits, heads, {}, known.rules, known.retain, known.now
        ).active.keys()
    alive = known.active | active | listed.keys()
    return replace(known, heads=dict(heads), active=alive, paths=_paths(known, heads, alive))


def _paths(
    known: Known, heads: Mapping[str, str], alive: AbstractSet[str]
) -> Mapping[str, AbstractSet[str]]:
    if known.rules is None or not known.retain.paths:
        return known.paths
    now = path_commits(known.commits, heads, known.rules, known.retain, known.now)
    return {
        pattern: (known.paths.get(pattern, frozenset()) | kept.keys()) - alive
        for pattern, kept in now.items()
    }


def more_paths(before: Known, after: Known) -> list[str]:
    """Patterns of paths below which commits have something that were not known to."""
    return sorted(
        pattern
        for pattern, commits in after.paths.items()
        if not commits <= before.paths.get(pattern, frozenset())
    )
