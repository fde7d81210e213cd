"""Tells on stderr what a run is doing, for as long as it takes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from pyspark import SparkContext

_POLL_SECONDS = 0.5
#: A stage that is done sooner is not worth a line.
_TASKS_SECONDS = 5.0
_MANY_TASKS = 10
_STEPS = {
    dg.DagsterEventType.STEP_START: "started",
    dg.DagsterEventType.STEP_SUCCESS: "done",
    dg.DagsterEventType.STEP_FAILURE: "failed",
}


@contextmanager
def progress(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Say which step of a run starts and ends, and how far the Spark tasks of a long one are."""
    done = threading.Event()
    thread = threading.Thread(target=_watch, args=(instance, run_id, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _watch(instance: dg.DagsterInstance, run_id: str, done: threading.Event) -> None:
    told = 0
    started: dict[str, float] = {}
    told_tasks = time.monotonic()
    last = ""
    while True:
        finished = done.wait(_POLL_SECONDS)
        entries = instance.all_logs(run_id, of_type=set(_STEPS))
        for entry in entries[told:]:
            told_tasks = time.monotonic()
            _tell_step(entry, started)
        told = len(entries)
        if finished:
            return
        if time.monotonic() - told_tasks > _TASKS_SECONDS:
            told_tasks = time.monotonic()
            now = _spark_tasks()
            if now and now != last:
                say(f"    {now}")
            last = now


def _tell_step(entry: dg.EventLogEntry, started: dict[str, float]) -> None:
    event = entry.dagster_event
    if event is None or event.step_key is None:
        return
    words = _STEPS[event.event_type]
    if event.event_type == dg.DagsterEventType.STEP_START:
        started[event.step_key] = entry.timestamp
    elif event.step_key in started:
        words += f" in {entry.timestamp - started[event.step_key]:.1f} s"
    say(f"  {event.step_key:<22} {words}")


def _spark_tasks() -> str:
    """How many tasks of the active Spark stages are done, in words; empty for few."""
    context = SparkContext._active_spark_context  # noqa: SLF001 - Spark has no public way to ask
    # While it starts and stops it is there, but its JVM is not.
    if context is None or getattr(context, "_jsc", None) is None:
        return ""
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    total = sum(stage.numTasks for stage in stages if stage is not None)
    complete = sum(stage.numCompletedTasks for stage in stages if stage is not None)
    # A stage of few tasks has nothing to count.
    return f"{complete} of {total} Spark tasks" if total >= _MANY_TASKS else ""


def say(text: str) -> None:
    """A line on stderr: stdout is for results."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
