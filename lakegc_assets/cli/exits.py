"""The end of a command: one sentence, and an exit status."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final

import click

from lakegc_assets.errors import LakegcError, kind_of

FAILURE: Final = 1
_STATUS: Final = {"failed": FAILURE, "configuration": 2, "refused": 3}


class Failed(click.ClickException):
    """The sentence on standard error with which a command ends."""

    def __init__(self, kind: str, sentence: str) -> None:
        """Join the word for the kind of the end, and the sentence."""
        super().__init__(f"{kind}: {sentence}")
        self.exit_code = _STATUS.get(kind, FAILURE)

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it without the word that click puts before its own errors."""
        click.echo(self.message, file, err=True)


@contextmanager
def exit_status() -> Iterator[None]:
    """Turn errors and interrupts into a sentence and an exit status."""
    try:
        yield
    except LakegcError as error:
        raise Failed(kind_of(error), _with_options(error)) from error
    except KeyboardInterrupt as interrupt:
        how_far = str(interrupt) or "the same command with the same --run goes on"
        raise Failed("interrupted", how_far) from interrupt


def _with_options(error: LakegcError) -> str:
    """The message of an error, with the options that set the settings that it names."""
    from lakegc_assets.run.command_line import SETTINGS

    said, context = str(error), click.get_current_context()
    command: click.Command | None = context.command
    if isinstance(command, click.Group) and context.invoked_subcommand:
        command = command.get_command(context, context.invoked_subcommand)
    known = {one for param in command.params for one in param.opts} if command else set()
    options = []
    for name in SETTINGS:
        option = f"--{name.replace('_', '-')}"
        if option not in known:
            option = f"--set {name}=…" if "--set" in known else ""
        named = re.search(rf"(?<![\w-]){name}(?![\w-])", said)
        if option and named and option.rstrip("…") not in said:
            options.append(option)
    return f"{said}\n  as options: {', '.join(options)}" if options else said
