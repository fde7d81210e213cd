"""Groups of branches that keep each active commit.

A branch keeps what an active commit holds that would be active for this branch alone. What is
active for another reason (a dangling commit, a protected tag, lakeFS's word, the previous mark) is
kept by no branch, and a group says so. A set of branches is a number: bit 0 is that of no branch,
bit n + 1 that of the nth name.
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

#: The set of no branch, and the first group: what is live, and kept by no branch.
NO_BRANCH: Final = 1


class Ancestor(NamedTuple):
    """A commit as the walks need it: its creation date (epoch seconds) and its main parent."""

    creation_date: int
    main_parent: str | None


@dataclass(frozen=True)
class Groups:
    """The sets of branches that keep commits.

    Attributes:
        branches: in the order of the bits of a set.
        sets: the set of each group, by its number.
        of_metarange: the group of each metarange of an active commit.
    """

    branches: Sequence[str]
    sets: Sequence[int]
    of_metarange: Mapping[str, int]

    def united(self, holders: str) -> int:
        """The set of all branches of some groups, which are words of bits, as decimal numbers."""
        found = 0
        for number, word in enumerate(map(int, holders.split(","))):
            for bit in range(word.bit_length()):
                if word >> bit & 1:
                    found |= self.sets[number * WORD + bit]
        return found

    def names(self, members: int) -> list[str]:
        """The branches of a set, without that of no branch."""
        members >>= 1
        return [name for bit, name in enumerate(self.branches) if members >> bit & 1]


def keepers(
    heads: Mapping[str, str],
    commits: Mapping[str, Ancestor],
    rules: Rules | None,
    now: datetime,
) -> dict[str, int]:
    """The set of the branches that keep each commit; those that none keeps are left out.

    As ``retention.active_commits`` has it: a HEAD, what was created within the retention of its
    branch, and the main parents of these. Without rules a branch keeps its whole main ancestry.

    Args:
        heads: branch → id of its HEAD.
        commits: the main ancestry of the branches, as far as it is known.
        rules: of the repository; None where it has none.
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
        # Branches with the same threshold walk on together from where they meet.
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
    """The date of the youngest commit in the main ancestry of each, parents before children.

    Dates need not grow from parent to child.
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
        active: commit and metarange of each active commit; empty where it holds nothing.
        kept_by: the set of branches of each commit; none keeps what is not in it.
        protected: commits that stay whatever branches do.
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
