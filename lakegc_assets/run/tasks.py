"""Runs a stage's tasks: in this process where they are little work, else in one Spark job.

A task is a function that can be pickled, called with a value that can be. It reads and writes
artifacts and stores by itself, and what it returns is small: counts, digests, names of files. So
no row passes through the JVM, and a stage is one job.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from pyspark.sql import SparkSession

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
    """

    session: Callable[[], SparkSession]
    spark_seconds: float

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
            Exception: what a task raised; from Spark, wrapped in its ``PythonException``.
        """
        if not inputs:
            return []
        if seconds < self.spark_seconds:
            return self._here(task, inputs, threads or os.cpu_count() or 1)
        context = self.session().sparkContext
        context.setLocalProperty("spark.job.description", what)
        try:
            return context.parallelize(inputs, len(inputs)).map(task).collect()
        finally:
            context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]

    @staticmethod
    def _here(task: Callable[[T], R], inputs: Sequence[T], threads: int) -> list[R]:
        if len(inputs) == 1:
            return [task(inputs[0])]
        with ThreadPoolExecutor(min(len(inputs), threads)) as pool:
            return list(pool.map(task, inputs))


def spread(items: Sequence[T], seconds: Sequence[float], most: int) -> list[list[T]]:
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


def each(function: Callable[[T], R], items: Sequence[T], threads: int) -> list[R]:
    """Call a function that mostly waits for each item, in several threads; answers in order."""
    if len(items) <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        return list(pool.map(function, items))
