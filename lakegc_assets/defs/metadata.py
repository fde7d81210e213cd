"""Materializations of manifests, and the figures and tables that Dagster shows of assets.

The digest of a manifest is the data version of its materialization; its facts are metadata.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import dagster as dg
import pyarrow as pa

from lakegc_assets.attribution.usage import Use
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.estate.tables import (
    MarkFigures,
    Table,
    class_figures,
    class_table,
    mark_figures,
    report_tables,
    storage_tables,
    sweep_figures,
)
from lakegc_assets.forecast.forecast import Amount, Forecast
from lakegc_assets.lakefs.config import API_PATH, LakeFSConfig
from lakegc_assets.leftovers.report import Leftovers
from lakegc_assets.recovery.backups import Record
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.run.undo import undoable
from lakegc_assets.sweep.totals import space_sentence
from lakegc_assets.wording import a_month, human_bytes, price_note

#: Words for the source of a restored object.
_SOURCES: Final = {"store": "what the store kept", "backup": "the backup"}
#: Columns of the forecast for each default.
CURVE: Final = pa.schema(
    [
        ("default days", pa.int64()),
        ("objects", pa.int64()),
        ("bytes", pa.int64()),
        ("size", pa.string()),
        ("bound", pa.string()),
    ]
)
#: Most rows of a table, the largest first; the command shows all of them.
_ROWS: Final = 100


def materialization(
    root: ArtifactRoot, manifest: Manifest, metadata: Mapping[str, Any]
) -> dg.MaterializeResult[None]:
    """The materialization of the asset that wrote a manifest.

    Its data version is the digest that the next manifest carries. If it changes, Dagster also shows
    all later assets as out of date. ``metadata`` lacks the number and the place of its rows.
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
    """The materialization of an asset that consists only of its metadata.

    The digest of the metadata is its data version. ``rows``: of its one table; None for several.
    """
    text = repr(sorted(metadata.items()))
    return dg.MaterializeResult(
        data_version=dg.DataVersion(hashlib.sha256(text.encode()).hexdigest()),
        metadata={**metadata, **({} if rows is None else {"dagster/row_count": rows})},
    )


def table_schema(columns: pa.Schema) -> dg.TableSchema:
    """The columns of Parquet files, in Dagster's form."""
    return dg.TableSchema(
        [
            dg.TableColumn(
                one.name, str(one.type), constraints=dg.TableColumnConstraints(one.nullable)
            )
            for one in columns
        ]
    )


def of_manifest(manifest: Manifest, facts: Sequence[str] = ()) -> dict[str, Any]:
    """Metadata of every asset: times, cutoff, digest of its keys, and the named facts."""
    shown: dict[str, Any] = {
        "seconds": round((manifest.finished - manifest.started).total_seconds(), 2),
        "cutoff": dg.MetadataValue.timestamp(manifest.cutoff),
        "namespace": manifest.namespace,
        "attempt": manifest.attempt,
        "mode of the mark": manifest.mode,
        "engine": manifest.facts.get("engine", "unknown"),
    }
    if manifest.digest:
        shown["digest"] = manifest.digest
    return dict(_facts(manifest.facts, facts)) | shown


def _facts(facts: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Facts under names for people; numbers of bytes also appear in units."""
    for name in filter(facts.__contains__, names):
        yield name.replace("_", " "), value_of(facts[name])
        if name.endswith("bytes"):
            yield name.removesuffix("bytes").replace("_", " ") + "size", human_bytes(facts[name])


def value_of(value: Any) -> Any:  # noqa: ANN401 - JSON values, and metadata of many types
    """A fact as metadata: numbers and words unchanged, totals and lists as tables, else JSON."""
    if value in (None, [], {}):
        return "none"
    if isinstance(value, dict) and all(map(_is_total, value.values())):
        rows = [(k, t["objects"], human_bytes(t["bytes"])) for k, t in sorted(value.items())]
        return table(("what", "objects", "size"), rows)
    if isinstance(value, dict) and all(isinstance(total, int) for total in value.values()):
        return table(("what", "objects"), sorted(value.items()))
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return table(("what",), [(word,) for word in value])
    if isinstance(value, list) and all(_is_row(row, value[0]) for row in value):
        return table(tuple(value[0]), [tuple(row.values()) for row in value])
    return value if isinstance(value, (str, int, float)) else dg.MetadataValue.json(value)


def _is_total(value: Any) -> bool:  # noqa: ANN401 - JSON values
    """True for a number of objects with their bytes."""
    return isinstance(value, dict) and value.keys() >= {"objects", "bytes"}


def _is_row(row: Any, first: Any) -> bool:  # noqa: ANN401 - JSON values
    """True if a value can be a row of a table with this first row."""
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


def plain_lines(texts: Iterable[str]) -> Any:  # noqa: ANN401 - metadata
    """Lines that Markdown shows unchanged, with any characters."""
    lines = (line for text in texts for line in text.splitlines())
    return dg.MetadataValue.md("\n".join(f"    {line}" for line in lines))


#: Names of the links of a repository, and their paths below its page.
_PAGES = {"objects in lakeFS": "objects", "rules in lakeFS": "settings/retention"}


def pages(config: LakeFSConfig, repository: str) -> dict[str, str]:
    """URLs of the objects and of the retention rules of a repository, by their names.

    Empty if the URL of the server is not known.
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


# Metadata of single assets


def of_backup(record: Record, backup_url: str | None) -> dict[str, Any]:
    """Metadata of ``backup``."""
    subject = record.subject
    where = f"{backup_url}/{subject.repository}/{subject.run}"
    return {
        "dagster/row_count": sum(part.rows for part in record.parts),
        "dagster/uri": where,
        "objects": record.objects,
        "bytes": record.size,
        "size": human_bytes(record.size),
        "where": where,
        "verified by": value_of(record.verified),
        "outcomes": value_of(record.outcomes),
        "seconds": round((record.since - record.begun).total_seconds(), 2),
        "digest": record.digest,
        "attempt": subject.attempt,
    }


def of_sweep(manifest: Manifest) -> dict[str, Any]:
    """Metadata of ``swept_set``."""
    facts = manifest.facts
    return {
        **sweep_figures(facts),
        "outcomes": value_of(facts["outcomes"]),
        **_space_of(facts["space"]),
        "undo": undoable(facts, manifest.finished),
        "recovery": facts["recovery"]["notice"],
        "put back": value_of(facts["put_back"]),
        "backup": facts["backup"] or "none: backup_url is not set",
        "warnings": "\n".join(facts["warnings"]) or "none",
    } | of_manifest(manifest, ("rounds", "delete_deadlines"))


def _space_of(space: Mapping[str, Any]) -> dict[str, Any]:
    """Freed and held space of deleted objects, and until when."""
    return {
        "bytes freed": space["freed"]["bytes"],
        "bytes held": space["held"]["bytes"],
        "space": space_sentence(space),
        "store": space["notice"],
    }


def of_restore(manifest: Manifest) -> dict[str, Any]:
    """Metadata of ``restored_set``."""
    facts = manifest.facts
    until = facts["pinned_until"]
    return {
        "asked for": asked_for(facts["choice"]),
        "outcomes": value_of(facts["outcomes"]),
        "came from": value_of(
            {_SOURCES[source]: total for source, total in facts["sources"].items()}
        ),
        "pinned until": (
            dg.MetadataValue.timestamp(datetime.fromisoformat(until)) if until else "not pinned"
        ),
        "read through lakeFS": table(
            ("path", "commit", "before", "after"),
            [(o["path"], o["commit"][:12], o["before"], o["after"]) for o in facts["sample"]],
        ),
        "warnings": "\n".join(facts["warnings"]) or "none",
    } | of_manifest(manifest, ("restore",))


def asked_for(choice: dict[str, Any]) -> str:
    """The objects that a restore requests, in words."""
    if choice["everything"]:
        return "all that the mark names"
    if choice["ref"] is None:
        return "\n".join(choice["addresses"])
    shown = f"what {choice['ref']} shows"
    if choice["path"] is not None:
        return f"{shown} at {choice['path']}"
    return shown if choice["prefix"] is None else f"{shown} below {choice['prefix']}"


def of_rules(rules: dict[str, Any] | None) -> Any:  # noqa: ANN401 - metadata
    """Retention rules as a table; the word ``none`` without rules."""
    if rules is None:
        return "none"
    named = sorted((rule["branch_id"], rule["retention_days"]) for rule in rules["branches"])
    return table(("branch", "days"), [*named, ("all others", rules["default_retention_days"])])


def of_report(manifest: Manifest, marks: Sequence[MarkFigures] = ()) -> dict[str, Any]:
    """Metadata of ``gc_report``; ``marks``: the last marks of the repository, the oldest first."""
    facts = manifest.facts
    return {
        **mark_figures(facts),
        "size": human_bytes(facts["bytes"]),
        **_shown(report_tables(facts, marks)),
        "warnings": "\n".join(facts["warnings"]) or "none",
        "undo": facts.get("undo", "not known"),
        **_compared(facts.get("compared", {})),
        "files": plain_lines(facts["files"][-50:]),
        **of_manifest(manifest),
    }


def _shown(tables: Mapping[str, Table]) -> dict[str, Any]:
    return {name: table(one.columns, one.rows) for name, one in tables.items()}


def _compared(found: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of shadow mode: the comparison with a mark of lakeFS's collector."""
    if not found:
        return {}
    name = "beside lakeFS's collector"
    if "problem" in found:
        return {name: found["problem"]}

    def row(what: str, total: Mapping[str, Any]) -> tuple[str, int, str]:
        size = total["bytes"]
        return what, total["objects"], "not known" if size is None else human_bytes(size)

    ours, theirs = found["only_run"], found["only_other"]
    return {
        name: table(
            ("named by", "objects", "size"),
            [
                row("both", found["both"]),
                row("this mark alone", ours["total"]),
                *(row(f"… marked here: {why}", one) for why, one in ours["marked"].items()),
                row(f"{found['other']['id']} alone", theirs["total"]),
                *(row(f"… kept here: {why}", one) for why, one in theirs["kept"].items()),
            ],
        ),
        "notes on the comparison": "\n".join(found["notes"]) or "none",
    }


def of_attribution(
    manifest: Manifest,
    branches: Sequence[Use] = (),
    paths: Sequence[Use] = (),
    price: float | None = None,
) -> dict[str, Any]:
    """Metadata of ``storage_attribution``.

    ``branches`` and ``paths``: live and committed storage by branch and by outermost folder, the
    largest first. ``price``: of a TB for a month; None to show no money.
    """
    facts = manifest.facts
    tables = {
        **storage_tables(facts["classes"], branches, paths, price),
        "below _lakefs/": class_table(facts["own_files"], price),
    }
    return {
        **class_figures(facts["classes"]),
        **_shown(tables),
        "price": "".join(price_note(price)) or "not set: price_per_tb_month",
        "covers": "\n".join(facts["covers"]) or "all that the mark has listed",
        "ranges not read": facts["ranges_not_read"],
        **of_manifest(manifest),
    }


def of_forecast(found: Forecast, price: float | None = None) -> dict[str, Any]:
    """Metadata of ``policy_forecast``: figures that Dagster plots, and tables."""
    costs = (
        {}
        if price is None
        else {
            "cost today": a_month(found.today.bytes, price),
            "cost forecast": a_month(found.forecast.bytes, price),
            "price": "".join(price_note(price)),
        }
    )
    return {
        "mark": found.mark,
        "as of": dg.MetadataValue.timestamp(found.as_of),
        "objects today": found.today.objects,
        "bytes today": found.today.bytes,
        "objects forecast": found.forecast.objects,
        "bytes forecast": found.forecast.bytes,
        "size forecast": f"{human_bytes(found.forecast.bytes)} ({found.forecast.bound})",
        "rules today": of_rules(found.todays_rules.to_json() if found.todays_rules else None),
        "rules forecast": of_rules(found.rules.to_json()),
        "without branches": ", ".join(found.without_branches) or "none",
        **costs,
        "by default days": _amounts("default days", found.curve.items()),
        "today's rules, in days": _amounts("in days", found.later.items()),
        "notes": "\n".join(found.notes) or "none",
    }


def _amounts(what: str, amounts: Iterable[tuple[int, Amount]]) -> Any:  # noqa: ANN401 - metadata
    return table(
        (what, "objects", "bytes", "size", "bound"),
        [
            (days, one.objects, one.bytes, human_bytes(one.bytes), one.bound)
            for days, one in amounts
        ],
    )


def of_leftovers(found: Leftovers) -> dict[str, Any]:
    """Metadata of ``estate_leftovers``."""
    tables = {name: table(one.columns, one.rows[:_ROWS]) for name, one in found.tables().items()}
    problems = [(one.where, one.what) for one in found.problems[:_ROWS]]
    return {
        **tables,
        "could not be looked at": table(("where", "why"), problems),
        **found.figures(),
    }
