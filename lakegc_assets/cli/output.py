"""Prints results, as JSON for programs or as lines for people, and ends commands with a message."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from lakegc_assets.errors import LakegcError, kind_of, out_of_memory
from lakegc_assets.wording import aligned, escaped, human_bytes

_T = TypeVar("_T")
FAILURE: Final = 1
#: Exit statuses, by the kind of an error.
_STATUSES: Final = {"failed": FAILURE, "configuration": 2, "refused": 3}
#: A setting with its value, in a command of a message.
_GIVEN_SETTING: Final = re.compile(r"--set \w+=")
#: Words for garbage that no rule has expired, by its key in the breakdown.
_WITHOUT_RULE = {
    "unreferenced": "unreferenced",
    "no rules": "in commits that are gone, without rules",
}


def say(text: str, *, err: bool = False) -> None:
    """Print text for people, without control characters other than line breaks and tabs."""
    click.echo("\t".join(map(escaped, text.split("\t"))), err=err)


def echo_json(found: object) -> None:
    """Print JSON values; times and other types that JSON lacks become text."""
    click.echo(json.dumps(found, indent=1, default=str))


def echo(
    found: _T, as_json: bool, lines: Callable[[_T], Iterable[str]], otherwise: str = ""
) -> None:
    """Print a result: as JSON, or as ``lines`` for people.

    ``otherwise``: printed on standard error if there are no lines.
    """
    if as_json:
        echo_json(found)
        return
    shown = list(lines(found))
    for line in shown:
        say(line)
    if not shown and otherwise:
        say(otherwise, err=True)


def echo_rows(
    rows: list[_T], as_json: bool, line_of: Callable[[_T], str], otherwise: str = ""
) -> None:
    """Print rows as ``echo`` does: for people, one line for each row."""
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
    """A line with objects and bytes in columns after a name; name and indent fill ``width``."""
    shown = "" if size is None else f"{human_bytes(size):>12}"
    return f"{' ' * indent + name:<{width}} {aligned(objects)} {shown}".rstrip() + end


def printable(name: str) -> str:
    """A name, unchanged if it can be printed in one line; else its Python literal."""
    return name if name.isprintable() else repr(name)


def summary(found: dict[str, Any]) -> Iterator[str]:
    """The lines for a result of ``run_outcome.outcome_of``."""
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
    yield figures(listed, *of_listing)
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
    """A local path relative to the working directory if it is below that; else unchanged."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return str(path)


@contextmanager
def exit_status() -> Iterator[None]:
    """Turn errors and interrupts of the current command into a sentence and an exit status."""
    try:
        yield
    except (LakegcError, MemoryError) as raised:
        error = raised if isinstance(raised, LakegcError) else out_of_memory()
        kind = kind_of(error)
        say(f"{kind}: {_with_options(error)}", err=True)
        sys.exit(_STATUSES[kind])
    except KeyboardInterrupt as interrupt:
        how_far = str(interrupt) or "run the same command again, with the same --run if it has one"
        say(f"interrupted: {how_far}", err=True)
        sys.exit(FAILURE)


def _with_options(error: LakegcError) -> str:
    """The message of an error, with the options that set the settings that it names."""
    from lakegc_assets.run.command_line import SETTINGS

    said, command = str(error), click.get_current_context().command
    # Commands in the message may have settings as options already.
    named_in = _GIVEN_SETTING.sub("", said)
    known = {one for param in command.params for one in param.opts}
    options = []
    for name in SETTINGS:
        option = f"--{name.replace('_', '-')}"
        if option not in known:
            option = f"--set {name}=…" if "--set" in known else ""
        named = re.search(rf"(?<![\w-]){name}(?![\w-])", named_in)
        if option and named and option.rstrip("…") not in said:
            options.append(option)
    return f"{said}\n  as options: {', '.join(options)}" if options else said
