"""Runs tasks that compute in processes of this machine, which share no interpreter lock."""

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

from lakegc_assets.engine.folders import temporary_files
from lakegc_assets.engine.package_code import package_digest, require_code
from lakegc_assets.engine.pickling import answer_order, dumps, read_answers
from lakegc_assets.engine.progress import report_progress, tasks_done
from lakegc_assets.engine.task_errors import plain_error
from lakegc_assets.errors import LakegcError

T = TypeVar("T")
R = TypeVar("R")

#: For how long processes wait for the next stage, in seconds.
_IDLE_S: Final = 60
#: Signals that a terminal, or a service manager, sends to all processes of a program: the process
#: that waits for the others tells them to end.
_SENT_TO_ALL: Final = (signal.SIGINT, signal.SIGTERM)

# Loky starts a process anew that has grown by 300 MB, which those do that read large files; its
# warning of a leak would stand in the log of every large run.
warnings.filterwarnings("ignore", message="A worker was restarted", category=UserWarning)


@dataclass(frozen=True)
class StopFile:
    """Tells tasks in other processes to end: it is set once its file is gone, or its process.

    Attributes:
        path: of the file.
        process: that waits for the tasks, and has started the processes that they run in.
    """

    path: Path
    process: int

    def set(self) -> None:
        """Let the tasks end."""
        self.path.unlink(missing_ok=True)

    def is_set(self) -> bool:
        """True in a process that was started to run a task, if that is to end."""
        return getppid() != self.process or not self.path.exists()


@contextmanager
def stop_file() -> Iterator[StopFile]:
    """A stop file for tasks that this process waits for within the block."""
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
    """Run a task for each input; the answers in the order of the inputs.

    Args:
        what: is done, in words, for the log.
        task: picklable.
        inputs: one for each task.
        workers: number of processes, at most.
        log: gets the number of finished tasks every few seconds.
        stop: ends the other tasks after an interrupt or an error, and is waited for; without it
            their processes are killed.

    Raises:
        LakegcError: what a task raised on purpose, of its kind.
        Exception: what else a task raised, or that a process was killed.
    """
    code = package_digest()
    # Processes of an earlier stage are used again, unless what they would find in the environment
    # has changed. Where one of them dies, all of them are killed.
    pool = get_reusable_executor(
        max_workers=min(workers, len(inputs)),
        timeout=_IDLE_S,
        env=dict(os.environ),
        initializer=signal.pthread_sigmask,
        initargs=(signal.SIG_BLOCK, _SENT_TO_ALL),
    )
    futures: list[Future[bytes]] = []
    try:
        # After an interrupt those that were submitted by then are in the list.
        futures.extend(pool.submit(_answer, code, task, dumps(one)) for one in inputs)
        with report_progress(
            log, lambda: tasks_done(what, sum(f.done() for f in futures), len(futures))
        ):
            answers = [future.result() for future in futures]
    except BaseException:
        # An interrupt or an error: nobody needs what the others are doing, but for the end of what
        # is to be recorded. Who is impatient interrupts the wait for that, too.
        try:
            if stop is not None:
                stop.set()
                # One that was cancelled never ends where the processes die before it is reached.
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
        # One with a constructor of its own could not be unpickled.
        raise plain_error(error) from None
