"""A server with the faults of today's real lakeFS: nothing live is lost, and the garbage goes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.conformance.recorder import FAULTS, conforms
from lakegc_assets_tests.lake import REPOSITORY, STAGES, copy_lake
from lakegc_assets_tests.races.collecting import RUN, tell_garbage
from lakegc_assets_tests.races.faults import TRAPS, After, Trap, Traps
from lakegc_assets_tests.races.world import World, open_world
from lakegc_assets_tests.sessions import Session

_PAGED: dict[str, Any] = {"uncommitted_page_steps": 20}


@dataclass(frozen=True)
class Told:
    """A lake with all traps, on which no server runs."""

    folder: Path
    contents: Mapping[str, bytes]
    traps: Sequence[Trap]
    garbage: frozenset[str]


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("faults") / "lake"
    traps = [trap() for trap in TRAPS]
    with open_world(folder, **_PAGED) as world:
        tell_garbage(world)
        garbage = frozenset(world.lake.keys() - world.live().keys())
        for trap in traps:
            trap.prepare(world)
        return Told(folder, dict(world.contents), traps, garbage)


def collect(told: Told, folder: Path, kinds: Sequence[type[Trap]], spark: Session) -> None:
    """Mark and sweep on a server with some faults; their traps must have been set, in vain."""
    lake = copy_lake(told.folder, folder / "lake")
    chosen = [copy.deepcopy(trap) for trap in told.traps if type(trap) in kinds]
    faults = frozenset(trap.fault for trap in chosen)
    traps = Traps(chosen)
    with open_world(
        lake, dict(told.contents), faults=faults, at_scan_step=traps.see_scan, **_PAGED
    ) as world:
        traps.set(world)
        alive = world.live().keys()
        for stage in STAGES:
            traps.new_snapshot()
            stage(world.context(spark, RUN))
        traps.between()
        sweep(world.context(spark, RUN))
        traps.release()
        _check(told, traps, world, alive)


def _check(told: Told, traps: Traps, world: World, alive: AbstractSet[str]) -> None:
    attempt = world.lake.root.attempt(REPOSITORY, RUN)
    listed = attempt.read("uncommitted_snapshot").to_pylist()
    marked = attempt.read("deletion_candidates").to_pylist()
    after = After(world, {row["address"] for row in listed})
    for trap in traps.traps:
        assert trap.shows(after), f"the server does not have {trap.fault}"
    live = world.live()
    for address, (ref, path) in live.items():
        assert world.read(ref, path) == world.contents[address], f"{path} of {ref} at {address}"
    for trap in traps.traps:
        assert trap.kept() <= world.lake.keys()
    assert not {row["address"] for row in marked} & alive & live.keys()
    assert not told.garbage & world.lake.keys()


def _row(kind: type[Trap]) -> pytest.MarkDecorator:
    trap = str(kind.__doc__).splitlines()[0]
    checked = f"{trap} A mark and a sweep lose nothing that is alive, and the garbage goes"
    return conforms(FAULTS, kind.fault.value, client="lakegc", checked=checked)


@pytest.mark.conformance
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=_row(kind), id=kind.fault.value) for kind in TRAPS]
)
def test_one_fault(kind: type[Trap], told: Told, tmp_path: Path, spark: Session) -> None:
    collect(told, tmp_path, [kind], spark)


@conforms(
    FAULTS, "all of them", client="lakegc", checked="the same on a server that has every fault"
)
def test_all_faults(told: Told, tmp_path: Path, spark: Session) -> None:
    collect(told, tmp_path, TRAPS, spark)
