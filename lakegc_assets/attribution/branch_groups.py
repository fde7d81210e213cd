"""Groups of branches that keep each active commit.

A branch keeps an active commit that would be active for this branch alone. A commit may also be
active for another reason: it is dangling, a protected tag names it, lakeFS reports it as active, or
the previous mark had it. No branch keeps such a commit, and its group has the bit of no branch. A
set of branches is a number: bit 0 is the bit of no branch, bit n + 1 is the bit of the nth name.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from lakegc_assets.attribution.relations import WORD
from lakegc_assets.retention.active_commits import SECONDS_A_DAY
from lakegc_assets.retention.rules import Rules

#: The set of no branch, and the first group: objects that are live and that no branch keeps.
NO_BRANCH: Final = 1


class Ancestor(NamedTuple):
    """A commit as the walks need it: its creation date (epoch seconds) and its main parent."""

    creation_date: int
    main_parent: str | None


@dataclass(frozen=True)
class Groups:
    """The sets of branches that keep commits."""

    #: Names, in the order of the bits of a set.
    branches: Sequence[str]
    #: The set of each group, by the group's number.
    sets: Sequence[int]
    #: The group of each metarange of an active commit.
    of_metarange: Mapping[str, int]

    def united(self, holders: str) -> int:
        """The set of all branches of the given groups, which are bit words as decimal numbers."""
        found = 0
        for number, word in enumerate(map(int, holders.split(","))):
            for bit in range(word.bit_length()):
                if word >> bit & 1:
                    found |= self.sets[number * WORD + bit]
        return found

    def names(self, members: int) -> list[str]:
        """The branches of a set, without the bit of no branch."""
        members >>= 1
        return [name for bit, name in enumerate(self.branches) if members >> bit & 1]


def keepers(
    heads: Mapping[str, str],
    commits: Mapping[str, Ancestor],
    rules: Rules | None,
    now: datetime,
) -> dict[str, int]:
    """The set of the branches that keep each commit, without the commits that no branch keeps.

    The rule is that of ``retention.active_commits``: a branch keeps its HEAD, each commit that was
    created within its retention, and the main parents of both. Without rules a branch keeps its
    whole main ancestry.

    Args:
        heads: branch → id of its HEAD.
        commits: the known part of the main ancestry of the branches.
        rules: of the repository; None without rules.
        now: the moment of the mark.
    """
    youngest = _youngest(commits)
    heads_of: defaultdict[float, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for number, branch in enumerate(sorted(heads)):
        threshold = -math.inf
        if rules is not None:
            threshold = now.timestamp() - rules.days(branch) * SECONDS_A_DAY
        heads_of[threshold][heads[branch]] |= 1 << (number + 1)
    found: defaultdict[str, int] = defaultdict(int)
    for threshold, walking in heads_of.items():
        for head, members in walking.items():
            found[head] |= members
        # Branches with the same threshold share one walk from their common ancestor on.
        for commit, latest in reversed(youngest.items()):
            members = walking.get(commit, 0)
            if not members or latest <= threshold:
                continue
            date, parent = commits[commit]
            if date > threshold:
                found[commit] |= members
            if parent is not None:
                walking[parent] |= members
                if date > threshold:
                    found[parent] |= members
    return dict(found)


def _youngest(commits: Mapping[str, Ancestor]) -> dict[str, int]:
    """The date of the youngest commit in the main ancestry of each commit, parents first.

    A child may have an earlier date than its parent.
    """
    found: dict[str, int] = {}
    for one in commits:
        path: list[str] = []
        current: str | None = one
        while current is not None and current in commits and current not in found:
            path.append(current)
            current = commits[current].main_parent
        for commit in reversed(path):
            date, parent = commits[commit]
            found[commit] = max(date, date if parent is None else found.get(parent, date))
    return found


def group(
    active: Iterable[tuple[str, str]],
    kept_by: Mapping[str, int],
    protected: AbstractSet[str],
    heads: Iterable[str],
) -> Groups:
    """Group metaranges by the branches that keep their commits.

    Args:
        active: commit and metarange of each active commit; an empty metarange holds no objects.
        kept_by: the set of branches of each commit; no branch keeps a commit that is missing here.
        protected: commits that stay independently of all branches.
        heads: names of all branches.
    """
    sets: dict[str, int] = {}
    for commit, metarange in active:
        if metarange:
            members = kept_by.get(commit, NO_BRANCH)
            members |= NO_BRANCH if commit in protected else 0
            sets[metarange] = sets.get(metarange, 0) | members
    numbers = {NO_BRANCH: 0}
    of_metarange = {
        metarange: numbers.setdefault(members, len(numbers)) for metarange, members in sets.items()
    }
    return Groups(sorted(heads), list(numbers), of_metarange)
