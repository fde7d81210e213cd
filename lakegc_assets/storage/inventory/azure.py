"""Reports of Azure's blob inventory: a folder for each run and rule, named after the run's start.

A rule writes ``YYYY/MM/DD/HH-MM-SS/RULE/RULE-manifest.json``, next to its files, and last a file
with the MD5 of the manifest. The manifest has the start and the result of the run. Names begin with
the container. Files have a header; the manifest has their sizes, but no MD5.

Directories of accounts with a hierarchical namespace are rows without a size. Only ``hdi_isfolder``
tells them from empty blobs, so without that column no empty blob counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AwareDatetime, Field, NonNegativeInt

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
    plain_name,
    read_manifest,
    truth,
)

_LEVELS: Final = (r"\d{4}", r"\d{2}", r"\d{2}", r"\d{2}-\d{2}-\d{2}")
_REPORT: Final = re.compile(f"(.+)/({'/'.join(_LEVELS)}/[^/]+)", re.ASCII)
#: The columns that identify rows which are no base blobs, by the filter that includes them.
_MORE: Final = {"versions": "IsCurrentVersion", "snapshots": "Snapshot", "deleted": "Deleted"}
_FOLDER: Final = "hdi_isfolder"


class _Filters(Manifest):
    prefixes: list[Text] | None = Field(None, alias="prefixMatch")
    versions: bool = Field(False, alias="includeBlobVersions")
    snapshots: bool = Field(False, alias="includeSnapshots")
    deleted: bool = Field(False, alias="includeDeleted")


class _Rule(Manifest):
    filters: _Filters
    form: Text = Field(alias="format")
    about: Text = Field(alias="objectType")
    columns: list[Text] = Field(alias="schemaFields")


class _File(Manifest):
    blob: Text
    size: NonNegativeInt


class _AzureManifest(Manifest):
    status: Text
    name: Text = Field(alias="ruleName")
    rule: _Rule = Field(alias="ruleDefinition")
    began: AwareDatetime = Field(alias="inventoryStartTime")
    files: list[_File]


class AzureInventory(ReportForm):
    """Reports of Azure's blob inventory; only base blobs that are not deleted count."""

    listed = ("Name", "Content-Length", "Last-Modified", "Etag")
    others = (*_MORE.values(), _FOLDER)
    add_to = "the rule (schemaFields)"

    def split(self, url: str) -> tuple[str, str | None]:
        """See ``ReportForm``: a report is named by its folder."""
        found = _REPORT.fullmatch(url)
        return (found[1], found[2]) if found else (url, None)

    def newest(self, place: ObjectStore, source: str, only: str | None = None) -> Report:
        for run in [only.rpartition("/")[0]] if only else _runs(place, ""):
            rules = (
                [only] if only else [folder.rstrip("/") for folder in _folders(place, f"{run}/")]
            )
            found = [one for one in (_manifest(place, rule) for rule in rules) if one is not None]
            mine = [one for one in found if _is_about(one, source)]
            if len(mine) > 1:
                raise RefusedError(
                    f"{place.url}/{run} has the reports of several rules about the container "
                    f"{source!r}: {sorted(one.name for one in mine)}. Let one of them "
                    "write to a separate container, and set inventory_place to that; or to one "
                    "report"
                )
            if mine:
                return self._report(place, mine[0], source)
        raise RefusedError(
            f"{place.url} has no complete report of a blob inventory about blobs of the container "
            f"{source!r}: inventory_place is the container to which a rule writes, or the folder "
            "of one report (…/2026/01/31/01-00-00/RULE)"
        )

    def objects_in(
        self, batch: pa.RecordBatch, report: Report, url: str
    ) -> tuple[pa.RecordBatch, pa.Array]:
        del url
        self.require_fields(batch.schema.names, report.url)
        blobs = _base_blobs(batch)
        keys = blobs["name"].cast(pa.string())
        # Names begin with the container.
        within = pc.fill_null(pc.starts_with(keys, f"{report.source}/"), True)
        return blobs.filter(within), pc.utf8_slice_codeunits(
            keys.filter(within), len(report.source) + 1
        )

    def _report(self, place: ObjectStore, manifest: _AzureManifest, source: str) -> Report:
        if manifest.status != "Succeeded":
            raise damaged(manifest.url, f"the run of its rule ended as {manifest.status!r}")
        form = manifest.rule.form.lower()
        if form not in {"csv", "parquet"}:
            raise damaged(manifest.url, f"its files are {form!r}: CSV and Parquet can be read")
        rule = manifest.rule
        more = [field for name, field in _MORE.items() if getattr(rule.filters, name)]
        self.require_fields(rule.columns, manifest.url, *more)
        folder = manifest.url.rpartition("/")[0].removeprefix(f"{place.url}/")
        files = [
            ReportFile(_key(one.blob, folder, manifest.url), one.size) for one in manifest.files
        ]
        if len({file.key for file in files}) < len(files):
            raise damaged(manifest.url, "it names a file twice")
        return Report(manifest.url, manifest.began, source, ENCODINGS[form], (), files)


def _runs(place: ObjectStore, above: str, level: int = 0) -> Iterator[str]:
    """Folders of runs, the newest first."""
    for folder in reversed(_folders(place, above)):
        name = folder.removeprefix(above).rstrip("/")
        if re.fullmatch(_LEVELS[level], name, re.ASCII):
            if level + 1 < len(_LEVELS):
                yield from _runs(place, folder, level + 1)
            else:
                yield folder.rstrip("/")


def _folders(place: ObjectStore, above: str) -> list[str]:
    return sorted(place.list_prefixes(above).prefixes)


def _manifest(place: ObjectStore, folder: str) -> _AzureManifest | None:
    at = f"{folder}/{folder.rpartition('/')[2]}-manifest"
    return read_manifest(_AzureManifest, place, f"{at}.json", f"{at}.checksum")


def _is_about(manifest: _AzureManifest, source: str) -> bool:
    """True if a report is about blobs and its rule may match some blobs of a container."""
    prefixes = manifest.rule.filters.prefixes or []
    # A rule matches names that begin with the name of a container, or with a part of it.
    mine = [one for one in prefixes if f"{source}/".startswith(one) or one.startswith(f"{source}/")]
    return manifest.rule.about.lower() == "blob" and (bool(mine) or not prefixes)


def _key(blob: str, folder: str, url: str) -> str:
    """The key of a file, which is next to its manifest."""
    if not blob.startswith(f"{folder}/"):
        raise damaged(url, f"it names {blob!r}, which does not lie at {folder}")
    return blob


def _base_blobs(batch: pa.RecordBatch) -> pa.RecordBatch:
    names = batch.schema.names
    if "iscurrentversion" in names:
        batch = batch.filter(pc.fill_null(truth(batch["iscurrentversion"]), False))
    if "snapshot" in names:
        snapshot = batch["snapshot"].cast(pa.string())
        batch = batch.filter(pc.fill_null(pc.equal(snapshot, ""), True))
    if "deleted" in names:
        batch = batch.filter(pc.invert(pc.fill_null(truth(batch["deleted"]), False)))
    if (folder := plain_name(_FOLDER)) in names:
        return batch.filter(pc.invert(pc.fill_null(truth(batch[folder]), False)))
    size = batch["contentlength"].cast(pa.string())
    return batch.filter(pc.fill_null(pc.not_equal(size, "0"), True))
