"""A whole collection of a synthetic repository: cold mark, warm mark, sweep; seconds and memory.

Some of the objects (a quarter) were overwritten long ago and expired; the rest is live on main.
Objects are local files (``--store local``), or keys of an S3 server on this machine: moto in this
process (``s3``), or versitygw, a real server, which needs Go.

    python -m bench.collection --objects 1000000 --store versitygw
    python -m bench.collection --objects 110000 --expired 50000 --store s3
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import boto3
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import FakeKey, s3_backends
from moto.server import ThreadedMotoServer

from bench._memory import Memory
from bench._run import BUCKET, real_s3, session, timed, use_s3
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
from lakegc_assets.mark.uncommitted import snapshot_uncommitted
from lakegc_assets.settings import Settings
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.sweep.sweep import sweep

_REPOSITORY = "bench"
_DAY = 86_400
_BATCH = 50_000
#: Writes an object: address, size in bytes, time in epoch seconds, etag.
Write = Callable[[str, int, float, str], None]
_STAGES: tuple[Callable[[RunContext], Manifest], ...] = (
    list_store,
    snapshot_uncommitted,
    find_active_commits,
    read_committed_addresses,
    find_candidates,
)


def _plant(server: EmbeddedLakeFS, count: int, expired: int, write: Write) -> None:
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
                etag = f"{rng.getrandbits(128):032x}"
                write(address, size, moment, etag)
                entry = Entry(address, Timestamp(int(moment)), size, etag)
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


def _local_writer(folder: Path) -> Write:
    made: set[Path] = set()

    def write(address: str, size: int, moment: float, _etag: str) -> None:
        path = folder / address
        if path.parent not in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            made.add(path.parent)
        with path.open("wb") as file:
            os.truncate(file.fileno(), size)
        os.utime(path, (moment, moment))

    return write


def _moto_writer() -> Write:
    keys = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[BUCKET].keys

    def write(address: str, size: int, moment: float, _etag: str) -> None:
        key = FakeKey(
            f"{_REPOSITORY}/{address}", b"", account_id=DEFAULT_ACCOUNT_ID, region_name="us-east-1"
        )
        key.contentsize = size
        key.last_modified = datetime.fromtimestamp(moment, tz=timezone.utc).replace(tzinfo=None)
        keys[key.name] = key

    return write


def _mark(ctx: RunContext) -> float:
    total = 0.0
    for stage in _STAGES:
        total += timed(f"  {stage.__name__}", lambda stage=stage: stage(ctx))  # type: ignore[misc]
    total += timed("  checks", lambda: require_passed(check_candidates(ctx)))
    total += timed("  report", lambda: report(ctx))
    print(f"mark {ctx.run:<23} {total:8.1f} s", flush=True)
    facts = ctx.root.attempt(ctx.repository, ctx.run).manifest("committed_addresses").facts
    print(
        f"  ranges decoded {facts['ranges_decoded']}, from the cache {facts['ranges_from_cache']}"
    )
    return total


def _warm_and_sweep(ctx: RunContext, cold: float, expired: int) -> None:
    warm = dataclasses.replace(ctx, run="warm")
    print(f"warm / cold {_mark(warm) / cold:.2f}")
    seconds = timed("sweep", lambda: sweep(warm))
    print(f"sweep: {expired / seconds:,.0f} objects/s")


@contextmanager
def _store(kind: str, folder: Path) -> Iterator[tuple[str | None, Write | None]]:
    """Start the server of a kind of store: URL below which repositories live, and how to write."""
    if kind == "versitygw":
        with real_s3(folder / "versitygw") as files:
            yield (
                f"s3://{BUCKET}",
                lambda address, *args: files.write(f"{_REPOSITORY}/{address}", *args),
            )
    elif kind == "s3":
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        moto.start()
        use_s3("http://{}:{}".format(*moto.get_host_and_port()))
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield f"s3://{BUCKET}", _moto_writer()
        moto.stop()
    else:
        yield None, None


def _collect(
    folder: Path, arguments: argparse.Namespace, store: str | None, write: Write | None
) -> None:
    """Plant, mark twice and sweep."""
    expired = arguments.objects // 4 if arguments.expired is None else arguments.expired
    memory = Memory()
    with EmbeddedLakeFS(folder / "lakefs", store) as server:
        os.environ.update(
            LAKECTL_SERVER_ENDPOINT_URL=server.endpoint,
            LAKECTL_CREDENTIALS_ACCESS_KEY_ID=server.access_key,
            LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY=server.secret_key,
        )
        client = LakeFSConfig().connect_writer()
        client.create_repository(_REPOSITORY, f"{store or 'local:/'}/{_REPOSITORY}")
        client.set_gc_rules(_REPOSITORY, 30)
        write = write or _local_writer(server.objects_dir / _REPOSITORY)
        timed(
            f"plant {arguments.objects:,} objects",
            lambda: _plant(server, arguments.objects, expired, write),
        )
        spark = session()
        memory.start()
        root = ArtifactRoot(f"{folder}/artifacts", StoreConfig(local_root=str(server.objects_dir)))
        settings = Settings(clock_skew=timedelta(minutes=5))
        ctx = RunContext(_REPOSITORY, "cold", settings, LakeFSConfig(), root, spark)
        cold = _mark(ctx)
        if not arguments.cold_only:
            _warm_and_sweep(ctx, cold, expired)
        memory.show()
        spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=100_000, help="(%(default)s)")
    parser.add_argument("--store", choices=("local", "s3", "versitygw"), default="local")
    parser.add_argument("--expired", type=int, help="how many of them; a quarter by default")
    parser.add_argument("--cold-only", action="store_true", help="no warm mark and no sweep")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, _store(arguments.store, Path(folder)) as store:
        _collect(Path(folder), arguments, *store)


if __name__ == "__main__":
    main()
