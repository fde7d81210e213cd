"""The record of the lease of a repository: its key, its owner, and the test that a task may go on.

The owner's process is named by the boot of its machine, the namespaces in which its id and its
start time mean something, and these two. Who sees another boot, host or namespace (another
container, say) knows nothing about it. Names that are equal may still be of two machines, since a
copy of a running virtual machine has them too: what is done by such a finding must hold if it is
wrong.
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

#: Where the kernel shows processes.
PROC: Final = Path("/proc")
#: Those of process ids; and of the clock that start times are told by, where the kernel has it.
NAMESPACES: Final = ("pid", "time")
#: Of ``/proc/<pid>/stat``, behind the name of the program, which may hold anything.
_STATE, _STARTED = 0, 19
_DEAD: Final = frozenset("ZXx")
#: Below the namespace: what sweeps, backups and restores tell each other. No mark names it.
FOLDER: Final = "_lakefs/retention/gc/lakegc/"
LEASE: Final = f"{FOLDER}lease.json"
#: Objects that are written to see what a store does with them.
PROBES: Final = f"{FOLDER}probe-"
#: How much of a lease must be left for a batch to be sent.
_MARGIN: Final = timedelta(seconds=60)


class _Process(NamedTuple):
    """Its start time in ticks since boot, and whether it has ended and waits to be reaped."""

    started: str
    ended: bool


def owner_of(**more: str | None) -> Mapping[str, str]:
    """The identity of this process, as an owner of leases.

    ``more``: what else is known: doing, repository, run, started_by.
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
    """Return whether an owner's process has ended; False if that cannot be known from here."""
    place, _, started = owner.get("process", "").rpartition(" ")
    pid = owner.get("pid", "")
    if not place or place != _place() or owner.get("host") != gethostname():
        return False
    if not (pid.isascii() and pid.isdecimal() and int(pid)):
        return False
    try:
        # Others' processes may be hidden in /proc; this finds them all the same.
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    found = process_of(int(pid))
    return found is not None and (found.started != started or found.ended)


def describe(owner: Mapping[str, str]) -> str:
    """The owner in words, with the time since when."""
    host = f" on {owner['host']}" if "host" in owner else ""
    process = ", ".join(
        text.format(owner[part])
        for part, text in (("pid", "process {}"), ("command", "{}"), ("started_by", "{}"))
        if part in owner
    )
    since = f" since {owner['since']}" if "since" in owner else ""
    return f"{owner.get('user', 'somebody')}{host}{f' ({process})' if process else ''}{since}"


def work_of(owner: Mapping[str, str]) -> str:
    """The work of an owner in words: a sweep of run 'first'."""
    run = f" of run {owner['run']!r}" if "run" in owner else ""
    return f"a {owner.get('doing', 'sweep')}{run}"


def _own_name() -> str:
    place, own = _place(), process_of(os.getpid())
    return f"{place} {own.started}" if place and own else ""


def _place() -> str:
    """The machine and boot in which process ids mean what they mean here; empty if unknown."""
    try:
        if str((PROC / "self").readlink()) != str(os.getpid()):
            # The processes of another namespace are shown here.
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
    """A process of this place; None where it is not shown."""
    try:
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        # Threads may outlive the first one, which then looks as if it had ended.
        alone = len(list((PROC / str(pid) / "task").iterdir())) == 1
        return _Process(fields[_STARTED], fields[_STATE] in _DEAD and alone)
    except (OSError, IndexError):
        return None


@dataclass(frozen=True)
class LeaseRecord(
    JsonRecord,
    damaged="nobody can tell who sweeps this repository. Make sure that nobody does, then remove "
    "it",
):
    """The content of the lease object.

    Attributes:
        token: random; that of the owner.
        owner: who that is (``owner_of``), and since when.
        expires: by the store's clock, UTC.
        renewed: how often it was written, so that no two of its contents are equal.
        round: which round of its sweep may delete; tasks of an earlier one must not. Below 0 while
            requests of an earlier owner may be on their way.
        released: whether its owner has given it back.
    """

    token: Annotated[str, Field(min_length=1)]
    owner: Mapping[str, str]
    expires: Moment
    renewed: int = 0
    round: int = 0
    released: bool = False

    def __str__(self) -> str:
        """Purpose, owner and start of the lease, for messages."""
        return f"{work_of(self.owner)} by {describe(self.owner)}"


def sweep_of(token: str) -> str:
    """The short name of what is done under the lease with this token."""
    return token[:16]


def read_lease(store: ObjectStore) -> LeaseRecord:
    """The lease of a repository.

    Raises:
        ObjectNotFoundError: there is none.
        IntegrityError: it is damaged.
    """
    return LeaseRecord.from_bytes(store.get(LEASE), f"{store.url}/{LEASE}")


def lost(store: ObjectStore, token: str, number: int, now: datetime) -> str:
    """Why a task must not delete any more; empty while the lease still holds long enough.

    ``token`` is of the lease under which the task was started, ``number`` of its round, and ``now``
    the store's time, as it was just before.

    Raises:
        StorageError: nobody can tell.
        IntegrityError: the lease is damaged.
    """
    try:
        record = read_lease(store)
    except ObjectNotFoundError:
        return f"{store.url}/{LEASE} is gone"
    if record.token != token or record.released:
        return f"the lease is another's: {record}"
    if record.round != number:
        return f"round {record.round} of this sweep has begun"
    if record.expires - now < _MARGIN:
        return f"the lease ran out, or is about to, at {record.expires.isoformat()}"
    return ""
