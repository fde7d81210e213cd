"""Shows errors of ours on the page of the run: the sentence, its figures, and no retries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from lakegc_assets.defs.metadata import value_of
from lakegc_assets.errors import ConfigurationError, LakegcError, RefusedError


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


def _kind(error: LakegcError) -> str:
    """The word that the command, too, puts before the sentence."""
    if isinstance(error, RefusedError):
        return "refused"
    return "configuration" if isinstance(error, ConfigurationError) else "failed"
