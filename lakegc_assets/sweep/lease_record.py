"""The record of the lease of a repository: its key, its owner, and the test that a task may delete.

The owner's process is named by the boot of its machine, the namespaces in which its id and its
start time are valid, its id and its start time. A process in another boot, host or namespace (for
example another container) knows nothing about it. Equal names may still be of two machines, since a
copy of a running virtual machine has the same names. So an action that relies on this must be safe
even if the owner lives.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from socket import gethostname
from typing import Annotated, Final, NamedTuple

from pydantic import Field

from lakegc_assets.run.command_line import own_command
from lakegc_assets.run.json_record import JsonRecord, Moment
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError

#: Folder in which the kernel shows processes.
PROC: Final = Path("/proc")
#: Kinds of namespaces: of process ids, and of the clock of start times, on kernels that have it.
NAMESPACES: Final = ("pid", "time")
#: Fields of ``/proc/<pid>/stat`` after the name of the program, which may contain any character.
_STATE, _STARTED = 0, 19
_DEAD: Final = frozenset("ZXx")
#: Folder of the files that sweeps, backups and restores share in the namespace. No mark names it.
FOLDER: Final = "_lakefs/retention/gc/lakegc/"
LEASE: Final = f"{FOLDER}lease.json"
#: Key prefix of objects that are written to probe the behaviour of a store.
PROBES: Final = f"{FOLDER}probe-"
#: Least remaining time of a lease for a batch to be sent.
_MARGIN: Final = timedelta(seconds=60)


class _Process(NamedTuple):
    """Start time of a process in ticks since boot; ``ended``: True if it waits to be reaped."""

    started: str
    ended: bool


def owner_of(**more: str | None) -> Mapping[str, str]:
    """Return the identity of this process, as an owner of leases.

    ``more``: optional values: doing, repository, run, started_by.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    known = {
        "host": gethostname(),
        "user": user,
        "pid": str(os.getpid()),
        "command": own_command(),
        "process": _own_name(),
    }
    return {name: value for name, value in (known | more).items() if value}


def is_gone(owner: Mapping[str, str]) -> bool:
    """Return True if the owner's process has ended; False if that cannot be known from here."""
    place, _, started = owner.get("process", "").rpartition(" ")
    pid = owner.get("pid", "")
    if not place or place != _place() or owner.get("host") != gethostname():
        return False
    if not (pid.isascii() and pid.isdecimal() and int(pid)):
        return False
    try:
        # /proc may hide processes of other users; a signal 0 finds them, too.
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    found = process_of(int(pid))
    return found is not None and (found.started != started or found.ended)


def describe(owner: Mapping[str, str]) -> str:
    """Describe the owner in words, with the time since when it holds the lease."""
    host = f" on {owner['host']}" if "host" in owner else ""
    process = ", ".join(
        text.format(owner[part])
        for part, text in (("pid", "process {}"), ("command", "{}"), ("started_by", "{}"))
        if part in owner
    )
    since = f" since {owner['since']}" if "since" in owner else ""
    return f"{owner.get('user', 'somebody')}{host}{f' ({process})' if process else ''}{since}"


def work_of(owner: Mapping[str, str]) -> str:
    """Describe the work of an owner: a sweep of run 'first'."""
    run = f" of run {owner['run']!r}" if "run" in owner else ""
    return f"a {owner.get('doing', 'sweep')}{run}"


def _own_name() -> str:
    place, own = _place(), process_of(os.getpid())
    return f"{place} {own.started}" if place and own else ""


def _place() -> str:
    """Return the boot and namespaces in which process ids are valid here; empty if unknown."""
    try:
        if str((PROC / "self").readlink()) != str(os.getpid()):
            # /proc shows the processes of another namespace.
            return ""
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return " ".join([boot, *map(_namespace, NAMESPACES)]) if boot else ""
    except OSError:
        return ""


def _namespace(kind: str) -> str:
    try:
        return str((PROC / "self/ns" / kind).readlink())
    except FileNotFoundError:
        if kind == "pid":
            raise
        return f"no-{kind}"


def process_of(pid: int) -> _Process | None:
    """Return a process of this namespace; None if /proc does not show it."""
    try:
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        # Other threads may outlive the main thread, which then looks like an ended process.
        alone = len(list((PROC / str(pid) / "task").iterdir())) == 1
        return _Process(fields[_STARTED], fields[_STATE] in _DEAD and alone)
    except (OSError, IndexError):
        return None


@dataclass(frozen=True)
class LeaseRecord(
    JsonRecord,
    damaged="its owner is not known. Make sure that no sweep, restore, backup or prune of this "
    "repository runs, then remove the file",
):
    """The content of the lease object.

    Attributes:
        token: random token of the owner.
        owner: identity of the owner (``owner_of``), and since when it holds the lease.
        expires: time of expiry, by the store's clock, UTC.
        renewed: number of writes, so that no two contents of a lease are equal.
        round: round of the sweep that may delete; tasks of an earlier round must not. Negative
            while requests of an earlier owner may be in flight.
        released: True if the owner has given the lease back.
    """

    token: Annotated[str, Field(min_length=1)]
    owner: Mapping[str, str]
    expires: Moment
    renewed: int = 0
    round: int = 0
    released: bool = False

    def __str__(self) -> str:
        """Describe work, owner and start of the lease, for messages."""
        return f"{work_of(self.owner)} by {describe(self.owner)}"


def sweep_of(token: str) -> str:
    """Return the short name of the work under the lease with this token."""
    return token[:16]


def read_lease(store: ObjectStore) -> LeaseRecord:
    """Read the lease of a repository.

    Raises:
        ObjectNotFoundError: there is no lease.
        IntegrityError: the lease is damaged.
    """
    return LeaseRecord.from_bytes(store.get(LEASE), f"{store.url}/{LEASE}")


def ended(record: LeaseRecord, token: str) -> str:
    """Return why the owner of this token no longer has the lease; empty if it may still have it."""
    if record.token != token:
        return f"another process has the lease: {record}"
    return f"it was released, as at the end of its work: {record}" if record.released else ""


def lost(store: ObjectStore, token: str, number: int, now: datetime) -> str:
    """Return why a task must not delete any more; empty while the lease holds long enough.

    ``token``: token of the lease under which the task was started; ``number``: its round; ``now``:
    the store's time, read just before.

    Raises:
        StorageError: the store could not be read.
        IntegrityError: the lease is damaged.
    """
    try:
        record = read_lease(store)
    except ObjectNotFoundError:
        return f"{store.url}/{LEASE} is gone"
    if why := ended(record, token):
        return why
    if record.round != number:
        return f"round {record.round} of this sweep has begun"
    if record.expires - now < _MARGIN:
        return f"the lease has expired or soon expires, at {record.expires.isoformat()}"
    return ""
