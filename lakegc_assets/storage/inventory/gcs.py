"""Inventory reports of Google Cloud Storage (Storage Insights): files beside a manifest.

``CONFIG_YYYY-MM-DDTHH:MM_manifest.json`` is written when all files of a report are, and names them.
All that it says is of one moment, ``snapshot_time``. Nothing is known of the files but how many
rows they have together. What stands for an etag here is the generation of an object.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import RefusedError
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.inventory.report import (
    ENCODINGS,
    Columns,
    Document,
    Report,
    ReportFile,
    ReportForm,
    damaged,
    plain_name,
    refuse_without,
    require_bucket,
)

_MANIFEST: Final = re.compile(
    r"(?:.*/)?[^/]+_(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(?::\d{2})?)_manifest\.json", re.ASCII
)
#: As a configuration names its metadata fields.
_FIELDS: Final = ("bucket", "name", "size", "updated", "generation", "timeDeleted")


class GcsInventory(ReportForm):
    """Reports of Storage Insights, of which only the rows of live versions count."""

    columns = Columns("name", "size", "updated", "generation")
    wanted = tuple(map(plain_name, _FIELDS))

    def split(self, url: str) -> tuple[str, str | None]:
        """See ``ReportForm``: a report is named by its manifest."""
        place, _, last = url.rpartition("/")
        return (place, last) if _MANIFEST.fullmatch(last) else (url, None)

    def newest(self, place: ObjectStore, source: str, only: str | None = None) -> Report:
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
            f"{f', but about {sorted(others)}' if others else ''}: inventory_place is the folder "
            "to which a configuration of Storage Insights writes, where "
            "CONFIG_TIME_manifest.json is"
        )

    def objects_in(
        self, batch: pa.RecordBatch, report: Report, url: str
    ) -> tuple[pa.RecordBatch, pa.Array]:
        names = batch.schema.names
        refuse_without(
            [field for field in _FIELDS if plain_name(field) not in names],
            report.url,
            "the metadata fields of the configuration, let CSV files have a header",
        )
        require_bucket(batch, report, url)
        live = batch.filter(pc.is_null(batch["timedeleted"]))
        generations = live["generation"].cast(pa.string())
        at = live.schema.get_field_index("generation")
        return live.set_column(at, "generation", generations), live["name"]


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
