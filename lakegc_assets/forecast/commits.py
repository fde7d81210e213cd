"""The time for which each commit of a mark keeps its objects, under other rules and today's.

Rules have one default and days for single branches. If the latter are fixed, a commit is active
from some default on. So one number for each commit shows the commits that every default keeps.
Likewise the days for which a commit stays active under fixed rules show the active commits of every
later day, if there are no new commits. ``active_commits`` defines an active commit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Final

from lakegc_assets.errors import ConfigurationError, IntegrityError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark.commits import RULE
from lakegc_assets.mark.earlier_marks import FORGOTTEN, previous_of
from lakegc_assets.mark.refs import load_commits
from lakegc_assets.retention.active_commits import SECONDS_A_DAY, Reason, active_commits
from lakegc_assets.retention.commits import Commit, dangling_commits, main_ancestry
from lakegc_assets.retention.retain_rules import FOREVER as ALWAYS
from lakegc_assets.retention.retain_rules import NO_RETAIN, Retain
from lakegc_assets.retention.retained_commits import kept_commits, least_days, lengthen, raise_days
from lakegc_assets.retention.rules import Rules
from lakegc_assets.retention.union import Previous, still_inside
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.history import Earlier
from lakegc_assets.run.manifest import Manifest

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


@dataclass(frozen=True)
class Span:
    """The time for which an object or commit is kept."""

    #: The least default retention, in days, that keeps it, with the branch rules of the other
    #: rules; 0 for always, ``NEVER`` for no default.
    days: int = NEVER
    #: Days for which today's rules keep it; 0 if they do not keep it, ``FOREVER`` for always.
    left: int = 0

    def __or__(self, other: Span) -> Span:
        return Span(min(self.days, other.days), max(self.left, other.left))


@dataclass(frozen=True)
class MarkedCommits:
    """The commits of a repository as a mark read them."""

    #: All commits that the mark reached, and commits of an earlier mark that lakeFS still has.
    commits: Mapping[str, Commit]
    #: HEAD of each branch.
    heads: Mapping[str, str]
    #: Reason why each active commit was active.
    active: Mapping[str, Reason]
    #: Commits that tags protect.
    tagged: frozenset[str]
    #: All reasons that the mark hands on, also of commits that are kept only below some paths.
    known: Previous
    #: The rules that the mark followed; None without rules.
    rules: Rules | None
    #: Commit of each tag.
    tags: Mapping[str, str] = field(default_factory=dict)


def read_marked_commits(
    client: LakeFSClient, attempt: AttemptArtifacts, manifest: Manifest
) -> MarkedCommits:
    """Read the commits of a mark again, because the mark records only their first parents.

    Raises:
        IntegrityError: lakeFS does not have a commit that the mark reached.
    """
    heads = attempt.rows(manifest, "heads", ["branch", "commit_id"]).to_pylist()
    active = {
        row["commit_id"]: Reason(
            row["branch"], row["kind"], None, row["counted_from"], row.get(RULE) or ""
        )
        for row in attempt.rows(manifest).to_pylist()
    }
    expired = attempt.rows(manifest, "expired", ["commit_id"])["commit_id"].to_pylist()
    tags = {row["tag"]: row["commit_id"] for row in attempt.rows(manifest, "tags").to_pylist()}
    tagged = list(tags.values()) if manifest.settings["protect_tags"] else []
    of_heads = {row["branch"]: row["commit_id"] for row in heads}
    commits: dict[str, Commit] = {}
    load_commits(
        client,
        attempt.repository,
        [*of_heads.values(), *active, *expired, *tags.values()],
        (),
        commits,
    )
    if FORGOTTEN in manifest.parts:
        forgotten = attempt.rows(manifest, FORGOTTEN, ["commit_id"])["commit_id"].to_pylist()
        for commit_id in forgotten:
            # The ancestry of a commit that no branch or tag leads to may be incomplete.
            with suppress(IntegrityError):
                commits |= load_commits(
                    client, attempt.repository, [commit_id], commits, by_name=False
                )
    raw = manifest.facts["rules"]
    rules = None if raw is None else Rules.parse(raw)
    known = previous_of(Earlier(attempt, manifest))
    return MarkedCommits(commits, of_heads, active, frozenset(tagged), known, rules, tags)


def spans_of(
    marked: MarkedCommits,
    today: Rules | None,
    branches: Mapping[str, int],
    without: Iterable[str],
    now: datetime,
    retain: Retain = NO_RETAIN,
    other_retain: Retain = NO_RETAIN,
) -> dict[str, Span]:
    """The span for which each commit keeps its objects.

    Args:
        marked: the commits.
        today: today's rules; None without rules, which keep all commits active.
        branches: retention in days of the branches that have their own rule under the other rules.
        without: branches that are to be deleted.
        now: the moment of the mark.
        retain: today's rules in addition to lakeFS's.
        other_retain: the rules that replace ``retain``.

    Raises:
        ConfigurationError: a named branch does not exist.
        IntegrityError: a commit is missing, or main parents form a circle.
    """
    gone = set(without)
    if unknown := sorted(gone - marked.heads.keys()):
        raise ConfigurationError(
            f"the mark found no branch {unknown[0]!r}: --without-branch needs the name of a branch "
            "that existed at the mark. Correct the name, or mark again"
        )
    heads = {name: head for name, head in marked.heads.items() if name not in gone}
    least = least_days(other_retain, heads)
    days = days_needed(marked.commits, heads, branches, now, least)
    previous = days_of_previous(marked.known, heads, branches, now, least)
    remaining = dict.fromkeys(marked.commits, FOREVER)
    if today is not None:
        remaining = _left_under(marked, lengthen(today, retain, marked.heads), now)
    found = {
        commit_id: Span(min(days[commit_id], previous.get(commit_id, NEVER)), remaining[commit_id])
        for commit_id in marked.commits
    }
    if (was := marked.rules) is not None:
        same = Span(
            NEVER if gone or branches != was.branches else was.default_retention_days,
            1 if today == was else 0,
        )
        # Some commits are active only because lakeFS says so, under the rules that it was given.
        found |= {i: found[i] | same for i, reason in marked.active.items() if not reason.rule}
    kept = kept_commits(marked.commits, marked.heads, marked.tags, retain)
    found |= {commit_id: Span(found[commit_id].days, FOREVER) for commit_id in kept}
    others = kept_commits(marked.commits, heads, marked.tags, other_retain)
    found |= {commit_id: Span(0, found[commit_id].left) for commit_id in others}
    return found | {commit_id: Span(0, FOREVER) for commit_id in marked.tagged}


def spans_of_paths(
    marked: MarkedCommits,
    today: Rules | None,
    branches: Mapping[str, int],
    without: Iterable[str],
    now: datetime,
    retain: Retain,
    other_retain: Retain,
) -> dict[str, dict[str, Span]]:
    """The span for which each commit keeps its objects below each path pattern, at least.

    Arguments and errors are those of ``spans_of``.
    """
    heads = {name: head for name, head in marked.heads.items() if name not in set(without)}
    least = least_days(other_retain, heads)
    found: dict[str, dict[str, Span]] = {}
    for pattern in {**retain.paths, **other_retain.paths}:
        days = dict.fromkeys(marked.commits, NEVER)
        remaining = dict.fromkeys(marked.commits, 0)
        if (kept := other_retain.paths.get(pattern)) == ALWAYS:
            days = dict.fromkeys(marked.commits, 0)
        elif kept is not None:
            longer = {name: max(of, kept) for name, of in branches.items()}
            days = days_needed(marked.commits, heads, longer, now, least)
            before = days_of_previous(marked.known, heads, longer, now, least)
            needed = {one: min(of, before.get(one, NEVER)) for one, of in days.items()}
            days = {one: 0 if of <= kept else of for one, of in needed.items()}
        kept = retain.paths.get(pattern)
        if kept == ALWAYS or (kept is not None and today is None):
            remaining = dict.fromkeys(marked.commits, FOREVER)
        elif kept is not None and today is not None:
            raised = raise_days(lengthen(today, retain, marked.heads), kept)
            remaining = _left_under(marked, raised, now)
        found[pattern] = {one: Span(days[one], remaining[one]) for one in marked.commits}
    return found


def _left_under(marked: MarkedCommits, rules: Rules, now: datetime) -> dict[str, int]:
    """Days for which rules keep each commit, by its date and by the reasons that the mark knew."""
    active = active_commits(marked.commits, marked.heads, rules, now).active
    kept = still_inside([marked.known], heads=marked.heads, rules=rules, now=now)
    previous = {commit_id: reasons[0] for commit_id, reasons in kept.items()}
    own, before = days_left(active, now), days_left(previous, now)
    return {
        commit_id: max(own.get(commit_id, 0), before.get(commit_id, 0))
        for commit_id in marked.commits
    }
