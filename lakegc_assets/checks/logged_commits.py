"""Commits from the server's logs, and the commits that the ``retain`` rules keep.

This module shares no code with the walk of the mark that it checks.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.models import Commit as LoggedCommit
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.naive_active_commits import naive_active_commits
from lakegc_assets.retention.retain_rules import FOREVER, Retain
from lakegc_assets.retention.rules import Rules


def main_ancestries(
    client: LakeFSClient, repository: str, refs: Iterable[str]
) -> dict[str, Commit]:
    """Return the commits of the main ancestries of some commits, as the server's log lists them.

    ``refs``: ids of commits. Many branches may share a HEAD, or have a HEAD that is an ancestor of
        another one. The log of a commit that has been read is not requested again.
    """
    commits: dict[str, Commit] = {}
    waiting = list(refs)
    while waiting:
        ref = waiting.pop()
        if ref in commits:
            continue
        for found in client.log(repository, ref, first_parent=True):
            if found.id in commits:
                break
            commits[found.id] = _commit(found)
            # Servers that list all ancestors may list a known commit before the main parent.
            waiting += _main_parent(found)
    return commits


def longest_rules(rules: Rules, retain: Retain, branches: Iterable[str]) -> Rules:
    """Return for each branch the most days that any rule gives it.

    ``retain``: the rules that keep more than lakeFS's.
    ``branches``: names of the existing branches.
    """
    days = dict(rules.branches)
    for branch in branches:
        given = [rules.default_retention_days if branch not in rules.branches else days[branch]]
        given += [rule.days or 0 for p, rule in retain.branches.items() if _matches(p, branch)]
        days[branch] = max(given)
    return Rules(rules.default_retention_days, days)


def kept_commits(
    client: LakeFSClient,
    repository: str,
    heads: Mapping[str, str],
    tags: Mapping[str, str],
    retain: Retain,
) -> set[str]:
    """Return the commits that the ``retain`` rules keep regardless of their age.

    ``heads``: branch → id of its HEAD.
    ``tags``: tag → id of its commit.

    Raises:
        LakeFSError: the server did not answer, or a log is incomplete.
    """
    found = {c for tag, c in tags.items() if any(_matches(p, tag) for p in retain.tags)}
    for branch, head in heads.items():
        counts = [
            rule.last_commits or 0 for p, rule in retain.branches.items() if _matches(p, branch)
        ]
        if number := max(counts, default=0):
            found |= _last(client, repository, head, number)
    if retain.metadata:
        for commit in _all_commits(client, repository, [*heads.values(), *tags.values()]):
            for key, values in retain.metadata.items():
                if key in commit.metadata and ("*" in values or commit.metadata[key] in values):
                    found.add(commit.id)
    return found


def path_commits(
    client: LakeFSClient,
    repository: str,
    heads: Mapping[str, str],
    tags: Mapping[str, str],
    rules: Rules,
    retain: Retain,
    now: datetime,
) -> dict[str, dict[str, str]]:
    """Return for each pattern of paths the commits that keep their entries below it.

    ``heads``: branch → id of its HEAD.
    ``tags``: tag → id of its commit.

    Returns:
        The metarange of each of these commits, including active commits.

    Raises:
        LakeFSError: the server did not answer, or a log is incomplete.
    """
    if not retain.paths:
        return {}
    logged = _all_commits(client, repository, [*heads.values(), *tags.values()])
    commits = {commit_id.id: _commit(commit_id) for commit_id in logged}
    longest = longest_rules(rules, retain, heads)
    found: dict[str, dict[str, str]] = {}
    for pattern, days in retain.paths.items():
        active = set(commits)
        if days != FOREVER:
            longer = Rules(
                max(days, longest.default_retention_days),
                {branch: max(days, of) for branch, of in longest.branches.items()},
            )
            active = naive_active_commits(commits, heads, longer, now)
        found[pattern] = {commit_id: commits[commit_id].metarange_id for commit_id in active}
    return found


def _commit(logged: LoggedCommit) -> Commit:
    return Commit(
        logged.id,
        tuple(logged.parents),
        logged.creation_date,
        logged.meta_range_id,
        logged.version,
    )


def _main_parent(logged: LoggedCommit) -> tuple[str, ...]:
    return logged.parents[:1] if logged.version >= 1 else logged.parents[-1:]


def _matches(pattern: str, name: str) -> bool:
    return re.match(fnmatch.translate(pattern), name) is not None


def _last(client: LakeFSClient, repository: str, head: str, number: int) -> set[str]:
    """Return a HEAD and the main parents before it, ``number`` commits in all."""
    found: set[str] = set()
    following = {head}
    # Some servers list all ancestors.
    for commit in client.log(repository, head, first_parent=True):
        if len(found) == number or not following:
            break
        if commit.id in following:
            found.add(commit.id)
            following = set(_main_parent(commit))
    return found


def _all_commits(
    client: LakeFSClient, repository: str, refs: Iterable[str]
) -> Iterator[LoggedCommit]:
    """Yield every ancestor of some commits, and the commits themselves, each once."""
    seen: set[str] = set()
    waiting = set(refs)
    while waiting:
        ref = waiting.pop()
        if ref in seen:
            continue
        for commit in client.log(repository, ref, first_parent=True):
            if commit.id in seen:
                break
            seen.add(commit.id)
            waiting.update(commit.parents)
            yield commit
