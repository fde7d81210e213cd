"""All tasks together keep the limits, and a storm halves the rate once, however many it hits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.errors import IntegrityError
from lakegc_assets.storage.errors import StoreUnavailableError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.rate_limit import (
    LEAST,
    Limits,
    RateLimiter,
    in_flight,
    round_folder,
    share_after,
)
from lakegc_assets_tests.clocks import StubClocks

FOLDER = round_folder("sweep", 1)


class Time:
    """A clock that moves only when somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


class Tasks:
    """Tasks of one round, all on one clock."""

    def __init__(self, folder: Path, keys: float = 100.0, requests: float = 1e6) -> None:
        self.store = open_store(str(folder))
        self.limits = Limits(keys=keys, requests=requests)
        self.time = Time()

    def begin(self, partition: int, share: float = 1.0) -> RateLimiter:
        pace = self.attempt(partition, share)
        assert not pace.begin()
        return pace

    def attempt(self, partition: int, share: float = 1.0) -> RateLimiter:
        time = self.time
        return RateLimiter(
            self.store, FOLDER, partition, self.limits, share, StubClocks(time.pause, time.clock)
        )


@pytest.fixture
def tasks(tmp_path: Path) -> Tasks:
    return Tasks(tmp_path)


def send(task: RateLimiter, keys: int) -> None:
    assert task.look() == ""
    task.wait()
    task.sent(keys)


def test_a_partition_belongs_to_the_first_attempt(tasks: Tasks) -> None:
    tasks.begin(3)
    assert tasks.attempt(3).begin() == "another attempt of this task has begun"
    assert not tasks.attempt(4).begin()


def test_one_task_keeps_the_limit_of_keys(tasks: Tasks) -> None:
    task = tasks.begin(0)
    begun = tasks.time.now
    for _ in range(10):
        send(task, 50)
    task.wait()
    assert tasks.time.now - begun == pytest.approx(10 * 50 / 100)


def test_one_task_keeps_the_limit_of_requests(tmp_path: Path) -> None:
    tasks = Tasks(tmp_path, keys=1e9, requests=4)
    task = tasks.begin(0)
    begun = tasks.time.now
    for _ in range(10):
        send(task, 50)
    task.wait()
    assert tasks.time.now - begun == pytest.approx(10 / 4)


def test_tasks_share_the_limits_and_leave_them_to_others(tasks: Tasks) -> None:
    first, *others = [tasks.begin(n) for n in range(4)]
    first.look()
    assert first.most(1000) == 100 * 10 / 4
    for other in others:
        other.end()
    first.look()
    assert first.most(1000) == 1000


@given(st.integers(1, 1000), st.floats(0.01, 1e6), st.integers(1, 40))
def test_a_batch_takes_seconds_and_is_never_empty(batch: int, keys: float, count: int) -> None:
    pace = RateLimiter(open_store("/nowhere"), FOLDER, 0, Limits(keys, 1e6))
    pace.tasks = count
    most = pace.most(batch)
    assert 1 <= most <= batch
    assert most == 1 or most * count <= keys * 10


def test_a_storm_halves_the_rate_of_all_tasks_once(tasks: Tasks) -> None:
    several = [tasks.begin(n) for n in range(5)]
    for task in several:
        assert task.look() == ""
    for task in several:
        task.failed("SlowDown", slow=True)
    late = tasks.begin(5)
    for task in [*several, late]:
        assert task.look() == ""
        assert task.share == 0.5
    several[0].failed("503", slow=True)
    late.look()
    assert late.share == 0.25


def test_what_is_not_for_the_rate_lowers_none(tasks: Tasks) -> None:
    task = tasks.begin(0)
    task.failed("InternalError", slow=False)
    task.look()
    assert task.share == 1.0


def test_the_rate_never_ends(tasks: Tasks) -> None:
    task = tasks.begin(0)
    for _ in range(20):
        task.failed("SlowDown", slow=True)
        task.look()
    assert task.share == LEAST
    assert task.most(1000) >= 1


def test_success_raises_the_rate_slowly(tasks: Tasks) -> None:
    task = tasks.begin(0)
    task.failed("SlowDown", slow=True)
    task.look()
    tasks.time.now += 60
    assert task.share == 0.5
    task.succeeded()
    assert task.share == pytest.approx(0.6)
    tasks.time.now += 60
    task.look()
    task.succeeded()
    assert task.share == pytest.approx(0.7)
    tasks.time.now += 10_000
    task.succeeded()
    assert task.share == 1.0
    task.failed("SlowDown", slow=True)
    task.look()
    assert task.share == 0.5


def test_each_failure_in_a_row_is_waited_for_longer(tasks: Tasks) -> None:
    task = tasks.begin(0)
    waited = []
    for _ in range(8):
        before = tasks.time.now
        task.failed("InternalError", slow=False)
        task.wait()
        waited.append(tasks.time.now - before)
    assert waited == [1, 2, 4, 8, 16, 30, 30, 30]
    task.succeeded()
    before = tasks.time.now
    task.failed("InternalError", slow=False)
    task.wait()
    assert tasks.time.now - before == 1


def test_the_next_round_begins_where_this_one_ended(tasks: Tasks) -> None:
    assert share_after(tasks.store, FOLDER, 1.0) == 1.0
    assert share_after(tasks.store, FOLDER, 0.25) == 0.5
    task = tasks.begin(0, share=0.5)
    task.failed("SlowDown", slow=True)
    assert share_after(tasks.store, FOLDER, 1.0) == 0.25
    (note,) = (
        info.key for info in tasks.store.infos(FOLDER) if b"SlowDown" in tasks.store.get(info.key)
    )
    for damaged in (b"", b"{}", b"[" * 100_000):
        tasks.store.put(note, damaged)
        with pytest.raises(IntegrityError, match=f"{note} is damaged"):
            share_after(tasks.store, FOLDER, 1.0)


def test_one_task_stops_all_of_its_round(tasks: Tasks) -> None:
    first, second = tasks.begin(0), tasks.begin(1)
    first.stop("AccessDenied: data/ü: not yours")
    assert second.look() == "AccessDenied: data/ü: not yours"
    assert tasks.attempt(2).look() == "AccessDenied: data/ü: not yours"
    other = RateLimiter(tasks.store, round_folder("sweep", 2), 0, tasks.limits)
    assert other.look() == ""


def test_a_storm_that_takes_the_answer_to_its_note_ends_no_task(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, put = tasks.begin(0), LocalStore.put_if_absent

    def lose_answer(store: LocalStore, key: str, data: bytes) -> str:
        put(store, key, data)
        raise StoreUnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put_if_absent", lose_answer)
        task.failed("SlowDown", slow=True)
        other = tasks.begin(1)
    assert other.look() == task.look() == ""
    assert other.share == task.share == 0.5
    assert tasks.attempt(1).begin() == "another attempt of this task has begun"


def test_a_note_that_a_listing_lacks_is_waited_for(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list may end early, and behind its last key the store shows the others."""
    task, whole = tasks.begin(0), LocalStore.list
    task.unanswered()
    task.end()

    def cut(store: LocalStore, prefix: str = "", start_after: str | None = None) -> Any:
        for page in whole(store, prefix, start_after):
            yield page.slice(0, 2)

    monkeypatch.setattr(LocalStore, "list", cut)
    assert in_flight(tasks.store, "sweep")
