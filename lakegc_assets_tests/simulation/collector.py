"""A run in a world: its clocks, stores and tables, and its sweep."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, Final

from lakegc_assets.engine.choice import Engine
from lakegc_assets.engine.tasks import Tasks
from lakegc_assets.errors import LakegcError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.clocks import NEVER, Clocks
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.simulation.client import REPOSITORY, SimConfig
from lakegc_assets_tests.simulation.current_world import Event, Lock, Thread, world
from lakegc_assets_tests.simulation.executors import JobError, SimTasks
from lakegc_assets_tests.simulation.tables import SimTables
from lakegc_assets_tests.simulation.twin_session import TwinSession
from lakegc_assets_tests.simulation.world import World

ARTIFACTS: Final = "s3://artifacts"
_LOG: Final = logging.Logger("simulated", logging.CRITICAL)  # noqa: LOG001 - nobody reads it


class SimClocks(Clocks):
    """The clocks of a world, whose threads are actors."""

    threads: Any = SimpleNamespace(Lock=Lock, Event=Event, Thread=Thread)

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> datetime:
        return self._world.wall()

    def elapsed(self) -> float:
        return self._world.elapsed()

    def boot_id(self) -> str:
        """Asked for when a moment is taken, as at the beginning of a delta mark."""
        self._world.takes_moment()
        return self._world.process.boot

    def resumed(self) -> float:
        return self._world.thawed()

    def watched_since(self) -> float:
        """What suspends a process before it begins is for its driver to notice."""
        return NEVER

    def sleep(self, seconds: float) -> None:
        self._world.pause(seconds)


def _no_spark() -> Any:
    raise AssertionError("nothing here needs Spark")


def context(world: World, run: str, batch: int, tasks: int = 1, **settings: Any) -> RunContext:
    """A run in a world; ``settings`` come besides those of the world."""
    # Here a commit is one step, so that none is under way between two looks.
    given = {
        "longest_commit_seconds": 0,
        "sweep_batch": batch,
        "sweep_num_partitions": tasks,
        **world.settings,
        **settings,
    }
    config: Any = SimConfig(world)
    root = ArtifactRoot(ARTIFACTS, _STORES)
    found = _settings(tuple(given.items()))
    return SimContext(REPOSITORY, run, found, config, root, _no_spark, SimClocks(world), log=_LOG)


def _open_store(url: str, config: StoreConfig) -> ObjectStore:
    here = world()
    if config.max_attempts == 1:
        return here.store(url, config.read_timeout_s)
    return here.stores.get(url) or here.store(url)


_TASKS: Final = SimTasks(Engine("embedded", "nothing here needs Spark"), _no_spark, _LOG)
_STORES: Final = StoreConfig(opener=_open_store, tables=SimTables())


class SimContext(RunContext):
    """A run whose frames are rows, and whose tasks are actors of its world."""

    def check_clocks(self, client: LakeFSClient, store: ObjectStore) -> datetime:
        world().compares_clocks()
        return super().check_clocks(client, store)

    def frames(self) -> Any:
        return TwinSession(self.connections.open)

    @property
    def tasks(self) -> Tasks:
        return _TASKS


@cache
def _settings(given: tuple[tuple[str, Any], ...]) -> Settings:
    usual = Settings(
        engine="embedded",
        range_num_partitions=1,
        address_num_partitions=1,
        lease_wait_seconds=30,
    )
    return usual.changed(**dict(given))


def attempt(world: World, what: str, work: Callable[[], object]) -> str:
    """Do something; how it ended: "" for well, else the error."""
    try:
        work()
    except (LakegcError, JobError) as error:
        world.say(f"the {what} ends with {type(error).__name__}: {error}")
        return f"{type(error).__name__}: {error}"
    world.covered["ended well", what] += 1
    return ""


def collect(ctx: RunContext, world: World) -> str:
    """Sweep; how it ended, as ``attempt``."""
    return attempt(world, "sweep", partial(sweep, ctx))
