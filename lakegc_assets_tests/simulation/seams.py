"""Gives the code of the sweep another world to stand on: stores, clocks, threads and parquet."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import pyarrow as pa

from lakegc_assets.engine import datasets, tasks
from lakegc_assets.graveler.decode import etag_hashes
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.mark import commits, committed, references
from lakegc_assets.mark.live_ranges import Live, LiveRanges
from lakegc_assets.mark.marked_objects import Candidates
from lakegc_assets.mark.served import SERVED, SPARED
from lakegc_assets.recovery import (
    backup_pruning,
    liveness,
    old_trash,
)
from lakegc_assets.run.artifacts import Manifest
from lakegc_assets.run.hashing import KeyDigest, address_hashes, hash_table, key_digest
from lakegc_assets.storage import parquet
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.sweep import (
    alarm,
    deletion,
    delta,
    delta_extension_task,
    lease,
    leased,
    ledger,
    monotonic_age,
    prefetch,
    rounds,
    store_comparison,
    sweep,
)
from lakegc_assets.sweep.lease_record import LeaseRecord
from lakegc_assets.sweep.task_orders import TaskResult
from lakegc_assets_tests.simulation import mark_stages, row_files
from lakegc_assets_tests.simulation.client import NAMESPACE, REPOSITORY
from lakegc_assets_tests.simulation.current_world import (
    Datetime,
    Event,
    Lock,
    Pool,
    Thread,
    inside,
    sleep,
    world,
)
from lakegc_assets_tests.simulation.elsewhere import inside as inside_of
from lakegc_assets_tests.simulation.elsewhere import read_full, staged_addresses
from lakegc_assets_tests.simulation.lake import Entry, Lake
from lakegc_assets_tests.simulation.pruning import noted

__all__ = ["inside", "installed", "served"]


class SimExtender(delta_extension_task.Extender):
    """Reads ranges as the lake in memory has them."""

    def _read(self, metaranges: Any, ranges: Any) -> delta_extension_task.Found:
        if len(metaranges) > world().most_metaranges:
            raise delta_extension_task.TooMuchError(f"{len(metaranges)} metaranges are to be read")
        found = _ranges_of(metaranges) - set(ranges)
        entries = [_entry(one) for one in sorted(found)]
        addresses = pa.array([entry.address for entry in entries], pa.string())
        return delta_extension_task.Found(
            ranges=found,
            hashes=address_hashes(addresses),
            last_parts=frozenset(),
            looks=pa.table(
                {
                    "size": pa.array([entry.size for entry in entries], pa.int64()),
                    "etag_hash": etag_hashes(pa.array([e.etag for e in entries], pa.string())),
                }
            ),
        )


_NOTHING: Final = SPARED.empty_table()


class SimDeltas(delta.Deltas):
    """Tells the oracle when a delta mark begins, and asks for what is served without Spark."""

    def take(
        self, candidates: Candidates, name: str, unread: list[str] | None = None
    ) -> delta.DeltaMark:
        here = world()
        actor = here.scheduler.current
        assert actor is not None
        begun = here.oracle.now()
        here.oracle.deltas[self.folder.rstrip("/").rsplit("/", 1)[-1], name] = begun
        here.say(f"begins the delta mark {name!r}")
        actor.near = True
        if name == "after":
            actor.facts["after"] = begun
        return super().take(candidates, name, unread)

    def _served(self, connections: Any, candidates: Any, liveness: Any, _folder: str) -> pa.Table:
        client = connections.client()
        store = self.attempt.store()
        files = [row_files.rows_of(datasets.fetch_part(store, part)) for part in candidates.parts]
        rows = [row for rows in files for row in rows]
        found = served(client, liveness.heads, rows)
        if not found:
            return _NOTHING
        return pa.table([sorted(found), [SERVED] * len(found)], schema=SPARED)


def served(
    client: Any,
    heads: Iterable[str],
    rows: row_files.Rows,
    metaranges: Mapping[str, str] | None = None,
) -> set[str]:
    """Which of some objects lakeFS serves, although no list of it has them.

    Args:
        client: of the lake.
        heads: the branches.
        rows: of the objects: address, size and etag, which is None where nobody knows it.
        metaranges: of the branches, as they were read; None for those that they have now.
    """
    here = world()
    sizes = {row["size"] for row in rows}
    looks = {(row["size"], row["etag"]) for row in rows}
    found: set[str] = set()
    for branch in sorted(heads):
        paths = [
            change.path
            for change in client.diff_branch(REPOSITORY, branch)
            if change.type != "removed" and change.size_bytes in sizes and here.diff_witness
        ]
        if here.shadow_rule and branch in here.lake.branches:
            now = here.lake.commits[here.lake.branches[branch]].meta_range_id
            tree = here.lake.trees[now if metaranges is None else metaranges[branch]]
            paths += [
                path
                for path, entry in tree.items()
                if entry[1:] in looks or (entry.size, None) in looks
            ]
        for path in sorted(set(paths)):
            found.add(client.stat(REPOSITORY, branch, path).physical_address)
    inside = {address.removeprefix(f"{NAMESPACE}/") for address in found}
    return inside & {row["address"] for row in rows}


def _served_by_size(space: Any, links: Any, alive: Any, objects: Any) -> pa.Table:
    store = space.attempt.store()
    files = [row_files.rows_of(datasets.fetch_part(store, part)) for part in objects]
    rows = [{**row, "etag": None} for some in files for row in some]
    found = sorted(served(links.client(), alive.heads, rows))
    return pa.table([found, [SERVED] * len(found)], schema=SPARED) if found else _NOTHING


def _ranges_of(metaranges: Iterable[str], lake: Lake | None = None) -> set[str]:
    here, found = world(), set()
    trees = (here.lake if lake is None else lake).trees
    for metarange in sorted(set(metaranges) - {""}):
        here.ask("get", f"_lakefs/{metarange[:6]}")
        for path, entry in trees[metarange].items():
            found.add("|".join((path, entry.address, str(entry.size), entry.etag)))
    return found


def _entry(range_id: str) -> Entry:
    _, address, size, etag = range_id.split("|")
    return Entry(address, int(size), etag)


def _live_ranges(
    _ctx: Any, links: Any, metarange_ids: Iterable[str], *, every: bool, **_strict: bool
) -> LiveRanges:
    ids, lake = set(metarange_ids), world().lake
    if links.namespace_url != NAMESPACE:
        name = links.namespace_url.rpartition("/")[2]
        if name not in world().others:
            raise ObjectNotFoundError(f"{links.namespace_url} is gone")
        lake = world().others[name]
    if every:
        ids |= set(lake.trees)
    return LiveRanges(_range_table(tuple(sorted(_ranges_of(ids, lake)))), len(ids), 0)


@lru_cache(maxsize=4096)
def _range_table(range_ids: tuple[str, ...]) -> pa.Table:
    entries = pa.array([1] * len(range_ids), pa.int64())
    return pa.table({"range_id": pa.array(range_ids, pa.string()), "entries": entries})


def _read_live(
    _ctx: Any, _links: Any, ranges: pa.Table, store: ObjectStore, folder: str, **_strict: bool
) -> Live:
    addresses = [_entry(one).address for one in ranges["range_id"].to_pylist()]
    hashes, digest = _hashed(tuple(sorted(set(addresses))))
    runs = [datasets.write_part(store, f"{folder}data/", hashes)] if addresses else []
    cached = pa.array([False] * ranges.num_rows, pa.bool_())
    return Live(runs, ranges.append_column("from_cache", cached), [], digest)


@lru_cache(maxsize=4096)
def _hashed(addresses: tuple[str, ...]) -> tuple[pa.Table, KeyDigest]:
    keys = pa.array(addresses, pa.string())
    return hash_table(address_hashes(keys)), key_digest(keys)


class SimTask(deletion.DeletingTask):
    """Notes what stopped a batch, and whether something in it is live: then it came close."""

    def _make_ready(self, batch: Any, objects: pa.Table) -> Any:
        ready: Any = super()._make_ready(batch, objects)
        here = world()
        stopped = isinstance(ready, TaskResult)
        here.covered["check", ready.outcome if stopped else "sent"] += 1
        sent = set() if stopped else {one.address for one in ready.to_send}
        here.compared(one.asked for one in batch if one.marked.address in sent)
        here.oracle.close += any(
            one.marked.address in here.oracle.live and one.marked.address not in sent
            for one in batch
        )
        return ready


class _Few(int):
    """Fewer objects are asked for one by one; none are in worlds where batches are listed."""

    def __lt__(self, other: int) -> bool:
        return (0 if world().unlike == "listed" else int(self)) < other


def _condition(_store: ObjectStore) -> str:
    promises = world().promises
    return "bulk" if promises.etags else "single" if promises.single else "none"


def _reach(of: Any, orders: Any) -> deletion.TaskClients:
    found: deletion.TaskClients = of(orders)
    return deletion.TaskClients(
        found.client,
        found.deleting,
        found.asking,
        found.artifacts,
        clock=monotonic_age.elapsed,
        sleep=sleep,
        thawed=world().thawed,
    )


def _clock_gettime(clock: int) -> float:
    """The time of the world, but for threads of an earlier test, which live on outside of it."""
    if threading.current_thread() is threading.main_thread():
        return world().elapsed()
    return time.clock_gettime(clock)


def _replaced() -> list[tuple[object, str, object]]:
    """What is replaced where."""
    threads = SimpleNamespace(Lock=Lock, Event=Event, Thread=Thread)
    clock = SimpleNamespace(CLOCK_BOOTTIME=time.CLOCK_BOOTTIME, clock_gettime=_clock_gettime)
    answers: list[tuple[object, str, object]] = [
        (parquet, name, getattr(row_files, name)) for name in ("encode", "encode_values", "decode")
    ]
    answers += [
        (secrets, "token_hex", lambda size=16: world().token_hex(size)),
        (secrets, "token_bytes", lambda size=16: bytes.fromhex(world().token_hex(size))),
    ]
    answers += [
        (leased, "owner_of", lambda **_: {"host": world().process.name}),
    ]
    reading = (delta, committed, liveness)
    answers += [(m, "live_ranges", _live_ranges) for m in (*reading, references)]
    answers += [(module, "read_live", _read_live) for module in reading]
    answers += [(module, "needed_now", _needed_now) for module in (old_trash, backup_pruning)]
    elsewhere = (staged_addresses, read_full, inside_of)
    names = ("staged_addresses", "read_full", "inside")
    answers += [(references, *one) for one in zip(names, elsewhere, strict=True)]
    answers += [(backup_pruning, "repository_lock", nullcontext)]
    return [
        *answers,
        *_once_each(),
        *mark_stages.replaced(served, Pool, (_live_ranges, _read_live)),
        (lease, "threading", threads),
        (lease, "is_gone", lambda owner: world().knows_gone(owner["host"])),
        (sweep, "require_one_server", mark_stages.one_server),
        (sweep, "Deltas", SimDeltas),
        (sweep, "probe_conditions", _condition),
        (sweep, "probe_deadlines", lambda *_, **__: world().promises.deadlines),
        (monotonic_age, "time", clock),
        (monotonic_age, "_boot_id", lambda: world().process.boot),
        (ledger, "datetime", Datetime),
        (tasks, "ThreadPoolExecutor", Pool),
        (rounds, "thawed", lambda: world().thawed()),
        (rounds, "_BATCHES", 1),
        (rounds, "evaluate", lambda *_: []),
        (rounds, "require_passed", lambda _: None),
        (alarm, "holders_of", lambda *_: {}),
        (liveness, "_served", _served_by_size),
        (deletion, "Extender", SimExtender),
        (prefetch, "threading", threads),
        (store_comparison, "_FEW", _Few(store_comparison._FEW)),
        (deletion, "DeletingTask", SimTask),
        (deletion.TaskClients, "of", partial(_reach, deletion.TaskClients.of)),
        (commits, "latest_mark", _latest(commits.latest_mark)),
    ]


def _once_each() -> Iterator[tuple[object, str, object]]:
    """Functions of values that are the same in many interleavings: each is computed once."""
    for kind, name in (
        (Manifest, "from_bytes"),
        (LeaseRecord, "from_bytes"),
        (StorageNamespace, "parse"),
    ):
        yield kind, name, lru_cache(maxsize=1024)(getattr(kind, name))


def _needed_now(*args: Any) -> Any:
    return noted(world(), *args)


def _latest(real: Callable[..., Any]) -> Callable[..., Any]:
    """The earlier mark, in worlds that have one."""

    def latest(*args: Any) -> Any:
        return real(*args) if world().earlier_marks else None

    return latest


@contextmanager
def installed() -> Iterator[None]:
    """Stand on simulated worlds; only for this thread's code."""
    assert threading.current_thread() is threading.main_thread()
    patches = [mock.patch.object(where, name, new) for where, name, new in _replaced()]
    threads = pa.cpu_count()
    # The few rows of a world are not worth the threads of Arrow, which take time to begin.
    pa.set_cpu_count(1)
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()
        pa.set_cpu_count(threads)
