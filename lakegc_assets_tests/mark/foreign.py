"""Marks as lakeFS's own collectors write them, for tests: the recorded ones, and made ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakegc_assets_tests import recorded
from lakegc_assets_tests.replay import GOLDEN

GC = "_lakefs/retention/gc/"
#: As Spark names its files.
PART = "part-{:05d}-7c1fdb6d-3a63-4f43-b1ab-6d2e1d28b2f4-c000"


def load_recorded(repository: str) -> str:
    """Put lakeFS's own mark into the store of a recorded repository; its id."""
    folder = GOLDEN / repository / "peer_mark"
    for path in sorted((folder / "files").rglob("*")):
        if path.is_file() and "/unified/" in str(path):
            recorded.plant(repository, str(path.relative_to(folder / "files")), path.read_bytes())
    return (folder / "mark_id").read_text().strip()


def recorded_addresses(repository: str) -> set[str]:
    """What lakeFS's own mark of a recorded repository names."""
    found: set[str] = set()
    for path in (GOLDEN / repository / "peer_mark" / "files").rglob("deleted.text/*.txt"):
        found |= set(path.read_text().splitlines())
    return found


def parquet(addresses: Iterable[str | None], name: str = "address", **options: Any) -> bytes:
    """A list in Parquet, written with some options of Arrow's."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({name: pa.array(list(addresses), pa.string())}), sink, **options)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def text(addresses: Iterable[str]) -> bytes:
    """A list in text."""
    return "".join(f"{address}\n" for address in addresses).encode()


def summary(mark: str, objects: int, **other: Any) -> bytes:
    """What the unified and the uncommitted collector write last."""
    told = {
        "run_id": mark,
        "success": True,
        "first_slice": "x",
        "start_time": "2026-11-21T04:43:14.559822476Z",
        "cutoff_time": "2026-11-21T04:43:13.558Z",
        "num_deleted_objects": objects,
    }
    return json.dumps(told | other).encode()


def with_summary(
    put: Callable[[str, bytes], object],
    addresses: Sequence[str],
    mark: str,
    form: str = "unified",
    files: int = 2,
) -> None:
    """A mark of the unified or the uncommitted collector."""
    folder = f"{GC}{form}/{mark}/"
    for number in range(files):
        some = addresses[number::files]
        put(f"{folder}deleted/{PART.format(number)}.snappy.parquet", parquet(some))
        put(f"{folder}deleted.text/{PART.format(number)}.txt", text(some))
    put(f"{folder}deleted/_SUCCESS", b"")
    put(f"{folder}deleted.text/_SUCCESS", b"")
    put(f"{folder}summary.json", summary(mark, len(addresses)))


def csv(addresses: Iterable[str]) -> bytes:
    """A list as the standalone collector writes it."""
    quoted = (address.replace('"', '""') for address in addresses)
    return "".join(["address\n", *(f'"{address}"\n' for address in quoted)]).encode()


def standalone(put: Callable[[str, bytes], object], addresses: Sequence[str], mark: str) -> None:
    """A mark of the standalone collector."""
    put(f"{GC}reports/{mark}/deleted.csv", csv(addresses))
    put(f"{GC}reports/{mark}/summary.json", summary(mark, len(addresses)))


def without_summary(
    put: Callable[[str, bytes], object],
    addresses: Sequence[str],
    mark: str,
    key: str = "mark_id",
) -> None:
    """A mark of the collectors before those: its own end, or only Spark's, is written last."""
    for folder, content, ending in (
        ("addresses", parquet, ".snappy.parquet"),
        ("addresses.text", text, ".txt"),
    ):
        put(f"{GC}{folder}/{key}={mark}/{PART.format(0)}{ending}", content(addresses))
        if key == "run_id":
            put(f"{GC}{folder}/_SUCCESS", b"")
    if key == "mark_id":
        told = {"run_id": "r", "commits_location": "s3://x"}
        put(f"{GC}addresses/{mark}.meta/{PART.format(0)}.json", json.dumps(told).encode())
