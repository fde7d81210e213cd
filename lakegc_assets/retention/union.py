"""Unites several lists of active commits: a commit expires only if no list has it.

The server's list can lack commits that are inside their retention, and our own computation cannot
see commits that no branch log reaches. Each can err towards deletion alone; together they err only
where both do.
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
        reasons: all that are known why each of them was active, or kept what it has below a path.
        marked_at: when it read the HEADs, aware.
    """

    reasons: Mapping[str, Sequence[Reason]]
    marked_at: datetime


@dataclass(frozen=True)
class UnitedActiveCommits:
    """The active commits of a mark, and what only one of its witnesses named.

    Attributes:
        active: id of each active commit → why.
        only_server: named by the server's list alone.
        only_own: computed here, but not in the server's list.
        only_previous: neither of both, but active in the previous mark and still inside.
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
    """Return every commit that anyone calls active.

    Args:
        server: ids of the server's list of active commits.
        own: what ``active_commits`` found.
        later_heads: branch → HEAD as read after the server made its list.
        previous: what ``still_inside`` kept of the previous mark, each with its first reason.
    """
    listed = frozenset(server)
    head_reasons = {
        head: Reason(branch, "head") for branch, head in sorted((later_heads or {}).items())
    }
    computed = head_reasons | own.active
    kept = previous or {}
    from_server = {commit_id: Reason(None, "server") for commit_id in listed}
    # Of two reasons the one that holds longer is shown; the next mark knows all (``remember``).
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

    This keeps what a reset, a commit with an old date or a walk that went wrong would drop at once.
    The rules of today decide, so a rule that was made shorter takes effect. A commit whose branch
    is gone follows the default retention like any dangling commit. Days are counted from

    * that mark, for the HEAD of a branch that still exists: it was the HEAD then;
    * the commit's own date, for the HEAD of a branch that is gone;
    * what the reason says for all others. Reasons without such a date keep nothing.

    Args:
        previous: what each of some earlier marks knew.
        heads: branch → HEAD of today.
        rules: the rules of today.
        now: the moment of the run, aware.

    Returns:
        Of each commit the reasons that still hold, the one that holds longest first.
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
    """Return the reasons with a date that a mark must hand on beside the one that it records.

    A commit may be a HEAD or tagged today, or active since there are no rules; when that is over,
    the date until which a branch holds it counts again. And which of two branches holds it longer
    is known only to the rules of the day. So of each branch the latest date is handed on for as
    long as its days last.

    Args:
        previous: what each of some earlier marks knew.
        found: commits that are active today by a date, each with its reason.
        recorded: the reason that the mark records of each commit. HEADs are recorded of each
            branch, so they are never among what is returned.
        heads: branch → HEAD of today.
        rules: the rules under which what was known is handed on.
        now: the moment of the run, aware.
    """
    moved = [_without_heads(one, heads) for one in previous]
    kept = still_inside(moved, heads=heads, rules=rules, now=now)
    pairs = [(commit_id, reason) for commit_id, reasons in kept.items() for reason in reasons]
    pairs += [
        (commit_id, reason)
        for reasons in found
        for commit_id, reason in reasons.items()
        if reason.kind != "head" and not _is_told_by_head(commit_id, reason, heads, now)
    ]
    return _latest(pairs, recorded, {*heads, *rules.branches})


def _without_heads(previous: Previous, heads: Mapping[str, str]) -> Previous:
    """Earlier reasons but for those of commits that are the HEAD of the same branch today."""
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
    """The latest dated reason of each commit and branch, without those that are recorded."""
    latest: dict[tuple[str, str | None], tuple[datetime, Reason]] = {}
    for commit_id, reason in pairs:
        # What is gone, and has no rule of its own, is like any dangling commit.
        branch = reason.branch if reason.branch in named else None
        dated = reason.counted_from
        if dated is None or _tells(recorded.get(commit_id), branch, dated):
            continue
        known = latest.get((commit_id, branch))
        if known is None or known[0] < dated:
            latest[commit_id, branch] = dated, Reason(branch, reason.kind, None, dated)
    remembered: dict[str, list[Reason]] = {}
    for (commit_id, _), (_, reason) in latest.items():
        remembered.setdefault(commit_id, []).append(reason)
    return remembered


def _is_told_by_head(
    commit_id: str, reason: Reason, heads: Mapping[str, str], now: datetime
) -> bool:
    """Return whether the HEAD of a branch holds its commit as long as another reason by it."""
    is_head = heads.get(reason.branch or "") == commit_id
    return is_head and reason.counted_from is not None and reason.counted_from <= now


def _tells(recorded: Reason | None, branch: str | None, dated: datetime) -> bool:
    """Return whether a recorded reason holds a commit for a branch from a date on, or a later."""
    if recorded is None or recorded.kind == "head" or recorded.counted_from is None:
        return False
    return recorded.branch == branch and recorded.counted_from >= dated


def missing_heads(active: Collection[str], heads: Mapping[str, str]) -> dict[str, str]:
    """Return the branches, with their HEADs, whose HEAD is not among ``active``.

    Anything but an empty answer means that ``active`` is partial and must not be used: for the
    united set whatever HEADs are given, for the server's list those read before it was made.
    """
    known = frozenset(active)
    return {branch: head for branch, head in sorted(heads.items()) if head not in known}
