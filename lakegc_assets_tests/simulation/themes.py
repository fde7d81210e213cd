"""The kinds of interleavings of a sweep alone: who is there, what they do, and what may fail."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

_FAULTS: Final = (
    "freeze", "slow", "unavailable", "kill", "lost answer", "late", "partial", "SlowDown",
    "cut list", "cut rows", "cut file", "order-dependent walk", "no location", "give up",
)  # fmt: skip


class Theme(NamedTuple):
    """What may happen in a run: so that what comes after a rare event is reached, too.

    Attributes:
        faults: of calls.
        changes: that writers make; all if none are named.
        early: whether much may happen from the start on, not only from the first delta mark.
        others: how probable it is that another collector comes.
        odds: how probable a fault is; None for any of some.
        settings: of the sweeps, where they are not the usual ones.
        unlike: in what the world is unlike others: ``single`` for a store that honours etags in
            deletes of one key only, ``trash`` for one that moves what is deleted, ``drift`` for
            clocks that do, ``listed`` where batches are compared by listings, ``others`` where
            other repositories are on the server, ``many`` for two more collectors, ``gone`` where
            it is known of an owner of the lease whose process was killed that it is gone.
    """

    faults: frozenset[str] = frozenset(_FAULTS)
    changes: tuple[str, ...] = ()
    early: bool = False
    others: float = 0.1
    odds: float | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    unlike: str = ""


_WALK: Final = frozenset({"order-dependent walk"})
_LIVE: Final = ("revert", "new branch", "link", "rules")
SWEEPS: Final = (
    Theme(),
    Theme(others=1.0, early=True),
    Theme(frozenset({"freeze", "slow"}), ("link", "revert", "rules"), odds=0.15),
    Theme(frozenset({"late"}), _LIVE, odds=0.25),
    Theme(frozenset({"freeze", "give up"}), (*_LIVE, "waits"), odds=0.15),
    Theme(frozenset({"kill", "freeze", "slow"}), (*_LIVE, "waits"), others=0.5, odds=0.1),
    Theme(frozenset({"lost answer", "slow"}), early=True, others=1.0),
    Theme(_WALK, ("revert", "deleted branch", "set back"), early=True, odds=0.3),
    Theme(frozenset({"cut rows", "no location", "cut file"}), ("link", "revert"), True, odds=0.3),
    Theme(frozenset({"partial", "SlowDown", "lost answer", "unavailable"}), _LIVE),
    Theme(frozenset({"kill", "freeze"}), ("restore", "revert", "waits"), odds=0.1),
)
#: Those that came behind the kinds of marks and backups, whose numbers kept schedules have.
LATER: Final = (
    Theme(
        frozenset({"freeze", "give up", "unavailable"}),
        ("tag", "tag removed", "deleted branch", "waits"),
        settings=(("protect_tags", True),),
    ),
    Theme(
        frozenset({"late", "lost answer", "freeze", "SlowDown"}),
        (*_LIVE, "rewritten", "waits"),
        odds=0.02,
        settings=(("require_conditional_deletes", True),),
        unlike="single",
    ),
    Theme(
        frozenset({"clock jumps", "freeze", "kill", "late"}),
        (*_LIVE, "waits"),
        others=0.5,
        odds=0.02,
        unlike="drift",
    ),
    Theme(
        frozenset({"cut page", "stale list"}),
        (*_LIVE, "rewritten", "rewritten"),
        odds=0.05,
        unlike="listed",
    ),
    Theme(
        frozenset({"cut rows", "no location"}),
        ("shadowed link", "link of a valid address", "commit", "deleted branch", "reset"),
        odds=0.1,
        settings=(("restore_revived", False),),
    ),
    Theme(
        frozenset({"kill", "freeze", "lost answer"}),
        (*_LIVE, "waits"),
        early=True,
        others=1.0,
        odds=0.01,
        unlike="many",
    ),
    Theme(
        frozenset({"kill", "freeze", "lost answer", "cut page"}),
        ("revert", "new branch", "link", "restore", "waits"),
        others=0.5,
        odds=0.01,
        settings=(("trash_days", 1 / 24),),
        unlike="trash",
    ),
    Theme(
        frozenset({"freeze", "kill", "unavailable"}),
        (
            "staged elsewhere", "imported elsewhere", "committed elsewhere", "reset elsewhere",
            "branch elsewhere", "rules elsewhere", "repository made", "repository deleted", "waits",
            "link", "reset",
        ),
        odds=0.005,
        unlike="others",
    ),
    Theme(frozenset({"cut list"}), ("new branch", "revert", "waits"), early=True, odds=0.1),
    Theme(
        frozenset({"kill", "late"}),
        ("revert", "new branch", "link", "waits"),
        odds=0.05,
        unlike="gone",
    ),
)  # fmt: skip
