"""How manifests are shown in Dagster's UI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import dagster as dg

from lakegc_assets.attribution.usage import Use
from lakegc_assets.defs import plots
from lakegc_assets.defs.cost import a_month, price_note
from lakegc_assets.defs.units import human_bytes
from lakegc_assets.estate.history import MarkFigures
from lakegc_assets.recovery.backups import Record
from lakegc_assets.recovery.undo_window import undoable
from lakegc_assets.run.artifacts import Manifest
from lakegc_assets.sweep.space import space_sentence

#: Upper ends of the classes of ages, in days.
_AGES = (7, 30, 90, 180, 365, 730)
#: Rows of tables that show the largest only.
_MOST = 10
#: Where a restored object came from.
_SOURCES = {"store": "what the store kept", "backup": "the backup"}


def of_manifest(manifest: Manifest, facts: Sequence[str] = ()) -> dict[str, Any]:
    """What every asset shows: rows, times, cutoff, digest; and some facts by name."""
    shown: dict[str, Any] = {
        "dagster/row_count": manifest.rows,
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
    return dict(_told(manifest.facts, facts)) | shown


def _told(facts: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Facts by names for people; bytes are told a second time, in units."""
    for name in names:
        yield name.replace("_", " "), value_of(facts[name])
        if name.endswith("bytes"):
            yield name.removesuffix("bytes").replace("_", " ") + "size", human_bytes(facts[name])


def of_backup(record: Record, backup_url: str | None) -> dict[str, Any]:
    """What ``backup`` shows."""
    if record.finished is None:
        raise TypeError("a backup that did not finish has no time")
    subject = record.subject
    return {
        "objects": record.objects,
        "bytes": record.size,
        "size": human_bytes(record.size),
        "where": f"{backup_url}/{subject.repository}/{subject.run}",
        "verified by": value_of(record.verified),
        "outcomes": value_of(record.outcomes),
        "seconds": round((record.finished - record.begun).total_seconds(), 2),
        "digest": record.digest,
        "attempt": subject.attempt,
    }


def of_sweep(manifest: Manifest) -> dict[str, Any]:
    """What ``swept_set`` shows."""
    facts = manifest.facts
    return {
        **_figures_of_sweep(facts),
        "outcomes": value_of(facts["outcomes"]),
        **_space_of(facts),
        "undo": undoable(facts, manifest.finished),
        "recovery": facts["recovery"]["notice"],
        "put back": value_of(facts["put_back"]),
        "backup": facts["backup"] or "none: backup_url is not set",
    } | of_manifest(manifest, ("rounds", "delete_deadlines"))


def _figures_of_sweep(facts: Mapping[str, Any]) -> dict[str, int | float]:
    """What a sweep did, as figures that Dagster plots; some are not in records of older sweeps."""
    totals = {
        outcome: facts["outcomes"].get(outcome, {"objects": 0, "bytes": 0})
        for outcome in ("deleted", "spared", "locked", "put_back", "already_missing")
    }
    figures: dict[str, int | float] = {}
    for outcome, total in totals.items():
        for what in ("objects", "bytes"):
            figures[f"{what} {outcome.replace('_', ' ')}"] = total[what]
    listed = facts.get("listed", {})
    for what, count in listed.items():
        figures[f"{what} kept"] = count - totals["deleted"][what]
    if "objects" in listed:
        figures["share deleted"] = _share(totals["deleted"]["objects"], listed["objects"])
    if "requests" in facts:
        figures["requests sent"] = facts["requests"]
    return figures


def _space_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What of the space of deleted objects is free, and when the rest is; older sweeps lack it."""
    space = facts.get("space")
    if space is None:
        return {}
    return {
        "bytes freed": space["freed"]["bytes"],
        "bytes held": space["held"]["bytes"],
        "space": space_sentence(space),
        "store": space["notice"],
    }


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def of_restore(manifest: Manifest) -> dict[str, Any]:
    """What ``restored_set`` shows."""
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
    """What a restore was asked for, in words."""
    if choice["everything"]:
        return "all that the mark names"
    if choice["ref"] is None:
        return "\n".join(choice["addresses"])
    shown = f"what {choice['ref']} shows"
    if choice["path"] is not None:
        return f"{shown} at {choice['path']}"
    return shown if choice["prefix"] is None else f"{shown} below {choice['prefix']}"


def of_rules(rules: dict[str, Any] | None) -> Any:  # noqa: ANN401 - metadata
    """Retention rules as a table; the word ``none`` where there are none."""
    if rules is None:
        return "none"
    named = sorted((rule["branch_id"], rule["retention_days"]) for rule in rules["branches"])
    return table(("branch", "days"), [*named, ("all others", rules["default_retention_days"])])


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
    """Whether a value can be a row of a table whose first row is known."""
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


def breakdown(rows: Sequence[Sequence[Any]], dimension: str) -> Any:  # noqa: ANN401 - metadata
    """Objects and bytes by one dimension of a report."""
    chosen = [
        (key, objects, human_bytes(size)) for name, key, objects, size in rows if name == dimension
    ]
    return table((dimension, "objects", "size"), chosen)


def by_slice_age(rows: Sequence[Sequence[Any]]) -> Any:  # noqa: ANN401 - metadata
    """Objects and bytes by the age of their slices, in classes; a report has them by days."""
    return table(("slice age", "objects", "size"), slice_ages(rows))


def slice_ages(rows: Sequence[Sequence[Any]]) -> list[tuple[str, int, str]]:
    """Class of age, objects and size of the slices of a report."""
    classes: dict[str, list[int]] = {}
    for dimension, key, objects, size in rows:
        if dimension == "slice age":
            total = classes.setdefault(_age_class(key), [0, 0])
            total[0] += objects
            total[1] += size
    return [(name, count, human_bytes(size)) for name, (count, size) in classes.items()]


def _age_class(key: str) -> str:
    """The class of a slice age as a report names it: a number of days, or other words."""
    days, _, unit = key.partition(" ")
    if unit != "days":
        return key
    return next((f"up to {limit} days" for limit in _AGES if int(days) <= limit), "older")


def of_report(manifest: Manifest, marks: Sequence[MarkFigures] = ()) -> dict[str, Any]:
    """What ``gc_report`` shows.

    Args:
        manifest: of the asset.
        marks: all of the repository, the oldest first.
    """
    facts = manifest.facts
    rows = facts["breakdown"]
    paths = facts.get("largest_paths", {})
    largest = [
        (paths.get(address, "not known"), human_bytes(size), reason, address)
        for address, size, reason in facts["largest"]
    ]
    general = of_manifest(manifest)
    # Its rows are those of the breakdown, which says little.
    del general["dagster/row_count"]
    return {
        **_figures_of_mark(facts),
        "size": human_bytes(facts["bytes"]),
        "plot by age": picture("bytes freed against age", plots.of_ages(rows)),
        "by reason": breakdown(rows, "reason"),
        "by branch rule": breakdown(rows, "branch rule"),
        "by slice age": by_slice_age(rows),
        "plot of the last marks": picture("bytes of the last marks", plots.of_marks(marks)),
        "largest": table(("path", "size", "reason", "address"), largest),
        "warnings": "\n".join(facts["warnings"]) or "none",
        "undo": facts.get("undo", "not known"),
        **_compared(facts.get("compared", {})),
        "files": dg.MetadataValue.md("\n".join(f"- `{url}`" for url in facts["files"][-50:])),
        **general,
    }


def _compared(found: Mapping[str, Any]) -> dict[str, Any]:
    """What shadow mode shows: a mark of lakeFS's collector beside this one."""
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
    """What ``storage_attribution`` shows.

    Args:
        manifest: of the asset.
        branches: what is live and committed, by branch, the largest first.
        paths: the same by the outermost folder.
        price: of a TB for a month; None for no money.
    """
    facts = manifest.facts
    money = () if price is None else ("cost",)
    columns = ("class", "why", "objects", "size", *money)

    def cost(size: int) -> tuple[str, ...]:
        return (a_month(size, price),) if money else ()

    def classes(rows: Sequence[Sequence[Any]]) -> Any:  # noqa: ANN401 - metadata
        return table(
            columns,
            [
                (name, why or "", count, human_bytes(size), *cost(size))
                for name, why, count, size in rows
            ],
        )

    drawn = sorted(facts["classes"], key=lambda row: -row[3])
    return {
        "plot of classes": picture(
            "bytes by class",
            plots.of_classes([(f"{r[0]}: {r[1]}" if r[1] else r[0], r[3]) for r in drawn]),
        ),
        "classes": classes(facts["classes"]),
        "top branches": table(
            ("branch", "only this one", "shared", "deleting it frees", *money),
            [
                (
                    one.key,
                    human_bytes((one.only or (0, 0))[1]),
                    human_bytes(one.bytes - (one.only or (0, 0))[1]),
                    human_bytes((one.freed or (0, 0))[1]),
                    *cost((one.freed or (0, 0))[1]),
                )
                for one in branches[:_MOST]
            ],
        ),
        "top prefixes": table(
            ("prefix", "objects", "size", *money),
            [
                (one.key, one.objects, human_bytes(one.bytes), *cost(one.bytes))
                for one in paths[:_MOST]
            ],
        ),
        "price": "".join(price_note(price)) or "not set: price_per_tb_month",
        "below _lakefs/": classes(facts["own_files"]),
        "covers": "\n".join(facts["covers"]) or "all that the mark has listed",
        "ranges not read": facts["ranges_not_read"],
        **of_manifest(manifest),
    }


def _figures_of_mark(facts: Mapping[str, Any]) -> dict[str, int | float]:
    """What a mark found, as figures that Dagster plots."""
    figures = facts["figures"]
    objects, size = facts["objects"], facts["bytes"]
    return {
        "objects marked": objects,
        "bytes marked": size,
        "objects kept": figures["listed"] - objects,
        "bytes kept": figures["listed_bytes"] - size,
        "objects spared": figures["spared"],
        "share marked": _share(objects, figures["listed"]),
        "seconds of the mark": figures["seconds"],
        "ranges decoded": figures["ranges_decoded"],
        "requests sent": figures["requests"],
    }


def picture(what: str, png: bytes | None) -> Any:  # noqa: ANN401 - metadata
    """A picture, with words in its place; the word ``nothing`` if there is none."""
    return "nothing" if png is None else dg.MetadataValue.md(f"![{what}]({plots.data_url(png)})")
