"""Finds the active commits, which must keep their objects; all others may lose theirs.

The definition is that of lakeFS issue 1932. A commit is active if

* it is the HEAD of a branch, or
* it is in the main ancestry of a branch and was created within the branch's retention, or
* it is the main parent of such a commit: it was the HEAD until it was replaced, within retention.

A dangling commit (see ``dangling_commits``) gets a hypothetical child with its own date. The child
is the HEAD of a branch with the default retention; it is no commit and never active itself.

**The order of commits must not matter.** A commit that several branches reach follows the longest
retention, and its parents must take *every* child into account that was created within retention.
lakeFS's own walk does not: it stops at a commit that a branch with the same threshold has visited,
before it takes the current child into account. So its result depends on the order of commit ids.
Here the walks start in the order of retention, longest first, and each walk uses the edge to a
visited commit before it stops there. So every edge is used exactly once, with the longest retention
that reaches it: linear in commits and branches.

**The whole ancestry is walked.** Users give the dates, and dates need not grow along a branch, so a
young commit may be an ancestor of any number of old ones.

**Days are exactly 24 hours**, counted back from ``now``; a commit created strictly after that
moment is inside. lakeFS subtracts calendar days in the time zone of its server. The two differ by
the change of that zone's clock in between: lakeFS keeps up to an hour less if summer time began
within the retention, and up to an hour more if it ended. No margin is added here, because a mark
unites both results (``unite``), so that the longer retention holds in either case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from lakegc_assets.errors import IntegrityError
from lakegc_assets.retention.commits import Commit, dangling_commits, instant
from lakegc_assets.retention.rules import Rules

SECONDS_A_DAY = 86_400

Kind = Literal[
    "head",
    "inside",
    "replaced inside",
    "dangling",
    "server",
    "previous mark",
    "tag",
    "last commits",
    "metadata",
    "no rules",
]


@dataclass(frozen=True)
class Reason:
    """The reason why a commit is active: among all reasons the one that holds longest.

    Attributes:
        branch: the branch whose retention holds it; None for the default of dangling commits.
        kind: "head": it is the HEAD of ``branch``. "inside": it was created within the retention.
            "replaced inside": the commit that replaced it was. "dangling": no branch leads to it,
            and it was created within the default retention. "server": only lakeFS's server lists
            it. "previous mark": it was active in the previous mark and still is inside. "tag": a
            tag names it, and tags are protected. "last commits": it is one of the last commits of
            ``branch``. "metadata": a ``retain`` rule keeps its metadata. "no rules": the
            repository has no rules.
        until: end of this reason, UTC; None if no date ends it.
        counted_from: time from which the days are counted, UTC; None if it is unknown.
        rule: the ``retain`` rule that keeps it, in words; empty if lakeFS's rules keep it.
    """

    branch: str | None
    kind: Kind
    until: datetime | None = None
    counted_from: datetime | None = None
    rule: str = ""


@dataclass(frozen=True)
class ActiveCommits:
    """The result of ``active_commits``.

    Attributes:
        active: reason of each active commit, by id.
        expired: ids of all other commits.
        dated: for HEADs that would be active without being a HEAD: the longest of these reasons.
    """

    active: dict[str, Reason]
    expired: frozenset[str]
    dated: Mapping[str, Reason] = field(default_factory=dict, compare=False)


def active_commits(
    commits: Mapping[str, Commit], heads: Mapping[str, str], rules: Rules, now: datetime
) -> ActiveCommits:
    """Find the active commits of a repository, by the definition of this module.

    Args:
        commits: id → commit. Must include every HEAD and the whole main ancestry of each.
        heads: branch → id of its HEAD, hidden branches too.
        rules: the repository's retention rules.
        now: the moment of the run, aware.

    Raises:
        IntegrityError: a HEAD or a main parent is missing, a commit has another id than its key, or
            main parents form a circle.
        ValueError: ``now`` has no time zone.
    """
    if now.tzinfo is None:
        raise ValueError(f"now must be an aware time, not {now!r}")
    for commit_id, commit in commits.items():
        if commit.id != commit_id:
            raise IntegrityError(
                f"commit {commit.id} is filed under the id {commit_id}. This is a fault of lakegc: "
                "please report it, with the log of this run"
            )
    walks = _Walks(commits, now.timestamp())
    for start in _starts(commits, heads, rules):
        walks.walk(start)
    if lost := commits.keys() - walks.reached.keys():
        # A commit that no start reaches is a main parent in a circle.
        raise IntegrityError(_circle(min(lost)))
    active = {commit_id: claim.reason() for commit_id, claim in walks.claims.items()}
    hidden = walks.heads.keys() & walks.dated.keys()
    dated = {commit_id: walks.dated[commit_id].reason() for commit_id in hidden}
    return ActiveCommits(active, frozenset(commits.keys() - active.keys()), dated)


@dataclass(frozen=True)
class _Start:
    commit_id: str
    branch: str | None
    days: int


@dataclass(frozen=True)
class _Claim:
    """A reason in numbers, so that dates beyond a datetime's range compare exactly."""

    branch: str | None
    kind: Kind
    until: float
    counted_from: int

    def reason(self) -> Reason:
        return Reason(
            self.branch,
            self.kind,
            None if self.until == math.inf else instant(self.until),
            instant(self.counted_from),
        )


@dataclass
class _Walks:
    commits: Mapping[str, Commit]
    now: float
    heads: dict[str, _Claim] = field(default_factory=dict)
    dated: dict[str, _Claim] = field(default_factory=dict)
    reached: dict[str, _Start] = field(default_factory=dict)

    @property
    def claims(self) -> dict[str, _Claim]:
        """The reason that holds longest for each active commit."""
        return {**self.dated, **self.heads}

    def walk(self, start: _Start) -> None:
        """Follow the main ancestry from ``start`` to a commit that another walk has passed."""
        commit = self._get(start.commit_id)
        if start.branch is not None:
            claim = _Claim(start.branch, "head", math.inf, commit.creation_date)
            self.heads.setdefault(start.commit_id, claim)
        else:
            self._claim_inside(start.commit_id, start, "dangling", commit.creation_date)
        current = start.commit_id
        while current not in self.reached:
            self.reached[current] = start
            commit = self._get(current)
            self._claim_inside(current, start, "inside", commit.creation_date)
            if commit.main_parent is None:
                return
            current = commit.main_parent
            self._claim_inside(current, start, "replaced inside", commit.creation_date)
        if self.reached[current] is start:
            raise IntegrityError(_circle(current))

    def _claim_inside(self, commit_id: str, start: _Start, kind: Kind, created: int) -> None:
        until = created + start.days * SECONDS_A_DAY
        if until > self.now:
            known = self.dated.get(commit_id)
            if known is None or until > known.until:
                self.dated[commit_id] = _Claim(start.branch, kind, until, created)

    def _get(self, commit_id: str) -> Commit:
        commit = self.commits.get(commit_id)
        if commit is None:
            raise IntegrityError(
                f"commit {commit_id} is a HEAD or a main parent, but is not among the commits "
                "read: the log of a branch was not read in full. Run again"
            )
        return commit


def _starts(commits: Mapping[str, Commit], heads: Mapping[str, str], rules: Rules) -> list[_Start]:
    """Return the starts, longest retention first, so that later walks may stop early."""
    branches = [_Start(head, branch, rules.days(branch)) for branch, head in heads.items()]
    default = rules.default_retention_days
    dangling = [_Start(tip, None, default) for tip in dangling_commits(commits, heads)]
    return sorted(
        branches + dangling,
        key=lambda start: (-start.days, start.branch is None, start.branch or start.commit_id),
    )


def _circle(commit_id: str) -> str:
    return (
        f"the main parents of commit {commit_id} form a circle, which no history of lakeFS has: "
        "the commits read are damaged. Run again; if the message stays, check this commit in lakeFS"
    )
