"""Prevents two runs on one repository at a time on this machine, whoever started them.

The lock is the kernel's (``flock``): it is released when its process ends, in any way. Between
machines the lease in the namespace (``sweep.lease``) keeps sweeps apart. The lock is taken before
Spark starts, and for marks too.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import gettempdir
from time import monotonic, sleep
from typing import Final

from lakegc_assets.engine.folders import temporary_files
from lakegc_assets.errors import ConfigurationError, RefusedError
from lakegc_assets.run.command_line import own_command
from lakegc_assets.run.json_record import DAMAGE

_POLL_S: Final = 5.0
STEP_POLL_S: Final = 0.5
#: Seconds between two reports on the wait.
_QUIET_S: Final = 30.0


#: Its attribute ``namespaces`` has the namespaces that this thread holds.
_held = threading.local()


def lock_file(namespace_url: str) -> Path:
    """Return the lock file of a storage namespace, below the system's temporary folder.

    Raises:
        ConfigurationError: other users can write to its folder, whose name is predictable: a
            symbolic link there would let a lock overwrite any file of this user.
    """
    folder = Path(gettempdir()) / f"lakegc-locks-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not mine or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigurationError(
            f"{folder} is not a folder that only user {os.geteuid()} can write to: find out who "
            "made it and remove it, or set TMPDIR to another folder for temporary files"
        )
    return folder / hashlib.sha256(namespace_url.encode()).hexdigest()[:32]


@contextmanager
def repository_lock(
    namespace_url: str,
    wait: timedelta = timedelta(0),
    report: Callable[[str], None] = lambda _: None,
    started_by: str | None = None,
) -> Iterator[None]:
    """Hold the lock of a storage namespace; may be nested within a thread.

    ``wait`` is the longest wait for another run. ``report`` gets a sentence now and then on the run
    that holds the lock, and on the wait so far. If the holder has the same ``started_by`` (Dagster
    run), this waits until it ends: Dagster's executor may run each step in its own process.

    Raises:
        ConfigurationError: its file cannot be made, or is not safe from other users.
        RefusedError: another run still holds it after ``wait``; the message has its process, its
            command, and the time since when.
    """
    held: set[str] = _held.__dict__.setdefault("namespaces", set())
    if namespace_url in held:
        yield
        return
    with temporary_files():
        opened = lock_file(namespace_url).open("a+")
    with opened as file:
        _acquire(file.fileno(), namespace_url, wait.total_seconds(), report, started_by)
        held.add(namespace_url)
        try:
            yield
        finally:
            held.discard(namespace_url)


def _acquire(
    descriptor: int,
    namespace_url: str,
    wait: float,
    report: Callable[[str], None],
    started_by: str | None,
) -> None:
    began, reported = monotonic(), -_QUIET_S
    if started_by is not None:
        # Another step of the run may hold the lock and not have written its record yet.
        wait = max(wait, 4 * STEP_POLL_S)
    while not _taken(descriptor):
        holder = _holder(os.pread(descriptor, 4096, 0))
        waited = monotonic() - began
        if started_by is not None and holder.get("started_by") == started_by:
            if waited - reported >= _QUIET_S:
                report(f"waiting for another step of this run: {_described(holder)}")
                reported = waited
            sleep(STEP_POLL_S)
            continue
        held = f"another run holds {namespace_url} on this machine: {_described(holder)}"
        if waited >= wait:
            wait_note = f"This run has waited {waited:.0f} s for it. " if wait else ""
            raise RefusedError(
                f"{held}. {wait_note}When that run has ended, run the same command again"
            )
        if waited - reported >= _QUIET_S:
            report(f"waiting, {waited:.0f} s of {wait:.0f} s at most: {held}")
            reported = waited
        sleep(min(_POLL_S if started_by is None else STEP_POLL_S, wait - waited))
    ours = json.dumps(
        {
            "pid": os.getpid(),
            "command": own_command(),
            "since": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC",
            "started_by": started_by,
        },
    )
    # If the record cannot be written, a refused process only gets a shorter message.
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, ours.encode(), 0)


def _holder(recorded: bytes) -> Mapping[str, object]:
    """Return the owner of a lock file; empty if it has not written its record yet."""
    try:
        values = json.loads(recorded)
    except DAMAGE:
        values = None
    return values if isinstance(values, dict) else {}


def _described(holder: Mapping[str, object]) -> str:
    """Return the owner of a lock file, in words."""
    if not holder:
        return "it has just begun, and its process is not known yet"
    pid, command, since = map(holder.get, ("pid", "command", "since"))
    return f"process {pid} ({command}) since {since}"


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
