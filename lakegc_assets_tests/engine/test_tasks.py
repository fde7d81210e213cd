"""Tasks run here or in one Spark job, and are as many as the work is worth."""

from __future__ import annotations

import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets import traffic
from lakegc_assets.engine.tasks import Tasks, bin_pack, thread_map
from lakegc_assets_tests.sessions import Session


def _add(one: int, other: int) -> tuple[int, int]:
    return other, one + other


def _ask(requests: int) -> int:
    traffic.add(requests)
    return -requests


def _never() -> object:
    raise AssertionError("there is no work for Spark")


def test_little_work_needs_no_spark() -> None:
    tasks = Tasks(_never, 10.0)  # type: ignore[arg-type]
    assert tasks.run("add", partial(_add, 1), [1, 2, 3], 9.9) == [(1, 2), (2, 3), (3, 4)]
    assert tasks.run("add", partial(_add, 1), [], 99.0) == []


def test_much_work_is_one_job_with_a_task_for_each_input(spark: Session) -> None:
    tracker = spark().sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    inputs = list(range(5))
    assert Tasks(spark, 10.0).run("add", partial(_add, 1), inputs, 10.0) == [
        (n, n + 1) for n in inputs
    ]
    (job,) = set(tracker.getJobIdsForGroup()) - before
    info = tracker.getJobInfo(job)
    assert info is not None
    (stage,) = info.stageIds
    told = tracker.getStageInfo(stage)
    assert told is not None
    assert told.numTasks == 5


@pytest.mark.parametrize("seconds", [9.9, 10.0])
def test_the_requests_of_tasks_are_counted_wherever_they_run(
    spark: Session, seconds: float
) -> None:
    before = traffic.sent()
    assert Tasks(spark, 10.0).run("ask", _ask, [1, 20, 300], seconds) == [-1, -20, -300]
    assert traffic.sent() - before == 321


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_of_a_task_ends_the_work(count: int) -> None:
    def fail(number: int) -> None:
        raise KeyError(number)

    with pytest.raises(KeyError):
        Tasks(_never, 10.0).run("fail", fail, range(count), 1.0)  # type: ignore[arg-type]


@given(st.lists(st.floats(0, 30), max_size=30), st.integers(1, 8))
def test_work_is_spread_completely_over_tasks_that_are_worth_it(
    costs: list[float], most: int
) -> None:
    items = list(range(len(costs)))
    tasks = bin_pack(items, costs, most)
    assert sorted(item for task in tasks for item in task) == items
    assert len(tasks) <= max(1, min(most, int(sum(costs) / 2)))
    assert all(tasks)


def test_items_of_equal_cost_are_spread_evenly() -> None:
    assert sorted(len(task) for task in bin_pack(range(50), [1.0] * 50, 7)) == [7] * 6 + [8]
    assert len(bin_pack(range(50), [0.0] * 50, 7)) == 1


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
