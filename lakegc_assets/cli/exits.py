"""The end of a command: one sentence, and an exit status."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from lakegc_assets.cli.output import say
from lakegc_assets.errors import LakegcError, kind_of

FAILURE: Final = 1
#: By the kind of an error.
_STATUSES: Final = {"failed": FAILURE, "configuration": 2, "refused": 3}


@contextmanager
def exit_status() -> Iterator[None]:
    """Turn errors and interrupts of the current command into a sentence and an exit status."""
    try:
        yield
    except LakegcError as error:
        kind = kind_of(error)
        say(f"{kind}: {_with_options(error)}", err=True)
        sys.exit(_STATUSES[kind])
    except KeyboardInterrupt as interrupt:
        how_far = str(interrupt) or "the same command with the same --run goes on"
        say(f"interrupted: {how_far}", err=True)
        sys.exit(FAILURE)


def _with_options(error: LakegcError) -> str:
    """The message of an error, with the options that set the settings that it names."""
    from lakegc_assets.run.command_line import SETTINGS

    said, command = str(error), click.get_current_context().command
    known = {one for param in command.params for one in param.opts}
    options = []
    for name in SETTINGS:
        option = f"--{name.replace('_', '-')}"
        if option not in known:
            option = f"--set {name}=…" if "--set" in known else ""
        named = re.search(rf"(?<![\w-]){name}(?![\w-])", said)
        if option and named and option.rstrip("…") not in said:
            options.append(option)
    return f"{said}\n  as options: {', '.join(options)}" if options else said
