"""Unites several lists of active commits: a commit expires only if it is in no list.

The server's list can lack commits that are inside their retention, and our own computation cannot
see commits that no branch log reaches. Each list alone can err towards deletion; together they err
only if both do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from lakegc_assets.retention.active_commits import SECONDS_A_DAY, ActiveCommits, Reason
from lakegc_assets.retention.commits import instant
from lakegc_assets.retention.rules import Rules


class Previous(NamedTuple):
    """Commits that an earlier mark knew.

    Attributes:
        reasons: all known reasons why each of them was active, or kept entries below a path.
        marked_at: time at which the mark read the HEADs, aware.
    """

    reasons: Mapping[str, Sequence[Reason]]
    marked_at: datetime


@dataclass(frozen=True)
class UnitedActiveCommits:
    """The active commits of a mark, and those that only one of its sources lists.

    Attributes:
        active: reason of each active commit, by id.
        only_server: only in the server's list.
        only_own: computed here, but not in the server's list.
        only_previous: in neither of the two, but active in the previous mark and still inside.
    """

    active: dict[str, Reason]
    only_server: frozenset[str] = frozenset()
    only_own: frozenset[str] = frozenset()
    only_previous: frozenset[str] = frozenset()


def unite(
    server: Iterable[str],
    own: ActiveCommits,
    *,
    later_heads: Mapping[str, str] | None = None,
    previous: Mapping[str, Reason] | None = None,
) -> UnitedActiveCommits:
    """Return every commit that at least one source lists as active.

    Args:
        server: ids of the server's list of active commits.
        own: result of ``active_commits``.
        later_heads: branch → HEAD as read after the server made its list.
        previous: result of ``still_inside`` for the previous mark, each with its first reason.
    """
    listed = frozenset(server)
    head_reasons = {
        head: Reason(branch, "head") for branch, head in sorted((later_heads or {}).items())
    }
    computed = head_reasons | own.active
    kept = previous or {}
    from_server = {commit_id: Reason(None, "server") for commit_id in listed}
    # The reason that holds longer is shown; the next mark receives all reasons (``remember``).
    longer = {
        c: kept[c] for c in kept.keys() & computed.keys() if _ends_before(computed[c], kept[c])
    }
    return UnitedActiveCommits(
        active=from_server | dict(kept) | computed | longer,
        only_server=listed - computed.keys() - kept.keys(),
        only_own=frozenset(computed.keys() - listed),
        only_previous=frozenset(kept.keys() - computed.keys() - listed),
    )


def _ends_before(one: Reason, other: Reason) -> bool:
    return one.until is not None and other.until is not None and one.until < other.until


def still_inside(
    previous: Iterable[Previous], *, heads: Mapping[str, str], rules: Rules, now: datetime
) -> dict[str, list[Reason]]:
    """Return the commits that were active in an earlier mark and still are inside retention.

    This keeps commits that a reset, a commit with an old date or a wrong walk would drop at once.
    Today's rules decide, so a shortened rule takes effect. A commit whose branch is gone follows
    the default retention like any dangling commit. Days are counted from

    * that mark, for the HEAD of a branch that still exists: it was the HEAD then;
    * the commit's own date, for the HEAD of a branch that is gone;
    * the date in the reason, for all others. A reason without such a date keeps no commit.

    Args:
        previous: commits that earlier marks knew.
        heads: branch → HEAD of today.
        rules: the rules of today.
        now: the moment of the run, aware.

    Returns:
        For each commit the reasons that still hold, the one that holds longest first.
    """
    kept: dict[str, list[Reason]] = {}
    known = ((one.marked_at, *pair) for one in previous for pair in one.reasons.items())
    for marked_at, commit_id, reasons in known:
        for reason in reasons:
            branch = reason.branch if reason.branch in heads else None
            days = rules.default_retention_days if branch is None else rules.days(branch)
            was_head = reason.kind == "head" and branch is not None
            counted_from = marked_at if was_head else reason.counted_from
            if counted_from is None:
                continue
            until = instant(counted_from.timestamp() + days * SECONDS_A_DAY)
            if until > now:
                one = Reason(reason.branch, "previous mark", until, counted_from)
                kept.setdefault(commit_id, []).append(one)
    for of_commit in kept.values():
        of_commit.sort(key=lambda reason: reason.until or now, reverse=True)
    return kept


def remember(
    previous: Iterable[Previous],
    found: Iterable[Mapping[str, Reason]],
    recorded: Mapping[str, Reason],
    *,
    heads: Mapping[str, str],
    rules: Rules,
    now: datetime,
) -> dict[str, list[Reason]]:
    """Return the dated reasons that a mark must hand on in addition to the recorded reason.

    A commit may be a HEAD or tagged today, or active since there are no rules. When that ends, the
    date until which a branch holds it counts again. Only the rules of that day decide which of two
    branches holds it longer. So for each branch the latest date is handed on while its days last.

    Args:
        previous: commits that earlier marks knew.
        found: commits that are active today by a date, each with its reason.
        recorded: the reason that the mark records for each commit. HEADs are recorded for each
            branch, so they are never in the result.
        heads: branch → HEAD of today.
        rules: the rules under which earlier reasons are handed on.
        now: the moment of the run, aware.
    """
    moved = [_without_heads(one, heads) for one in previous]
    kept = still_inside(moved, heads=heads, rules=rules, now=now)
    pairs = [(commit_id, reason) for commit_id, reasons in kept.items() for reason in reasons]
    pairs += [
        (commit_id, reason)
        for reasons in found
        for commit_id, reason in reasons.items()
        if reason.kind != "head" and not _is_covered_by_head(commit_id, reason, heads, now)
    ]
    return _latest(pairs, recorded, {*heads, *rules.branches})


def _without_heads(previous: Previous, heads: Mapping[str, str]) -> Previous:
    """Return earlier reasons without those of commits that still are HEAD of the same branch."""
    return previous._replace(
        reasons={
            commit_id: [
                r for r in reasons if r.kind != "head" or heads.get(r.branch or "") != commit_id
            ]
            for commit_id, reasons in previous.reasons.items()
        }
    )


def _latest(
    pairs: Iterable[tuple[str, Reason]], recorded: Mapping[str, Reason], named: AbstractSet[str]
) -> dict[str, list[Reason]]:
    """Return the latest dated reason of each commit and branch, without recorded reasons."""
    latest: dict[tuple[str, str | None], tuple[datetime, Reason]] = {}
    for commit_id, reason in pairs:
        # A branch that is gone, and has no rule, counts like any dangling commit.
        branch = reason.branch if reason.branch in named else None
        dated = reason.counted_from
        if dated is None or _covers(recorded.get(commit_id), branch, dated):
            continue
        known = latest.get((commit_id, branch))
        if known is None or known[0] < dated:
            latest[commit_id, branch] = dated, Reason(branch, reason.kind, None, dated)
    remembered: dict[str, list[Reason]] = {}
    for (commit_id, _), (_, reason) in latest.items():
        remembered.setdefault(commit_id, []).append(reason)
    return remembered


def _is_covered_by_head(
    commit_id: str, reason: Reason, heads: Mapping[str, str], now: datetime
) -> bool:
    """Return True if being the HEAD holds a commit as long as another reason by this branch."""
    is_head = heads.get(reason.branch or "") == commit_id
    return is_head and reason.counted_from is not None and reason.counted_from <= now


def _covers(recorded: Reason | None, branch: str | None, dated: datetime) -> bool:
    """Return True if a recorded reason holds a commit for a branch from a date, or a later one."""
    if recorded is None or recorded.kind == "head" or recorded.counted_from is None:
        return False
    return recorded.branch == branch and recorded.counted_from >= dated


def missing_heads(active: Collection[str], heads: Mapping[str, str]) -> dict[str, str]:
    """Return the branches, with their HEADs, whose HEAD is not among ``active``.

    If the result is not empty, ``active`` is incomplete and must not be used. This holds for the
    united set with any HEADs, and for the server's list with HEADs that were read before it.
    """
    known = frozenset(active)
    return {branch: head for branch, head in sorted(heads.items()) if head not in known}
