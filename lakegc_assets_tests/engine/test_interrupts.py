"""An interrupt in the middle of a Spark job ends it, and is nothing but an interrupt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

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


def test_an_interrupt_ends_the_job_and_stays_an_interrupt() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _JOB],
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
    assert out == "interrupted []\n", err
    assert process.returncode == 0
    assert "Py4J" not in err
    assert "KeyError" not in err
