"""An interrupt in the middle of a job of Spark or DuckDB ends it, and is nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from lakegc_assets.engine import progress

# What runs in the background of a shell ignores interrupts, and so does what it starts.
_HEED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
"""

_JOB = """
import threading, time
from lakegc_assets.engine.spark_session import prepare_environment, start_session
from lakegc_assets.engine.choice import Engine
from lakegc_assets.engine.tasks import Tasks

def wait(_number):
    time.sleep(3600)

def tell(tracker):
    while not any(tracker.getStageInfo(n).numActiveTasks for n in tracker.getActiveStageIds()):
        time.sleep(0.05)
    print("busy", flush=True)

prepare_environment()
session = start_session()
tracker = session.sparkContext.statusTracker()
threading.Thread(target=tell, args=(tracker,), daemon=True).start()
try:
    Tasks(Engine("spark", "so"), lambda: session).run("wait", wait, [1, 2], 1.0)
except KeyboardInterrupt:
    print("interrupted", tracker.getActiveStageIds(), flush=True)
"""


_QUERY = """
import logging
import pyarrow as pa
from lakegc_assets.engine import progress
from lakegc_assets.engine.embedded import EmbeddedSession
from lakegc_assets.storage.opening import open_store

progress.EVERY_S = 0.2
IDS = pa.schema([("id", pa.int64())])
class Tell(logging.Handler):
    def emit(self, record):
        print("busy", flush=True)
        log.removeHandler(self)

log = logging.getLogger("progress")
log.setLevel(logging.INFO)
log.addHandler(Tell())
with EmbeddedSession(open_store, None, log) as session:
    some = session.create(pa.table([range(1_000_000)], schema=IDS))
    pairs = some.crossJoin(some.withColumnRenamed("id", "other"))
    try:
        session.collect(pairs.where("sqrt(id * 7919 + other) = 0.5"), IDS, "pairs")
    except KeyboardInterrupt:
        left = session.collect(session.create(pa.table([[1]], schema=IDS)), IDS, "another")
        print("interrupted", left["id"].to_pylist(), flush=True)
"""


@pytest.mark.parametrize(
    ("job", "left"),
    [
        pytest.param(_JOB, "[]", id="Spark", marks=pytest.mark.conformance),
        pytest.param(_QUERY, "[1]", id="DuckDB"),
    ],
)
def test_an_interrupt_ends_the_job_and_stays_an_interrupt(job: str, left: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _HEED + job],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
        process.communicate()
    assert out == f"interrupted {left}\n", err
    assert process.returncode == 0
    assert "Py4J" not in err
    assert "KeyError" not in err


@pytest.mark.parametrize("begun", [True, False])
def test_an_interrupt_while_the_job_is_started_ends_it(
    *, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, running = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    class Interrupted(threading.Thread):
        def start(self) -> None:
            threads.append(self)
            if begun:
                super().start()
                assert running.wait(60)
            raise KeyboardInterrupt

    def job() -> None:
        running.set()
        assert ended.wait(60)

    monkeypatch.setattr(progress, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        progress.interruptible(job, ended.set)
    if not begun:
        threading.Thread.start(threads[0])
    threads[0].join(60)
    assert not threads[0].is_alive()
    assert ended.is_set() == running.is_set() == begun
