"""The end of a command: one sentence, and an exit status."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import click

from lakegc_assets.errors import ConfigurationError, LakegcError, RefusedError

FAILURE, USAGE, REFUSED = 1, 2, 3

_P = ParamSpec("_P")
_R = TypeVar("_R")


def exit_status(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Turn errors into a sentence and an exit status."""

    @wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except RefusedError as error:
            click.echo(f"refused: {_with_options(error)}", err=True)
            sys.exit(REFUSED)
        except ConfigurationError as error:
            click.echo(f"configuration: {_with_options(error)}", err=True)
            sys.exit(USAGE)
        except LakegcError as error:
            click.echo(f"failed: {_with_options(error)}", err=True)
            sys.exit(FAILURE)
        except KeyboardInterrupt as interrupt:
            how_far = str(interrupt) or "the same command with the same --run goes on"
            click.echo(f"interrupted: {how_far}", err=True)
            sys.exit(FAILURE)

    return wrapper


def _with_options(error: LakegcError) -> str:
    """The message of an error, with the options that set the settings that it names."""
    from lakegc_assets.run.command_line import SETTINGS

    said = str(error)
    context = click.get_current_context(silent=True)
    known = {one for param in context.command.params for one in param.opts} if context else set()
    options = []
    for name in SETTINGS:
        option = f"--{name.replace('_', '-')}"
        if option not in known:
            option = f"--set {name}=…" if "--set" in known else ""
        named = re.search(rf"(?<![\w-]){name}(?![\w-])", said)
        if option and named and option.rstrip("…") not in said:
            options.append(option)
    return f"{said}\n  as options: {', '.join(options)}" if options else said
