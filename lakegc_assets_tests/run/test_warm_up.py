"""Spark started in the background: whoever needs it waits for it, and learns what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.run.spark import FILE_VARIABLE, warm_up

_BOTH = """
from lakegc_assets.run.spark import prepare_environment, start_session, warm_up
prepare_environment()
thread = warm_up()
session = start_session()
thread.join()
print(session is start_session(), session.sparkContext.parallelize(range(4), 4).sum())
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_session_that_is_being_started_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    done = python(_BOTH)
    assert done.stdout == "True 6\n", done.stderr


def test_what_is_wrong_is_told_to_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = python(_BOTH)
    assert done.returncode == 1
    assert "ConfigurationError: Spark did not start: [JAVA_GATEWAY_EXITED]" in done.stderr
    assert "Exception in thread" not in done.stderr


def test_wrong_settings_are_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        warm_up()
