"""The owner of a lease: in words, and so that its own machine can tell whether it lives.

The process is named by the boot of its machine, the namespaces in which its id and its start time
mean something, and these two. Who sees another boot, host or namespace (another container, say)
knows nothing about it. Names that are equal may still be of two machines, since a copy of a running
virtual machine has them too: what is done by such a finding must hold if it is wrong.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from socket import gethostname
from typing import Final, NamedTuple

_PROC: Final = Path("/proc")
#: Those of process ids; and of the clock that start times are told by, where the kernel has it.
_NAMESPACES: Final = ("pid", "time")
#: Of ``/proc/<pid>/stat``, behind the name of the program, which may hold anything.
_STATE, _STARTED = 0, 19
_DEAD: Final = frozenset("ZXx")


class _Process(NamedTuple):
    """Its start time in ticks since boot, and whether it has ended and waits to be reaped."""

    started: str
    ended: bool


def owner_of(**more: str | None) -> Mapping[str, str]:
    """The identity of this process, as an owner of leases.

    Args:
        more: what else is known: doing, repository, run, started_by.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    known = {
        "host": gethostname(),
        "user": user,
        "pid": str(os.getpid()),
        "command": " ".join(sys.argv[:6]),
        "process": _own_name(),
    }
    return {name: value for name, value in (known | more).items() if value}


def is_gone(owner: Mapping[str, str]) -> bool:
    """Return whether an owner's process has ended; False wherever that cannot be known from here.

    Args:
        owner: as a lease names it.
    """
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
    found = _process(int(pid))
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
    place, own = _place(), _process(os.getpid())
    return f"{place} {own.started}" if place and own else ""


def _place() -> str:
    """The machine and boot in which process ids mean what they mean here; empty if unknown."""
    try:
        if str((_PROC / "self").readlink()) != str(os.getpid()):
            # The processes of another namespace are shown here.
            return ""
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return " ".join([boot, *map(_namespace, _NAMESPACES)]) if boot else ""
    except OSError:
        return ""


def _namespace(kind: str) -> str:
    try:
        return str((_PROC / "self/ns" / kind).readlink())
    except FileNotFoundError:
        if kind == "pid":
            raise
        return f"no-{kind}"


def _process(pid: int) -> _Process | None:
    """A process of this place; None where it is not shown."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        # Threads may outlive the first one, which then looks as if it had ended.
        alone = len(list((_PROC / str(pid) / "task").iterdir())) == 1
        return _Process(fields[_STARTED], fields[_STATE] in _DEAD and alone)
    except (OSError, IndexError):
        return None
