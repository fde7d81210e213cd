"""Ends a sweep as a crash would: all of it, with its JVM and its workers, or only its workers."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.sweep.lease_record import LEASE, read_lease
from lakegc_assets_tests.lake import SETTINGS

_PATIENCE_S = 300


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
