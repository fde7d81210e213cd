"""A whole collection of a synthetic repository: cold mark, warm mark, sweep; seconds and memory.

Some of the objects (a quarter) were overwritten long ago and expired; the rest is live on main.
Objects are local files (``--store local``), or keys of an S3 server on this machine.

    python -m bench.collection --objects 1000000
    python -m bench.collection --objects 110000 --expired 50000 --store s3
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import boto3
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import FakeKey, s3_backends
from moto.server import ThreadedMotoServer
from pyspark.sql import SparkSession

from lakegc_assets.artifacts import ArtifactRoot, Manifest
from lakegc_assets.embedded import EmbeddedLakeFS, catalog, history, staging
from lakegc_assets.graveler.entry import Entry, Timestamp, encode_entry, entry_identity
from lakegc_assets.graveler.sstable import Record
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.commits import find_active_commits
from lakegc_assets.mark.committed import read_committed_addresses
from lakegc_assets.mark.context import RunContext
from lakegc_assets.mark.evaluation import check_candidates, require_passed
from lakegc_assets.mark.listing import list_store
from lakegc_assets.mark.report import report
from lakegc_assets.mark.spark import LOCAL, REQUIRED, prepare_environment
from lakegc_assets.mark.uncommitted import snapshot_uncommitted
from lakegc_assets.settings import Settings
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.sweep.sweep import sweep

_REPOSITORY = "bench"
_DAY = 86_400
_BATCH = 50_000
_STAGES: tuple[Callable[[RunContext], Manifest], ...] = (
    list_store,
    snapshot_uncommitted,
    find_active_commits,
    read_committed_addresses,
    find_candidates,
)


class Memory(threading.Thread):
    """Watches the resident memory of this process, the JVM and the Python workers, in MiB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peaks = {"driver": 0.0, "jvm": 0.0, "worker": 0.0, "other": 0.0}

    def run(self) -> None:
        while True:
            me = os.getpid()
            parents = dict(_processes())
            for process, name, resident in _status(parents):
                if process == me:
                    kind = "driver"
                elif not _descends(process, me, parents):
                    continue
                else:
                    # The JVM also starts short-lived shells, which share its memory for a moment.
                    kind = {"java": "jvm", "python": "worker"}.get(name[:6].rstrip("3"), "other")
                self.peaks[kind] = max(self.peaks[kind], resident)
            time.sleep(0.5)


def _processes() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            yield int(entry.name), int(fields[1])


def _status(processes: dict[int, int]) -> Iterator[tuple[int, str, float]]:
    for process in processes:
        try:
            lines = (Path("/proc") / str(process) / "status").read_text().splitlines()
        except OSError:
            continue
        values = dict(line.split(":", 1) for line in lines if ":" in line)
        resident = float(values.get("VmRSS", "0 kB").split()[0]) / 1024
        yield process, values["Name"].strip(), resident


def _descends(process: int, ancestor: int, parents: dict[int, int]) -> bool:
    while process in parents:
        process = parents[process]
        if process == ancestor:
            return True
    return False


def _plant(
    server: EmbeddedLakeFS, count: int, expired: int, write: Callable[[str, int, float], None]
) -> None:
    """Commit objects 100 days ago, and 90 days ago some at the same paths, so that those expire."""
    lake = server.lake
    rng = random.Random(1)
    live = count - expired
    for days, paths in ((100, range(live)), (90, range(expired))):
        moment = time.time() - days * _DAY
        for first in range(0, len(paths), _BATCH):
            entries = []
            for number in paths[first : first + _BATCH]:
                address = lake.slices.new_address(_REPOSITORY, moment, backdated=True)
                size = rng.randrange(1, 10_000_000)
                write(address, size, moment)
                entry = Entry(address, Timestamp(int(moment)), size, f"{rng.getrandbits(128):032x}")
                entries.append((f"table/part={number // 1000:05d}/{number:09d}.parquet", entry))
            with lake.state.write() as db:
                repo = catalog.writable_repository(db, _REPOSITORY)
                main = catalog.branch(db, repo, "main")
                for path, entry in entries:
                    record = Record(path.encode(), entry_identity(entry), encode_entry(entry))
                    staging.stage(db, main, (record.key, record))
        history.commit(
            lake, _REPOSITORY, "main", message=f"{days} days ago", metadata={},
            date=int(moment), allow_empty=False,
        )  # fmt: skip


def _local_writer(folder: Path) -> Callable[[str, int, float], None]:
    made: set[Path] = set()

    def write(address: str, size: int, moment: float) -> None:
        path = folder / address
        if path.parent not in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            made.add(path.parent)
        with path.open("wb") as file:
            os.truncate(file.fileno(), size)
        os.utime(path, (moment, moment))

    return write


def _s3_writer(bucket: str) -> Callable[[str, int, float], None]:
    keys = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[bucket].keys

    def write(address: str, size: int, moment: float) -> None:
        key = FakeKey(
            f"{_REPOSITORY}/{address}", b"", account_id=DEFAULT_ACCOUNT_ID, region_name="us-east-1"
        )
        key.contentsize = size
        key.last_modified = datetime.fromtimestamp(moment, tz=timezone.utc).replace(tzinfo=None)
        keys[key.name] = key

    return write


def _timed(name: str, work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    seconds = time.monotonic() - begun
    print(f"{name:<28} {seconds:8.1f} s", flush=True)
    return seconds


def _mark(ctx: RunContext) -> float:
    total = 0.0
    for stage in _STAGES:
        total += _timed(f"  {stage.__name__}", lambda stage=stage: stage(ctx))  # type: ignore[misc]
    total += _timed("  checks", lambda: require_passed(check_candidates(ctx)))
    total += _timed("  report", lambda: report(ctx))
    print(f"mark {ctx.run:<23} {total:8.1f} s", flush=True)
    facts = ctx.root.attempt(ctx.repository, ctx.run).manifest("committed_addresses").facts
    print(
        f"  ranges decoded {facts['ranges_decoded']}, from the cache {facts['ranges_from_cache']}"
    )
    return total


def _warm_and_sweep(ctx: RunContext, cold: float, expired: int) -> None:
    warm = dataclasses.replace(ctx, run="warm")
    print(f"warm / cold {_mark(warm) / cold:.2f}")
    seconds = _timed("sweep", lambda: sweep(warm))
    print(f"sweep: {expired / seconds:,.0f} objects/s")


def _session() -> SparkSession:
    prepare_environment()
    builder = SparkSession.builder
    for name, value in {**LOCAL, **REQUIRED}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--store", choices=("local", "s3"), default="local")
    parser.add_argument("--expired", type=int, help="how many of them; a quarter by default")
    parser.add_argument("--cold-only", action="store_true", help="no warm mark and no sweep")
    arguments = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    memory = Memory()
    expired = arguments.objects // 4 if arguments.expired is None else arguments.expired
    with tempfile.TemporaryDirectory() as folder:
        store, moto = None, None
        if arguments.store == "s3":
            os.environ.update(
                AWS_ACCESS_KEY_ID="bench",
                AWS_SECRET_ACCESS_KEY="bench",
                AWS_DEFAULT_REGION="us-east-1",
            )
            moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
            moto.start()
            os.environ["AWS_ENDPOINT_URL"] = "http://{}:{}".format(*moto.get_host_and_port())
            boto3.client("s3").create_bucket(Bucket="bench")
            store = "s3://bench"
        with EmbeddedLakeFS(Path(folder) / "lakefs", store) as server:
            os.environ.update(
                LAKECTL_SERVER_ENDPOINT_URL=server.endpoint,
                LAKECTL_CREDENTIALS_ACCESS_KEY_ID=server.access_key,
                LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY=server.secret_key,
            )
            client = LakeFSConfig().connect_writer()
            namespace = f"{store}/{_REPOSITORY}" if store else f"local://{_REPOSITORY}"
            client.create_repository(_REPOSITORY, namespace)
            client.set_gc_rules(_REPOSITORY, 30)
            write = (
                _s3_writer("bench") if store else _local_writer(server.objects_dir / _REPOSITORY)
            )
            _timed(
                f"plant {arguments.objects:,} objects",
                lambda: _plant(server, arguments.objects, expired, write),
            )
            spark = _session()
            memory.start()
            root = ArtifactRoot(
                f"{folder}/artifacts", StoreConfig(local_root=str(server.objects_dir))
            )
            ctx = RunContext(
                _REPOSITORY,
                "cold",
                Settings(clock_skew=timedelta(minutes=5)),
                LakeFSConfig(),
                root,
                spark,
            )
            cold = _mark(ctx)
            if not arguments.cold_only:
                _warm_and_sweep(ctx, cold, expired)
            for kind, peak in memory.peaks.items():
                print(f"peak memory of the {kind:<8} {peak:8.0f} MiB")
            spark.stop()
        if moto:
            moto.stop()


if __name__ == "__main__":
    main()
