"""Logs every few seconds how far a long step is, and forwards what modules below a run log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from lakegc_assets.wording import counted

#: Gets the same, for whoever watches this process and not the log of a run.
PROGRESS: Final = logging.getLogger("lakegc.progress")
EVERY_S: Final = 5.0


@contextmanager
def report_progress(log: logging.Logger, how_far: Callable[[], str]) -> Iterator[None]:
    """Log how far it is while something goes on; what is done soon is not logged.

    Args:
        log: gets the lines.
        how_far: what is being done, and how much of how much; called in another thread.
    """
    if not any(one.isEnabledFor(logging.INFO) for one in (log, PROGRESS)):
        yield
        return
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(EVERY_S):
            # Nothing fails because nobody can say how far it is.
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
    """For ``report_progress``: since when something goes on of which nobody knows how far it is."""
    began = time.monotonic()
    return lambda: f"{what} since {time.monotonic() - began:.0f} s"


class _Forwarder(logging.Handler):
    """Repeats records in the log of a run, and to whoever watches this process."""

    def __init__(self, log: logging.Logger) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Repeat a record; nothing fails because that cannot be done."""
        with suppress(Exception):
            for log in (self._log, PROGRESS):
                log.log(record.levelno, "%s", record.getMessage())


@contextmanager
def forwarding(name: str, log: logging.Logger) -> Iterator[None]:
    """Repeat in the log of a run what a package logs that knows nothing of runs.

    Args:
        name: of the package's logger.
        log: of the run.
    """
    logger, handler = logging.getLogger(name), _Forwarder(log)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def tasks_done(what: str, done: int, tasks: int) -> str:
    """The sentence of a stage: how many of its tasks are done."""
    return f"{what}: {done:,} of {counted(tasks, 'task')} {'is' if tasks == 1 else 'are'} done"
