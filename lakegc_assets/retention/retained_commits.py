"""Commits kept by ``retain`` rules: longer days, tags, last commits, metadata and paths."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import islice

from lakegc_assets.retention.active_commits import ActiveCommits, Reason, active_commits
from lakegc_assets.retention.commits import Commit, main_ancestry
from lakegc_assets.retention.retain_rules import FOREVER, Retain
from lakegc_assets.retention.rules import MAX_DAYS, Rules
from lakegc_assets.retention.union import Previous, still_inside
from lakegc_assets.wording import counted


def retained_commits(
    commits: Mapping[str, Commit],
    heads: Mapping[str, str],
    tags: Mapping[str, str],
    rules: Rules,
    retain: Retain,
    now: datetime,
) -> ActiveCommits:
    """Find the commits that lakeFS's rules or the ``retain`` rules keep active.

    Args:
        commits: id → commit. Must include every HEAD and the whole main ancestry of each.
        heads: branch → id of its HEAD, hidden branches too.
        tags: tag → id of its commit.
        rules: lakeFS's rules.
        retain: rules that keep more.
        now: the moment of the run, aware.

    Raises:
        IntegrityError: as ``active_commits`` does.
        ValueError: ``now`` has no time zone.
    """
    found = active_commits(commits, heads, rules, now)
    if not retain:
        return found
    longer = lengthen(rules, retain, heads)
    if longer != rules:
        longest = active_commits(commits, heads, longer, now)
        found = ActiveCommits(_named(retain, longest.active, found.active), longest.expired)
    kept = kept_commits(commits, heads, tags, retain)
    # The next mark needs the date from which days count, so the dated reason stays, with the rule.
    with_rule = {
        commit_id: replace(found.active[commit_id], rule=reason.rule)
        for commit_id, reason in kept.items()
        if commit_id in found.active
    }
    return ActiveCommits({**kept, **found.active, **with_rule}, found.expired - kept.keys())


def lengthen(rules: Rules, retain: Retain, branches: Iterable[str]) -> Rules:
    """Return lakeFS's rules with the most days for each branch that any rule gives it."""
    longer = {
        name: max(rules.days(name), days) for name, days in least_days(retain, branches).items()
    }
    return Rules(rules.default_retention_days, {**rules.branches, **longer}) if longer else rules


def raise_days(rules: Rules, days: int) -> Rules:
    """Return rules that give every branch, and dangling commits, at least some days."""
    days = min(days, MAX_DAYS)
    return Rules(
        max(rules.default_retention_days, days),
        {branch: max(of, days) for branch, of in rules.branches.items()},
    )


def path_commits(
    commits: Mapping[str, Commit],
    heads: Mapping[str, str],
    rules: Rules,
    retain: Retain,
    now: datetime,
    previous: Sequence[Previous] = (),
) -> dict[str, dict[str, Reason]]:
    """Return for each pattern of paths the commits that keep their entries below it, and why.

    These are the commits that would be active if every branch, and dangling commits, had at least
    the days of the pattern; this includes the active commits. ``FOREVER`` keeps all commits.
    Arguments and errors are those of ``retained_commits``; ``previous``: commits that earlier marks
    knew.
    """
    longest = lengthen(rules, retain, heads)
    found: dict[str, dict[str, Reason]] = {}
    for pattern, days in retain.paths.items():
        raised = raise_days(longest, days)
        kept = active_commits(commits, heads, raised, now).active
        before = still_inside(previous, heads=heads, rules=raised, now=now)
        kept = {commit_id: reasons[0] for commit_id, reasons in before.items()} | kept
        if days == FOREVER:
            # This includes commits with any date, however old.
            kept = {commit_id: Reason(None, "inside") for commit_id in commits} | kept
        rule = f"retain: paths: {pattern!r} is kept {_for(days)}"
        found[pattern] = {one: replace(reason, rule=rule) for one, reason in kept.items()}
    return found


def _for(days: int) -> str:
    return "forever" if days == FOREVER else f"for {counted(days, 'day')}"


def least_days(retain: Retain, branches: Iterable[str]) -> dict[str, int]:
    """Return the least days of the branches that a pattern names."""
    if not retain.branches:
        return {}
    found = {name: _days(retain, name) for name in branches}
    return {name: most[0] for name, most in found.items() if most is not None}


def protecting(retain: Retain, tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags that a pattern of the rules matches, each with its commit."""
    return {
        tag: commit
        for tag, commit in tags.items()
        if any(fnmatchcase(tag, pattern) for pattern in retain.tags)
    }


def deciding(retain: Retain, tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags whose change can change the result of the rules, each with its commit.

    Any tag may be the only reference to a commit that its metadata keep, or that has entries below
    a path of the rules.
    """
    return dict(tags) if retain.reads_all_commits else protecting(retain, tags)


def kept_commits(
    commits: Mapping[str, Commit],
    heads: Mapping[str, str],
    tags: Mapping[str, str],
    retain: Retain,
) -> dict[str, Reason]:
    """Find the commits that stay active regardless of days, and why.

    Arguments and errors are those of ``retained_commits``.
    """
    found: dict[str, Reason] = {}
    if retain.metadata:
        for commit in commits.values():
            if rule := _of_metadata(retain, commit.metadata):
                found[commit.id] = Reason(None, "metadata", rule=rule)
    for pattern, kept in retain.branches.items():
        number = kept.last_commits or 0
        for branch in sorted(heads) if number else ():
            if fnmatchcase(branch, pattern):
                rule = _of_branches(pattern, f"last_commits: {number}")
                for commit_id in _last(commits, heads[branch], number):
                    found[commit_id] = Reason(branch, "last commits", rule=rule)
    for tag, commit_id in protecting(retain, tags).items():
        pattern = next(one for one in retain.tags if fnmatchcase(tag, one))
        found[commit_id] = Reason(None, "tag", rule=f"retain: tags: {pattern!r} names {tag!r}")
    return found


def _days(retain: Retain, branch: str) -> tuple[int, str] | None:
    """Return the most days that a pattern gives a branch, with this pattern; None if none does."""
    found = [
        (kept.days, pattern)
        for pattern, kept in retain.branches.items()
        if kept.days is not None and fnmatchcase(branch, pattern)
    ]
    return max(found, default=None)


def _named(
    retain: Retain, active: Mapping[str, Reason], otherwise: Collection[str]
) -> dict[str, Reason]:
    """Return active commits; the reasons of those that only longer days keep name the rule."""
    found: dict[str, Reason] = {}
    for commit_id, reason in active.items():
        most = None if reason.branch is None else _days(retain, reason.branch)
        if most is not None and commit_id not in otherwise:
            reason = replace(reason, rule=_of_branches(most[1], f"days: {most[0]}"))  # noqa: PLW2901 - the same with more
        found[commit_id] = reason
    return found


def _of_branches(pattern: str, value: str) -> str:
    return f"retain: branches: {pattern!r} has {value}"


def _of_metadata(retain: Retain, metadata: Iterable[tuple[str, str]]) -> str:
    """Return the rule that keeps a commit with some metadata; empty if there is none."""
    for key, value in metadata:
        if {value, "*"}.intersection(retain.metadata.get(key, ())):
            return f"retain: metadata: {key!r} is {value!r}"
    return ""


def _last(commits: Mapping[str, Commit], head: str, number: int) -> list[str]:
    """Return the newest ``number`` commits of a main ancestry, or all if there are fewer."""
    return [commit.id for commit in islice(main_ancestry(commits, head), number)]
