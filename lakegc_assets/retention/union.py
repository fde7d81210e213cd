"""Unites what several witnesses call active, so that a commit expires only if none objects.

The server's list can lack commits that are inside their retention, and our own computation cannot
see commits that no branch log reaches. Each can err towards deletion alone; together they err only
where both do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from lakegc_assets.retention.active_commits import SECONDS_A_DAY, ActiveCommits, Reason
from lakegc_assets.retention.commits import instant
from lakegc_assets.retention.rules import Rules


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
        previous: what ``still_inside`` kept of the previous mark.
    """
    listed = frozenset(server)
    head_reasons = {
        head: Reason(branch, "head") for branch, head in sorted((later_heads or {}).items())
    }
    computed = head_reasons | own.active
    kept = previous or {}
    from_server = {commit_id: Reason(None, "server") for commit_id in listed}
    # The next mark knows only what is told here, so of two reasons the one that holds longer is.
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
    previous: Mapping[str, Reason],
    *,
    marked_at: datetime,
    heads: Mapping[str, str],
    rules: Rules,
    now: datetime,
) -> dict[str, Reason]:
    """Return the commits that were active in the previous mark and still are inside retention.

    This keeps what a reset, a commit with an old date or a walk that went wrong would drop at once.
    The rules of today decide, so a rule that was made shorter takes effect. A commit whose branch
    is gone follows the default retention like any dangling commit. Days are counted from

    * the previous mark, for the HEAD of a branch that still exists: it was the HEAD then;
    * the commit's own date, for the HEAD of a branch that is gone;
    * what the reason says for all others. Reasons without such a date keep nothing.

    Args:
        previous: ``active`` of the previous mark.
        marked_at: when the previous mark read the HEADs, aware.
        heads: branch → HEAD of today.
        rules: the rules of today.
        now: the moment of the run, aware.
    """
    kept = {}
    for commit_id, reason in previous.items():
        branch = reason.branch if reason.branch in heads else None
        days = rules.default_retention_days if branch is None else rules.days(branch)
        was_head = reason.kind == "head" and branch is not None
        counted_from = marked_at if was_head else reason.counted_from
        if counted_from is None:
            continue
        until = instant(counted_from.timestamp() + days * SECONDS_A_DAY)
        if until > now:
            kept[commit_id] = Reason(reason.branch, "previous mark", until, counted_from)
    return kept


def missing_heads(active: Collection[str], heads: Mapping[str, str]) -> dict[str, str]:
    """Return the branches, with their HEADs, whose HEAD is not among ``active``.

    Anything but an empty answer means that ``active`` is partial and must not be used: for the
    united set whatever HEADs are given, for the server's list those read before it was made.
    """
    known = frozenset(active)
    return {branch: head for branch, head in sorted(heads.items()) if head not in known}
