"""The kinds of interleavings: who is there, what they do, and what may fail."""

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
        settings: of the runs, where they are not the usual ones.
        unlike: in what the world is unlike others: ``single`` for a store that honours etags in
            deletes of one key only, ``trash`` for one that moves what is deleted, ``drift`` for
            clocks that do, ``listed`` where batches are compared by listings, ``others`` where
            other repositories are on the server, ``many`` for two more collectors, ``gone`` where
            it is known of an owner of the lease whose process was killed that it is gone,
            ``servers`` where another server has the namespace, too.
        again: how probable it is that a second mark follows.
        trial: whether objects of any age may be candidates.
        switch: how probable it is that another goes on at a step; None for any of some.
        every_slice: whether slices are listed that are too new by their names.
    """

    faults: frozenset[str] = frozenset(_FAULTS)
    changes: tuple[str, ...] = ()
    early: bool = False
    others: float = 0.1
    odds: float | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    unlike: str = ""
    again: float = 0.15
    trial: bool = False
    switch: float | None = None
    every_slice: bool = False


_WALK: Final = frozenset({"order-dependent walk"})
_LIVE: Final = ("revert", "new branch", "link", "rules")
SWEEP_THEMES: Final = (
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
LATER_THEMES: Final = (
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
_MOVES: Final = ("commit", "merge", "deleted branch", "reset", "set back", "new branch", "revert")
MARK_THEMES: Final = (
    Theme(
        frozenset({
            "freeze", "slow", "unavailable", "kill", "lost answer", "cut list", "cut rows",
            "cut file", "order-dependent walk", "no location", "cut page", "stale list",
            "clock jumps",
        }),
        odds=0.01,
    ),
    Theme(frozenset({"cut rows", "no location", "cut list"}), _MOVES, odds=0.2),
    Theme(frozenset({"freeze"}), ("upload in parts", "handed out", "upload", "waits"), odds=0.02),
    Theme(frozenset({"kill", "lost answer", "unavailable"}), others=0.8, odds=0.01),
    Theme(
        frozenset({"kill", "clock jumps"}),
        ("written hours later", "written to an old slice", "came back", "rules"),
        odds=0.003,
        again=1.0,
        switch=0.01,
    ),
    Theme(
        frozenset({"freeze", "slow"}),
        ("upload", "upload in parts", "commit"),
        odds=0.02,
        trial=True,
    ),
    Theme(frozenset({"freeze"}), ("commit", "merge"), odds=0.03),
    Theme(
        frozenset({"kill"}),
        ("written hours later",),
        odds=0.002,
        again=1.0,
        switch=0.01,
        every_slice=True,
    ),
    Theme(
        frozenset({"kill", "cut rows"}),
        odds=0.01,
        again=0.3,
        settings=(("mode", "uncommitted"),),
    ),
    Theme(frozenset({"kill", "freeze"}), odds=0.01, again=0.3, settings=(("mode", "committed"),)),
    Theme(
        frozenset({"kill", "freeze"}),
        (
            "staged elsewhere", "imported elsewhere", "committed elsewhere", "reset elsewhere",
            "branch elsewhere", "rules elsewhere", "repository made", "repository deleted",
            "link", "reset",
        ),
        odds=0.005,
        again=0.3,
        unlike="others",
    ),
    Theme(frozenset({"kill", "lost answer", "freeze"}), odds=0.005, others=1.0, unlike="servers"),
    Theme(
        frozenset({"kill", "freeze"}),
        ("tag", "tag removed", "deleted branch", "set back", "commit", "merge"),
        odds=0.01,
        again=0.3,
        settings=(("protect_tags", True),),
    ),
    Theme(frozenset({"clock jumps"}), ("handed out", "upload in parts", "link"), odds=0.3),
)  # fmt: skip
BACKUP_THEMES: Final = (
    Theme(
        frozenset({"kill", "lost answer", "unavailable"}),
        ("waits", "revert"),
        odds=0.01,
        others=0.2,
    ),
    Theme(frozenset({"kill", "freeze"}), ("rewritten", "waits", "reset"), odds=0.006, others=0.8),
    Theme(
        frozenset({"late", "freeze", "kill", "partial", "SlowDown"}),
        ("link", "revert", "new branch", "rules"),
        odds=0.03,
    ),
    Theme(frozenset({"cut page", "stale list"}), ("waits", "rewritten"), odds=0.01, others=0.2),
    Theme(
        frozenset({"kill", "freeze", "lost answer", "cut page", "stale list"}),
        ("revert", "new branch", "link", "waits"),
        odds=0.006,
        others=0.9,
    ),
)
