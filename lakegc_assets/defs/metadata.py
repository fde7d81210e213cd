"""How manifests are shown in Dagster's UI."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
from matplotlib.figure import Figure

from lakegc_assets.artifacts import Manifest

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP = 1024


def human_bytes(count: float) -> str:
    """A number of bytes for people, in powers of 1024."""
    for unit in _UNITS:
        if abs(count) < _STEP or unit == _UNITS[-1]:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= _STEP
    raise AssertionError(count)


def of_manifest(manifest: Manifest, facts: Sequence[str] = ()) -> dict[str, Any]:
    """What every asset shows: rows, times, cutoff, digest; and some facts by name."""
    shown: dict[str, Any] = {
        "dagster/row_count": manifest.rows,
        "attempt": manifest.attempt,
        "namespace": manifest.namespace,
        "cutoff": dg.MetadataValue.timestamp(manifest.cutoff),
        "seconds": round((manifest.finished - manifest.started).total_seconds(), 2),
        "digest": manifest.digest or "-",
    }
    for name in facts:
        shown[name] = _value(manifest.facts[name])
    return shown


def _value(value: object) -> Any:  # noqa: ANN401 - metadata takes many types
    return value if isinstance(value, (str, int, float)) else dg.MetadataValue.json(value)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> dg.MetadataValue[Any]:
    """A small table."""
    if not rows:
        return dg.MetadataValue.md("nothing")
    head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
    body = "\n".join("| " + " | ".join(_cell(value) for value in row) + " |" for row in rows)
    return dg.MetadataValue.md(head + body)


def _cell(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text.replace("|", "\\|").replace("\n", "\\n")


def breakdown(rows: Sequence[Sequence[Any]], dimension: str) -> dg.MetadataValue[Any]:
    """Objects and bytes by one dimension of a report."""
    chosen = [
        (key, objects, human_bytes(size)) for name, key, objects, size in rows if name == dimension
    ]
    return table((dimension, "objects", "size"), chosen)


def plot_of_ages(rows: Sequence[Sequence[Any]]) -> dg.MetadataValue[Any]:
    """A picture of the bytes that a mark frees against the age of the objects, in days."""
    ages = [(int(key), size) for name, key, _, size in rows if name == "age in days"]
    if not ages:
        return dg.MetadataValue.md("nothing")
    figure = Figure(figsize=(7, 2.6), layout="constrained")
    axes = figure.subplots()
    axes.bar([age for age, _ in ages], [size for _, size in ages], width=1.0, color="#4a6fa5")
    axes.set_xlabel("age of the objects, days")
    axes.set_ylabel("bytes freed")
    axes.yaxis.set_major_formatter(lambda size, _: human_bytes(size))
    axes.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    encoded = base64.b64encode(picture.getvalue()).decode()
    return dg.MetadataValue.md(f"![bytes freed against age](data:image/png;base64,{encoded})")


def of_report(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What ``gc_report`` shows."""
    rows = facts["breakdown"]
    largest = [(address, human_bytes(size), reason) for address, size, reason in facts["largest"]]
    return {
        "objects": facts["objects"],
        "bytes": facts["bytes"],
        "size": human_bytes(facts["bytes"]),
        "by reason": breakdown(rows, "reason"),
        "by branch rule": breakdown(rows, "branch rule"),
        "by slice age": breakdown(rows, "slice age"),
        "largest": table(("address", "size", "reason"), largest),
        "bytes freed against age": plot_of_ages(rows),
        "files": dg.MetadataValue.md("\n".join(f"- `{url}`" for url in facts["files"][-50:])),
        "warnings": dg.MetadataValue.md("\n".join(f"- {w}" for w in facts["warnings"]) or "none"),
    }
