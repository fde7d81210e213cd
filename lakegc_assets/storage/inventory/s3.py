"""Reports of S3 Inventory: dated folders with a manifest, next to the files that it names.

The name of the folder, and ``creationTimestamp``, are the time at which S3 began to scan the
bucket. A report is written over hours and is eventually consistent: it may lack objects written
shortly before, and may hold objects written or deleted meanwhile. Keys are URL-encoded in CSV
files, with a space as ``+``, but not in Parquet and ORC files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Annotated, Final
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator, Field, NonNegativeInt

from lakegc_assets.errors import RefusedError
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.inventory.report import (
    ENCODINGS,
    Manifest,
    Report,
    ReportFile,
    ReportForm,
    Text,
    damaged,
    key_below,
    plain_name,
    read_manifest,
    require_bucket,
    truth,
)

#: Names of the folders of reports: the start of each.
_DATED: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}Z")
_MANIFEST: Final = "manifest.json"
_CHECKSUM: Final = "manifest.checksum"
_VERSIONS: Final = ("VersionId", "IsLatest", "IsDeleteMarker")


def _moment(milliseconds: object) -> datetime:
    """Parse a manifest's time, a text of milliseconds since 1970, UTC."""
    if not (isinstance(milliseconds, str) and milliseconds.isascii() and milliseconds.isdecimal()):
        raise ValueError(f"{milliseconds!r} is no milliseconds since 1970")
    try:
        return datetime.fromtimestamp(int(milliseconds) / 1000, timezone.utc)
    except (OverflowError, OSError) as error:
        raise ValueError(f"{milliseconds!r}: {error}") from error


class _File(Manifest):
    key: Text
    size: NonNegativeInt
    md5: str = Field(alias="MD5checksum", pattern="^[0-9a-fA-F]{32}$")


class _S3Manifest(Manifest):
    about: Text = Field(alias="sourceBucket")
    form: Text = Field(alias="fileFormat")
    columns: Text = Field(alias="fileSchema")
    began: Annotated[datetime, BeforeValidator(_moment), Field(alias="creationTimestamp")]
    files: list[_File]


class S3Inventory(ReportForm):
    """Reports of S3 Inventory; only the rows of current versions count."""

    listed = ("Key", "Size", "LastModifiedDate", "ETag")
    others = ("Bucket", *_VERSIONS)
    add_to = "the configuration of the inventory (OptionalFields)"

    def split(self, url: str) -> tuple[str, str | None]:
        """See ``ReportForm``: a report is named by its folder."""
        place, _, last = url.rpartition("/")
        return (place, last) if _DATED.fullmatch(last) else (url, None)

    def newest(self, place: ObjectStore, source: str, only: str | None = None) -> Report:
        folders = [folder.rstrip("/") for folder in place.list_prefixes().prefixes]
        dated = sorted(filter(_DATED.fullmatch, folders), reverse=True)
        for folder in [only] if only else dated:
            keys = f"{folder}/{_MANIFEST}", f"{folder}/{_CHECKSUM}"
            found = read_manifest(_S3Manifest, place, *keys)
            if found is not None:
                report = _report(place, found, source)
                if report.encoding == "csv":
                    self._require(report, report.columns)
                return report
        what = f"{only}/{_MANIFEST} and {only}/{_CHECKSUM}" if only else "complete report"
        raise RefusedError(
            f"{place.url} has no {what} of S3 Inventory: inventory_place is the folder that holds "
            "folders like 2026-01-31T01-00Z (PREFIX/BUCKET/CONFIGURATION). S3 writes the first "
            f"report within 48 hours. There are {len(dated)} such folders, and others: "
            f"{sorted(set(folders) - set(dated))[:5]}"
        )

    def objects_in(
        self, batch: pa.RecordBatch, report: Report, url: str
    ) -> tuple[pa.RecordBatch, pa.Array]:
        self._require(report, batch.schema.names)
        require_bucket(batch, report, url)
        current = _current(batch)
        keys = current["key"].cast(pa.string())
        return current, _decoded(keys, url) if report.encoding == "csv" else keys

    def _require(self, report: Report, names: Sequence[str]) -> None:
        # A report of all versions has all of these columns; one of current versions has none.
        versions = {plain_name(one) for one in _VERSIONS} & set(map(plain_name, names))
        self.require_fields(names, report.url, "Bucket", *(_VERSIONS if versions else ()))


def _report(place: ObjectStore, manifest: _S3Manifest, source: str) -> Report:
    if manifest.about != source:
        raise RefusedError(
            f"the inventory report {manifest.url} is about the bucket {manifest.about!r}, and the "
            f"repository is in {source!r}: set inventory_place to a report of that bucket"
        )
    encoding = ENCODINGS.get(manifest.form.lower())
    if encoding is None:
        problem = f"its files are {manifest.form!r}: CSV, Parquet and ORC can be read"
        raise damaged(manifest.url, problem)
    if len({one.key for one in manifest.files}) < len(manifest.files):
        raise damaged(manifest.url, "it names a file twice")
    columns = [name.strip() for name in manifest.columns.split(",")] if encoding == "csv" else []
    files = [
        ReportFile(key_below(place, one.key, manifest.url), one.size, one.md5.lower())
        for one in manifest.files
    ]
    return Report(manifest.url, manifest.began, source, encoding, columns, files)


def _current(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of current versions that are objects. A row without these flags is omitted."""
    if "islatest" not in batch.schema.names:
        return batch
    latest, marker = (truth(batch[name]) for name in ("islatest", "isdeletemarker"))
    return batch.filter(pc.and_(pc.fill_null(latest, False), pc.invert(pc.fill_null(marker, True))))


def _decoded(keys: pa.Array, url: str) -> pa.Array:
    """URL-encoded keys, decoded."""
    encoded = pc.fill_null(pc.match_substring_regex(keys, "[%+]"), False)
    if not pc.any(encoded).as_py():
        return keys
    try:
        plain = [unquote_plus(key, errors="strict") for key in keys.filter(encoded).to_pylist()]
    except UnicodeDecodeError as error:
        raise damaged(url, f"a key is not UTF-8 ({error})") from error
    return pc.replace_with_mask(keys, encoded, pa.array(plain, pa.string()))
