"""How a command ends: in a sentence, and with an exit status."""

from __future__ import annotations

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
            click.echo(f"refused: {error}", err=True)
            sys.exit(REFUSED)
        except ConfigurationError as error:
            click.echo(f"configuration: {error}", err=True)
            sys.exit(USAGE)
        except LakegcError as error:
            click.echo(f"failed: {error}", err=True)
            sys.exit(FAILURE)
        except KeyboardInterrupt as interrupt:
            how_far = str(interrupt) or "the same command with the same --run goes on"
            click.echo(f"interrupted: {how_far}", err=True)
            sys.exit(FAILURE)

    return wrapper
