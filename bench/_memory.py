"""The peak memory of all processes of a run together, by their kinds; and their CPU time.

Memory that processes share, as forked ones do, counts once: each process counts with the
proportional share of its pages (PSS). Servers that a benchmark started before the watch do not
count.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_PAUSE_S = 0.3
_MIB = 1024
#: Fields after a process's name in its statistics: CPU time of the process, and of its ended
#: children.
_CPU = slice(11, 15)


class Memory(threading.Thread):
    """Watches a process and the processes that it starts from now on.

    Args:
        root: id of the process.

    Attributes:
        peaks: maximum in MiB, by kind: ``driver`` (the process itself), ``jvm``, ``workers`` (all
            Python below the JVM), ``others``, and ``all`` of them at one time.
    """

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.peaks: dict[str, float] = defaultdict(float)
        self._root = root
        self._servers = {pid for pid in _below(root, _parents()) if pid != root}
        self._done = threading.Event()

    def run(self) -> None:
        """Read the memory repeatedly until ``stop``."""
        while not self._done.wait(_PAUSE_S):
            self._look()

    def stop(self) -> None:
        """Stop watching."""
        self._done.set()
        self.join()

    def show(self) -> None:
        """Print the peaks."""
        parts = ", ".join(f"{kind} {peak:,.0f}" for kind, peak in sorted(self.peaks.items()))
        print(f"peak memory in MiB: {parts}", flush=True)

    def _look(self) -> None:
        now: dict[str, float] = defaultdict(float)
        parents = _parents()
        jvms: set[int] = set()
        for pid in _below(self._root, parents, self._servers):
            name, share = _name(pid), _share(pid)
            if name == "java":
                jvms.add(pid)
            kind = "others"
            if pid == self._root:
                kind = "driver"
            elif pid in jvms:
                kind = "jvm"
            elif jvms & set(_ancestors(pid, parents)):
                kind = "workers"
            now[kind] += share
            now["all"] += share
        for kind, found in now.items():
            self.peaks[kind] = max(self.peaks[kind], found)


@contextmanager
def watched(root: int | None = None) -> Iterator[Memory]:
    """Watch this process, or another one, during the block."""
    memory = Memory(os.getpid() if root is None else root)
    memory.start()
    try:
        yield memory
    finally:
        memory.stop()


class CpuTime:
    """CPU time of this process and its new children; other load of the machine does not count."""

    def __init__(self) -> None:
        me = os.getpid()
        self._servers = {pid for pid in _below(me, _parents()) if pid != me}

    def seconds(self) -> float:
        """Seconds so far."""
        found = _below(os.getpid(), _parents(), self._servers)
        ticks = sum(int(ticks) for pid in found for ticks in _statistics(pid)[_CPU])
        return ticks / os.sysconf("SC_CLK_TCK")


def _parents() -> dict[int, int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return {pid: int(fields[1]) for pid in pids if (fields := _statistics(pid))}


def _statistics(pid: int) -> list[str]:
    """The statistics of a process after its name; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _below(root: int, parents: Mapping[int, int], without: set[int] | None = None) -> Iterator[int]:
    """A process and its descendants, parents first, except ``without`` and their descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid, parent in parents.items():
        children[parent].append(pid)
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if pid in (without or ()):
            continue
        yield pid
        waiting += children[pid]


def _ancestors(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    while pid in parents:
        pid = parents[pid]
        yield pid


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _share(pid: int) -> float:
    """Proportional share of a process's resident memory, in MiB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / _MIB
