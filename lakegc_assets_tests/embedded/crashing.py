"""Server processes that die, or wait, before the n-th thing that they would leave behind.

Run as a program it forks a process for each call that it is asked for. A step is what a kill
could come before: a file opened for writing, renamed, linked or removed, a directory made, a row
written, a transaction committed. What lies between two steps leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lakegc_assets.embedded.lake import state
from lakegc_assets_tests.embedded.direct import Direct

if TYPE_CHECKING:
    from typing_extensions import Self

NOW = 1_795_236_036.0
_EVENTS = {"os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_SQL = ("INSERT", "UPDATE", "DELETE", "COMMIT")
SETTINGS = {"clock": lambda: NOW, "range_raggedness": 4, "uncommitted_page_steps": 4}


class Steps:
    """Counts the steps of this process, and does something before one of them.

    Args:
        at: the number of that step, from 1; 0 for none.
        before: or the start of an SQL statement; empty for none.
        do: what is done.
    """

    def __init__(self, at: int, before: str, do: Callable[[], object]) -> None:
        self.count = 0
        self.armed = False
        self._at = at
        self._before = before
        self._do = do
        sys.addaudithook(self._audit)
        state.connect = self._connect_traced  # type: ignore[assignment, attr-defined]

    def _connect_traced(self, *where: Any, **options: Any) -> sqlite3.Connection:
        found: sqlite3.Connection = sqlite3.connect(*where, **options)
        found.set_trace_callback(self._sql)
        return found

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES
        if writes or event in _EVENTS:
            self._step()

    def _sql(self, statement: str) -> None:
        if self.armed and self._before and statement.startswith(self._before):
            self._before = ""
            self._do()
        elif statement.startswith(_SQL):
            self._step()

    def _step(self) -> None:
        if self.armed:
            self.count += 1
            if self.count == self._at:
                self._do()


class Forks:
    """A program that is asked for calls, and tells what became of them."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def call(self, data: Path, call: list[Any], *, die_at: int = 0) -> dict[str, Any] | None:
        """Status, body and number of steps of a call; None when its process died."""
        self.start(data, call, die_at=die_at)
        return self.result()

    def start(self, data: Path, call: list[Any], *, die_at: int = 0, wait_before: str = "") -> None:
        order = {"data": str(data), "call": call, "die_at": die_at, "wait_before": wait_before}
        self._tell(order)

    def waits(self) -> None:
        """Return when the process waits before its step."""
        assert self._answer() == "waits"

    def go_on(self) -> None:
        self._tell("go on")

    def result(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._answer()
        return found

    def _tell(self, message: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def say(message: object) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def serve(order: dict[str, Any]) -> None:
    """One server process: answers one call, unless it dies."""

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def wait() -> None:
        say("waits")
        while os.read(0, 1) != b"\n":
            pass

    before = order["wait_before"]
    steps = Steps(order["die_at"], before, wait if before else die)
    api = Direct.on(Path(order["data"]), **SETTINGS)
    method, path, options = order["call"]
    steps.armed = True
    response = api.send(method, path, **options)
    steps.armed = False
    say({"status": response.status_code, "body": response.text, "steps": steps.count})


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            status = 1
            try:
                serve(json.loads(line))
                status = 0
            except Exception:  # noqa: BLE001 - it is told, and the process ends in any case
                traceback.print_exc()
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            say(None)
        elif status:
            raise SystemExit(f"a call ended with {status}")


if __name__ == "__main__":
    main()
