"""The summary of a run on a terminal: findings, outcome and places."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lakegc_assets.cli.output import figures

#: Garbage that no rule let expire.
_WITHOUT_RULE = {
    "unreferenced": "unreferenced",
    "no rules": "in commits that are gone, without rules",
}


def summary(found: dict[str, Any]) -> Iterator[str]:
    """The lines of ``queries.outcome``."""
    from lakegc_assets.cli.queries import commands_of, kept_because

    mode = "" if found["mode"] == "unified" else f" ({found['mode']})"
    yield f"repository {found['repository']}, mark {found['run']}{mode}"
    yield f"  slices made after the cutoff, not listed: {found['skipped_slices']:,}"
    listed = "looked at" if found["mode"] == "committed" else "listed"
    yield figures(listed, found["listed"], found["listed_bytes"])
    kept, kept_bytes = found["listed"] - found["objects"], found["listed_bytes"] - found["bytes"]
    yield figures("kept", kept, kept_bytes)
    for name, objects in kept_because(found):
        yield figures(name, objects, indent=6)
    yield figures("garbage", found["objects"], found["bytes"])
    for dimension, key, objects, size in found["breakdown"]:
        if dimension == "branch rule":
            name = _WITHOUT_RULE.get(key, f"expired by the rule {key}")
            yield figures(name, objects, size, indent=6)
    yield from _sweep(found)
    for warning in found["warnings"]:
        yield f"  warning: {warning}"
    places = (
        ("mark", found["mark_url"]),
        ("artifacts", near(found["artifacts"])),
        ("engine", found["engine"]),
        ("backup", found["backup"]),
        ("undo", found["undo"]),
        ("space", found["space"] and found["space"]["notice"]),
        ("state", f"{found['state']}: {found['because']}"),
        *commands_of(found),
    )
    for name, place in places:
        if place:
            yield f"  {name:<10} {place}"


def _sweep(found: dict[str, Any]) -> Iterator[str]:
    from lakegc_assets.estate.run_state import DELETED_OR_MISSING
    from lakegc_assets.sweep.totals import space_lines

    for outcome, total in found["outcomes"].items():
        yield figures(outcome.replace("_", " "), total["objects"], total["bytes"])
        if outcome == "deleted" and found["space"]:
            for words, objects, size in space_lines(found["space"]):
                yield figures(words, objects, size, indent=6)
        if outcome == "spared":
            for because, objects in found["spared_by_sweep"].items():
                yield figures(because, objects, indent=6)
        if outcome == "already_missing" and found["deleted_or_missing"]:
            yield figures(DELETED_OR_MISSING, found["deleted_or_missing"], indent=6)
    if back := found["restored"]:
        yield figures("restored since", back["objects"], back["bytes"])


def near(path: str | Path) -> str:
    """A local path relative to the working directory where it is below it; else as it is."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return str(path)
