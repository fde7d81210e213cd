"""An interrupt in the middle of a job of Spark or DuckDB ends it, and is nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

_JOB = """
import threading, time
from lakegc_assets.engine.spark import prepare_environment, start_session
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
import pyarrow as pa
from lakegc_assets.engine.embedded import EmbeddedSession
from lakegc_assets.storage.opening import open_store

IDS = pa.schema([("id", pa.int64())])
with EmbeddedSession(open_store, None) as session:
    some = session.create(pa.table([range(1_000_000)], schema=IDS))
    pairs = some.crossJoin(some.withColumnRenamed("id", "other"))
    try:
        print("busy", flush=True)
        session.collect(pairs.where("(id * 7919 + other) % 1000003 = 1000009"), IDS, "pairs")
    except KeyboardInterrupt:
        left = session.collect(session.create(pa.table([[1]], schema=IDS)), IDS, "another")
        print("interrupted", left["id"].to_pylist(), flush=True)
"""


@pytest.mark.parametrize(("job", "left"), [(_JOB, "[]"), (_QUERY, "[1]")], ids=["Spark", "DuckDB"])
def test_an_interrupt_ends_the_job_and_stays_an_interrupt(job: str, left: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", job],
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
    assert out == f"interrupted {left}\n", err
    assert process.returncode == 0
    assert "Py4J" not in err
    assert "KeyError" not in err
