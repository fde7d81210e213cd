"""Tasks run in threads, processes or one Spark job, as many as the work is worth."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loky import get_reusable_executor
from loky.process_executor import TerminatedWorkerError
from pyspark.sql import SparkSession

from lakegc_assets import traffic
from lakegc_assets.engine import processes
from lakegc_assets.engine import tasks as module
from lakegc_assets.engine.answers import dumps
from lakegc_assets.engine.choice import Engine
from lakegc_assets.engine.processes import run_in_processes
from lakegc_assets.engine.tasks import Tasks, bin_pack, interrupted, pack_in_order, thread_map
from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError
from lakegc_assets_tests.engine import work
from lakegc_assets_tests.sessions import Session


@pytest.fixture(autouse=True)
def _one_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes serve no other environment, and pytest writes the name of each test into it."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    monkeypatch.setattr(processes, "os", SimpleNamespace(environ=environment))


EMBEDDED = Engine("embedded", "a test says so")
SPARK = Engine("spark", "a test says so")


def _never() -> SparkSession:
    raise AssertionError("nobody asked for Spark")


def test_the_embedded_engine_needs_no_spark() -> None:
    tasks = Tasks(EMBEDDED, _never)
    assert tasks.run("add", partial(work.add, 1), [1, 2, 3], 1.0) == [(1, 2), (2, 3), (3, 4)]
    assert tasks.run("add", partial(work.add, 1), [], 99.0) == []


@pytest.mark.parametrize(
    ("seconds", "threads", "in_processes", "here"),
    [
        pytest.param(9.9, None, False, True, id="little work"),
        pytest.param(10.0, None, False, False, id="much work"),
        pytest.param(1e6, 3, False, True, id="work that mostly waits"),
        pytest.param(9.9, 3, True, True, id="little work that waits and computes"),
        pytest.param(10.0, 3, True, False, id="much work that waits and computes"),
    ],
)
def test_much_computing_is_done_by_processes(
    seconds: float,
    threads: int | None,
    *,
    in_processes: bool,
    here: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "cpu_count", lambda: 2)
    tasks = Tasks(EMBEDDED, _never)
    pids = tasks.run("look", work.pid, range(8), seconds, threads, in_processes=in_processes)
    assert len(pids) == 8
    assert (set(pids) == {os.getpid()}) is here


def test_processes_are_no_more_than_the_cores_that_this_one_may_use() -> None:
    """A container with one core of its machine's has memory for one process, too."""
    cores, tasks = os.sched_getaffinity(0), Tasks(EMBEDDED, _never)
    os.sched_setaffinity(0, {min(cores)})
    try:
        assert set(tasks.run("look", work.pid, range(8), 99.0, 8, in_processes=True)) == {
            os.getpid()
        }
        assert set(tasks.run("look", work.pid, range(8), 99.0)) == {os.getpid()}
    finally:
        os.sched_setaffinity(0, cores)


def test_processes_run_as_many_tasks_at_a_time_as_there_are_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "cpu_count", lambda: 2)
    tasks, meet = Tasks(EMBEDDED, _never), partial(work.meet, tmp_path, 4)
    assert tasks.run("meet", meet, range(4), 99.0, 8, in_processes=True) == [4] * 4


def test_after_an_error_tasks_in_other_processes_end_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever deletes records what it has deleted before it ends."""
    monkeypatch.setattr(module, "cpu_count", lambda: 2)
    tasks, task = Tasks(EMBEDDED, _never), partial(work.fail_or_wait, tmp_path)
    with pytest.raises(IntegrityError, match="it is cut"):
        tasks.run("fail", task, range(2), 99.0, 2, in_processes=True)
    assert (tmp_path / "1.ended").read_text() == "True"


def test_what_was_cancelled_is_not_waited_for_where_a_process_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loky ends no task that was cancelled before its processes die."""
    monkeypatch.setattr(module, "cpu_count", lambda: 2)
    tasks, task = Tasks(EMBEDDED, _never), partial(work.fail_or_die, tmp_path)
    with pytest.raises(IntegrityError, match="it is cut"):
        tasks.run("fail", task, range(300), 99.0, 2, in_processes=True)


def test_an_interrupt_while_tasks_are_started_ends_those_that_have_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = list[object]()

    def interrupted_pool(**how: Any) -> Any:
        pool = get_reusable_executor(**how)

        def submit(*order: Any) -> Any:
            if submitted:
                until = time.monotonic() + 60
                while not (tmp_path / "begun").exists() and time.monotonic() < until:
                    time.sleep(0.01)
                raise KeyboardInterrupt
            submitted.append(pool.submit(*order))
            return submitted[0]

        return SimpleNamespace(submit=submit, shutdown=pool.shutdown)

    monkeypatch.setattr(processes, "get_reusable_executor", interrupted_pool)
    monkeypatch.setattr(module, "cpu_count", lambda: 2)
    tasks, task = Tasks(EMBEDDED, _never), partial(work.wait_for_the_end, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        tasks.run("wait", task, range(2), 99.0, 2, in_processes=True)
    assert (tmp_path / "0.ended").exists()


def test_signals_to_all_processes_end_none_that_another_one_waits_for() -> None:
    """It records what it has done last, once that one tells it to end."""
    sent = [signal.SIGINT, signal.SIGTERM]
    assert run_in_processes("go on", work.signal_itself, sent, 2, logging.getLogger()) == sent


def test_a_process_gives_back_what_a_task_has_held() -> None:
    """It waits for the next stage beside queries that take much memory."""

    def run(task: Callable[[int], int], number: int) -> int:
        (found,) = run_in_processes("hold", task, [number], 1, logging.getLogger())
        return found

    before = run(work.held_megabytes, 0)
    assert run(work.hold_megabytes, 120) >= 240
    assert run(work.held_megabytes, 0) < before + 50


def test_a_process_that_has_loaded_another_code_runs_no_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as one that was installed while the run goes on."""
    monkeypatch.setattr(processes, "package_digest", lambda: "another")
    with pytest.raises(ConfigurationError, match="a task runs another lakegc_assets"):
        run_in_processes("same", work.same, [1, 2], 2, logging.getLogger())


@pytest.mark.parametrize(
    ("task", "kind", "message"),
    [
        pytest.param(work.refuse, LakegcError, "s3://b/1", marks=pytest.mark.conformance),
        (work.find_damage, IntegrityError, "1 is cut: a\nand b"),
    ],
)
def test_errors_of_processes_keep_kind_and_message(
    task: Callable[[int], int], kind: type[LakegcError], message: str
) -> None:
    with pytest.raises(LakegcError) as raised:
        run_in_processes("fail", task, [1, 1], 2, logging.getLogger())
    assert type(raised.value) is kind
    assert str(raised.value) == message


def test_a_process_that_is_killed_ends_the_work() -> None:
    with pytest.raises(TerminatedWorkerError):
        run_in_processes("die", work.end_process, [1, 2], 2, logging.getLogger())
    # The next stage gets other processes.
    assert run_in_processes("ask", work.ask, [1, 2], 2, logging.getLogger()) == [-1, -2]


class _Spark:
    """Runs tasks here, and gives the answers of some, in some order."""

    conf = SimpleNamespace(get=lambda *_: "local[1]")

    def __init__(self, given: list[int]) -> None:
        self._given = given

    def range(self, *_: int) -> _Spark:
        return self

    def mapInArrow(self, task: Callable[..., Any], _: str) -> _Spark:  # noqa: N802 - Spark's name
        self._task = task
        return self

    def collect(self) -> list[dict[str, Any]]:
        batches = [pa.record_batch({"id": [number]}) for number in self._given]
        return [row for batch in self._task(iter(batches)) for row in batch.to_pylist()]

    def addTag(self, _: str) -> None:  # noqa: N802 - Spark's name
        return


@pytest.mark.parametrize("given", [[0, 1], [0, 2, 1], [0, 1, 1], [0, 1, 2, 2]])
def test_an_answer_that_is_missing_or_elsewhere_is_noticed(given: list[int]) -> None:
    """What a task of the missing one found alive would be taken for dead."""

    def run(spark: Any) -> list[tuple[int, int]]:
        return Tasks(SPARK, lambda: spark).run("add", partial(work.add, 1), [1, 2, 3], 0.0)

    assert run(_Spark([0, 1, 2])) == [(1, 2), (2, 3), (3, 4)]
    with pytest.raises(IntegrityError, match=r"add: Spark gave \d answers of 3 tasks"):
        run(_Spark(given))


@pytest.mark.conformance
def test_a_stage_is_one_job_of_spark_with_a_task_for_each_input(spark: Session) -> None:
    tracker = spark().sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    inputs = list(range(5))
    assert Tasks(SPARK, spark).run("add", partial(work.add, 1), inputs, 0.0) == [
        (n, n + 1) for n in inputs
    ]
    (job,) = set(tracker.getJobIdsForGroup()) - before
    info = tracker.getJobInfo(job)
    assert info is not None
    (stage,) = info.stageIds
    reported = tracker.getStageInfo(stage)
    assert reported is not None
    assert reported.numTasks == 5


@pytest.mark.conformance
def test_workers_of_spark_collect_no_garbage_among_what_they_have_imported(
    spark: Session,
) -> None:
    assert all(Tasks(SPARK, spark).run("look", work.spared, list(range(8)), 0.0))


@pytest.mark.parametrize(
    ("engine", "seconds"),
    [
        pytest.param(EMBEDDED, 0.0, id="threads"),
        pytest.param(EMBEDDED, 99.0, id="processes"),
        pytest.param(SPARK, 0.0, id="spark", marks=pytest.mark.conformance),
    ],
)
def test_the_requests_of_tasks_are_counted_wherever_they_run(
    spark: Session, engine: Engine, seconds: float
) -> None:
    before = traffic.by_kind()
    assert Tasks(engine, spark).run("ask", work.ask, [1, 20, 300], seconds) == [-1, -20, -300]
    assert traffic.since(before) == {"store GET": 321, "lakefs POST": 3}


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_of_a_task_ends_the_work(count: int) -> None:
    def fail(number: int) -> None:
        raise KeyError(number)

    with pytest.raises(KeyError):
        Tasks(EMBEDDED, _never).run("fail", fail, range(count), 1.0)


@pytest.mark.parametrize("pack", [bin_pack, pack_in_order])
@given(costs=st.lists(st.floats(0, 30), max_size=30), most=st.integers(1, 8))
def test_work_is_spread_completely_over_tasks_that_are_worth_it(
    pack: Callable[[list[int], list[float], int], list[list[int]]], costs: list[float], most: int
) -> None:
    items = list(range(len(costs)))
    tasks = pack(items, costs, most)
    assert sorted(item for task in tasks for item in task) == items
    assert len(tasks) <= max(1, min(most, int(sum(costs) / 2)))
    assert all(tasks)


def test_each_group_of_items_is_one_task() -> None:
    tasks = Tasks(EMBEDDED, _never)
    sums = tasks.run_grouped("add", sum, range(50), [1.0] * 50, 7)
    assert len(sums) == 7
    assert sum(sums) == sum(range(50))
    assert tasks.run_grouped("add", sum, [], [], 7) == []


def test_items_of_equal_cost_are_spread_evenly() -> None:
    assert sorted(len(task) for task in bin_pack(range(50), [1.0] * 50, 7)) == [7] * 6 + [8]
    assert len(bin_pack(range(50), [0.0] * 50, 7)) == 1


def test_what_follows_each_other_is_of_one_task_or_of_two_that_do() -> None:
    costs = [1.0, 0.5, 3.0, 0.0] * 10
    tasks = pack_in_order(range(40), costs, 5)
    assert [item for task in tasks for item in task] == list(range(40))
    sums = [sum(costs[item] for item in task) for task in tasks]
    assert len(sums) == 5
    assert max(sums) - min(sums) <= max(costs)


def test_threads_answer_in_order() -> None:
    assert thread_map(lambda n: n + 1, range(20), 4) == list(range(1, 21))


@pytest.mark.parametrize("kind", [IndexError, KeyboardInterrupt])
def test_after_an_error_in_a_thread_no_other_item_is_begun(kind: type[BaseException]) -> None:
    begun: list[int] = []

    def fail(item: int) -> None:
        begun.append(item)
        if item == 5:
            raise kind
        time.sleep(0.001)

    with pytest.raises(kind):
        thread_map(fail, range(10_000), 3)
    assert len(begun) < 10_000


def test_threads_hear_of_an_interrupt_of_the_one_that_waits_for_them() -> None:
    """No interrupt reaches a thread, and the pool waits for all of them."""
    begun, heard = Barrier(3, timeout=60), list[int]()

    def wait(item: int) -> None:
        begun.wait()
        if item == 0:
            raise KeyboardInterrupt
        until = time.monotonic() + 60
        while not interrupted() and time.monotonic() < until:
            time.sleep(0.01)
        heard.append(item)
        assert interrupted()

    with pytest.raises(KeyboardInterrupt):
        thread_map(wait, range(3), 3)
    assert sorted(heard) == [1, 2]
    assert not interrupted()
    assert thread_map(lambda _: interrupted(), range(3), 3) == [False] * 3


def test_an_error_in_a_thread_is_no_interrupt_to_the_others() -> None:
    begun = Barrier(2, timeout=60)

    def fail(item: int) -> None:
        begun.wait()
        if item == 0:
            raise IndexError
        time.sleep(0.1)
        assert not interrupted()

    with pytest.raises(IndexError):
        thread_map(fail, range(2), 2)


_LONG = pa.table({"x": pa.array(["a" * 64] * 100_000), "n": pa.array(range(100_000))})


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(_LONG.slice(7, 3), id="table"),
        pytest.param(_LONG.slice(7, 0), id="no rows"),
        pytest.param(pa.concat_tables([_LONG.slice(n, 1) for n in range(50)]), id="slices"),
        pytest.param(_LONG["x"].slice(7, 3), id="column"),
        pytest.param(pa.chunked_array([], pa.string()), id="no chunks"),
        pytest.param(_LONG["x"].chunk(0).slice(7, 3), id="array"),
        pytest.param(_LONG["x"].dictionary_encode().chunk(0).slice(7, 3), id="dictionary"),
        pytest.param(_LONG.to_batches()[0].slice(7, 3), id="batch"),
    ],
)
def test_of_a_slice_only_its_rows_are_sent(value: object) -> None:
    found = pickle.loads(dumps(value))
    assert type(found) is type(value)
    assert found == value
    assert len(dumps([{"deep": value}])) < 20_000
    assert (
        run_in_processes("send", work.same, [value, value], 2, logging.getLogger()) == [value] * 2
    )
