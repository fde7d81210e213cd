"""Figures of marks, sweeps and storage that are plotted, under names that stay as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def of_mark(facts: Mapping[str, Any]) -> dict[str, int | float]:
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


def of_sweep(facts: Mapping[str, Any]) -> dict[str, int | float]:
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


def of_classes(classes: Iterable[Sequence[Any]]) -> dict[str, int]:
    """The bytes of each class, as figures that Dagster plots."""
    figures: dict[str, int] = {}
    for name, _, _, size in classes:
        figures[f"bytes {name}"] = figures.get(f"bytes {name}", 0) + size
    return figures


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
