"""Keeps two runs on one repository apart on this machine, whoever started them.

The lock is the kernel's (``flock``): it is released when its process ends, however it ends. What
keeps sweeps apart wherever they run is their lease in the namespace (``sweep.lease``); the lock is
taken before Spark starts, and for marks too.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import gettempdir
from time import monotonic, sleep
from typing import Final

from lakegc_assets.errors import RefusedError

_POLL_S: Final = 5.0
#: How often it is said how long somebody has waited.
_QUIET_S: Final = 30.0


#: The namespaces that this thread holds are its ``namespaces``.
_held = threading.local()


def lock_file(namespace_url: str) -> Path:
    """The lock file of a storage namespace, below the system's folder for temporary files."""
    folder = Path(gettempdir()) / f"lakegc-locks-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / hashlib.sha256(namespace_url.encode()).hexdigest()[:32]


@contextmanager
def repository_lock(
    namespace_url: str,
    wait: timedelta = timedelta(0),
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[None]:
    """Hold the repository whose storage namespace this is; may be nested within a thread.

    ``report`` gets a sentence now and then about which run is waited for, and how long.

    Raises:
        RefusedError: another run holds it, with its process, its command and since when.
    """
    held: set[str] = _held.__dict__.setdefault("namespaces", set())
    if namespace_url in held:
        yield
        return
    with lock_file(namespace_url).open("a+") as file:
        _acquire(file.fileno(), namespace_url, wait.total_seconds(), report)
        held.add(namespace_url)
        try:
            yield
        finally:
            held.discard(namespace_url)


def _acquire(
    descriptor: int, namespace_url: str, wait: float, report: Callable[[str], None]
) -> None:
    began, reported = monotonic(), -_QUIET_S
    while not _taken(descriptor):
        holder = _described(os.pread(descriptor, 4096, 0))
        held = f"another run holds {namespace_url} on this machine: {holder}"
        waited = monotonic() - began
        if waited >= wait:
            so_long = f"; this one has waited {waited:.0f} s for that" if wait else ""
            raise RefusedError(f"{held}. Wait for it to end{so_long}")
        if waited - reported >= _QUIET_S:
            report(f"waiting, {waited:.0f} s of {wait:.0f} s at most: {held}")
            reported = waited
        sleep(min(_POLL_S, wait - waited))
    holder = json.dumps(
        {
            "pid": os.getpid(),
            "command": " ".join(sys.argv[:6]),
            "since": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC",
        },
    )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, holder.encode(), 0)


def _described(holder: bytes) -> str:
    """The owner of a lock file, in words."""
    try:
        values = json.loads(holder)
        return f"process {values['pid']} ({values['command']}) since {values['since']}"
    except (ValueError, LookupError, TypeError):
        return "nobody knows who, since it is about to say so"


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
