"""A naive second implementation of active commits, which the checks compare with the first.

It shares only the data classes with ``active_commits``, and follows the words of lakeFS issue 1932.
For each retention it finds the main ancestry of all starts that have it, then the commits created
inside, then their main parents. Time grows with commits times different retentions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from lakegc_assets.errors import IntegrityError
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.rules import Rules

_DAMAGED = "the log was not read in full, or is damaged. Run again"


def naive_active_commits(
    commits: Mapping[str, Commit], heads: Mapping[str, str], rules: Rules, now: datetime
) -> set[str]:
    """Return the ids of the active commits.

    Arguments and errors are those of ``active_commits.active_commits``.
    """
    if now.tzinfo is None:
        raise ValueError(f"now must be an aware time, not {now!r}")
    active = set(heads.values())
    seen: set[str] = set()
    for days, starts in _starts_by_retention(commits, heads, rules).items():
        threshold = now.timestamp() - days * 24 * 60 * 60
        ancestry = _main_ancestries(starts, commits)
        for commit_id in ancestry:
            if commits[commit_id].creation_date > threshold:
                active.add(commit_id)
                active.update(_main_parent(commits[commit_id]))
        seen |= ancestry
    if lost := commits.keys() - seen:
        raise IntegrityError(
            f"no branch and no dangling commit leads to {min(lost)}: main parents form a circle, "
            f"so {_DAMAGED}"
        )
    return active


def _starts_by_retention(
    commits: Mapping[str, Commit], heads: Mapping[str, str], rules: Rules
) -> dict[int, set[str]]:
    starts: dict[int, set[str]] = {}
    for branch, head in heads.items():
        starts.setdefault(rules.days(branch), set()).add(head)
    replaced = {parent for commit in commits.values() for parent in _main_parent(commit)}
    dangling = commits.keys() - replaced
    # A hypothetical child with the tip's own date makes the tip active exactly if the tip itself
    # was created inside, so this uses the tip in place of the child.
    starts.setdefault(rules.default_retention_days, set()).update(dangling - set(heads.values()))
    return starts


def _main_ancestries(starts: Collection[str], commits: Mapping[str, Commit]) -> set[str]:
    found: set[str] = set()
    for start in starts:
        path: set[str] = set()
        following = {start} - found
        while following:
            (current,) = following
            if current in path:
                raise IntegrityError(
                    f"the main parents of commit {current} form a circle, so {_DAMAGED}"
                )
            if current not in commits:
                raise IntegrityError(f"commit {current} is not among the commits read: {_DAMAGED}")
            path.add(current)
            following = _main_parent(commits[current]) - found
        found |= path
    return found


def _main_parent(commit: Commit) -> set[str]:
    """Return the main parent as a set: empty for the first commit."""
    return set(commit.parents[:1] if commit.version >= 1 else commit.parents[-1:])
