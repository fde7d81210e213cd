"""The active commits as today's lakeFS finds them: some are missing, depending on commit ids."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from lakegc_assets.retention.active_commits import SECONDS_A_DAY
from lakegc_assets.retention.commits import Commit, dangling_commits
from lakegc_assets.retention.rules import Rules


def order_dependent_walk(
    commits: Mapping[str, Commit], heads: Mapping[str, str], rules: Rules, now: datetime
) -> Iterable[str]:
    """The commits that lakeFS calls active.

    It walks from HEADs and dangling commits in the order of their ids. A walk ends at a parent that
    an earlier walk with the same or a longer retention has visited. It ends there before it checks
    whether the child is young enough to keep that parent. Commits are by id, heads by branch.
    """
    active: set[str] = set()
    thresholds: dict[str, float] = {}
    for commit_id, branch in _starts(commits, heads):
        days = rules.default_retention_days if branch is None else rules.days(branch)
        threshold = now.timestamp() - days * SECONDS_A_DAY
        created, parent = commits[commit_id].creation_date, commits[commit_id].main_parent
        if branch is None:
            # lakeFS treats the commit as if it had a child of its own age.
            parent = commit_id
        else:
            active.add(commit_id)
            thresholds[commit_id] = threshold
        while parent is not None and thresholds.get(parent, math.inf) > threshold:
            if created > threshold:
                active.add(parent)
            thresholds[parent] = threshold
            created, parent = commits[parent].creation_date, commits[parent].main_parent
    return active


def _starts(
    commits: Mapping[str, Commit], heads: Mapping[str, str]
) -> Iterator[tuple[str, str | None]]:
    """Each commit where a walk starts, with the branch that has it as HEAD; None if dangling."""
    branches = [(head, branch) for branch, head in heads.items()]
    dangling = [(commit_id, "") for commit_id in dangling_commits(commits, heads)]
    for commit_id, branch in sorted(branches + dangling):
        yield commit_id, branch or None
