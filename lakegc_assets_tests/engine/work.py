"""Tasks for other processes, which import this module alone: to import the tests takes long."""

from __future__ import annotations

import gc
import os
import signal
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from lakegc_assets import traffic
from lakegc_assets.engine.tasks import interrupted
from lakegc_assets.errors import IntegrityError
from lakegc_assets.storage.errors import AccessDeniedError

#: A piece of a column.
_ORDER = np.arange(1 << 13)
_kept: list[object] = []


def add(one: int, other: int) -> tuple[int, int]:
    return other, one + other


def ask(requests: int) -> int:
    traffic.add_all({"store GET": requests, "lakefs POST": 1})
    return -requests


def pid(_: object) -> int:
    return os.getpid()


def spared(_: object) -> bool:
    return gc.get_freeze_count() > len(gc.get_objects())


def same(value: object) -> object:
    return value


def refuse(number: int) -> int:
    raise AccessDeniedError(f"s3://b/{number}")


def find_damage(number: int) -> int:
    raise IntegrityError(f"{number} is cut: a\nand b")


def end_process(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def meet(folder: Path, count: int, number: int) -> int:
    """Wait until so many others run at the same time."""
    (folder / str(number)).touch()
    until = time.monotonic() + 60
    while len(list(folder.iterdir())) < count and time.monotonic() < until:
        time.sleep(0.01)
    return len(list(folder.iterdir()))


def fail_or_go_on(folder: Path, number: int) -> None:
    """One fails while another runs; all but that one go on until they are to end."""
    (folder / f"{number}.begun").touch()
    until = time.monotonic() + 60
    while len(list(folder.glob("*.begun"))) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    if number == 0:
        raise IntegrityError("it is cut")
    while not interrupted() and time.monotonic() < until:
        time.sleep(0.01)


def fail_or_wait(folder: Path, number: int) -> None:
    fail_or_go_on(folder, number)
    time.sleep(0.5)
    (folder / f"{number}.ended").write_text(str(interrupted()))


def fail_or_die(folder: Path, number: int) -> None:
    fail_or_go_on(folder, number)
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_the_end(folder: Path, number: int) -> None:
    (folder / "begun").touch()
    until = time.monotonic() + 60
    while not interrupted() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.5)
    (folder / f"{number}.ended").touch()


def signal_itself(number: signal.Signals) -> int:
    os.kill(os.getpid(), number)
    time.sleep(0.1)
    return number


def held_megabytes(_: object) -> int:
    lines = Path("/proc/self/smaps_rollup").read_text("ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) >> 10


def hold_megabytes(megabytes: int) -> int:
    # In pieces, as columns of batches are: of one large buffer nothing is kept.
    tables = [pa.array(_ORDER).take(_ORDER) for _ in range(megabytes << 4)]
    arrays = [np.array(_ORDER) for _ in range(megabytes << 4)]
    # What lies last stays, so that all below it would.
    _kept.append(arrays[-1])
    return len(tables) + len(arrays) >> 4
