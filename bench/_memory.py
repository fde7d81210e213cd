"""The most memory that the processes of a run take: its driver, its JVM, one Python worker."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

_PAUSE_S = 0.5


class Memory(threading.Thread):
    """Watches the resident memory of this process, the JVM and the Python workers, in MiB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peaks = {"driver": 0.0, "worker": 0.0, "jvm": 0.0}

    def run(self) -> None:
        while True:
            me, parents, found = os.getpid(), dict(_parents()), list(_status())
            # The JVM also starts short-lived shells, which share its memory for a moment.
            jvms = {process for process, name, _ in found if name == "java"}
            for process, name, resident in found:
                kind = None
                if process == me:
                    kind = "driver"
                elif me not in _ancestors(process, parents):
                    continue
                elif process in jvms:
                    kind = "jvm"
                elif name.startswith("python") and jvms & set(_ancestors(process, parents)):
                    kind = "worker"
                if kind:
                    self.peaks[kind] = max(self.peaks[kind], resident)
            time.sleep(_PAUSE_S)

    def show(self) -> None:
        """Print the peaks."""
        for kind, peak in self.peaks.items():
            print(f"peak memory of the {kind:<8} {peak:8.0f} MiB")


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            yield int(entry.name), int(fields[1])


def _status() -> Iterator[tuple[int, str, float]]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            lines = (entry / "status").read_text().splitlines()
        except OSError:
            continue
        values = dict(line.split(":", 1) for line in lines if ":" in line)
        resident = float(values.get("VmRSS", "0 kB").split()[0]) / 1024
        yield int(entry.name), values["Name"].strip(), resident


def _ancestors(process: int, parents: Mapping[int, int]) -> Iterator[int]:
    while process in parents:
        process = parents[process]
        yield process
