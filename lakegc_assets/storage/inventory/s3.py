"""Reports of S3 Inventory: dated folders with a manifest, beside the files that it names.

The name of the folder, and ``creationTimestamp``, are the time at which S3 began to scan the
bucket. A report is written over hours and is eventually consistent: it may lack what was written
shortly before, and may hold what was written or deleted meanwhile. Keys are URL-encoded in CSV
files, a space as ``+``, and not so in Parquet and ORC files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Final
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import RefusedError
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.inventory.files import batches, plain_name
from lakegc_assets.storage.inventory.report import (
    ENCODINGS,
    Document,
    Report,
    ReportFile,
    damaged,
    key_below,
    read_manifest,
)
from lakegc_assets.storage.inventory.rows import Columns, listing_batch, truth

#: Names of the folders of reports: when each began.
_DATED: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}Z")
_MANIFEST: Final = "manifest.json"
_CHECKSUM: Final = "manifest.checksum"
_COLUMNS: Final = Columns("key", "size", "lastmodifieddate", "etag")
#: As the configuration of an inventory names the optional ones.
_FIELDS: Final = {"size": "Size", "lastmodifieddate": "LastModifiedDate", "etag": "ETag"}
_VERSIONS: Final = {
    "versionid": "VersionId",
    "islatest": "IsLatest",
    "isdeletemarker": "IsDeleteMarker",
}
_WANTED: Final = ("bucket", "key", *_FIELDS, *_VERSIONS)
_MD5: Final = re.compile(r"[0-9a-f]{32}")


def split(url: str) -> tuple[str, str | None]:
    """The place of the reports in a URL, and the folder of one report; None if it names none."""
    place, _, last = url.rpartition("/")
    return (place, last) if _DATED.fullmatch(last) else (url, None)


def newest(place: ObjectStore, source: str, only: str | None = None) -> Report:
    """The newest complete report at a place.

    Args:
        place: the folder of the reports of one configuration.
        source: bucket that it must be about.
        only: name of the folder of the report to take; None for the newest complete one.

    Raises:
        RefusedError: there is none, or it is about another bucket.
        IntegrityError: its manifest is damaged.
    """
    folders = [folder.rstrip("/") for folder in place.list_prefixes().prefixes]
    dated = sorted(filter(_DATED.fullmatch, folders), reverse=True)
    for folder in [only] if only else dated:
        found = read_manifest(place, f"{folder}/{_MANIFEST}", f"{folder}/{_CHECKSUM}")
        if found is not None:
            return _report(place, found, source)
    what = f"{only}/{_MANIFEST} and {only}/{_CHECKSUM}" if only else "complete report"
    raise RefusedError(
        f"{place.url} has no {what} of S3 Inventory: inventory_place is the folder that holds "
        "folders like 2026-01-31T01-00Z (PREFIX/BUCKET/CONFIGURATION). S3 writes the first report "
        f"within 48 hours. There are {len(dated)} such folders, and others: "
        f"{sorted(set(folders) - set(dated))[:5]}"
    )


def _report(place: ObjectStore, manifest: Document, source: str) -> Report:
    about = manifest.text("sourceBucket")
    if about != source:
        raise RefusedError(
            f"the inventory report {manifest.url} is about the bucket {about!r}, and the "
            f"repository is in {source!r}: set inventory_place to a report of that bucket"
        )
    form = manifest.text("fileFormat")
    if form.lower() not in ENCODINGS:
        raise damaged(manifest.url, f"its files are {form!r}: CSV, Parquet and ORC can be read")
    schema = manifest.text("fileSchema")
    encoding = ENCODINGS[form.lower()]
    columns = [name.strip() for name in schema.split(",")] if encoding == "csv" else []
    return Report(
        url=manifest.url,
        started=_started(manifest),
        source=source,
        encoding=encoding,
        columns=columns,
        files=[_file(place, manifest, one) for one in _each_once(manifest)],
    )


def _started(manifest: Document) -> datetime:
    text = manifest.text("creationTimestamp")
    if not (text.isascii() and text.isdecimal()):
        raise damaged(manifest.url, f"'creationTimestamp' is {text!r}: no milliseconds since 1970")
    try:
        return datetime.fromtimestamp(int(text) / 1000, timezone.utc)
    except (ValueError, OverflowError, OSError) as error:
        raise damaged(manifest.url, f"'creationTimestamp' is {text!r}: {error}") from error


def _each_once(manifest: Document) -> list[Document]:
    files = manifest.documents("files")
    if len({one.text("key") for one in files}) < len(files):
        raise damaged(manifest.url, "it names a file twice")
    return files


def _file(place: ObjectStore, manifest: Document, one: Document) -> ReportFile:
    md5 = one.text("MD5checksum").lower()
    if not _MD5.fullmatch(md5):
        raise damaged(manifest.url, f"it names no MD5 of {one.text('key')!r}")
    return ReportFile(key_below(place, one.text("key"), manifest.url), one.number("size"), md5)


def rows(
    place: ObjectStore, report: Report, file: ReportFile, prefix: str
) -> Iterator[tuple[int, pa.RecordBatch | None]]:
    """The rows of one file that are objects of a namespace: current versions only.

    Args:
        place: of the reports.
        report: that the file is of.
        file: to read.
        prefix: of the namespace, ending in a slash; empty for a whole bucket.

    Yields:
        The number of rows read, and those of them that are objects of the namespace: a batch of
        ``LISTING_SCHEMA`` in the order of its keys, or None.

    Raises:
        RefusedError: the report lacks a column that is needed.
        IntegrityError: the file is not what the manifest says, or a row is not whole.
    """
    url = f"{place.url}/{file.key}"
    require_columns(report)
    for batch in batches(place, report, file, _WANTED):
        _require_fields(report, batch.schema.names)
        others = pc.fill_null(pc.not_equal(batch["bucket"], report.source), True)
        if pc.any(others).as_py():
            bucket = batch["bucket"].filter(others)[0].as_py()
            raise damaged(url, f"a row is about the bucket {bucket!r}, not {report.source!r}")
        current = _current(batch)
        keys = current["key"].cast(pa.string())
        if report.encoding == "csv":
            keys = _decoded(keys, url)
        yield batch.num_rows, listing_batch(current, _COLUMNS, keys, prefix, url)


def require_columns(report: Report) -> None:
    """Refuse a report that lacks a column, where the manifest names them.

    Raises:
        RefusedError: it does.
    """
    if report.encoding == "csv":
        _require_fields(report, [plain_name(name) for name in report.columns])


def _require_fields(report: Report, names: list[str]) -> None:
    missing = [name for name in ("bucket", "key") if name not in names]
    missing += [field for name, field in _FIELDS.items() if name not in names]
    # A report of all versions has all of these, and one of the current ones none of them.
    if any(name in names for name in _VERSIONS):
        missing += [field for name, field in _VERSIONS.items() if name not in names]
    if missing:
        raise RefusedError(
            f"the inventory report {report.url} lacks {', '.join(missing)}: without these an "
            "object cannot be compared with the store before it is deleted. Add them to the "
            "configuration of the inventory (OptionalFields), and wait for its next report"
        )


def _current(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of current versions that are objects. A row without these flags is left out."""
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
