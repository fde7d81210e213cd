"""Manifests as materializations: their digest as the data version, their facts as metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import dagster as dg
import pyarrow as pa

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.lakefs.config import API_PATH, LakeFSConfig
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts, Manifest
from lakegc_assets.wording import human_bytes


def materialization(
    root: ArtifactRoot, manifest: Manifest, metadata: Mapping[str, Any]
) -> dg.MaterializeResult[None]:
    """The materialization of an asset that a manifest is of.

    Its data version is the digest that the next manifest carries: where it changes, whatever was
    made behind it is out of date for Dagster, too. ``metadata`` lacks number and place of its rows.
    """
    attempt = AttemptArtifacts(root, manifest.repository, manifest.run, manifest.attempt)
    return dg.MaterializeResult(
        data_version=dg.DataVersion(manifest.sha256),
        metadata={
            **metadata,
            "dagster/row_count": manifest.rows,
            "dagster/uri": f"{attempt.url}/{manifest.asset}",
        },
    )


def shown_tables(
    metadata: Mapping[str, Any], rows: int | None = None
) -> dg.MaterializeResult[None]:
    """The materialization of an asset that is nothing but its metadata.

    Their digest is its data version; ``rows`` are of its one table, None where it has several.
    """
    text = repr(sorted(metadata.items()))
    return dg.MaterializeResult(
        data_version=dg.DataVersion(hashlib.sha256(text.encode()).hexdigest()),
        metadata={**metadata, **({} if rows is None else {"dagster/row_count": rows})},
    )


def table_schema(columns: pa.Schema) -> dg.TableSchema:
    """The columns of Parquet files, as Dagster has them."""
    return dg.TableSchema(
        [
            dg.TableColumn(
                one.name, str(one.type), constraints=dg.TableColumnConstraints(one.nullable)
            )
            for one in columns
        ]
    )


def of_manifest(manifest: Manifest, facts: Sequence[str] = ()) -> dict[str, Any]:
    """Metadata of every asset: times, cutoff, digest of its keys; and some facts by name."""
    shown: dict[str, Any] = {
        "seconds": round((manifest.finished - manifest.started).total_seconds(), 2),
        "cutoff": dg.MetadataValue.timestamp(manifest.cutoff),
        "namespace": manifest.namespace,
        "attempt": manifest.attempt,
        "mode of the mark": manifest.mode,
        # Older records do not say it.
        "engine": manifest.facts.get("engine", "unknown"),
    }
    if manifest.digest:
        shown["digest"] = manifest.digest
    return dict(_facts(manifest.facts, facts)) | shown


def _facts(facts: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Facts by names for people; bytes are there a second time, in units."""
    for name in names:
        yield name.replace("_", " "), value_of(facts[name])
        if name.endswith("bytes"):
            yield name.removesuffix("bytes").replace("_", " ") + "size", human_bytes(facts[name])


def value_of(value: Any) -> Any:  # noqa: ANN401 - JSON values, and metadata of many types
    """A fact as metadata: figures and words as they are, totals and lists as tables, else JSON."""
    if value in (None, [], {}):
        return "none"
    if isinstance(value, dict) and all(isinstance(total, dict) for total in value.values()):
        rows = [(k, t["objects"], human_bytes(t["bytes"])) for k, t in sorted(value.items())]
        return table(("what", "objects", "size"), rows)
    if isinstance(value, dict) and all(isinstance(total, int) for total in value.values()):
        return table(("what", "objects"), sorted(value.items()))
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return table(("what",), [(word,) for word in value])
    if isinstance(value, list) and all(_is_row(row, value[0]) for row in value):
        return table(tuple(value[0]), [tuple(row.values()) for row in value])
    return value if isinstance(value, (str, int, float)) else dg.MetadataValue.json(value)


def _is_row(row: Any, first: Any) -> bool:  # noqa: ANN401 - JSON values
    """True if a value can be a row of a table whose first row is known."""
    return (
        isinstance(row, dict)
        and list(row) == list(first)
        and all(isinstance(cell, (str, int, float)) for cell in row.values())
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:  # noqa: ANN401 - metadata
    """A small table; the word ``nothing`` if it has no rows."""
    if not rows:
        return "nothing"
    kinds = ["int" if isinstance(value, int) else "string" for value in rows[0]]
    return dg.MetadataValue.table(
        records=[dg.TableRecord(dict(zip(columns, row, strict=True))) for row in rows],
        schema=dg.TableSchema(
            [dg.TableColumn(name, kind) for name, kind in zip(columns, kinds, strict=True)]
        ),
    )


#: What the links of a repository are called, and where they lead to.
_PAGES = {"objects in lakeFS": "objects", "rules in lakeFS": "settings/retention"}


def pages(config: LakeFSConfig, repository: str) -> dict[str, str]:
    """URLs of the objects and of the retention rules of a repository, by their names.

    Empty where it is not known where the server is.
    """
    try:
        server = config.access().endpoint.removesuffix(API_PATH)
    except ConfigurationError:
        return {}
    name = quote(repository, safe="")
    return {what: f"{server}/repositories/{name}/{page}" for what, page in _PAGES.items()}


def links(config: LakeFSConfig, repository: str) -> dict[str, Any]:
    """The pages of a repository as metadata."""
    return {what: dg.MetadataValue.url(url) for what, url in pages(config, repository).items()}
