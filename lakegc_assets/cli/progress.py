"""Tells on stderr what a run is doing, for as long as it takes."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from lakegc_assets.engine.progress import PROGRESS

_POLL_SECONDS = 0.5
_STEPS = {
    dg.DagsterEventType.STEP_START: "started",
    dg.DagsterEventType.STEP_SUCCESS: "done",
    dg.DagsterEventType.STEP_FAILURE: "failed",
}


@contextmanager
def progress(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Say which step of a run starts and ends, and how far a long one is."""
    done = threading.Event()
    thread = threading.Thread(target=_watch, args=(instance, run_id, done), daemon=True)
    thread.start()
    teller, level = _Teller(), PROGRESS.level
    PROGRESS.addHandler(teller)
    PROGRESS.setLevel(logging.INFO)
    try:
        yield
    finally:
        PROGRESS.removeHandler(teller)
        PROGRESS.setLevel(level)
        done.set()
        thread.join()


class _Teller(logging.Handler):
    """Says how far a step is."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"    {record.getMessage()}")


def _watch(instance: dg.DagsterInstance, run_id: str, done: threading.Event) -> None:
    told = 0
    started: dict[str, float] = {}
    while True:
        finished = done.wait(_POLL_SECONDS)
        entries = instance.all_logs(run_id, of_type=set(_STEPS))
        for entry in entries[told:]:
            _tell_step(entry, started)
        told = len(entries)
        if finished:
            return


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


def say(text: str) -> None:
    """A line on stderr: stdout is for results."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
