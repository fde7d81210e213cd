"""Floors: bare loops that do only the work that every collector must do.

Each floor runs in the same benchmark run as the collector, in warm processes of its own. It knows
facts that the collector does not: the places of keys, and the live ranges.
"""

from __future__ import annotations

import math
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import boto3
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench._run import BUCKET, CORES
from lakegc_assets.checks.witness import witness
from lakegc_assets.graveler.decode import decode_range
from lakegc_assets.graveler.entry import Entry
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.graveler.ranges import write_range
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes, address_hashes

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import ObjectIdentifierTypeDef

_THREADS = 8
_BATCH = 1000
#: Number of key ranges that each process lists.
_CUTS = 32
_SAMPLE = 10_000
#: Number of hashes in memory before they become a sorted run.
_WAITING = 8_000_000
#: A stock session and a dozen small queries: the floor ``F``.
_STOCK = """
from pyspark.sql import SparkSession, functions as F
spark = SparkSession.builder.master("local[2]").getOrCreate()
frame = spark.createDataFrame([(n, str(n)) for n in range(100)], "a int, b string")
for number in range(12):
    rows = frame.where(F.col("a") % 12 == number).groupBy("b").count()
    assert rows.join(frame, "b").count() == sum(n % 12 == number for n in range(100))
spark.stop()
"""


class Floors:
    """Warm processes that run floors.

    Args:
        pool: of ``CORES`` processes.
        folder: for files between the processes.
    """

    def __init__(self, pool: ProcessPoolExecutor, folder: Path) -> None:
        self._pool = pool
        self._folder = folder

    def mark(self, ctx: RunContext) -> float:
        """Print and return the seconds of a finished mark: listing, decoding, sets."""
        ctx = ctx.connect()
        attempt = ctx.root.attempt(ctx.repository, ctx.run)
        addresses = attempt.read("store_listing", columns=["address"])["address"]
        gone = attempt.manifest("store_listing").facts["carried_and_gone"]
        staged = attempt.read("uncommitted_snapshot", columns=["address"])["address"]
        ranges = attempt.read("committed_addresses", "ranges", ["range_id"])["range_id"]
        return math.fsum(
            (
                self._listing(ctx.connections, addresses, gone),
                self._decoding(ctx.connections, ranges.to_pylist()),
                self._sets(addresses, staged),
            )
        )

    def _listing(self, connections: Connections, addresses: pa.ChunkedArray, gone: int) -> float:
        inside = addresses.filter(pc.starts_with(addresses, "data/"))
        pieces = min(CORES * _CUTS, max(1, len(inside) // _BATCH))
        some = inside.take(pa.array(range(0, len(inside), max(1, len(inside) // _SAMPLE))))
        sample = sorted(some.to_pylist())
        edges = [sample[len(sample) * n // pieces] for n in range(1, pieces)]
        bounds = list(zip([None, *edges], [*edges, None], strict=True))
        shares = [bounds[n::CORES] for n in range(CORES)]
        # Clients are made once.
        list(self._pool.map(partial(_list, connections), [[(None, sample[0])]] * CORES))
        begun = time.monotonic()
        found = sum(self._pool.map(partial(_list, connections), shares))
        seconds = _floor(f"bare listing of {found:,} keys", begun)
        if found != len(inside) - gone:
            raise SystemExit(f"the bare listing met {found:,} keys of {len(inside) - gone:,}")
        return seconds

    def _decoding(self, connections: Connections, ids: Sequence[str]) -> float:
        shares = [ids[n::CORES] for n in range(CORES)]
        task = partial(_decode, connections, self._folder)
        begun = time.monotonic()
        entries = sum(self._pool.map(task, shares))
        return _floor(f"bare decoding of {entries:,} entries in {len(ids):,} ranges", begun)

    def _sets(self, addresses: pa.ChunkedArray, staged: pa.ChunkedArray) -> float:
        np.save(self._folder / "listed", address_hashes(addresses))
        np.save(self._folder / "staged", address_hashes(staged))
        seconds = self._pool.submit(_subtract, self._folder).result()
        print(f"  floor: {'sets in numpy':<46} {seconds:8.1f} s", flush=True)
        return seconds


@contextmanager
def floors() -> Iterator[Floors]:
    """Start the processes, and warm them up."""
    context = multiprocessing.get_context("spawn")
    with (
        TemporaryDirectory() as folder,
        ProcessPoolExecutor(CORES, context, initializer=_warm) as pool,
    ):
        # Without a pause, one process would take both tasks.
        list(pool.map(time.sleep, [1.0] * CORES))
        yield Floors(pool, Path(folder))


def beside(what: str, seconds: float, floor: float) -> None:
    """Print the ratio of a time to its floor."""
    print(f"{what}: {seconds:.1f} s / floor {floor:.1f} s = {seconds / floor:.2f}", flush=True)


def stock_session() -> float:
    """Seconds of F: a whole process with a stock PySpark session and a dozen tiny queries."""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", _STOCK], check=True, stderr=subprocess.DEVNULL)
    return time.monotonic() - begun


def bare_deletes(endpoint: str, keys: Sequence[str], threads: int = CORES) -> float:
    """Seconds to delete keys (whole ones) of the bucket with boto3, without any check."""
    client = boto3.client("s3", endpoint_url=endpoint)

    def send(first: int) -> None:
        batch = keys[first : first + _BATCH]
        objects: list[ObjectIdentifierTypeDef] = [{"Key": key} for key in batch]
        answer = client.delete_objects(Bucket=BUCKET, Delete={"Objects": objects})
        if len(answer["Deleted"]) != len(objects):
            raise SystemExit(f"the bare loop deleted {len(answer['Deleted'])} keys of a batch")

    begun = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(send, range(0, len(keys), _BATCH)))
    return time.monotonic() - begun


def _floor(what: str, begun: float) -> float:
    seconds = time.monotonic() - begun
    print(f"  floor: {what:<46} {seconds:8.1f} s", flush=True)
    return seconds


def _warm() -> None:
    """Load the code that decodes and hashes; the first use on a machine also compiles it."""
    info, data = write_range([("path", Entry("data/slice/object"))])
    address_hashes(decode_range(data, info.id)["address"])
    witness(data, info.id, StorageNamespace.parse("s3://bucket/namespace"))


def _list(connections: Connections, bounds: Sequence[tuple[str | None, str | None]]) -> int:
    def one(bound: tuple[str | None, str | None]) -> int:
        low, high = bound
        end = None if high is None else high + "\0"
        pages = connections.store().list("data/", start_after=low, end_before=end)
        return sum(page.num_rows for page in pages)

    with ThreadPoolExecutor(_THREADS) as pool:
        return sum(pool.map(one, bounds))


def _decode(connections: Connections, folder: Path, ids: Sequence[str]) -> int:
    """Fetch and decode ranges, and write the hashes of their addresses as a sorted run."""
    store = connections.store()
    entries = 0
    held: list[Hashes] = []
    with ThreadPoolExecutor(_THREADS) as pool:
        for at in range(0, len(ids), _THREADS):
            some = ids[at : at + _THREADS]
            files = pool.map(store.get, [f"_lakefs/{range_id}" for range_id in some])
            for range_id, data in zip(some, files, strict=True):
                found = decode_range(data, range_id)
                entries += found.num_rows
                held.append(address_hashes(found["address"]))
            if sum(map(len, held)) > _WAITING:
                held = [_distinct(held)]
    if ids:
        np.save(folder / f"live-{ids[0]}", _distinct(held))
    return entries


def _distinct(held: Sequence[Hashes]) -> Hashes:
    found = np.sort(np.concatenate(held))
    distinct: Hashes = found[np.diff(found, prepend=~found[:1]) != 0]
    return distinct


def _subtract(folder: Path) -> float:
    """Seconds to subtract the committed and the staged hashes from the listed ones."""
    begun = time.monotonic()
    listed = np.load(folder / "listed.npy")
    live = [np.load(file) for file in folder.glob("live-*.npy")]
    listed.sort()
    alive = np.zeros(len(listed), np.bool_)
    for some in filter(len, [*live, np.sort(np.load(folder / "staged.npy"))]):
        alive |= some[np.minimum(np.searchsorted(some, listed), len(some) - 1)] == listed
    len(listed[~alive])
    return time.monotonic() - begun
