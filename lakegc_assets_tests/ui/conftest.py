"""The interface as `make ui` starts it where nothing is configured, and a browser on it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from lakegc_assets_tests.ui.browser import Screen, screen

_PROJECT = Path(__file__).parents[2]
_START_S = 300
_END_S = 120
_PASSED_ON = ("PATH", "JAVA_HOME", "LANG", "PYTHONPATH", "TMPDIR")


@dataclass(frozen=True)
class Interface:
    """A running interface.

    Attributes:
        url: where it listens.
        folder: of the trial.
        log: what it has printed.
    """

    url: str
    folder: Path
    log: Path

    def printed(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def interface(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interface]:
    folder = tmp_path_factory.mktemp("ui")
    port = _free_port()
    found = Interface(f"http://127.0.0.1:{port}", folder / "trial", folder / "log")
    # As for somebody who has just cloned the project.
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment["HOME"] = str(folder)
    module = ("-m", "examples.web_ui")
    arguments = ("--port", str(port), "--folder", str(found.folder))
    with found.log.open("w") as log:
        running = subprocess.Popen(
            [sys.executable, *module, *arguments],
            cwd=_PROJECT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait(running, found)
        yield found
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(_END_S)


def _wait(running: subprocess.Popen[bytes], found: Interface) -> None:
    """Wait until the webserver answers."""
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        assert running.poll() is None, found.printed()
        try:
            if requests.get(f"{found.url}/server_info", timeout=10).ok:
                return
        except requests.ConnectionError:
            time.sleep(0.2)
    raise AssertionError(found.printed())


@pytest.fixture(scope="module")
def ui(interface: Interface, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Screen]:
    wanted = os.environ.get("PICTURES")
    pictures = Path(wanted) if wanted else tmp_path_factory.mktemp("pictures")
    with screen(interface.url, pictures.resolve()) as found:
        yield found
