"""Shows errors of ours on the page of the run: the sentence, its figures, and no retries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import dagster as dg

from lakegc_assets.defs.metadata import value_of
from lakegc_assets.errors import LakegcError, kind_of, out_of_memory
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep.status import deleted_so_far, how_far

#: Metadata key of a failure with a transient cause: the same run may succeed later.
TRIED_AGAIN: Final = "tried again"


class Stopped(dg.Failure):
    """A ``LakegcError`` as Dagster shows it: the finding, and the action to take."""

    def __init__(self, error: LakegcError) -> None:
        """Describe an error."""
        metadata = {name: value_of(value) for name, value in error.figures.items()}
        if error.transient:
            metadata[TRIED_AGAIN] = "once, after five minutes, by the sensor gc_resume"
        # No retries of the step: it would find the same error again at once.
        super().__init__(description=str(error), metadata=metadata, allow_retries=False)
        self.description = f"{kind_of(error)}: {error}"
        self.error = error


def stopped(error: LakegcError) -> Stopped:
    """An error of ours as Dagster shows it, with a word for its kind in place of its class."""
    # Dagster writes the class before the message, with its module unless that is ``builtins``.
    kind = type(kind_of(error), (Stopped,), {"__module__": "builtins"})
    made: Stopped = kind(error)
    return made


def step_failures(instance: dg.DagsterInstance, run_id: str) -> list[Any]:
    """The failures of the steps of a run, as Dagster records them."""
    entries = instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    return [e.dagster_event.step_failure_data for e in entries if e.dagster_event is not None]


def first_cause(error: Any) -> str:  # noqa: ANN401 - Dagster's own kind of it has no public name
    """The message of the first error of a chain, without the name of its class."""
    while error.cause is not None:
        error = error.cause
    kind, _, said = str(error.message).strip().partition(": ")
    return said or kind


def failed_for_a_while(instance: dg.DagsterInstance, run_id: str) -> bool | None:
    """True if every failed step has a transient cause; None if no step failed."""
    failures = step_failures(instance, run_id)
    if not failures:
        return None
    said = [one.user_failure_data.metadata if one.user_failure_data else {} for one in failures]
    return all(TRIED_AGAIN in metadata for metadata in said)


@contextmanager
def shown() -> Iterator[None]:
    """Show the message of a ``LakegcError`` on the page of the run, without a traceback.

    Raises:
        Stopped: for each ``LakegcError``, and where memory runs out.
    """
    try:
        yield
    except MemoryError:
        raise stopped(out_of_memory()) from None
    except LakegcError as error:
        raise stopped(error) from None


@contextmanager
def interrupts_shown(ctx: RunContext) -> Iterator[None]:
    """End an interrupted sweep with a sentence about its progress.

    Raises:
        KeyboardInterrupt: with the sentence; Dagster's own error if it was that.
    """
    try:
        yield
    except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError) as error:
        with suppress(LakegcError):
            attempt = ctx.root.attempt(ctx.repository, ctx.run)
            sentence = how_far(ctx, attempt, deleted_so_far(attempt))
            raise type(error)(sentence) from None
        raise
