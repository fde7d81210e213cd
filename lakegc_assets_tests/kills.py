"""Kills of what is tested: at any of its lines, at a step, or of its process with all it started.

In this process a kill is an exception that nothing handles; it leaves files, leases and locks as
they are. Processes of their own die by SIGKILL.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.values import Lost, UndeleteOutcome
from lakegc_assets.sweep import lease
from lakegc_assets.sweep.lease_record import LEASE, read_lease
from lakegc_assets_tests.lake import SETTINGS

_PATIENCE_S = 300
Line = tuple[str, int]


class Killed(BaseException):
    """Nothing handles it, as nothing handles a kill."""


def _die() -> None:
    raise Killed


class Lines:
    """Watches the lines of some modules while they run, in all threads.

    Args:
        modules: files of the modules.
        die: called at the line that is armed, and at every line after it.
        state: tells, at a line that runs for the n-th time, what the world is like then.
    """

    def __init__(
        self,
        *modules: str | None,
        die: Callable[[], None] = _die,
        state: Callable[[], int] = lambda: 0,
    ) -> None:
        self._files = {str(Path(module or "").resolve()) for module in modules}
        self._die = die
        self._state = state
        self.states: dict[tuple[Line, int], int] = {}
        self.seen: dict[Line, int] = {}
        self.armed: Line | None = None
        self.time = 1
        self.dead = False

    @contextmanager
    def watch(self, armed: Line | None = None, time: int = 1) -> Iterator[None]:
        """Watch, and die when a line is about to run for the n-th time."""
        self.seen, self.armed, self.time, self.dead = {}, armed, time, False
        self.states = {}
        before = sys.gettrace()
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(None)

    def kills(self) -> list[tuple[Line, int]]:
        """Where to kill what was watched: each line for the first time, and often the middle one.

        In the order in which they ran.
        """
        middle = {line: seen // 2 for line, seen in self.seen.items() if seen > 3}
        return [(line, n) for line, n in self.states if n in {1, middle.get(line)}]

    def telling(self) -> list[tuple[Line, int]]:
        """The first and the last of those kills between two changes of the state."""
        alike: dict[int, list[tuple[Line, int]]] = {}
        for kill in self.kills():
            alike.setdefault(self.states[kill], []).append(kill)
        return [kill for kills in alike.values() for kill in dict.fromkeys((kills[0], kills[-1]))]

    def _enter(self, frame: FrameType, _event: str, _of: Any) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, _of: Any) -> Any:
        if event == "line":
            line = (frame.f_code.co_filename, frame.f_lineno)
            self.seen[line] = self.seen.get(line, 0) + 1
            self.states[line, self.seen[line]] = self._state()
            if self.dead or (line == self.armed and self.seen[line] >= self.time):
                self.dead = True
                self._die()
        return self._line


def dying(patch: pytest.MonkeyPatch, after: int, *, before: bool, below: str = "") -> list[str]:
    """Kill whoever changes a store for the so-many-th time, just before or after it does.

    ``below`` is a part of the URLs of the stores that count. Returns the changes, as they come.
    """
    calls: list[str] = []

    def deadly(name: str) -> Callable[..., Any]:
        real = getattr(LocalStore, name)

        def change(store: LocalStore, *arguments: Any, **named: Any) -> Any:
            if below not in store.url:
                return real(store, *arguments, **named)
            calls.append(name)
            if len(calls) == after and before:
                raise Killed
            found = real(store, *arguments, **named)
            if len(calls) == after:
                raise Killed
            return found

        return change

    for name in ("put", "put_if_absent", "delete_many"):
        patch.setattr(LocalStore, name, deadly(name))
    return calls


def let_the_killed_be_gone(patch: pytest.MonkeyPatch) -> None:
    """Who is killed by an error in this process leaves its lease: as if nothing of it lived."""
    patch.setattr(lease, "is_gone", lambda _owner: True)
    patch.setattr(lease, "CHECK_LIFETIME", 0.0)


class Reaper:
    """Kills at the n-th time that a step is reached."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.target = ""
        self.countdown = 0

    def watch(self, owner: Any, name: str, about: str = "") -> None:
        """A kill may come just before and just after each call of a function.

        Args:
            owner: of the function.
            name: of the function.
            about: how its first argument starts, if not every call counts.
        """
        function = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            if about and not str(args[1]).startswith(about):
                return function(*args, **kwargs)
            self.step(f"before {name}")
            found = function(*args, **kwargs)
            self.step(f"after {name}")
            return found

        self.patch.setattr(owner, name, watched)

    def watch_undelete(self) -> None:
        """A kill may come just before and just after local storage is asked for a lost object."""
        undelete = LocalStore.undelete_file

        def watched(store: LocalStore, lost: Lost, *, dry_run: bool) -> UndeleteOutcome:
            if not lost.key.startswith("data/"):
                return undelete(store, lost, dry_run=dry_run)
            self.step("before undelete")
            outcome = undelete(store, lost, dry_run=dry_run)
            self.step("after undelete")
            return outcome

        self.patch.setattr(LocalStore, "undelete_file", watched)

    def step(self, name: str) -> None:
        if name == self.target:
            self.countdown -= 1
            if self.countdown == 0:
                raise Killed

    def arm(self, target: str, time: int) -> None:
        self.target, self.countdown = target, time


@pytest.fixture
def reaper(monkeypatch: pytest.MonkeyPatch) -> Reaper:
    let_the_killed_be_gone(monkeypatch)
    return Reaper(monkeypatch)


def _session(leader: int) -> Iterator[int]:
    """Processes of the session that a process leads: the sweep, its JVM and its workers."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if os.getsid(int(entry.name)) == leader:
                yield int(entry.name)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End everything that a process has started, at once."""
    for pid in [process.pid, *_session(process.pid)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def workers(leader: int) -> list[int]:
    """Python processes that run Spark's tasks in the session of a sweep, but not their parent."""
    parents: dict[int, int] = {}
    for pid in _session(leader):
        with suppress(OSError):
            if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                stat = Path(f"/proc/{pid}/stat").read_text()
                parents[pid] = int(stat.rpartition(")")[2].split()[1])
    return [pid for pid, parent in parents.items() if parent in parents]


def kill_workers(leader: int) -> int:
    """End the processes that run tasks, at once; how many there were."""
    found = workers(leader)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(found)


def wait_for(
    condition: Callable[[], bool],
    process: subprocess.Popen[bytes],
    log: Path,
    pause: float = 0.001,
) -> None:
    """Look again and again, so many seconds apart, until something has come; a sweep must last.

    Args:
        condition: whether it has come.
        process: the sweep.
        log: what the sweep prints, for messages.
        pause: seconds.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert process.poll() is None, f"the sweep ended before it was killed: {tail(log)}"
        assert time.monotonic() < deadline, f"what was waited for did not come: {tail(log)}"
        time.sleep(pause)


def tail(log: Path) -> str:
    """The end of a log, for messages."""
    return log.read_text(errors="replace")[-3000:]


def run_out(store: ObjectStore) -> None:
    """Let the time pass for which a dead sweep's lease holds."""
    record = read_lease(store)
    assert not record.released
    now = store.server_time()
    assert timedelta(0) < record.expires - now <= SETTINGS.lease_duration
    store.put(LEASE, replace(record, expires=now).to_bytes())
