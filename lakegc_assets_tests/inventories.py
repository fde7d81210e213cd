"""Writes inventory reports in the shapes in which the services write them."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.values import ObjectInfo

CONFIG = "all-objects"
#: Of S3: the column of a CSV report, that of the others, and its type.
S3_COLUMNS = {
    "Bucket": ("bucket", pa.string()),
    "Key": ("key", pa.string()),
    "VersionId": ("version_id", pa.string()),
    "IsLatest": ("is_latest", pa.bool_()),
    "IsDeleteMarker": ("is_delete_marker", pa.bool_()),
    "Size": ("size", pa.int64()),
    "LastModifiedDate": ("last_modified_date", pa.timestamp("ms", "UTC")),
    "ETag": ("e_tag", pa.string()),
    "StorageClass": ("storage_class", pa.string()),
    "IsMultipartUploaded": ("is_multipart_uploaded", pa.bool_()),
}
CURRENT = tuple(n for n in S3_COLUMNS if n not in {"VersionId", "IsLatest", "IsDeleteMarker"})
Rows = Sequence[Mapping[str, Any]]


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def listed(store: ObjectStore) -> list[ObjectInfo]:
    """All objects of a store."""
    return [ObjectInfo(**row) for batch in store.list() for row in batch.to_pylist()]


def s3_row(bucket: str, prefix: str, one: ObjectInfo, **others: Any) -> dict[str, Any]:
    """An object as S3 describes it: times in whole seconds."""
    return {
        "Bucket": bucket,
        "Key": prefix + one.key,
        "VersionId": None,
        "IsLatest": True,
        "IsDeleteMarker": False,
        "Size": one.size,
        "LastModifiedDate": one.last_modified.replace(microsecond=0),
        "ETag": one.etag,
        "StorageClass": "STANDARD",
        "IsMultipartUploaded": "-" in one.etag,
        **others,
    }


@dataclass(frozen=True)
class S3Reports:
    """The folder of the reports of one configuration.

    Attributes:
        store: of the destination bucket, rooted at it or at a folder that stands for it.
        bucket: that the reports are about.
        prefix: of the destination, with a slash at its end, or empty.
    """

    store: ObjectStore
    bucket: str
    prefix: str = "inventories/"

    @property
    def folder(self) -> str:
        return f"{self.prefix}{self.bucket}/{CONFIG}"

    @property
    def place(self) -> str:
        return f"{self.store.url}/{self.folder}"

    def write(
        self,
        began: datetime,
        rows: Rows,
        encoding: str = "Parquet",
        columns: Sequence[str] = CURRENT,
        parts: int = 2,
        **changes: Any,
    ) -> str:
        """Write a report of so many files; the key of its folder, which ends in a slash."""
        stamp = f"{began.astimezone(timezone.utc):%Y-%m-%dT%H-%MZ}"
        named = []
        for number in range(parts):
            content, suffix = _ENCODERS[encoding](rows[number::parts], columns)
            key = f"{self.folder}/data/{stamp}-{number}.{suffix}"
            self.store.put(key, content)
            named.append({"key": key, "size": len(content), "MD5checksum": md5(content)})
        manifest = {
            "sourceBucket": self.bucket,
            "destinationBucket": "arn:aws:s3:::destination",
            "version": "2016-11-30",
            "creationTimestamp": str(int(began.timestamp() * 1000)),
            "fileFormat": encoding,
            "fileSchema": ", ".join(columns)
            if encoding == "CSV"
            else "message s3.inventory { required binary bucket (UTF8); }",
            "files": named,
            **changes,
        }
        folder = f"{self.folder}/{stamp}/"
        content = json.dumps({k: v for k, v in manifest.items() if v is not None}).encode()
        self.store.put(f"{folder}manifest.json", content)
        self.store.put(f"{folder}manifest.checksum", md5(content).encode())
        return folder


def _csv(rows: Rows, columns: Sequence[str]) -> tuple[bytes, str]:
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([_text(name, row[name]) for name in columns] for row in rows)
    return gzip.compress(out.getvalue().encode(), mtime=0), "csv.gz"


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03}Z"
    return quote_plus(value, safe="/") if name == "Key" else str(value)


def _table(rows: Rows, columns: Sequence[str], *, zone: bool) -> pa.Table:
    arrays = {}
    for name in columns:
        column, kind = S3_COLUMNS[name]
        values = pa.array([row[name] for row in rows], kind)
        arrays[column] = values if zone or "timestamp" not in str(kind) else _plain(values)
    return pa.table(arrays)


def _plain(times: pa.Array) -> pa.Array:
    return times.cast(pa.timestamp("ns", "UTC")).cast(pa.int64()).cast(pa.timestamp("ns"))


def _parquet(rows: Rows, columns: Sequence[str]) -> tuple[bytes, str]:
    sink = io.BytesIO()
    pq.write_table(_table(rows, columns, zone=True), sink)
    return sink.getvalue(), "parquet"


def _orc(rows: Rows, columns: Sequence[str]) -> tuple[bytes, str]:
    sink = io.BytesIO()
    orc.write_table(_table(rows, columns, zone=False), sink)
    return sink.getvalue(), "orc"


_ENCODERS = {"CSV": _csv, "Parquet": _parquet, "ORC": _orc}
