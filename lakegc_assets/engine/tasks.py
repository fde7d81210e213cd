"""Runs a stage's tasks: in this process where they are little work, else in one Spark job.

A task is a function that can be pickled, called with a value that can be. It reads and writes
artifacts and stores by itself, and what it returns is small: counts, digests, names of files. So
no row passes through the JVM, and a stage is one job.
"""

from __future__ import annotations

import heapq
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from pyspark.sql import SparkSession

from lakegc_assets import traffic
from lakegc_assets.engine.progress import report_progress
from lakegc_assets.engine.task_errors import errors_of_tasks

T = TypeVar("T")
R = TypeVar("R")

#: Work of one task at least, in seconds of one core: starting one costs some tenths of that.
_TASK_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Tasks:
    """Runs tasks.

    Attributes:
        session: gives the Spark session, which is started when it is first asked for.
        spark_seconds: from how much work on, in seconds of one core, Spark is used.
        log: is told every few seconds how many of the tasks are done.
    """

    session: Callable[[], SparkSession]
    spark_seconds: float
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("lakegc"))

    def run(
        self,
        what: str,
        task: Callable[[T], R],
        inputs: Sequence[T],
        seconds: float,
        threads: int | None = None,
    ) -> list[R]:
        """Run a task for each input; the answers in the order of the inputs.

        Args:
            what: is done, in words: the description of the Spark job.
            task: picklable; may be called several times for one input where tasks are repeated.
            inputs: one for each task.
            seconds: about how much work all of them are, on one core.
            threads: that run them here; one for each core unless they mostly wait.

        Raises:
            LakegcError: what a task raised on purpose; from Spark, of its kind.
            Exception: what else a task raised; from Spark, wrapped in its ``PythonException``.
        """
        if not inputs:
            return []
        if seconds < self.spark_seconds:
            return self._here(what, task, inputs, threads or os.cpu_count() or 1)
        with errors_of_tasks():
            return self._on_spark(what, task, inputs)

    def _here(
        self, what: str, task: Callable[[T], R], inputs: Sequence[T], threads: int
    ) -> list[R]:
        ended: list[None] = []

        def counted(one: T) -> R:
            answer = task(one)
            ended.append(None)
            return answer

        with report_progress(self.log, lambda: _how_far(what, len(ended), len(inputs))):
            if len(inputs) == 1:
                return [task(inputs[0])]
            # What messages say depends on it: which commands they print.
            contexts = [copy_context() for _ in inputs]
            with ThreadPoolExecutor(min(len(inputs), threads)) as pool:
                return list(pool.map(lambda c, one: c.run(counted, one), contexts, inputs))

    def _on_spark(self, what: str, task: Callable[[T], R], inputs: Sequence[T]) -> list[R]:
        context = self.session().sparkContext
        tracker = context.statusTracker()

        def job() -> list[R]:
            context.setLocalProperty("spark.job.description", what)
            told = context.parallelize(inputs, len(inputs)).map(partial(_counting, task)).collect()
            traffic.add(sum(requests for _, requests in told))
            return [answer for answer, _ in told]

        def how_far() -> str:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            ended = sum(stage.numCompletedTasks for stage in stages if stage is not None)
            return _how_far(what, ended, len(inputs))

        # An interrupt that came into the middle of a call to the JVM would leave the answer of that
        # call to the next one. So this thread, which gets the interrupts, only waits.
        with ThreadPoolExecutor(1) as pool, report_progress(self.log, how_far):
            waiting = pool.submit(job)
            try:
                return waiting.result()
            finally:
                if not waiting.done():
                    with suppress(Exception):
                        context.cancelAllJobs()


def _counting(task: Callable[[T], R], one: T) -> tuple[R, int]:
    """What a task answers, and how many requests it has sent, in a process of its own."""
    before = traffic.sent()
    answer = task(one)
    return answer, traffic.sent() - before


def _how_far(what: str, ended: int, inputs: int) -> str:
    return f"{what}: {ended:,} of {inputs:,} tasks are done"


def bin_pack(items: Sequence[T], seconds: Sequence[float], most: int) -> list[list[T]]:
    """Spread items over tasks: none is below 2 s of work where there are several, none is empty.

    Args:
        items: what is to be done.
        seconds: about how much work each is, on one core.
        most: of the tasks.
    """
    tasks = max(1, min(most, int(sum(seconds) / _TASK_SECONDS)))
    loads: list[tuple[float, int, list[T]]] = [(0.0, number, []) for number in range(tasks)]
    for cost, item in sorted(zip(seconds, items, strict=True), key=lambda pair: -pair[0]):
        load, number, task = loads[0]
        task.append(item)
        # What costs nothing still counts as something, so that it is spread as well.
        heapq.heapreplace(loads, (load + cost + 1e-9, number, task))
    return [task for _, _, task in loads if task]


def thread_map(function: Callable[[T], R], items: Sequence[T], threads: int) -> list[R]:
    """Call a function that mostly waits for each item, in several threads; answers in order.

    After an error no other item is begun, and the error is raised once all threads have ended.
    """
    if len(items) <= 1:
        return [function(item) for item in items]
    answers: dict[int, R] = {}
    contexts = [copy_context() for _ in range(min(threads, len(items)))]
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
        finally:
            waiting.clear()
    return [answers[number] for number in range(len(items))]
