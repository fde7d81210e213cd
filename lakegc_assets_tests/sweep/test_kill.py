"""A sweep that is killed at any point and run again ends as if it had never been killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from threading import Event, Lock

import pyarrow.parquet as pq
import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep import ledger, rounds
from lakegc_assets.sweep import sweep as sweeping
from lakegc_assets.sweep.deletion import DeletingTask
from lakegc_assets.sweep.delta import DeltaMarks
from lakegc_assets.sweep.lease_record import read_lease
from lakegc_assets.sweep.ledger_state import LedgerState
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.kills import (
    Killed,
    Reaper,
    kill,
    kill_workers,
    run_out,
    tail,
    wait_for,
)
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked, SmallLake
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.outcomes import check_swept
from lakegc_assets_tests.sweep.stand_ins import spare, stand_in
from lakegc_assets_tests.sweep.sweeper import IN_PROCESSES, log_of, start

#: Objects that a process of its own deletes at a time.
BATCH = 4
#: In this order each is reached by a sweep that the ones before have left behind.
KILLS = (
    ("before probe_conditions", 1),
    ("after probe_conditions", 1),
    ("before take", 1),
    ("after take", 1),
    ("before record_spared", 1),
    ("after record_spared", 1),
    ("before without_spared", 1),
    ("after without_spared", 1),
    ("before delete", 1),
    ("before send", 1),
    ("after delete_file", 3),
    ("after send", 1),
    ("before record", 1),
    ("after record", 1),
    ("after delete_file", 7),
    ("after delete", 1),
    ("before take", 1),
    ("after take", 1),
    ("before remaining", 1),
    ("after remaining", 1),
    ("before require_whole", 2),
    ("before write", 1),
    ("after write", 1),
    ("before finish", 1),
    ("after finish", 1),
)


def test_killed_at_every_step(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    reaper: Reaper,
) -> None:
    alive = set(sorted(marked.candidates)[::6])
    stand_in(monkeypatch, spare(alive))
    for owner, name in (
        (DeltaMarks, "take"),
        (rounds.Rounds, "record_spared"),
        (rounds, "delete"),
        (DeletingTask, "send"),
        (sweeping, "probe_conditions"),
        (ledger, "record"),
        (LedgerState, "remaining"),
        (LedgerState, "without_spared"),
        (LedgerState, "require_whole"),
        (LedgerState, "write"),
        (AttemptArtifacts, "finish"),
    ):
        reaper.watch(owner, name)
    reaper.watch(LocalStore, "delete_file", about="data/")
    left = [len(lake.keys())]
    for target, count in KILLS:
        reaper.arm(target, count)
        with pytest.raises(Killed):
            sweep(lake.context(spark))
        assert marked.live | alive <= lake.keys() <= marked.live | marked.candidates
        left.append(len(lake.keys()))
    assert left == sorted(left, reverse=True)
    # Killed after 3 deletes, after the batch of 5, after 7 more, and when all were done.
    assert set(left) == {left[0] - gone for gone in (0, 3, 5, 12, 15)}
    check_swept(lake, marked, dict.fromkeys(alive, "it is alive"))
    with pytest.raises(RefusedError, match="was swept already"):
        sweep(lake.context(spark))


@pytest.mark.conformance
def test_kill_9_in_the_middle_of_a_batch_and_between_batches(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    store = open_store(f"local://{REPOSITORY}", lake.server.store_config)

    def left() -> set[str]:
        return lake.keys() & marked.candidates

    process = start(lake, sweep_batch=BATCH)
    killed = Event()

    def hold(_method: str, _path: str) -> None:
        """Let no task get past the batch in which the kill comes."""
        if left() != marked.candidates:
            killed.wait(600)

    lake.on_request = hold
    try:
        wait_for(lambda: left() != marked.candidates, process, log_of(lake))
    finally:
        kill(process)
        killed.set()
    after_first = left()
    assert len(marked.candidates) - BATCH <= len(after_first) < len(marked.candidates)
    assert lake.keys() == marked.live | after_first

    run_out(store)
    # The second is killed by the question that its task asks once a batch is recorded.
    process = start(lake, sweep_batch=BATCH)

    def strike(_method: str, _path: str) -> None:
        if left() != after_first:
            kill(process)

    lake.on_request = strike
    try:
        wait_for(lambda: left() != after_first, process, log_of(lake))
        process.wait(600)
    finally:
        kill(process)
    assert process.returncode == -signal.SIGKILL
    lake.on_request = lambda _method, _path: None
    after_second = left()
    assert lake.keys() == marked.live | after_second
    assert after_second < after_first

    run_out(store)
    revived = min(after_second)
    lake.stage("main", "late/link", revived)
    sweep(lake.context(spark))
    check_swept(lake, marked, {revived: "it is staged on a branch now"})


@pytest.mark.conformance
@pytest.mark.parametrize("struck", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_tasks_in_processes_end_with_the_one_that_waits_for_them(
    lake: SmallLake, marked: Marked, struck: signal.Signals
) -> None:
    """A terminal interrupts all processes, as a service manager ends them; a kill has one target.

    Nothing but its end tells the others where the one that waits does not handle a signal.
    """
    store = open_store(f"local://{REPOSITORY}", lake.server.store_config)
    process = start(lake, IN_PROCESSES, sweep_batch=1, sweep_num_partitions=2)
    one_at_a_time, strikes = Lock(), list[int]()

    def strike(_method: str, path: str) -> None:
        with one_at_a_time:
            left = len(lake.keys() & marked.candidates)
            if path.endswith("/branches") and left < len(marked.candidates) and not strikes:
                strikes.append(left)
                (os.kill if struck == signal.SIGKILL else os.killpg)(process.pid, struck)
                time.sleep(1)

    lake.on_request = strike
    try:
        assert process.wait(600) != 0
        (left,) = strikes
        if struck != signal.SIGINT:
            # Each task begins no other batch; it says that it has ended.
            notes = Path(lake.root.attempt(REPOSITORY, RUN).url, ledger.ASSET, "tasks")
            until = time.monotonic() + 60
            while len(list(notes.rglob("*.ended"))) < 2 and time.monotonic() < until:
                time.sleep(0.1)
    finally:
        kill(process)
    lake.on_request = lambda _method, _path: None
    remaining = lake.keys() & marked.candidates
    assert left - 2 <= len(remaining) <= left
    assert read_lease(store).released is (struck == signal.SIGINT)
    folder = Path(lake.root.attempt(REPOSITORY, RUN).url, ledger.ASSET, "ledger")
    recorded = [address for path in folder.glob("*.parquet") for address in _addresses(path)]
    assert sorted(recorded) == sorted(marked.candidates - remaining)
    if struck != signal.SIGINT:
        run_out(store)
    process = start(lake, IN_PROCESSES, sweep_batch=1)
    assert process.wait(600) == 0, tail(log_of(lake))
    check_swept(lake, marked, {})


@pytest.mark.conformance
@pytest.mark.long
def test_killed_workers_and_retried_tasks(lake: SmallLake, marked: Marked) -> None:
    """Spark runs the task of a dead worker again; what it had not done is left to a new round."""
    process = start(lake, "local[2,4]", sweep_batch=BATCH)
    kills: list[int] = []
    one_at_a_time = Lock()

    def strike(_method: str, path: str) -> None:
        left = len(lake.keys() & marked.candidates)
        with one_at_a_time:
            if path.endswith("/branches") and len(kills) < 2 and left < len(marked.candidates):
                if kills and left == kills[-1]:
                    return
                kills.append(left)
                kill_workers(process.pid)

    lake.on_request = strike
    assert process.wait(600) == 0, tail(log_of(lake))
    assert len(kills) == 2
    check_swept(lake, marked, {})
    manifest = lake.root.attempt(REPOSITORY, RUN).manifest("swept_set")
    assert manifest.facts["rounds"] >= 3
    folder = Path(lake.root.attempt(REPOSITORY, RUN).url, ledger.ASSET, "ledger")
    rows = [address for path in folder.glob("*.parquet") for address in _addresses(path)]
    assert sorted(rows) == sorted(marked.candidates)


def _addresses(path: Path) -> list[str]:
    found: list[str] = pq.read_table(path)["address"].to_pylist()
    return found
