"""Inventory reports of Google Cloud Storage (Storage Insights): files next to a manifest.

``CONFIG_YYYY-MM-DDTHH:MM_manifest.json`` is written when all files of a report are, and names them.
The whole report is of one moment, ``snapshot_time``. Of the files only the total number of rows is
known. The etag of an object here is its generation.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AwareDatetime, NonNegativeInt

from lakegc_assets.errors import RefusedError
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.inventory.report import (
    ENCODINGS,
    Manifest,
    Report,
    ReportFile,
    ReportForm,
    Text,
    damaged,
    require_bucket,
)

_MANIFEST: Final = re.compile(
    r"(?:.*/)?[^/]+_(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(?::\d{2})?)_manifest\.json", re.ASCII
)


class _Filters(Manifest):
    bucket: Text


class _Options(Manifest):
    storage_filters: _Filters | None = None


class _Csv(Manifest):
    delimiter: str | None = None


class _Config(_Csv):
    object_metadata_report_options: _Options | None = None
    csv_options: _Csv | None = None


class _GcsManifest(Manifest):
    report_config: _Config
    report_shards_file_names: list[Text]
    shard_count: NonNegativeInt
    snapshot_time: AwareDatetime
    records_processed: NonNegativeInt

    @property
    def bucket(self) -> str:
        """The bucket that the configuration of the report names; empty if it has none."""
        options = self.report_config.object_metadata_report_options
        filters = options.storage_filters if options else None
        return filters.bucket.removeprefix("gs://").rstrip("/") if filters else ""


class GcsInventory(ReportForm):
    """Reports of Storage Insights; only the rows of live versions count."""

    listed = ("name", "size", "updated", "generation")
    others = ("bucket", "timeDeleted")
    add_to = "the metadata fields of the configuration, let CSV files have a header"

    def split(self, url: str) -> tuple[str, str | None]:
        """See ``ReportForm``: a report is named by its manifest."""
        place, _, last = url.rpartition("/")
        return (place, last) if _MANIFEST.fullmatch(last) else (url, None)

    def newest(self, place: ObjectStore, source: str, only: str | None = None) -> Report:
        others: set[str] = set()
        for key in [only] if only else _manifests(place):
            try:
                manifest = _GcsManifest.read(f"{place.url}/{key}", place.get(key))
            except ObjectNotFoundError:
                continue
            if manifest.bucket in {source, ""}:
                return _report(manifest, key, source)
            others.add(manifest.bucket)
        raise RefusedError(
            f"{place.url} has no inventory report about the bucket {source!r}"
            f"{f', but about {sorted(others)}' if others else ''}: inventory_place is the folder "
            "to which a configuration of Storage Insights writes, where "
            "CONFIG_TIME_manifest.json is"
        )

    def objects_in(
        self, batch: pa.RecordBatch, report: Report, url: str
    ) -> tuple[pa.RecordBatch, pa.Array]:
        self.require_fields(batch.schema.names, report.url, *self.others)
        require_bucket(batch, report, url)
        live = batch.filter(pc.is_null(batch["timedeleted"]))
        return live, live["name"].cast(pa.string())


def _manifests(place: ObjectStore) -> list[str]:
    """Keys of all manifests, the newest first."""
    keys = [key for batch in place.list() for key in batch["key"].to_pylist()]
    found = [(match[1], key) for key in keys if (match := _MANIFEST.fullmatch(key))]
    return [key for _, key in sorted(found, reverse=True)]


def _report(manifest: _GcsManifest, key: str, source: str) -> Report:
    names, count = manifest.report_shards_file_names, manifest.shard_count
    if count != len(names) or len(set(names)) < len(names):
        raise damaged(manifest.url, f"it names {len(set(names))} files, and has the count {count}")
    suffixes = {name.rpartition(".")[2].lower() for name in names}
    encoding = ENCODINGS.get(next(iter(suffixes), "csv"))
    if len(suffixes) > 1 or encoding not in {"csv", "parquet"}:
        problem = f"its files are {sorted(suffixes)}: CSV and Parquet can be read"
        raise damaged(manifest.url, problem)
    config = manifest.report_config
    delimiter = (config.csv_options or config).delimiter
    delimiter = "," if delimiter is None else delimiter
    if len(delimiter) != 1:
        raise damaged(manifest.url, f"its values are separated by {delimiter!r}")
    folder = key.rpartition("/")[0]
    files = [ReportFile(f"{folder}/{name}" if folder else name) for name in names]
    began, rows = manifest.snapshot_time, manifest.records_processed
    return Report(manifest.url, began, source, encoding, (), files, rows, delimiter)
