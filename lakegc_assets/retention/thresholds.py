"""Days of retention from which commits are active, and days for which they stay active.

Rules have one default and days for single branches. If the latter are fixed, a commit is active
from some default on. So one number for each commit shows the commits that every default keeps.
Likewise the days for which a commit stays active under fixed rules show the active commits of every
later day, if there are no new commits. ``active_commits`` defines an active commit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final

from lakegc_assets.retention.active_commits import SECONDS_A_DAY, Reason, active_commits
from lakegc_assets.retention.commits import Commit, dangling_commits, main_ancestry
from lakegc_assets.retention.rules import Rules
from lakegc_assets.retention.union import Previous

#: Days for a commit that no default keeps, or that stays active for ever: more than rules allow.
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
    """Return the least default retention, in days, under which each commit is active.

    Args:
        commits: id → commit. Must include every HEAD and the whole main ancestry of each.
        heads: branch → id of its HEAD.
        branches: branch → days, for the branches that have a rule of their own.
        now: the moment of the run, aware.
        least: branch → its least days, regardless of its rule and of the default.

    Returns:
        For each commit: 0 if it is active under every default; ``NEVER`` if under none.

    Raises:
        IntegrityError: a HEAD or a main parent is absent, or main parents form a circle.
        ValueError: ``now`` has no time zone.
    """
    always = active_commits(commits, heads, Rules(0, _longer(branches, least)), now).active
    starts = {head for branch, head in heads.items() if branch not in branches}
    starts |= dangling_commits(commits, heads)
    latest: dict[str, int] = {}
    passed: set[str] = set()
    for start in starts:
        for commit in main_ancestry(commits, start):
            if commit.id in passed:
                break
            passed.add(commit.id)
            for held in filter(None, (commit.id, commit.main_parent)):
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
    """Return the days from now for which each active commit stays active, without new commits.

    These are whole days, after which it is not active any more; ``FOREVER`` if no date ends it.
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
    """Return the least default, in days, under which a new mark keeps a commit of an earlier mark.

    It corresponds to ``union.still_inside`` as ``days_needed`` does to ``active_commits``, and has
    the arguments of ``days_needed``.
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
    """Return the least retention, in days, that holds a reason counted from an epoch second."""
    return max(0, math.floor(now.timestamp() - created) // SECONDS_A_DAY + 1)
