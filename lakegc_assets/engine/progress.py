"""Follows a long step: logs its progress every few seconds, and cancels it on an interrupt.

Log records of packages without a run context are forwarded to the log of the run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from threading import Thread
from typing import Final, TypeVar

from lakegc_assets.wording import counted

#: Gets the same lines, for a user who watches this process and not the log of a run.
PROGRESS: Final = logging.getLogger("lakegc.progress")
EVERY_S: Final = 5.0
R = TypeVar("R")
_AGAIN_S: Final = 0.5


@contextmanager
def report_progress(log: logging.Logger, how_far: Callable[[], str]) -> Iterator[None]:
    """Log the progress of a block every few seconds; a short block logs nothing.

    ``how_far``: returns the work and its progress in words; called in another thread.
    """
    if not any(one.isEnabledFor(logging.INFO) for one in (log, PROGRESS)):
        yield
        return
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(EVERY_S):
            # An error in a progress report must not end the work.
            with suppress(Exception):
                text = how_far()
                log.info("%s", text)
                PROGRESS.info("%s", text)

    thread = threading.Thread(target=report, name="lakegc-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def elapsed(what: str) -> Callable[[], str]:
    """Return a report for ``report_progress`` of work with unknown progress: its duration."""
    began = time.monotonic()
    return lambda: f"{what} since {time.monotonic() - began:.0f} s"


class _Forwarder(logging.Handler):
    """Repeats records in the log of a run and in ``PROGRESS``."""

    def __init__(self, log: logging.Logger) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Repeat a record; an error here must not end the work."""
        with suppress(Exception):
            for log in (self._log, PROGRESS):
                log.log(record.levelno, "%s", record.getMessage())


@contextmanager
def forwarding(name: str, log: logging.Logger) -> Iterator[None]:
    """Repeat the records of a package without a run context in the log of a run.

    Args:
        name: name of the package's logger.
        log: the log of the run.
    """
    logger, handler = logging.getLogger(name), _Forwarder(log)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def tasks_done(what: str, done: int, tasks: int) -> str:
    """Return a sentence on the progress of a stage, by its finished tasks."""
    return f"{what}: {done:,} of {counted(tasks, 'task')} {'is' if tasks == 1 else 'are'} done"


def interruptible(job: Callable[[], R], interrupt: Callable[[], object]) -> R:
    """Run a job that computes outside of Python, so that an interrupt of this thread ends it.

    The job runs in its own thread, and this thread only waits for it, since Python delivers
    interrupts here. An interrupt in the middle of a call to a JVM would leave the answer of that
    call to the next call.

    Args:
        job: runs once, or not at all if an interrupt comes before its start.
        interrupt: ends the job from another thread; called until the job has ended.
    """
    context = copy_context()
    result: Future[R] = Future()

    def run() -> None:
        # False if the caller was interrupted during the start of this thread.
        if not result.set_running_or_notify_cancel():
            return
        try:
            result.set_result(context.run(job))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            result.set_exception(error)

    thread = Thread(target=run, name="lakegc-job", daemon=True)
    try:
        thread.start()
        return result.result()
    finally:
        # The first interrupt does not end a job that is only about to begin.
        while not result.cancel() and not result.done():
            interrupt()
            thread.join(_AGAIN_S)
