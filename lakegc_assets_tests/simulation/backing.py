"""One interleaving with a backup: it is made, its mark is swept, and maybe restored, under kills.

What does not end well is maybe tried again, and another operator may do any of the three beside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.run.context import RunContext
from lakegc_assets_tests.simulation.actors import write
from lakegc_assets_tests.simulation.backup_world import BACKUPS, BackupWorld
from lakegc_assets_tests.simulation.choices import Choices
from lakegc_assets_tests.simulation.collector import attempt, collect, context
from lakegc_assets_tests.simulation.current_world import inside
from lakegc_assets_tests.simulation.lake import Lake
from lakegc_assets_tests.simulation.pruning import prune
from lakegc_assets_tests.simulation.row_files import RowFiles
from lakegc_assets_tests.simulation.scheduler import Process
from lakegc_assets_tests.simulation.store import Kept
from lakegc_assets_tests.simulation.themes import BACKUP_THEMES
from lakegc_assets_tests.simulation.world import Result, World, run_to_end

_RUN: Final = "mark-1"
_TRIES: Final = 3
#: Of what a store keeps, by number: nothing, versions, or what was moved to its trash.
_TRASH: Final = 2
#: After so many seconds an operator tries again; of so many choices the others are not to.
_PAUSES: Final = (5.0, 60.0, 400.0)
_PATIENT: Final = 6


class Beginning(NamedTuple):
    """A repository with a mark: its lake, objects by bucket and key, rows, and what is marked."""

    lake: Lake
    buckets: Mapping[str, Mapping[str, Kept]]
    files: RowFiles
    marked: frozenset[str]


def interleave_backups(
    choices: Choices,
    number: int,
    beginning: Beginning,
    tell: Callable[[str], None] | None = None,
) -> Result:
    """Run one interleaving to its end; ``tell`` is told of every step, in words."""
    theme = BACKUP_THEMES[number]
    odds = (0.01, 0.03, 0.1, 0.3)[choices.pick(4)]
    buckets = {**beginning.buckets, "backup": {}}
    files = beginning.files.copy()
    world = BackupWorld(
        choices, beginning.lake.copy(), buckets, odds, theme.odds or 0.0, tell=tell, files=files
    )
    world.oracle.marked[_RUN] = beginning.marked
    world.watch()
    world.scheduler.far = world.scheduler.odds
    world.faulty, world.changes = theme.faults, theme.changes
    kept = choices.pick(3, 0.3)
    world.promises.versions, world.promises.trash = kept == 1, kept == _TRASH
    with inside(world):
        world.oracle.look()
        scheduler = world.scheduler
        scheduler.spawn_person("writer", partial(write, world), lazy=True)
        scheduler.spawn_person("operator", partial(_operate, world))
        if choices.pick(2, theme.others):
            doing = list(_DOING)[choices.pick(len(_DOING))]
            again = partial(_do, world, doing, "b")
            scheduler.spawn_person("other operator", again, lazy=bool(choices.pick(2)))
        return run_to_end(world)


def _operate(world: BackupWorld) -> None:
    _do(world, "backup", "a")
    _do(world, "sweep", "a")
    if then := world.choices.pick(3):
        _do(world, ("restore", "prune")[then - 1], "a")


def _do(world: BackupWorld, doing: str, machine: str) -> None:
    """Do something, and maybe again where it did not end well."""
    scheduler, pick = world.scheduler, world.choices.pick
    for number in range(_TRIES):
        driver = Process(f"{doing} {machine}{number + 1}", f"machine {machine}", 50.0)
        facts = {"run": _RUN, "restores": doing == "restore"}
        work = partial(_doing, world, doing)
        if scheduler.call(driver.name, driver, work, near=True, **facts) == "":
            return
        pause = pick(_PATIENT)
        if pause >= len(_PAUSES):
            return
        scheduler.sleep(_PAUSES[pause])


def _doing(world: BackupWorld, doing: str) -> str:
    settings: dict[str, Any] = {
        "backup_url": BACKUPS,
        "backup_num_partitions": 2,
        "trash_days": 1 / 24,
    }
    return _DOING[doing](world, context(world, _RUN, 2, **settings))


def _back_up(world: World, ctx: RunContext) -> str:
    return attempt(world, "backup", partial(make_backup, ctx))


def _restore(world: World, ctx: RunContext) -> str:
    some = sorted(world.oracle.marked[_RUN])
    pick = world.choices.pick(len(some) + 1)
    choice = Choice(addresses=(some[pick - 1],)) if pick else Choice(everything=True)
    return attempt(world, "restore", partial(restore, ctx, choice))


def _sweep(world: World, ctx: RunContext) -> str:
    return collect(ctx, world)


def _prune(world: World, ctx: RunContext) -> str:
    # Long ago, or at once: trash and backups have no age that keeps them.
    world.scheduler.meanwhile()
    world.scheduler.sleep((0.0, 4000.0)[world.choices.pick(2)])
    return attempt(world, "prune", partial(prune, world, ctx, BACKUPS))


_DOING: Final = {"backup": _back_up, "sweep": _sweep, "restore": _restore, "prune": _prune}
