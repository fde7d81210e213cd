"""For how many days of retention commits become active, and for how many days they stay so.

Rules have one default and days for single branches. Where the latter are fixed, a commit is active
from some default on: so one number for each commit tells what every default keeps. Likewise the
days for which it stays active under fixed rules tell what every later day keeps, as long as nobody
writes. The definition of an active commit is that of ``active_commits``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final

from lakegc_assets.errors import IntegrityError
from lakegc_assets.retention.active_commits import SECONDS_A_DAY, Reason, active_commits
from lakegc_assets.retention.commits import Commit, dangling_commits
from lakegc_assets.retention.rules import Rules
from lakegc_assets.retention.union import Previous

#: Days for what no default keeps, and for what stays active for ever: more than a rule can have.
NEVER: Final = 2**40
FOREVER: Final = 2**40
_NONE: Final[Mapping[str, int]] = MappingProxyType({})


def days_needed(
    commits: Mapping[str, Commit],
    heads: Mapping[str, str],
    branches: Mapping[str, int],
    now: datetime,
    least: Mapping[str, int] = _NONE,
) -> dict[str, int]:
    """The least default retention, in days, under which each commit is active.

    Args:
        commits: id → commit. Must hold every HEAD and the whole main ancestry of each.
        heads: branch → id of its HEAD.
        branches: branch → days, for the branches that have a rule of their own.
        now: the moment of the run, aware.
        least: branch → days that it has at least, whatever its rule or the default is.

    Returns:
        Of each commit: 0 where it is active under every default; ``NEVER`` where it is under none.

    Raises:
        IntegrityError: a HEAD or a main parent is absent, or main parents form a circle.
        ValueError: ``now`` has no time zone.
    """
    always = active_commits(commits, heads, Rules(0, _longer(branches, least)), now).active
    starts = {head for branch, head in heads.items() if branch not in branches}
    starts |= dangling_commits(commits, heads)
    latest: dict[str, int] = {}
    for commit_id in _main_ancestry(commits, starts):
        commit = commits[commit_id]
        for held in filter(None, (commit_id, commit.main_parent)):
            latest[held] = max(latest.get(held, commit.creation_date), commit.creation_date)
    return {
        commit_id: 0
        if commit_id in always
        else _days_to_reach(latest[commit_id], now)
        if commit_id in latest
        else NEVER
        for commit_id in commits
    }


def days_left(active: Mapping[str, Reason], now: datetime) -> dict[str, int]:
    """For how many days from now on each active commit stays active, if nobody writes.

    Args:
        active: why each of them is, with the time at which that ends.
        now: the moment of the run, aware.

    Returns:
        Of each commit the number of whole days after which it is not active any more; ``FOREVER``
        where no date ends it.
    """
    return {
        commit_id: FOREVER
        if reason.until is None
        else -(math.floor(now.timestamp() - reason.until.timestamp()) // SECONDS_A_DAY)
        for commit_id, reason in active.items()
    }


def days_of_previous(
    previous: Previous,
    heads: Mapping[str, str],
    branches: Mapping[str, int],
    now: datetime,
    least: Mapping[str, int] = _NONE,
) -> dict[str, int]:
    """The least default, in days, under which a new mark keeps what an earlier mark knew as active.

    It is to ``union.still_inside`` what ``days_needed`` is to ``active_commits``.

    Args:
        previous: what the earlier mark knew.
        heads: branch → id of its HEAD.
        branches: branch → days, for the branches that have a rule of their own.
        now: the moment of the run, aware.
        least: branch → days that it has at least, whatever its rule or the default is.
    """
    found: dict[str, int] = {}
    for commit_id, reasons in previous.reasons.items():
        for reason in reasons:
            branch = reason.branch if reason.branch in heads else None
            was_head = reason.kind == "head" and branch is not None
            counted_from = previous.marked_at if was_head else reason.counted_from
            if counted_from is None:
                continue
            days = _days_to_reach(counted_from.timestamp(), now)
            if branch is not None and days <= max(branches.get(branch, 0), least.get(branch, 0)):
                days = 0
            elif branch is not None and branch in branches:
                days = NEVER
            found[commit_id] = min(days, found.get(commit_id, days))
    return found


def _longer(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {*one, *other}}


def _days_to_reach(created: float, now: datetime) -> int:
    """The least retention, in days, that holds what is counted from a time (epoch seconds)."""
    return max(0, math.floor(now.timestamp() - created) // SECONDS_A_DAY + 1)


def _main_ancestry(commits: Mapping[str, Commit], starts: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for start in starts:
        current: str | None = start
        while current is not None and current not in found:
            if current not in commits:
                raise IntegrityError(f"commit {current} is not among the commits read")
            found.add(current)
            current = commits[current].main_parent
    return found
