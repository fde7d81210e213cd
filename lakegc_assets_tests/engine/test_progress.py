"""A long step says every few seconds what is being done, and how much of how much."""

from __future__ import annotations

import logging
import threading

import pytest

from lakegc_assets.engine import progress as module
from lakegc_assets.engine.choice import Engine
from lakegc_assets.engine.progress import report_progress
from lakegc_assets.engine.tasks import Tasks
from lakegc_assets_tests.sessions import Session


class _Reported(logging.Handler):
    """Keeps what is reported, and says when there is something."""

    def __init__(self, words: str = "") -> None:
        super().__init__()
        self.words = words
        self.lines: list[str] = []
        self.came = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if self.words in record.getMessage():
            self.came.set()


def _log(reported: _Reported) -> logging.Logger:
    log = logging.Logger("test")  # noqa: LOG001 - one that nothing else hears
    log.addHandler(reported)
    return log


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.01)


def _session() -> object:
    raise AssertionError("there is no work for Spark")


def test_tasks_say_how_many_of_them_are_done() -> None:
    reported = _Reported("read ranges: 2 of 3 tasks are done")
    last = threading.Barrier(1)

    def task(number: int) -> int:
        if number == 2:
            assert reported.came.wait(600)
            last.wait()
        return number

    tasks = Tasks(Engine("embedded", "a test says so"), _session, _log(reported))  # type: ignore[arg-type]
    assert tasks.run("read ranges", task, [0, 1, 2], 1.0, threads=3) == [0, 1, 2]
    count = len(reported.lines)
    assert all(line.startswith("read ranges: ") for line in reported.lines)
    assert not any("None" in line for line in reported.lines)
    # Nothing is reported of what has ended.
    assert not threading.Event().wait(0.05)
    assert len(reported.lines) == count


def _wait(flag: str) -> str:
    from pathlib import Path  # noqa: PLC0415 - it is pickled
    from time import sleep  # noqa: PLC0415 - it is pickled

    while not Path(flag).exists():
        sleep(0.05)
    return flag


@pytest.mark.conformance
def test_spark_tasks_say_it_too(spark: Session, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("flags")
    first, second = str(folder / "first"), str(folder / "second")
    reported = _Reported("wait: 1 of 2 tasks are done")

    class Release(_Reported):
        def emit(self, record: logging.LogRecord) -> None:
            super().emit(record)
            # One task ends once something is reported, the other one once that is reported.
            (folder / "first").touch()
            if self.came.is_set():
                (folder / "second").touch()

    reported = Release(reported.words)
    assert Tasks(Engine("spark", "so"), spark, _log(reported)).run(
        "wait", _wait, [first, second], 1.0
    ) == [first, second]
    assert reported.came.is_set()


def test_what_cannot_be_reported_stops_nothing() -> None:
    reported = _Reported()

    def how_far() -> str:
        reported.came.set()
        raise ConnectionError

    with report_progress(_log(reported), how_far):
        assert reported.came.wait(600)
    assert reported.lines == []


def test_whoever_watches_the_process_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    reported = _Reported()
    with (
        caplog.at_level(logging.INFO, "lakegc.progress"),
        report_progress(_log(reported), lambda: "3 of 9"),
    ):
        assert reported.came.wait(600)
    assert "3 of 9" in caplog.messages
