"""Runs the tasks of a stage as one Spark job: ``mapInArrow`` over a DataFrame of their numbers.

It only uses the DataFrame API, so the same code runs on classic Spark and on Spark Connect.
"""

from __future__ import annotations

import gc
import logging
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from lakegc_assets.engine.answers import answer_order, dumps, errors_of_tasks, read_answers
from lakegc_assets.engine.package_code import require_code
from lakegc_assets.engine.progress import elapsed, interruptible, report_progress, tasks_done
from lakegc_assets.engine.spark_session import code_of_tasks, is_connect
from lakegc_assets.errors import IntegrityError
from lakegc_assets.wording import counted

T = TypeVar("T")
R = TypeVar("R")

#: A task's result in Spark: its number; pickled, its answer and the requests that it has sent, by
#: kind.
_ANSWER: Final = "number bigint, answer binary"
#: The first tasks of a process, which may still import modules.
_first_tasks: Final = iter(range(3))


def run_on_spark(
    spark: SparkSession,
    what: str,
    task: Callable[[T], R],
    inputs: Sequence[T],
    log: logging.Logger,
) -> list[R]:
    """Run a task for each input in its own partition; return the answers in their order.

    ``task``: picklable; may be called several times for one input. ``log``: gets the progress of
    the job every few seconds.

    Raises:
        LakegcError: a task raised it on purpose; of its kind.
        IntegrityError: an answer is missing, or in the wrong place.
        PythonException: a task raised another error.
    """
    orders, code = [dumps(one) for one in inputs], code_of_tasks(spark)
    with _finished_tasks() as (note, noted):

        def job() -> list[R]:
            numbers = spark.range(0, len(orders), 1, len(orders))
            rows = numbers.mapInArrow(_on_worker(task, orders, note, code), _ANSWER).collect()
            if [row["number"] for row in rows] != list(range(len(orders))):
                raise IntegrityError(
                    f"{what}: Spark gave {counted(len(rows), 'answer')} of "
                    f"{counted(len(orders), 'task')}, or in another order. Please report it, "
                    "with the version of Spark"
                )
            return read_answers(row["answer"] for row in rows)

        with _reported(spark, what, len(orders), noted, log):
            return _interruptible(spark, what, job)


def run_job(spark: SparkSession, what: str, job: Callable[[], R], log: logging.Logger) -> R:
    """Compute a data frame so that an interrupt ends it.

    ``job``: computes the frame. ``log``: gets the duration of the job every few seconds.

    Raises:
        LakegcError: a task raised it on purpose; of its kind.
        PythonException: a task raised another error.
    """
    with report_progress(log, elapsed(f"{what}: on Spark")):
        return _interruptible(spark, what, job)


def _interruptible(spark: SparkSession, what: str, job: Callable[[], R]) -> R:
    """Run a Spark job under a tag; an interrupt of this thread cancels it."""
    tag = f"lakegc-{uuid.uuid4()}"

    def tagged() -> R:
        spark.addTag(tag)
        spark.addTag(what.replace(",", ";"))
        return job()

    with errors_of_tasks():
        return interruptible(tagged, lambda: _interrupt(spark, tag))


def _on_worker(
    task: Callable[[T], R], orders: Sequence[bytes], note: str, code: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task(code)
        for batch in batches:
            for number in batch["id"].to_pylist():
                found = answer_order(task, orders[number])
                _append(note)
                columns = [pa.array([number], pa.int64()), pa.array([found], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, ["number", "answer"])

    return run


def begin_task(code: str) -> None:
    """Require the driver's code, and freeze imported objects (``gc.freeze``) in the first tasks.

    PySpark's worker collects garbage after each task, which takes 40 ms with so many imports. The
    first task may import more, so a few later tasks freeze objects as well.

    ``code``: digest of the code of the task's starter (``code_of_tasks``).

    Raises:
        ConfigurationError: this process runs other code.
    """
    require_code(code)
    if next(_first_tasks, None) is not None:
        gc.freeze()


def _interrupt(spark: SparkSession, tag: str) -> None:
    """Cancel a job; classic Spark knows a tag only in the thread that has set it."""
    with suppress(Exception):
        if not (is_connect(spark) and spark.interruptTag(tag)):
            spark.interruptAll()


# Progress


@contextmanager
def _finished_tasks() -> Iterator[tuple[str, Callable[[], int]]]:
    """Yield a file to which local tasks append a byte at their end, and a function for its size."""
    descriptor, name = tempfile.mkstemp(prefix="lakegc-tasks-")
    os.close(descriptor)
    path = Path(name)
    try:
        yield name, lambda: path.stat().st_size
    finally:
        path.unlink(missing_ok=True)


def _append(note: str) -> None:
    """Count a finished task; a task on another machine finds no such file, and makes none."""
    with suppress(OSError):
        descriptor = os.open(note, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, b".")
        finally:
            os.close(descriptor)


@contextmanager
def _reported(
    spark: SparkSession, what: str, tasks: int, noted: Callable[[], int], log: logging.Logger
) -> Iterator[None]:
    """Log the progress of a job: from Connect's own reports, or from finished local tasks.

    For tasks on a cluster of classic Spark, the log has only their number and the duration; Spark's
    web interface shows their progress.
    """
    reported, since = [0], elapsed(f"{what}: {counted(tasks, 'task')} on Spark")

    def how_far() -> str:
        done = max(reported[0], noted())
        return tasks_done(what, done, tasks) if done else since()

    def count(stages: Any, *_more: Any, **_named: Any) -> None:  # noqa: ANN401 - Spark's types
        reported[0] = sum(stage.num_completed_tasks for stage in stages or ())

    with report_progress(log, how_far):
        if not is_connect(spark):
            yield
            return
        handler: Any = count
        spark.registerProgressHandler(handler)
        try:
            yield
        finally:
            spark.removeProgressHandler(handler)
