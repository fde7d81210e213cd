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
    """The lines of ``run_outcome.outcome_of``."""
    from lakegc_assets.estate.run_outcome import (
        commands_of,
        done_by_sweep,
        kept_because,
        places,
        totals,
    )

    mode = "" if found["mode"] == "unified" else f" ({found['mode']})"
    yield f"repository {found['repository']}, mark {found['run']}{mode}"
    yield f"  slices made after the cutoff, not listed: {found['skipped_slices']:,}"
    (listed, *of_listing), kept, garbage = totals(found)
    yield figures("looked at" if found["mode"] == "committed" else listed, *of_listing)
    yield figures(*kept)
    for name, objects in kept_because(found):
        yield figures(name, objects, indent=6)
    yield figures(*garbage)
    for dimension, key, objects, size in found["breakdown"]:
        if dimension == "branch rule":
            name = _WITHOUT_RULE.get(key, f"expired by the rule {key}")
            yield figures(name, objects, size, indent=6)
    for outcome, part, objects, size in done_by_sweep(found):
        yield figures(part or outcome, objects, size, indent=6 if part else 2)
    for warning in found["warnings"]:
        yield f"  warning: {warning}"
    shown = places({**found, "artifacts": near(found["artifacts"])})
    state = ("state", f"{found['state']}: {found['because']}")
    for name, place in (*shown, state, *commands_of(found)):
        yield f"  {name:<10} {place}"


def near(path: str | Path) -> str:
    """A local path relative to the working directory where it is below it; else as it is."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return str(path)
