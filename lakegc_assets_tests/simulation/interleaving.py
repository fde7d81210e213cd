"""One interleaving: a world with collectors, writers and an operator, from start to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from typing import Final

from lakegc_assets.mark.reasons import CANDIDATES
from lakegc_assets_tests.simulation import elsewhere, row_files
from lakegc_assets_tests.simulation.actors import HANDED_S, write
from lakegc_assets_tests.simulation.backing import Beginning, interleave_backups
from lakegc_assets_tests.simulation.choices import Choices
from lakegc_assets_tests.simulation.collector import attempt, collect, context
from lakegc_assets_tests.simulation.current_world import inside
from lakegc_assets_tests.simulation.lake import DAY, MAIN, Entry, Lake
from lakegc_assets_tests.simulation.mark_stages import make
from lakegc_assets_tests.simulation.marking import interleave_marks
from lakegc_assets_tests.simulation.oracle import START
from lakegc_assets_tests.simulation.pruning import prune
from lakegc_assets_tests.simulation.row_files import RowFiles
from lakegc_assets_tests.simulation.scheduler import Process
from lakegc_assets_tests.simulation.themes import (
    BACKUP_THEMES,
    LATER_THEMES,
    MARK_THEMES,
    SWEEP_THEMES,
    Theme,
)
from lakegc_assets_tests.simulation.world import BASE, Result, World, run_to_end

RUN: Final = "mark-1"
#: The mark is made so many seconds before a sweep may begin.
_BEFORE_S: Final = 600.0
_SWEEPS: Final = 3
#: After so many seconds an operator sweeps again; of so many choices the others are not to.
_PAUSES: Final = (5.0, 60.0, 400.0)
_PATIENT: Final = 8
#: How many kinds there are of a sweep alone; behind them come those of marks, then of backups, and
#: then some more of a sweep alone.
THEMES: Final = len(SWEEP_THEMES)
MORE: Final = THEMES + len(MARK_THEMES) + len(BACKUP_THEMES)
#: How often each kind comes: one of a sweep twice as often as others, since its rare moments are
#: rarest; one that always makes two marks half as often, since it takes longest.
_WEIGHTS: Final = (
    *(4 for _ in SWEEP_THEMES),
    *(1 if theme.again == 1.0 else 2 for theme in MARK_THEMES),
    *(2 for _ in BACKUP_THEMES),
    *(2 for _ in LATER_THEMES),
)


@dataclass(frozen=True)
class Shape:
    """What a world begins with.

    Attributes:
        dead: objects that only an expired commit holds.
        orphans: uploads that nothing ever held.
        extras: also an old staged object, a shadowed upload, an address that may yet be linked.
        twin: an upload that nothing ever held, and that has the content of what a branch holds.
    """

    dead: int
    orphans: int
    extras: bool
    twin: bool = False


SHAPES: Final = (
    Shape(2, 1, False),
    Shape(3, 1, True),
    Shape(1, 1, False),
    Shape(3, 2, False),
    Shape(1, 1, True, twin=True),
)


def interleave(choices: Choices, tell: Callable[[str], None] | None = None) -> Result:
    """Run one interleaving to its end; ``tell`` is told of every step, in words."""
    shape = SHAPES[choices.pick(len(SHAPES))]
    number = choices.among(_WEIGHTS)
    if THEMES <= number < THEMES + len(MARK_THEMES):
        return interleave_marks(choices, number - THEMES, tell)
    begun = _beginning(shape, World.shadow_rule, World.diff_witness)
    if THEMES + len(MARK_THEMES) <= number < MORE:
        return interleave_backups(choices, number - THEMES - len(MARK_THEMES), begun, tell)
    theme = SWEEP_THEMES[number] if number < THEMES else LATER_THEMES[number - MORE]
    fault = (0.0, 0.01, 0.03, 0.1)[choices.pick(4)] if theme.odds is None else theme.odds
    odds = (0.03, 0.08, 0.2, 0.4)[choices.pick(4)], fault
    world = World(
        choices, begun.lake.copy(), begun.buckets, *odds, tell=tell, files=begun.files.copy()
    )
    if theme.odds is not None:
        world.scheduler.far = (world.scheduler.far[0], 0.0)
    world.oracle.marked[RUN] = begun.marked
    world.promises.conditions = world.conditions
    if world.tampered and shape.extras:
        with row_files.among(world.files):
            _tamper(world)
    _promise(world, theme)
    world.faulty, world.changes, world.early = theme.faults, theme.changes, theme.early
    world.most_metaranges = 200 if not choices.pick(5, 0.1) else 0
    size = choices.pick(2) + 1, choices.pick(2) + 1
    with inside(world):
        world.oracle.look()
        scheduler = world.scheduler
        for number in range(1 + choices.pick(2)):
            scheduler.spawn_person(f"writer {number}", partial(write, world), lazy=True)
        scheduler.spawn_person("operator", partial(_operate, world, size, "a"))
        most = 3 if theme.unlike == "many" else 2
        for machine in "bc"[: choices.pick(most, theme.others)]:
            doing = _prune if theme.unlike == "trash" else _operate
            does = partial(doing, world, size, machine)
            scheduler.spawn_person("other operator", does, lazy=not choices.pick(2))
        return run_to_end(world)


def _promise(world: World, theme: Theme) -> None:
    """What the store promises, and what else is unlike other worlds."""
    pick, promises = world.choices.pick, world.promises
    promises.deadlines = not pick(4, 0.25)
    promised = pick(4, 0.4)
    promises.etags, promises.versions = bool(promised & 1), bool(promised & 2)
    world.settings, world.unlike = dict(theme.settings), theme.unlike
    if theme.unlike == "single":
        promises.etags, promises.single = False, True
    elif theme.unlike == "trash":
        # Of a local store there is nothing that keeps deadlines, or versions.
        promises.deadlines, promises.versions, promises.trash = False, False, True
    elif theme.unlike == "others":
        elsewhere.begin(world)
    elif theme.unlike == "many":
        # A store that ignores them is to be found out, and then nobody sweeps.
        promises.conditions = world.conditions and not pick(8, 0.1)


def _operate(world: World, size: tuple[int, int], name: str) -> None:
    """Sweep, and mostly not again where it did not end well."""
    scheduler = world.scheduler
    for number in range(_SWEEPS):
        driver = Process(f"collector {name}{number + 1}", f"machine {name}", 50.0 * (number + 1))

        def work() -> str:
            return collect(context(world, RUN, *size), world)

        if scheduler.call(driver.name, driver, work, near=world.early, run=RUN) == "":
            return
        # Where nobody waits for who is gone, what counts is what happens soon.
        pause = world.choices.pick(2 if world.unlike == "gone" else _PATIENT)
        if pause >= len(_PAUSES):
            return
        # Where there is trash, it is to be old when a sweep that failed is tried again.
        scheduler.sleep(_PAUSES[pause] * (10 if world.promises.trash else 1))


def _prune(world: World, size: tuple[int, int], name: str) -> None:
    """Remove old trash once or twice, while others sweep or behind that."""
    for number in range(2):
        world.scheduler.meanwhile()
        world.scheduler.sleep((4000.0, 0.0, 8000.0)[world.choices.pick(3)])
        pruner = Process(f"pruner {name}{number + 1}", f"machine {name}", 50.0)

        def work() -> str:
            return attempt(world, "prune", partial(prune, world, context(world, RUN, *size)))

        world.scheduler.call(pruner.name, pruner, work, near=True)


@cache
def _beginning(shape: Shape, *_guards: bool) -> Beginning:
    """A repository with a mark of it."""
    lake = Lake()
    files = RowFiles()
    world = World(Choices(), lake, {"lake": {}, "artifacts": {}}, files=files)
    world.scheduler.now = -_BEFORE_S
    _fill(world, shape)
    with inside(world):
        ctx = context(world, RUN, 1)
        found: list[str] = []

        def mark() -> None:
            make(ctx)
            attempt = ctx.root.attempt(ctx.repository, RUN)
            found.extend(attempt.read("deletion_candidates")["address"].to_pylist())

        world.scheduler.spawn("marker", Process("marker", "machine", 0.0), mark)
        world.scheduler.run()
        assert START - 1 < BASE.timestamp() - _BEFORE_S < START + 1
    return Beginning(lake, world.buckets, files, frozenset(found))


def _tamper(world: World) -> None:
    """Somebody adds an object, which may yet be linked, to the file of the candidates."""
    kept = world.buckets["artifacts"]
    key = next(key for key in kept if "/deletion_candidates/data/" in key)
    rows = row_files.rows_of(kept[key].data)
    more = {**rows[-1], "address": "data/old/handed"}
    data = row_files.encode_rows([*rows, more], CANDIDATES)
    kept[key] = kept[key]._replace(data=data, size=len(data))


def _fill(world: World, shape: Shape) -> None:
    """A repository some months old."""
    lake = world.lake

    def put(name: str, days: float) -> Entry:
        address = f"data/old/{name}"
        size = 100 + len(world.buckets["lake"])
        when = world.store_time() - timedelta(days=days)
        kept = world.write_directly(address, name.encode().ljust(size), when)
        return Entry(address, kept.size, kept.etag)

    def day(days: float) -> float:
        return START - days * DAY

    lake.rules = {"": 20}
    first = {f"p{n}": put(f"dead-{n}", 60) for n in range(shape.dead)}
    second = {path: put(f"next-{path}", 50) for path in first}
    one = lake.add((), first, day(60), "first")
    two = lake.add((one,), second, day(50), "second")
    third = second | {"p0": put("third", 5)}
    lake.branches[MAIN] = lake.add((two,), third, day(5), "third")
    lake.branches["dev"] = lake.add((two,), second | {"d": put("dev", 3)}, day(3), "dev")
    for number in range(shape.orphans):
        put(f"orphan-{number}", 30)
    if shape.twin:
        data = world.buckets["lake"][f"repo/{third['p0'].address}"].data
        world.write_directly("data/old/twin", data, world.store_time() - timedelta(days=30))
    if not shape.extras:
        return
    lake.staged["dev"] = {"s": put("staged", 4)}
    address = put("handed", 0.8).address
    lake.handed[address] = day(0.8) + HANDED_S
    served = third["p0"]
    data = world.buckets["lake"][f"repo/{served.address}"].data
    shadow = world.write_directly("data/old/shadow", data, world.store_time() - timedelta(days=2))
    lake.shadows[MAIN, "p0"] = Entry("data/old/shadow", shadow.size, shadow.etag)
