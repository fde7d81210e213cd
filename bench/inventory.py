"""Measures the keys per second of an inventory report in one process, and its requests.

``bench/listing.py`` measures the same for a listing. The report has the form of S3 Inventory, in
files of this machine, with 250,000 keys each in lakeFS's form. A listing needs one request per
1,000 keys, a report one per file.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.storage.inventory import Inventory, newest_inventory
from lakegc_assets.storage.opening import open_store

_BUCKET = "bucket"
_NAMESPACE = f"s3://{_BUCKET}/repo"
_KEYS_EACH = 250_000
_COLUMNS = ("Bucket", "Key", "Size", "LastModifiedDate", "ETag", "StorageClass")
_NAMES = ("bucket", "key", "size", "last_modified_date", "e_tag", "storage_class")


def _table(first: int, count: int) -> pa.Table:
    keys = [
        f"repo/data/gk{n // 50_000:018x}/c{n * 2654435761 % 2**64:019x},{n:020x}"
        for n in range(first, first + count)
    ]
    etags = [hashlib.md5(key.encode(), usedforsecurity=False).hexdigest() for key in keys]
    made = datetime(2026, 1, 1, tzinfo=timezone.utc)
    columns = [
        pa.array([_BUCKET] * count),
        pa.array(keys),
        pa.array([n % 10**7 for n in range(count)], pa.int64()),
        pa.array([made] * count, pa.timestamp("ms", "UTC")),
        pa.array(etags),
        pa.array(["STANDARD"] * count),
    ]
    return pa.table(columns, names=_NAMES)


def _encoded(table: pa.Table, encoding: str, path: Path) -> None:
    if encoding == "Parquet":
        pq.write_table(table, path)
        return
    times = pa.array(["2026-01-01T00:00:00.000Z"] * table.num_rows)
    table = table.set_column(3, "last_modified_date", times)
    sink = pa.BufferOutputStream()
    quoted = pa_csv.WriteOptions(include_header=False, quoting_style="all_valid")
    pa_csv.write_csv(table, sink, quoted)
    path.write_bytes(gzip.compress(sink.getvalue().to_pybytes(), 6))


def _write(folder: Path, encoding: str, keys: int) -> str:
    """Write a report; its place."""
    place = folder / _BUCKET / encoding
    (place / "data").mkdir(parents=True)
    files = []
    for first in range(0, keys, _KEYS_EACH):
        path = place / "data" / f"{first}"
        _encoded(_table(first, min(_KEYS_EACH, keys - first)), encoding, path)
        content = path.read_bytes()
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        key = path.relative_to(folder).as_posix()
        files.append({"key": key, "size": len(content), "MD5checksum": md5})
    manifest = {
        "sourceBucket": _BUCKET,
        "creationTimestamp": str(int(time.time() * 1000)),
        "fileFormat": encoding,
        "fileSchema": ", ".join(_COLUMNS),
        "files": files,
    }
    dated = place / "2026-01-02T01-00Z"
    dated.mkdir()
    content = json.dumps(manifest).encode()
    (dated / "manifest.json").write_bytes(content)
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    (dated / "manifest.checksum").write_text(md5)
    return str(place)


def _read(found: Inventory) -> int:
    place = open_store(found.place)
    return sum(
        0 if batch is None else batch.num_rows
        for file in found.report.files
        for _, batch in found.rows(place, file)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000, help="in the report (%(default)s)")
    arguments = parser.parse_args()
    for encoding in ("Parquet", "CSV"):
        with tempfile.TemporaryDirectory() as folder:
            place = _write(Path(folder), encoding, arguments.keys)
            start, cpu = time.perf_counter(), time.process_time()
            found = newest_inventory(StorageNamespace.parse(_NAMESPACE), place, open_store)
            keys = _read(found)
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        if keys != arguments.keys:
            raise SystemExit(f"the report of {arguments.keys} keys gave {keys}")
        print(
            f"{encoding:8} {keys:>10,} keys {seconds:7.2f} s {keys / seconds:>10,.0f} keys/s "
            f"{keys / cpu:>10,.0f} keys per CPU second, {len(found.report.files) + 3} requests "
            f"(a listing: {-(-keys // 1000):,})"
        )


if __name__ == "__main__":
    main()
