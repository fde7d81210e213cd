"""Shows errors of ours on the page of the run: the sentence, its figures, and no retries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import dagster as dg

from lakegc_assets.defs.metadata import value_of
from lakegc_assets.errors import LakegcError, kind_of, out_of_memory
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import MARK_ASSETS
from lakegc_assets.sweep.status import deleted_so_far, how_far

#: Metadata key of a failure with a transient cause: the same run may succeed later.
TRIED_AGAIN: Final = "tried again"
#: How Dagster records a run and a step that were interrupted; it has no public names for these.
_REASON_TAG: Final = "dagster/failure_reason"
_INTERRUPTED_RUN: Final = "UNEXPECTED_TERMINATION"
_INTERRUPTED_STEP: Final = "INTERRUPT"
_CRASHED: Final = "ChildProcessCrashException"
_UNHEALTHY: Final = " failed health check: "
#: Names of the steps of a mark, which may have a prefix.
_STEPS_OF_MARKS: Final = (
    *MARK_ASSETS,
    *("candidate_checks", "storage_attribution", "attribution_adds_up", "remote_mark"),
)


class Stopped(dg.Failure):
    """A ``LakegcError`` as Dagster shows it: the finding, and the action to take."""

    def __init__(self, error: LakegcError) -> None:
        """Describe an error."""
        metadata = {name: value_of(value) for name, value in error.figures.items()}
        if error.transient:
            metadata[TRIED_AGAIN] = (
                "a run that marks or sweeps: once, after five minutes, by the sensor gc_resume, if "
                "that is on. Any other run: launch it again"
            )
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


def failed_steps(instance: dg.DagsterInstance, run_id: str) -> list[dg.DagsterEvent]:
    """The failures of the steps of a run, as Dagster records them."""
    entries = instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    return [entry.dagster_event for entry in entries if entry.dagster_event is not None]


def first_cause(error: Any) -> str:  # noqa: ANN401 - Dagster's own kind of it has no public name
    """The message of the first error of a chain, without the name of its class."""
    while error.cause is not None:
        error = error.cause
    kind, _, said = str(error.message).strip().partition(": ")
    return said or kind


def failed_for_a_while(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool | None:
    """True if every failed step has a transient cause; None if no step failed.

    A step whose process was killed did not fail by itself, nor a step of a mark that was
    interrupted from outside.
    """
    ended = is_ended_from_outside(run)
    failures = [
        event.step_failure_data
        for event in failed_steps(instance, run.run_id)
        if not (_is_killed(event) or (ended and _is_interrupted_mark(event)))
    ]
    if not failures:
        return None
    said = [one.user_failure_data.metadata if one.user_failure_data else {} for one in failures]
    return all(TRIED_AGAIN in metadata for metadata in said)


def is_ended_from_outside(run: dg.DagsterRun) -> bool:
    """True if a process that Dagster started was ended, and nobody had asked Dagster for that.

    For example, its pod was evicted, or its service restarted: such processes get a SIGTERM.
    """
    return run.remote_job_origin is not None and run.tags.get(_REASON_TAG) == _INTERRUPTED_RUN


def _is_killed(event: dg.DagsterEvent) -> bool:
    """True if the process or the pod of a step ended without a word, by the project's executor.

    The first is the error of executors with a process for each step, the other one that of those
    with a pod or another machine.
    """
    error = event.step_failure_data.error
    if error is None or event.step_failure_data.user_failure_data is not None:
        return False
    return error.cls_name == _CRASHED or (error.cls_name is None and _UNHEALTHY in error.message)


def _is_interrupted_mark(event: dg.DagsterEvent) -> bool:
    """True if a step of a mark was interrupted. It deletes nothing, so it may begin anew.

    An interrupted sweep may be one that a person has stopped.
    """
    step, source = event.step_key or "", event.step_failure_data.error_source
    return source.value == _INTERRUPTED_STEP and step.endswith(_STEPS_OF_MARKS)


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
