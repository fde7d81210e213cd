"""Inventory reports of Google Cloud Storage (Storage Insights): files beside a manifest.

``CONFIG_YYYY-MM-DDTHH:MM_manifest.json`` is written when all files of a report are, and names them.
All that it says is of one moment, ``snapshot_time``. Nothing is known of the files but how many
rows they have together. What stands for an etag here is the generation of an object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import RefusedError
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.inventory.files import batches, plain_name
from lakegc_assets.storage.inventory.report import (
    ENCODINGS,
    Document,
    Report,
    ReportFile,
    damaged,
)
from lakegc_assets.storage.inventory.rows import Columns, listing_batch

_MANIFEST: Final = re.compile(
    r"(?:.*/)?[^/]+_(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(?::\d{2})?)_manifest\.json", re.ASCII
)
_COLUMNS: Final = Columns("name", "size", "updated", "generation")
#: As a configuration names its metadata fields.
_FIELDS: Final = ("bucket", "name", "size", "updated", "generation", "timeDeleted")
_WANTED: Final = tuple(map(plain_name, _FIELDS))


def split(url: str) -> tuple[str, str | None]:
    """The place of the reports in a URL, and the name of one manifest; None if it names none."""
    place, _, last = url.rpartition("/")
    return (place, last) if _MANIFEST.fullmatch(last) else (url, None)


def newest(place: ObjectStore, source: str, only: str | None = None) -> Report:
    """The newest complete report at a place.

    Args:
        place: the folder to which configurations write.
        source: bucket that the report must be about.
        only: name of the manifest of the report to take; None for the newest one.

    Raises:
        RefusedError: there is none about the bucket.
        IntegrityError: its manifest is damaged.
    """
    others: set[str] = set()
    for key in [only] if only else _manifests(place):
        try:
            manifest = Document(f"{place.url}/{key}", place.get(key))
        except ObjectNotFoundError:
            continue
        about = _bucket(manifest)
        if about in {source, ""}:
            return _report(manifest, key, source)
        others.add(about)
    raise RefusedError(
        f"{place.url} has no inventory report about the bucket {source!r}"
        f"{f', but about {sorted(others)}' if others else ''}: inventory_place is the folder to "
        "which a configuration of Storage Insights writes, where CONFIG_TIME_manifest.json is"
    )


def _manifests(place: ObjectStore) -> list[str]:
    """Keys of all manifests, the newest first."""
    keys = [key for batch in place.list() for key in batch["key"].to_pylist()]
    found = [(match[1], key) for key in keys if (match := _MANIFEST.fullmatch(key))]
    return [key for _, key in sorted(found, reverse=True)]


def _bucket(manifest: Document) -> str:
    """The bucket that the configuration of a report names; empty if it has none."""
    at = manifest.document("report_config")
    for name in ("object_metadata_report_options", "storage_filters"):
        if name not in at:
            return ""
        at = at.document(name)
    return at.text("bucket").removeprefix("gs://").rstrip("/")


def _report(manifest: Document, key: str, source: str) -> Report:
    names = manifest.texts("report_shards_file_names")
    if manifest.number("shard_count") != len(names) or len(set(names)) < len(names):
        count = manifest.number("shard_count")
        raise damaged(manifest.url, f"it names {len(set(names))} files, and says {count}")
    suffixes = {name.rpartition(".")[2].lower() for name in names}
    encoding = ENCODINGS.get(next(iter(suffixes), "csv"))
    if len(suffixes) > 1 or encoding not in {"csv", "parquet"}:
        raise damaged(
            manifest.url, f"its files are {sorted(suffixes)}: CSV and Parquet can be read"
        )
    config = manifest.document("report_config")
    options = config.document("csv_options") if "csv_options" in config else config
    delimiter = options.text("delimiter") if "delimiter" in options else ","
    if len(delimiter) != 1:
        raise damaged(manifest.url, f"its values are separated by {delimiter!r}")
    folder = key.rpartition("/")[0]
    return Report(
        url=manifest.url,
        started=manifest.time("snapshot_time"),
        source=source,
        encoding=encoding,
        columns=(),
        files=[ReportFile(f"{folder}/{name}" if folder else name) for name in names],
        rows=manifest.number("records_processed"),
        delimiter=delimiter,
    )


def require_columns(report: Report) -> None:
    """Do nothing: the columns are in the files alone, and ``rows`` compares them."""
    del report


def rows(
    place: ObjectStore, report: Report, file: ReportFile, prefix: str
) -> Iterator[tuple[int, pa.RecordBatch | None]]:
    """The rows of one file that are objects of a namespace: live versions only.

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
        IntegrityError: the file is missing, or a row is not whole.
    """
    url = f"{place.url}/{file.key}"
    for batch in batches(place, report, file, _WANTED):
        missing = [f for f in _FIELDS if plain_name(f) not in batch.schema.names]
        if missing:
            raise RefusedError(
                f"the inventory report {report.url} lacks {', '.join(missing)}: without these an "
                "object cannot be compared with the store before it is deleted. Add them to the "
                "metadata fields of the configuration, let CSV files have a header, and wait for "
                "the next report"
            )
        others = pc.fill_null(pc.not_equal(batch["bucket"], report.source), True)
        if pc.any(others).as_py():
            bucket = batch["bucket"].filter(others)[0].as_py()
            raise damaged(url, f"a row is about the bucket {bucket!r}, not {report.source!r}")
        live = batch.filter(pc.is_null(batch["timedeleted"]))
        live = live.set_column(
            live.schema.get_field_index("generation"),
            "generation",
            live["generation"].cast(pa.string()),
        )
        yield batch.num_rows, listing_batch(live, _COLUMNS, live["name"], prefix, url)
