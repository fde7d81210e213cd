"""Runs the tasks of a stage: in threads or processes of this machine, or in one Spark job.

A task is a function that can be pickled, called with a value that can be. It reads and writes
artifacts and stores by itself, and what it returns is small: counts, digests, names of files. So no
row passes through the driver, and a stage is one job.
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

#: Work of one task at least, in seconds of one core: starting one costs some tenths of that.
_TASK_SECONDS: Final = 2.0
#: From so much work on, in seconds of one core, processes earn what it takes to start them.
PROCESS_SECONDS: Final = 10.0
#: Of these one is set once a thread, or the process, that waits for this one was interrupted.
_INTERRUPTED: Final = ContextVar[tuple[Event | StopFile, ...]]("interrupted", default=())


@dataclass(frozen=True)
class Tasks:
    """Runs tasks on one engine.

    Attributes:
        engine: of the run.
        session: gives the Spark session, which is started when it is first asked for.
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
        """Run a task for each input; the answers in the order of the inputs.

        Args:
            what: is done, in words, for logs.
            task: picklable; may be called several times for one input where tasks are repeated.
            inputs: one for each task.
            seconds: about how much work all of them are, on one core.
            threads: that run them on the embedded engine where tasks mostly wait; None where they
                compute.
            in_processes: whether these are threads of several processes where there is much work:
                tasks wait and compute, and end soon where ``interrupted`` says so.

        Raises:
            LakegcError: what a task raised on purpose; from another process, of its kind.
            Exception: what else a task raised; from Spark, wrapped in its ``PythonException``.
        """
        if not inputs:
            return []
        if self.engine.kind == "spark":
            return run_on_spark(self.session(), what, task, inputs, self.log)
        # A container may have few of its machine's: each process takes 200 MB.
        cores = cpu_count()
        workers = min(cores, len(inputs), threads or cores)
        if seconds < PROCESS_SECONDS or workers == 1 or (threads and not in_processes):
            return self._in_threads(what, task, inputs, threads or cores)
        if threads is None:
            return run_in_processes(what, task, inputs, workers, self.log)
        each = -(-min(threads, len(inputs)) // workers)
        some = [inputs[at : at + each] for at in range(0, len(inputs), each)]
        with stop_file() as stop:
            work = partial(_in_threads_of_worker, task, stop)
            answers = run_in_processes(what, work, some, workers, self.log, stop)
        return [answer for one in answers for answer in one]

    def run_grouped(
        self,
        what: str,
        task: Callable[[list[T]], R],
        items: Sequence[T],
        seconds: Sequence[float],
        most: int,
    ) -> list[R]:
        """Run a task for groups of items, as ``bin_pack`` makes them; one answer for each group.

        ``seconds``: about how much work each item is, on one core.
        ``most``: of the groups.
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
        """As ``run``; a single input is not worth a job, so the task is called in this process."""
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
    """Run a task for each input at once, in a process that another one waits for."""
    context = copy_context()
    context.run(_INTERRUPTED.set, (stop,))
    return context.run(thread_map, task, inputs, len(inputs))


def bin_pack(items: Sequence[T], seconds: Sequence[float], most: int) -> list[list[T]]:
    """Spread items over tasks: none is below 2 s of work where there are several, none is empty.

    Args:
        items: what is to be done.
        seconds: about how much work each is, on one core.
        most: of the tasks.
    """
    tasks = _tasks_worth(seconds, most)
    loads: list[tuple[float, int, list[T]]] = [(0.0, number, []) for number in range(tasks)]
    for cost, item in sorted(zip(seconds, items, strict=True), key=lambda pair: -pair[0]):
        load, number, task = loads[0]
        task.append(item)
        # What costs nothing still counts as something, so that it is spread as well.
        heapq.heapreplace(loads, (load + cost + 1e-9, number, task))
    return [task for _, _, task in loads if task]


def pack_in_order(items: Sequence[T], seconds: Sequence[float], most: int) -> list[list[T]]:
    """As ``bin_pack``, but the items of a task follow each other, for those with much in common."""
    tasks = _tasks_worth(seconds, most)
    # What costs nothing still counts as something, so that it is spread as well.
    ends = list(accumulate(cost + 1e-9 for cost in seconds))
    found: list[list[T]] = [[] for _ in range(tasks)]
    for begin, end, item in zip([0.0, *ends], ends, items, strict=False):
        # By its middle: an item that is larger than a task leaves nothing for the next one.
        found[min(tasks - 1, int(tasks * (begin + end) / 2 / ends[-1]))].append(item)
    return [task for task in found if task]


def _tasks_worth(seconds: Sequence[float], most: int) -> int:
    """The number of tasks that so much work is worth, in seconds of one core."""
    return max(1, min(most, int(sum(seconds) / _TASK_SECONDS)))


def thread_each(
    function: Callable[[T], R], items: Sequence[T], threads: int, at_once: int | None = None
) -> Iterator[tuple[T, R]]:
    """Items with their answers, as ``thread_map`` finds them, few of which are held at a time."""
    step = at_once or threads
    for at in range(0, len(items), step):
        some = items[at : at + step]
        yield from zip(some, thread_map(function, some, threads), strict=True)


def thread_map(function: Callable[[T], R], items: Sequence[T], threads: int) -> list[R]:
    """Call a function for each item, in several threads; answers in order.

    After an error no other item is begun, and the error is raised once all threads have ended. What
    takes long asks ``interrupted`` now and then.
    """
    if len(items) <= 1:
        return [function(item) for item in items]
    answers: dict[int, R] = {}
    # What messages say depends on it: which commands they print.
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
    """True in a thread of ``thread_map`` once one that waits for it, or a process, was interrupted.

    Also once such a process is gone, or has no use for what its tasks still do.
    """
    return any(one.is_set() for one in _INTERRUPTED.get())
