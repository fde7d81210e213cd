"""Metadata of each asset: the figures that Dagster plots, and tables for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import dagster as dg
import pyarrow as pa

from lakegc_assets.attribution.usage import Use
from lakegc_assets.defs.metadata import of_manifest, table, value_of
from lakegc_assets.estate.history import MarkFigures
from lakegc_assets.forecast.forecast import Amount, Forecast
from lakegc_assets.leftovers.report import Leftovers
from lakegc_assets.recovery.backups import Record
from lakegc_assets.recovery.undo_window import undoable
from lakegc_assets.run.artifacts import Manifest
from lakegc_assets.sweep.totals import space_sentence
from lakegc_assets.wording import a_month, human_bytes, price_note

#: Upper ends of the classes of ages, in days.
_AGES: Final = (7, 30, 90, 180, 365, 730)
#: Rows of tables that show the largest only.
_MOST: Final = 10
#: Where a restored object came from.
_SOURCES: Final = {"store": "what the store kept", "backup": "the backup"}
#: Columns of the forecast with each default.
CURVE: Final = pa.schema(
    [
        ("default days", pa.int64()),
        ("objects", pa.int64()),
        ("bytes", pa.int64()),
        ("size", pa.string()),
        ("bound", pa.string()),
    ]
)
#: Rows of a table, the largest first; the command has all of them.
_ROWS: Final = 100


def of_backup(record: Record, backup_url: str | None) -> dict[str, Any]:
    """Metadata of ``backup``."""
    if record.finished is None:
        raise TypeError("a backup that did not finish has no time")
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
        "seconds": round((record.finished - record.begun).total_seconds(), 2),
        "digest": record.digest,
        "attempt": subject.attempt,
    }


def of_sweep(manifest: Manifest) -> dict[str, Any]:
    """Metadata of ``swept_set``."""
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
    """Figures of a sweep, which Dagster plots; some are not in records of older sweeps."""
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
    """Freed and held space of deleted objects, and its end; older sweeps have none."""
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
    """The objects that a restore was asked for, in words."""
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


def breakdown(rows: Iterable[Sequence[Any]], dimension: str) -> list[tuple[str, int, str]]:
    """Key, objects and size of one dimension of a report."""
    return [(key, objects, human_bytes(size)) for name, key, objects, size in rows
            if name == dimension]  # fmt: skip


def age_classes(rows: Iterable[Sequence[Any]], dimension: str) -> list[tuple[str, int, str]]:
    """The same of a dimension of ages, in classes; a report has them by days."""
    classes: dict[str, list[int]] = {}
    for name, key, objects, size in rows:
        if name == dimension:
            total = classes.setdefault(_age_class(key), [0, 0])
            total[0] += objects
            total[1] += size
    return [(name, count, human_bytes(size)) for name, (count, size) in classes.items()]


def _age_class(key: str) -> str:
    """The class of an age as a report names it: a number of days, or other words."""
    days, _, unit = key.partition(" ")
    if not days.isdecimal() or unit not in {"", "days"}:
        return key
    return next((f"up to {limit} days" for limit in _AGES if int(days) <= limit), "older")


def of_report(manifest: Manifest, marks: Sequence[MarkFigures] = ()) -> dict[str, Any]:
    """Metadata of ``gc_report``; ``marks`` are all of the repository, the oldest first."""
    facts = manifest.facts
    rows = facts["breakdown"]
    dimensions = (
        ("reason", breakdown(rows, "reason")),
        ("branch rule", breakdown(rows, "branch rule")),
        ("slice age", age_classes(rows, "slice age")),
        ("age", age_classes(rows, "age in days")),
    )
    return {
        **_figures_of_mark(facts),
        "size": human_bytes(facts["bytes"]),
        **{f"by {name}": table((name, "objects", "size"), shown) for name, shown in dimensions},
        "last marks": table(("finished", "marked", "deleted"), mark_rows(marks)),
        "largest": table(("path", "size", "reason", "address"), largest_rows(facts)),
        "warnings": "\n".join(facts["warnings"]) or "none",
        "undo": facts.get("undo", "not known"),
        **_compared(facts.get("compared", {})),
        "files": dg.MetadataValue.md("\n".join(f"- `{url}`" for url in facts["files"][-50:])),
        **of_manifest(manifest),
    }


def mark_rows(marks: Sequence[MarkFigures]) -> list[tuple[str, str, str]]:
    """Time, marked and deleted size of the last marks, the newest first."""
    return [
        (f"{one.at:%Y-%m-%d %H:%M} UTC", human_bytes(one.marked), human_bytes(one.deleted))
        for one in reversed(marks[-_MOST:])
    ]


def largest_rows(facts: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Path, size, reason and address of the largest marked objects."""
    paths = facts.get("largest_paths", {})
    return [
        (paths.get(address, "not known"), human_bytes(size), reason, address)
        for address, size, reason in facts["largest"]
    ]


def _compared(found: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of shadow mode: a mark of lakeFS's collector beside this one."""
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

    ``branches`` and ``paths`` are what is live and committed by branch and by outermost folder, the
    largest first; ``price`` is of a TB for a month, None for no money.
    """
    facts, money = manifest.facts, () if price is None else ("cost",)

    def classes(rows: Sequence[Sequence[Any]]) -> Any:  # noqa: ANN401 - metadata
        return table(
            ("class", "why", "objects", "size", *money),
            [
                (name, why or "", count, human_bytes(size), *costs(size, price))
                for name, why, count, size in rows
            ],
        )

    return {
        **_figures_of_classes(facts["classes"]),
        "classes": classes(facts["classes"]),
        "top branches": table((*BRANCH_COLUMNS, *money), branch_rows(branches, price)),
        "top prefixes": table(("prefix", "objects", "size", *money), prefix_rows(paths, price)),
        "price": "".join(price_note(price)) or "not set: price_per_tb_month",
        "below _lakefs/": classes(facts["own_files"]),
        "covers": "\n".join(facts["covers"]) or "all that the mark has listed",
        "ranges not read": facts["ranges_not_read"],
        **of_manifest(manifest),
    }


def costs(size: int, price: float | None) -> tuple[str, ...]:
    """The cost of bytes, as the last cell of a row; nothing without a price."""
    return () if price is None else (a_month(size, price),)


#: Of ``branch_rows``; with a price, the cost of what is freed follows.
BRANCH_COLUMNS: Final = ("branch", "only this one", "shared", "deleting it frees")


def branch_rows(branches: Sequence[Use], price: float | None) -> list[tuple[str, ...]]:
    """The storage of the first branches."""
    rows: list[tuple[str, ...]] = []
    for one in branches[:_MOST]:
        only, freed = (0 if pair is None else pair[1] for pair in (one.only, one.freed))
        sizes = (only, one.bytes - only)
        shown = "" if one.freed is None else human_bytes(freed)
        rows.append((one.key, *map(human_bytes, sizes), shown, *costs(freed, price)))
    return rows


def prefix_rows(paths: Sequence[Use], price: float | None) -> list[tuple[Any, ...]]:
    """Prefix, objects, size and cost of the first ones."""
    return [
        (one.key, one.objects, human_bytes(one.bytes), *costs(one.bytes, price))
        for one in paths[:_MOST]
    ]


def _figures_of_classes(classes: Iterable[Sequence[Any]]) -> dict[str, int]:
    """The bytes of each class, as figures that Dagster plots."""
    figures: dict[str, int] = {}
    for name, _, _, size in classes:
        figures[f"bytes {name}"] = figures.get(f"bytes {name}", 0) + size
    return figures


def _figures_of_mark(facts: Mapping[str, Any]) -> dict[str, int | float]:
    """Figures of a mark, which Dagster plots."""
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


def of_forecast(found: Forecast, price: float | None = None) -> dict[str, Any]:
    """Metadata of ``policy_forecast``: figures that Dagster plots, and tables."""
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
        **_costs(found, price),
        "by default days": _amounts("default days", found.curve.items()),
        "today's rules, in days": _amounts("in days", found.later.items()),
        "notes": "\n".join(found.notes) or "none",
    }


def _costs(found: Forecast, price: float | None) -> dict[str, str]:
    """The cost of the garbage; nothing without a price."""
    if price is None:
        return {}
    return {
        "cost today": a_month(found.today.bytes, price),
        "cost forecast": a_month(found.forecast.bytes, price),
        "price": "".join(price_note(price)),
    }


def _amounts(what: str, amounts: Any) -> Any:  # noqa: ANN401 - metadata
    rows: list[tuple[int, Amount]] = list(amounts)
    return table(
        (what, "objects", "bytes", "size", "bound"),
        [(days, one.objects, one.bytes, human_bytes(one.bytes), one.bound) for days, one in rows],
    )


def of_leftovers(found: Leftovers) -> dict[str, Any]:
    """Metadata of ``estate_leftovers``."""
    return {
        "namespaces": _largest(
            ("namespace", "repository", "of", "objects", "size", "newest", "stays"),
            found.namespaces,
            lambda one: (
                one.url, one.repository or "nobody knows", one.server, one.objects,
                human_bytes(one.size), f"{one.newest:%Y-%m-%d}" if one.newest else "never",
                one.stays or "may be removed",
            ),
        ),
        "uploads that never ended": _largest(
            ("where", "uploads", "size", "oldest"),
            found.uploads,
            lambda one: (
                one.where, len(one.uploads), human_bytes(one.size), f"{one.oldest:%Y-%m-%d}",
            ),
        ),
        "blocks that nobody has committed": _largest(
            ("where", "blobs", "size"),
            found.blocks,
            lambda one: (one.where, len(one.blobs), human_bytes(one.size)),
        ),
        "ranges and metaranges that nothing names": _largest(
            ("repository", "metaranges", "ranges", "size"),
            found.metadata,
            lambda one: (
                one.repository, one.metaranges, one.tables.num_rows - one.metaranges,
                human_bytes(one.size),
            ),
        ),
        "retained by the stores": _largest(
            ("repository", "objects", "size", "delete markers", "notice", "rule to add"),
            found.retained,
            lambda one: (
                one.repository, one.objects, human_bytes(one.size), one.markers, one.notice,
                one.rule or "none",
            ),
        ),
        "removals that did not end": table(
            ("removal", "kind", "where", "by"),
            [(one.id, one.kind, one.where, one.by) for one in found.removals[:_ROWS]],
        ),
        "could not be looked at": table(
            ("where", "why"), [(one.where, one.what) for one in found.problems[:_ROWS]]
        ),
        **found.figures(),
    }  # fmt: skip


def _largest(
    columns: Sequence[str], found: Iterable[Any], row_of: Callable[[Any], tuple[Any, ...]]
) -> Any:  # noqa: ANN401 - metadata
    largest = sorted(found, key=lambda one: -one.size)[:_ROWS]
    return table(columns, [row_of(one) for one in largest])
