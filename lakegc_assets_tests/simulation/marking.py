"""One interleaving in which collectors mark while others write; what came to life is then swept.

Marks are made in the order of a schedule: a clean one, and days later maybe an optimized one. A
sweep runs undisturbed, where a mark names something that is live by then, and now and then else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final

from lakegc_assets.run.context import RunContext
from lakegc_assets_tests.simulation import elsewhere
from lakegc_assets_tests.simulation.choices import Choices
from lakegc_assets_tests.simulation.collector import collect, context
from lakegc_assets_tests.simulation.current_world import inside
from lakegc_assets_tests.simulation.lake import DAY, MAIN, Entry, Lake
from lakegc_assets_tests.simulation.mark_actors import write
from lakegc_assets_tests.simulation.mark_stages import mark
from lakegc_assets_tests.simulation.mark_world import MarkWorld
from lakegc_assets_tests.simulation.row_files import RowFiles
from lakegc_assets_tests.simulation.scheduler import Process
from lakegc_assets_tests.simulation.store import Kept
from lakegc_assets_tests.simulation.themes import MARK_THEMES, Theme
from lakegc_assets_tests.simulation.world import BASE, Result, run_to_end

_TRIES: Final = 2
#: After so many seconds an operator tries again; of so many choices the others are not to.
_PAUSES: Final = (5.0, 60.0, 4000.0)
_PATIENT: Final = 6
#: How long it is from one mark to the next, in days.
_DAYS: Final = (1.2, 2.5, 8.0, 0.02)


def interleave_marks(
    choices: Choices, number: int, tell: Callable[[str], None] | None = None
) -> Result:
    """Run one interleaving to its end; ``tell`` is told of every step, in words."""
    theme = MARK_THEMES[number]
    lake, bucket, promised = _beginning()
    switch = (0.03, 0.08, 0.2, 0.4)[choices.pick(4)] if theme.switch is None else theme.switch
    odds = switch, theme.odds or 0.0
    buckets = {"lake": bucket, "artifacts": dict[str, Kept]()}
    world = MarkWorld(choices, lake.copy(), buckets, *odds, tell=tell, files=RowFiles())
    world.scheduler.far = world.scheduler.odds
    world.begin_serials()
    world.promised.append(promised)
    world.trial, world.every_slice = theme.trial, theme.every_slice
    _make_unlike(world, theme)
    world.faulty, world.changes = theme.faults, theme.changes
    world.promises.conditions = world.conditions
    world.promises.versions = True
    with inside(world):
        world.oracle.look()
        scheduler = world.scheduler
        for writer in range(1 + choices.pick(2)):
            scheduler.spawn_person(f"writer {writer}", partial(write, world), lazy=True)
        scheduler.spawn_person("operator", partial(_operate, world, theme))
        if choices.pick(2, theme.others):
            run = ("mark-1", "mark-3")[choices.pick(2)]
            again = partial(_mark, world, run, "b")
            scheduler.spawn_person("other operator", again, lazy=bool(choices.pick(2)))
        return run_to_end(world, partial(_sweep_undisturbed, world))


def _make_unlike(world: MarkWorld, theme: Theme) -> None:
    """What is unlike other worlds."""
    world.settings.update(theme.settings)
    world.unlike = theme.unlike
    if theme.unlike == "others":
        elsewhere.begin(world)
    elif theme.unlike == "servers":
        # To the other server, all is dead that was staged since it was copied.
        world.second = world.lake.copy()
        world.second.staged.clear()
        world.telling_ids = not world.choices.pick(2)
        if world.choices.pick(2):
            world.mark_server()


def _operate(world: MarkWorld, theme: Theme) -> None:
    """Mark, sweep or not, and mark again some days later."""
    scheduler, pick = world.scheduler, world.choices.pick
    if world.second is not None:
        # Either server may be the first to come.
        scheduler.sleep((0.0, 2.0, 60.0)[pick(3)])
    _mark(world, "mark-1", "a")
    if not pick(2, theme.again):
        return
    if "mark-1" in world.oracle.marked and pick(2):
        _sweep(world, "mark-1")
    days = _DAYS[pick(len(_DAYS))]
    for _ in range(2):
        scheduler.meanwhile()
        scheduler.sleep(days * DAY / 2)
    _mark(world, "mark-2", "a")


def _mark(world: MarkWorld, run: str, machine: str) -> None:
    """Make a mark, and maybe again where that did not end well."""
    scheduler, pick = world.scheduler, world.choices.pick
    resume = False
    for number in range(_TRIES):
        driver = Process(f"marker {machine}{number + 1}", f"machine {machine}", 50.0)
        work = partial(_making, world, run, resume=resume)
        ended = scheduler.call(f"{driver.name} {run}", driver, work, near=True, run=run)
        if ended == "" and not pick(2, 0.1):
            return
        resume = not pick(2)
        pause = pick(_PATIENT)
        if pause >= len(_PAUSES):
            return
        scheduler.sleep(_PAUSES[pause])


def _making(world: MarkWorld, run: str, *, resume: bool) -> str:
    return mark(_context(world, run), world, resume=resume)


def _context(world: MarkWorld, run: str) -> RunContext:
    settings: dict[str, Any] = {
        "listing_num_partitions": 1,
        "skip_new_slices": not world.every_slice,
    }
    if world.trial:
        settings |= {"allow_unsafe_min_age": True, "min_age_hours": 0}
    return context(world, run, 2, **settings)


def _sweep(world: MarkWorld, run: str) -> None:
    """Sweep, while nothing else happens."""
    scheduler = world.scheduler
    odds, faulty = (scheduler.odds, scheduler.far), world.faulty
    scheduler.odds = scheduler.far = (0.0, 0.0)
    world.faulty = frozenset()
    world.store_ahead = 0.0
    driver = Process(f"collector of {run}", "machine c", 10.0)

    def sweeping() -> str:
        return collect(_context(world, run), world)

    scheduler.call(driver.name, driver, sweeping, near=False, run=run)
    (scheduler.odds, scheduler.far), world.faulty = odds, faulty


def _sweep_undisturbed(world: MarkWorld) -> None:
    """Sweep what names something live, which is to be spared, and some others."""
    done = {one.run for one in world.oracle.finished}
    for run in sorted(world.oracle.marked.keys() - done):
        live = world.oracle.marked[run] & world.oracle.live.keys()
        if world.trial or not (live or world.choices.pick(2, 0.1)):
            continue
        scheduler = world.scheduler
        scheduler.actors.clear()
        now, steps = scheduler.now, scheduler.steps
        world.scheduler = type(scheduler)(world.choices, 0.0, 0.0, world.say)
        world.scheduler.now, world.scheduler.steps = now, steps
        world.scheduler.spawn_person("operator", partial(_sweep, world, run))
        world.scheduler.run()


@cache
def _beginning() -> tuple[Lake, dict[str, Kept], str]:
    """A repository some months old, in slices; and an address that was given out hours ago."""
    lake = Lake()
    world = MarkWorld(Choices(), lake, {"lake": {}, "artifacts": {}})

    def put(days: float, *, parts: bool = False) -> Entry:
        world.scheduler.now = -days * DAY
        address = world.address()
        size = 100 + len(world.buckets["lake"])
        kept = world.write_directly(address, address.encode().ljust(size))
        if parts:
            kept = kept._replace(etag=f"{kept.etag}-2")
            world.buckets["lake"][f"repo/{address}"] = kept
        return Entry(address, kept.size, kept.etag)

    def day(days: float) -> float:
        return BASE.timestamp() - days * DAY

    lake.rules = {"": 20}
    first = {"p0": put(60), "p1": put(60)}
    second = {path: put(50) for path in first}
    one = lake.add((), first, day(60), "first")
    two = lake.add((one,), second, day(50), "second")
    put(30)
    lake.branches[MAIN] = lake.add((two,), second | {"p0": put(5)}, day(5), "third")
    lake.staged["dev"] = {"s": put(4), "t": put(4, parts=True)}
    lake.branches["dev"] = lake.add((two,), second | {"d": put(3)}, day(3), "dev")
    put(2.5, parts=True)
    lake.handed[put(0.8).address] = day(0.8) + DAY
    put(0.5)
    return lake, world.buckets["lake"], world.address()
