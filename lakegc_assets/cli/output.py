"""Prints results: JSON for programs; lines, with figures in columns, for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TypeVar

import click

from lakegc_assets.wording import aligned, human_bytes

_T = TypeVar("_T")


def echo_json(found: object) -> None:
    """Print JSON values; times and what else JSON lacks as text."""
    click.echo(json.dumps(found, indent=1, default=str))


def echo(
    found: _T, as_json: bool, lines: Callable[[_T], Iterable[str]], otherwise: str = ""
) -> None:
    """Print a result: JSON values as they are, or ``lines`` of them for people.

    Where there are no lines, ``otherwise`` is printed on standard error.
    """
    if as_json:
        echo_json(found)
        return
    shown = list(lines(found))
    for line in shown:
        click.echo(line)
    if not shown and otherwise:
        click.echo(otherwise, err=True)


def echo_rows(
    rows: list[_T], as_json: bool, line_of: Callable[[_T], str], otherwise: str = ""
) -> None:
    """Print rows, as ``echo`` does: for people a line for each."""
    echo(rows, as_json, lambda found: map(line_of, found), otherwise)


def figures(
    name: str,
    objects: int,
    size: int | None = None,
    *,
    indent: int = 2,
    width: int = 44,
    end: str = "",
) -> str:
    """Objects and bytes in columns behind a name, which takes ``width`` with its indent."""
    shown = "" if size is None else f"{human_bytes(size):>12}"
    return f"{' ' * indent + name:<{width}} {aligned(objects)} {shown}".rstrip() + end


def printable(name: str) -> str:
    """A name as it is where it can be printed in one line; else as Python would write it."""
    return name if name.isprintable() else repr(name)


def minute(time: str) -> str:
    """A time in ISO form, UTC, to the minute."""
    return f"{time[:16].replace('T', ' ')} UTC"
