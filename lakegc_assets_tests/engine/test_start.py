"""How Spark starts: to its end, and with a word on what is wrong."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakegc_assets.engine.spark_session import FILE_VARIABLE, start_session, starting
from lakegc_assets.errors import ConfigurationError

_START = "from lakegc_assets.engine.spark_session import start_session; start_session()"

#: Interrupted once PySpark waits for its JVM.
_INTERRUPTED = """
import os, signal, threading, time
from pyspark import java_gateway
from lakegc_assets.engine.spark_session import prepare_environment, start_session
# What a shell starts in the background ignores interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
begin = java_gateway.Popen
def begun(*arguments, **options):
    process = begin(*arguments, **options)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    return process
java_gateway.Popen = begun
prepare_environment()
try:
    start_session()
except KeyboardInterrupt:
    print("interrupted")
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )


def test_what_is_wrong_is_reported_to_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = python(_START)
    assert done.returncode == 1
    assert "ConfigurationError: Spark did not start: [JAVA_GATEWAY_EXITED]" in done.stderr


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What runs in the background of a shell ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_waits_for_the_end_of_a_start() -> None:
    done = []
    before = signal.getsignal(signal.SIGINT)

    def start() -> None:
        with starting():
            signal.raise_signal(signal.SIGINT)
            done.append("the rest")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert done == ["the rest"]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.conformance
def test_an_interrupted_start_leaves_no_jvm_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    # A JVM that is left holds the pipe of stderr open, and this would not return.
    done = python(_INTERRUPTED)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "interrupted\n"


def test_wrong_settings_are_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        start_session()
