"""Runs computing tasks in local processes, which share no interpreter lock."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from os import getpid, getppid
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeVar

from loky import get_reusable_executor

from lakegc_assets.engine.answers import answer_order, dumps, plain_error, read_answers
from lakegc_assets.engine.folders import temporary_files
from lakegc_assets.engine.package_code import package_digest, require_code
from lakegc_assets.engine.progress import report_progress, tasks_done
from lakegc_assets.errors import LakegcError

T = TypeVar("T")
R = TypeVar("R")

#: Seconds that processes wait for the next stage.
_IDLE_S: Final = 60
#: Signals that a terminal or a service manager sends to all processes of a program. The workers
#: block them: the process that waits for the workers ends them.
_SENT_TO_ALL: Final = (signal.SIGINT, signal.SIGTERM)

# Loky restarts a process that has grown by 300 MB, as processes that read large files do. Its
# warning of a leak would be in the log of every large run.
warnings.filterwarnings("ignore", message="A worker was restarted", category=UserWarning)


@dataclass(frozen=True)
class StopFile:
    """Tells tasks in other processes to end: set when its file or its process is gone.

    Attributes:
        process: the process that started the workers and waits for their tasks.
    """

    path: Path
    process: int

    def set(self) -> None:
        """Tell the tasks to end."""
        self.path.unlink(missing_ok=True)

    def is_set(self) -> bool:
        """Return True, in a worker process, if its task must end."""
        return getppid() != self.process or not self.path.exists()


@contextmanager
def stop_file() -> Iterator[StopFile]:
    """Yield a stop file for tasks that this process waits for within the block."""
    with ExitStack() as stack:
        with temporary_files():
            folder = stack.enter_context(TemporaryDirectory(prefix="lakegc-"))
            stop = StopFile(Path(folder) / "goes-on", getpid())
            stop.path.touch()
        yield stop


def run_in_processes(
    what: str,
    task: Callable[[T], R],
    inputs: Sequence[T],
    workers: int,
    log: logging.Logger,
    stop: StopFile | None = None,
) -> list[R]:
    """Run a task for each input; return the answers in the order of the inputs.

    ``task``: picklable. ``log``: gets the number of finished tasks every few seconds. ``stop``:
    tells the other tasks to end after an interrupt or an error, and this function waits for them;
    None to kill their processes.

    Raises:
        LakegcError: a task raised it on purpose; of its kind.
        Exception: a task raised another error, or a process was killed.
    """
    code = package_digest()
    # Processes of an earlier stage are used again, unless the environment has changed. If one of
    # them dies, all of them are killed.
    pool = get_reusable_executor(
        max_workers=min(workers, len(inputs)),
        timeout=_IDLE_S,
        env=dict(os.environ),
        initializer=signal.pthread_sigmask,
        initargs=(signal.SIG_BLOCK, _SENT_TO_ALL),
    )
    futures: list[Future[bytes]] = []
    try:
        # After an interrupt the list has the tasks that were submitted before it.
        futures.extend(pool.submit(_answer, code, task, dumps(one)) for one in inputs)
        with report_progress(
            log, lambda: tasks_done(what, sum(f.done() for f in futures), len(futures))
        ):
            answers = [future.result() for future in futures]
    except BaseException:
        # An interrupt or an error: the other answers are not needed, but tasks must record their
        # finished work. A second interrupt ends this wait, too.
        try:
            if stop is not None:
                stop.set()
                # A cancelled task never ends if the processes die before it is reached.
                wait([future for future in futures if not future.cancel()])
        finally:
            pool.shutdown(wait=True, kill_workers=True)
        raise
    return read_answers(answers)


def _answer(code: str, task: Callable[[T], R], order: bytes) -> bytes:
    try:
        require_code(code)
        return answer_order(task, order)
    except LakegcError as error:
        # An error class with its own constructor cannot be unpickled.
        raise plain_error(error) from None
