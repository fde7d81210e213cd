"""The command as processes: what keeps others out, ends them, or lets none start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import dagster as dg
import pytest
from pyspark.errors import PySparkRuntimeError

from lakegc_assets.cli.jobs import open_instance
from lakegc_assets.embedded import gc
from lakegc_assets.engine.spark_session import spark_failure
from lakegc_assets_tests.cli.calling import lakegc, say
from lakegc_assets_tests.site import Site

_LAKEGC = (sys.executable, "-m", "lakegc_assets.cli")
_PATIENCE_S: Final = 600


@pytest.fixture
def process(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """A mark of ``gamma`` in a process of its own, suspended while it waits for staged objects."""
    site.tell("gamma")
    asked, goes_on = threading.Event(), threading.Event()
    prepare = gc.prepare_uncommitted

    def wait(*arguments: Any) -> Any:
        asked.set()
        assert goes_on.wait(_PATIENCE_S)
        return prepare(*arguments)

    monkeypatch.setattr(gc, "prepare_uncommitted", wait)
    process = subprocess.Popen(
        [*_LAKEGC, "mark", "gamma", "--run", "g1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert asked.wait(_PATIENCE_S)
        os.killpg(process.pid, signal.SIGSTOP)
        yield process
    finally:
        goes_on.set()
        process.kill()
        process.communicate()


def test_another_process_is_kept_out_and_an_interrupted_one_ends(
    process: subprocess.Popen[str],
) -> None:
    say(
        lakegc("mark", "gamma", "--run", "g2"),
        3,
        "another run holds local://gamma",
        f"{process.pid}",
    )
    os.killpg(process.pid, signal.SIGCONT)
    # An interrupt of what does not wait yet may come to any of its threads, and wakes no other one.
    status = Path(f"/proc/{process.pid}/task/{process.pid}/status")
    while "State:\tS" not in status.read_text():
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 1
    assert out == ""
    assert "interrupted: " in err
    assert "Traceback" not in err
    # What a person ended stays ended: ``gc_resume`` continues failed runs only.
    with open_instance() as instance:
        runs = instance.get_runs(dg.RunsFilter(tags={"dagster/partition/run": "g1"}))
    assert [run.status for run in runs] == [dg.DagsterRunStatus.CANCELED]
    # The lock is free again, and the run is not lost: the same id may be marked anew.
    say(lakegc("report", "gamma", "--run", "g1"), 3, "did not finish")


def test_a_spark_that_does_not_start_is_reported_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_java(*_: object) -> None:
        raise spark_failure(PySparkRuntimeError("there is no java"))

    monkeypatch.setattr("lakegc_assets.cli.jobs.run_job", without_java)
    say(
        lakegc("mark", "delta"),
        2,
        "configuration: Spark did not start: there is no java. It needs Java 17",
    )


def test_the_embedded_lakefs_says_why_it_cannot_start(tmp_path: Path) -> None:
    folder, file = tmp_path / "lakefs", tmp_path / "file"
    file.touch()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        result = lakegc("embedded", "--data", str(folder), "--port", port)
    say(result, 1, f"cannot listen on 127.0.0.1:{port} ", "choose another --port")
    assert not folder.exists()
    say(lakegc("embedded", "--data", str(file), "--port", "0"), 1, str(file), "File exists")
