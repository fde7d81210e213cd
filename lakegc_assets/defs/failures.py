"""Shows errors of ours on the page of the run: the sentence, its figures, and no retries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import dagster as dg
from dagster._core.errors import DagsterExecutionInterruptedError

from lakegc_assets.defs.metadata import value_of
from lakegc_assets.errors import ConfigurationError, LakegcError, RefusedError
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep.ending import how_far


class Stopped(dg.Failure):
    """An error of ours as Dagster shows it: what was found, and what to do.

    Attributes:
        error: the error itself.
    """

    def __init__(self, error: LakegcError) -> None:
        """Describe an error.

        Args:
            error: its message is the description, and its figures are the metadata.
        """
        super().__init__(
            description=f"{_kind(error)}: {error}",
            metadata={name: value_of(value) for name, value in error.figures.items()},
            # The same would be found again: whoever mends it starts the next run.
            allow_retries=False,
        )
        self.error = error


@contextmanager
def shown() -> Iterator[None]:
    """Let the page of the run say what an error of ours says, without the frames of Python.

    Raises:
        Stopped: for each ``LakegcError``.
    """
    try:
        yield
    except LakegcError as error:
        raise Stopped(error) from None


@contextmanager
def interrupts_shown(ctx: RunContext) -> Iterator[None]:
    """Let a sweep that is interrupted end with a sentence that says how far it came.

    Raises:
        KeyboardInterrupt: with the sentence; or Dagster's own kind of it.
    """
    try:
        yield
    except (KeyboardInterrupt, DagsterExecutionInterruptedError) as error:
        with suppress(LakegcError):
            told = how_far(ctx, ctx.root.attempt(ctx.repository, ctx.run))
            raise type(error)(told) from None
        raise


def _kind(error: LakegcError) -> str:
    """The word that the command, too, puts before the sentence."""
    if isinstance(error, RefusedError):
        return "refused"
    return "configuration" if isinstance(error, ConfigurationError) else "failed"
