"""The summary of a run on a terminal: findings, outcome and places."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from lakegc_assets.defs.units import human_bytes
from lakegc_assets.wording import aligned

#: Garbage that no rule let expire.
_WITHOUT_RULE = {
    "unreferenced": "unreferenced",
    "no rules": "in commits that are gone, without rules",
}


def show(found: dict[str, Any], as_json: bool) -> None:
    """Print what ``queries.outcome`` says, for people or as JSON."""
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    from lakegc_assets.cli.queries import commands_of, kept_because

    mode = "" if found["mode"] == "unified" else f" ({found['mode']})"
    click.echo(f"repository {found['repository']}, mark {found['run']}{mode}")
    click.echo(f"  slices made after the cutoff, not listed: {found['skipped_slices']:,}")
    by_name = found["mode"] == "committed"
    _line(2, "looked at" if by_name else "listed", found["listed"], found["listed_bytes"])
    kept, kept_bytes = found["listed"] - found["objects"], found["listed_bytes"] - found["bytes"]
    _line(2, "kept", kept, kept_bytes)
    for name, objects in kept_because(found):
        _line(6, name, objects)
    _line(2, "garbage", found["objects"], found["bytes"])
    for dimension, key, objects, size in found["breakdown"]:
        if dimension == "branch rule":
            _line(6, _WITHOUT_RULE.get(key, f"expired by the rule {key}"), objects, size)
    _show_sweep(found)
    for warning in found["warnings"]:
        click.echo(f"  warning: {warning}")
    _show_places(found)
    click.echo(f"  state      {found['state']}: {found['because']}")
    for what, command in commands_of(found):
        click.echo(f"  {what:<10} {command}")


def _show_sweep(found: dict[str, Any]) -> None:
    from lakegc_assets.estate.run_state import DELETED_OR_MISSING
    from lakegc_assets.sweep.space import space_lines

    for outcome, totals in found["outcomes"].items():
        _line(2, outcome.replace("_", " "), totals["objects"], totals["bytes"])
        if outcome == "deleted" and found["space"]:
            for line in space_lines(found["space"]):
                _line(6, *line)
        if outcome == "spared":
            for because, objects in found["spared_by_sweep"].items():
                _line(6, because, objects)
        if outcome == "already_missing" and found["deleted_or_missing"]:
            _line(6, DELETED_OR_MISSING, found["deleted_or_missing"])
    if back := found["restored"]:
        _line(2, "restored since", back["objects"], back["bytes"])


def _line(indent: int, name: str, objects: int, size: int | None = None) -> None:
    shown = "" if size is None else f"{human_bytes(size):>12}"
    click.echo(f"{' ' * indent + name:<44} {aligned(objects)} {shown}".rstrip())


def _show_places(found: dict[str, Any]) -> None:
    click.echo(f"  mark       {found['mark_url']}")
    click.echo(f"  artifacts  {near(found['artifacts'])}")
    click.echo(f"  engine     {found['engine']}")
    if found["backup"] is not None:
        click.echo(f"  backup     {found['backup']}")
    if found["undo"] is not None:
        click.echo(f"  undo       {found['undo']}")
    if found["space"] and found["space"]["notice"]:
        click.echo(f"  space      {found['space']['notice']}")


def near(path: str | Path) -> str:
    """A local path relative to the working directory where it is below it; else as it is."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return str(path)
