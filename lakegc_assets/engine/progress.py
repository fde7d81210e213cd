"""Logs the progress of a long step every few seconds, and forwards log records to a run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from lakegc_assets.wording import counted

#: Gets the same lines, for a user who watches this process and not the log of a run.
PROGRESS: Final = logging.getLogger("lakegc.progress")
EVERY_S: Final = 5.0


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
