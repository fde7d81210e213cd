"""Runs the tasks of a stage: in local threads or processes, or in one Spark job.

A task is a picklable function of a picklable value. It reads and writes artifacts and stores by
itself, and returns small values: counts, digests, names of files. So no row passes through the
driver, and a stage is one job.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from math import fsum
from threading import Event
from typing import Final, TypeVar

from loky import cpu_count
from pyspark.sql import SparkSession

from lakegc_assets.engine.choice import Engine
from lakegc_assets.engine.processes import StopFile, run_in_processes, stop_file
from lakegc_assets.engine.progress import report_progress, tasks_done
from lakegc_assets.engine.spark_jobs import run_on_spark

T = TypeVar("T")
R = TypeVar("R")

#: Least work of a task, in seconds of one core; its start costs some tenths of that.
_TASK_SECONDS: Final = 2.0
#: Least work, in seconds of one core, for which processes save more than the time of their start.
PROCESS_SECONDS: Final = 10.0
#: Events and stop files, one of which is set when a waiting thread or process is interrupted.
_INTERRUPTED: Final = ContextVar[tuple[Event | StopFile, ...]]("interrupted", default=())


@dataclass(frozen=True)
class Tasks:
    """Runs tasks on one engine.

    Attributes:
        session: returns the Spark session, and starts it at the first call.
        log: gets the number of finished tasks every few seconds.
    """

    engine: Engine
    session: Callable[[], SparkSession]
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("lakegc"))

    def run(
        self,
        what: str,
        task: Callable[[T], R],
        inputs: Sequence[T],
        seconds: float,
        threads: int | None = None,
        *,
        in_processes: bool = False,
    ) -> list[R]:
        """Run a task for each input; return the answers in the order of the inputs.

        ``task``: picklable; may be called several times for one input if tasks are repeated.
        ``seconds``: estimated work of all tasks, on one core. ``threads``: threads on the embedded
        engine, for tasks that mostly wait; None for tasks that compute. ``in_processes``: True to
        divide these threads among processes if there is much work, for tasks that both wait and
        compute, and that end soon after ``interrupted``.

        Raises:
            LakegcError: a task raised it on purpose; from another process, of its kind.
            Exception: a task raised another error; from Spark, in its ``PythonException``.
        """
        if not inputs:
            return []
        if self.engine.kind == "spark":
            return run_on_spark(self.session(), what, task, inputs, self.log)
        # A container may have few of its machine's cores, and each process takes 200 MB.
        cores = cpu_count()
        workers = min(cores, len(inputs), threads or cores)
        if seconds < PROCESS_SECONDS or workers == 1 or (threads and not in_processes):
            return self._in_threads(what, task, inputs, threads or cores)
        if threads is None:
            return run_in_processes(what, task, inputs, workers, self.log)
        each = -(-min(threads, len(inputs)) // workers)
        chunks = [inputs[at : at + each] for at in range(0, len(inputs), each)]
        with stop_file() as stop:
            work = partial(_in_threads_of_worker, task, stop)
            answers = run_in_processes(what, work, chunks, workers, self.log, stop)
        return [answer for one in answers for answer in one]

    def run_grouped(
        self,
        what: str,
        task: Callable[[list[T]], R],
        items: Sequence[T],
        seconds: Sequence[float],
        most: int,
    ) -> list[R]:
        """Run a task for groups of items by ``bin_pack``; return one answer for each group.

        ``seconds``: estimated work of each item, on one core.
        ``most``: largest number of groups.
        """
        return self.run(what, task, bin_pack(items, seconds, most), fsum(seconds))

    def run_or_call(
        self,
        what: str,
        task: Callable[[T], R],
        inputs: Sequence[T],
        seconds: float,
        threads: int | None = None,
    ) -> list[R]:
        """Run tasks as ``run`` does, but a single input in this process: it is not worth a job."""
        if len(inputs) <= 1:
            return [task(one) for one in inputs]
        return self.run(what, task, inputs, seconds, threads)

    def _in_threads(
        self, what: str, task: Callable[[T], R], inputs: Sequence[T], threads: int
    ) -> list[R]:
        ended: list[None] = []

        def counted(one: T) -> R:
            answer = task(one)
            ended.append(None)
            return answer

        with report_progress(self.log, lambda: tasks_done(what, len(ended), len(inputs))):
            return thread_map(counted, inputs, threads)


def _in_threads_of_worker(task: Callable[[T], R], stop: StopFile, inputs: Sequence[T]) -> list[R]:
    """Run a task for all inputs in parallel, in a process that another process waits for."""
    context = copy_context()
    context.run(_INTERRUPTED.set, (stop,))
    return context.run(thread_map, task, inputs, len(inputs))


def bin_pack(items: Sequence[T], seconds: Sequence[float], most: int) -> list[list[T]]:
    """Distribute items among non-empty tasks of at least 2 s of work, if there are several.

    ``seconds``: estimated work of each item, on one core.
    """
    tasks = _tasks_worth(seconds, most)
    loads: list[tuple[float, int, list[T]]] = [(0.0, number, []) for number in range(tasks)]
    for cost, item in sorted(zip(seconds, items, strict=True), key=lambda pair: -pair[0]):
        load, number, task = loads[0]
        task.append(item)
        # Items without cost count a little, so that they are distributed, too.
        heapq.heapreplace(loads, (load + cost + 1e-9, number, task))
    return [task for _, _, task in loads if task]


def pack_in_order(items: Sequence[T], seconds: Sequence[float], most: int) -> list[list[T]]:
    """Distribute items as ``bin_pack`` does, in order, for neighbours with much in common."""
    tasks = _tasks_worth(seconds, most)
    # Items without cost count a little, so that they are distributed, too.
    ends = list(accumulate(cost + 1e-9 for cost in seconds))
    found: list[list[T]] = [[] for _ in range(tasks)]
    for begin, end, item in zip([0.0, *ends], ends, items, strict=False):
        # Placed by its middle: an item larger than a task leaves nothing for the next task.
        found[min(tasks - 1, int(tasks * (begin + end) / 2 / ends[-1]))].append(item)
    return [task for task in found if task]


def _tasks_worth(seconds: Sequence[float], most: int) -> int:
    """Return the number of tasks that this work is worth, in seconds of one core."""
    return max(1, min(most, int(sum(seconds) / _TASK_SECONDS)))


def thread_each(
    function: Callable[[T], R], items: Sequence[T], threads: int, at_once: int | None = None
) -> Iterator[tuple[T, R]]:
    """Yield items with their answers, as ``thread_map`` does, with few answers in memory."""
    step = at_once or threads
    for at in range(0, len(items), step):
        chunks = items[at : at + step]
        yield from zip(chunks, thread_map(function, chunks, threads), strict=True)


def thread_map(function: Callable[[T], R], items: Sequence[T], threads: int) -> list[R]:
    """Call a function for each item, in several threads; return the answers in order.

    After an error no other item is begun, and the error is raised once all threads have ended. A
    long function must ask ``interrupted`` now and then.
    """
    if len(items) <= 1:
        return [function(item) for item in items]
    answers: dict[int, R] = {}
    # The commands in messages depend on context variables.
    contexts = [copy_context() for _ in range(min(threads, len(items)))]
    ended = Event()
    for context in contexts:
        context.run(_INTERRUPTED.set, (*_INTERRUPTED.get(), ended))
    # A future for each item would cost as much as a small request.
    waiting = deque(range(len(items)))

    def work() -> None:
        while True:
            try:
                number = waiting.popleft()
            except IndexError:
                return
            try:
                answers[number] = function(items[number])
            except BaseException:
                waiting.clear()
                raise

    with ThreadPoolExecutor(len(contexts)) as pool:
        try:
            list(pool.map(lambda context: context.run(work), contexts))
        except BaseException as error:
            # The pool waits for its threads, which no interrupt reaches.
            if not isinstance(error, Exception):
                ended.set()
            raise
        finally:
            waiting.clear()
    return [answers[number] for number in range(len(items))]


def interrupted() -> bool:
    """Return True in a thread of ``thread_map`` if a waiting thread or process was interrupted.

    Also if such a process is gone, or no longer needs the results of its tasks.
    """
    return any(one.is_set() for one in _INTERRUPTED.get())
