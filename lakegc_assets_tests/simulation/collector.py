"""A collector: the mark, in plain Python where Spark is used, and the sweep as it is."""

from __future__ import annotations

import logging
from datetime import datetime
from functools import cache
from typing import Any, Final

import pyarrow as pa

from lakegc_assets.engine.datasets import read_part, write_part
from lakegc_assets.engine.tasks import Tasks
from lakegc_assets.errors import LakegcError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark.commits import find_active_commits
from lakegc_assets.mark.committed import read_committed_addresses
from lakegc_assets.mark.listing_pages import listing_rows
from lakegc_assets.mark.publication import Summary, instant, mark_folder
from lakegc_assets.mark.uncommitted import snapshot_uncommitted
from lakegc_assets.run.artifacts import LISTING, ArtifactRoot, Manifest
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import key_digest
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.values import LISTING_SCHEMA
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.simulation.client import REPOSITORY, SimConfig
from lakegc_assets_tests.simulation.current_world import world
from lakegc_assets_tests.simulation.executors import JobError, SimTasks
from lakegc_assets_tests.simulation.seams import served
from lakegc_assets_tests.simulation.twin_session import TwinSession
from lakegc_assets_tests.simulation.world import World

ARTIFACTS: Final = "s3://artifacts"
_LOG: Final = logging.Logger("simulated", logging.CRITICAL)  # noqa: LOG001 - nobody reads it


class SimClocks:
    """The clocks of a world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> datetime:
        return self._world.wall()

    def of_lakefs(self, client: LakeFSClient) -> datetime:
        return client.server_time()

    def of_store(self, store: ObjectStore) -> datetime:
        return store.server_time()

    def sleep(self, seconds: float) -> None:
        self._world.pause(seconds)


_TYPES: Final = dict(zip(LISTING_SCHEMA.names, LISTING_SCHEMA.types, strict=True))


def _no_spark() -> Any:
    raise AssertionError("nothing here needs Spark")


def context(world: World, run: str, batch: int, tasks: int = 1, **settings: Any) -> RunContext:
    """A run in a world.

    Args:
        world: in which it runs.
        run: id of the mark.
        batch: keys in a request.
        tasks: that delete, at most.
        settings: besides those of the world.
    """
    given = {"sweep_batch": batch, "sweep_num_partitions": tasks, **world.settings, **settings}
    config: Any = SimConfig(world)
    root = ArtifactRoot(ARTIFACTS, _STORES)
    found = _settings(tuple(given.items()))
    return SimContext(REPOSITORY, run, found, config, root, _no_spark, SimClocks(world), log=_LOG)


def _open_store(url: str, config: StoreConfig) -> ObjectStore:
    here = world()
    if config.max_attempts == 1:
        return here.store(url, config.read_timeout_s)
    return here.stores.get(url) or here.store(url)


_STORES: Final = StoreConfig(opener=_open_store)


class SimContext(RunContext):
    """A run whose frames are rows, and whose tasks are actors of its world."""

    def frames(self, connections: Connections) -> Any:
        return TwinSession(connections.open)

    @property
    def tasks(self) -> Tasks:
        return SimTasks(self.engine, self.session, self.log)


@cache
def _settings(given: tuple[tuple[str, Any], ...]) -> Settings:
    usual = Settings(
        engine="embedded",
        range_num_partitions=1,
        address_num_partitions=1,
        lease_wait_seconds=30,
    )
    return usual.changed(**dict(given))


def mark(ctx: RunContext) -> None:
    """Mark; in plain Python where no sweep does the same.

    Raises:
        LakegcError: as the stages do.
    """
    _list(ctx)
    snapshot_uncommitted(ctx)
    find_active_commits(ctx)
    read_committed_addresses(ctx)
    _candidates(ctx)
    _report(ctx)


def _list(ctx: RunContext) -> None:
    started = ctx.clocks.now()
    client, connections = ctx.connect()
    store = connections.store()
    start = ctx.check_clocks(client, store)
    cutoff = ctx.settings.cutoff(start, client.grace_period())
    attempt = ctx.root.new_attempt(ctx.repository, ctx.run)
    found = [row for batch in store.list("data/") for row in batch.to_pylist()]
    names = ("key", "size", "last_modified", "etag")
    columns = [pa.array([row[name] for row in found], _TYPES[name]) for name in names]
    rows = listing_rows(pa.Table.from_arrays(columns, names))
    part = write_part(attempt.store(), "store_listing/data/", rows)
    attempt.finish(
        Manifest(
            asset="store_listing",
            repository=ctx.repository,
            run=ctx.run,
            attempt=attempt.attempt,
            namespace=connections.namespace_url,
            cutoff=cutoff,
            started=started,
            finished=ctx.clocks.now(),
            rows=rows.num_rows,
            digest=str(key_digest(rows["address"])),
            parts={"data": [part]},
            previous="",
            settings=ctx.settings.to_json(),
            facts={"start": start.isoformat(), "first_slice": "", "mode": "clean"},
        )
    )


def _candidates(ctx: RunContext) -> None:
    started = ctx.clocks.now()
    client, connections = ctx.connect()
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    chain = attempt.chain("committed_addresses", connections.namespace_url)
    store = attempt.store()
    ranges = attempt.read("committed_addresses", "ranges")["range_id"].to_pylist()
    live = {one.split("|")[1] for one in ranges}
    live |= set(attempt.read("uncommitted_snapshot")["address"].to_pylist())
    listed = read_part(store, chain["store_listing"].parts["data"][0]).to_pylist()
    dead = [
        row
        for row in listed
        if row["address"] not in live and row["last_modified"] < chain["store_listing"].cutoff
    ]
    heads = attempt.read("active_commits", "heads")["branch"].to_pylist()
    spared = served(client, heads, dead)
    rows = pa.Table.from_pylist([r for r in dead if r["address"] not in spared], schema=LISTING)
    ctx.finish(
        "deletion_candidates",
        chain["committed_addresses"],
        started,
        {"data": [write_part(store, "deletion_candidates/data/", rows)]},
        {},
        key_digest(rows["address"]),
    )


def _report(ctx: RunContext) -> None:
    started = ctx.clocks.now()
    _, connections = ctx.connect()
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    chain = attempt.chain("deletion_candidates", connections.namespace_url)
    manifest, listing = chain["deletion_candidates"], chain["store_listing"]
    summary = Summary(
        run_id=ctx.run,
        success=True,
        first_slice="",
        start_time=instant(datetime.fromisoformat(listing.facts["start"])),
        cutoff_time=instant(manifest.cutoff),
        num_deleted_objects=manifest.rows,
    )
    key = f"{mark_folder(ctx.run)}summary.json"
    connections.store().put_if_absent(key, summary.to_bytes())
    part = write_part(attempt.store(), "gc_report/data/", pa.table({"dimension": ["x"]}))
    ctx.finish("gc_report", manifest, started, {"data": [part]}, {}, None)


def collect(ctx: RunContext, world: World) -> str:
    """Sweep; how it ended: "" for well, else the error."""
    try:
        sweep(ctx)
    except (LakegcError, JobError) as error:
        world.say(f"the sweep ends with {type(error).__name__}: {error}")
        return f"{type(error).__name__}: {error}"
    return ""
