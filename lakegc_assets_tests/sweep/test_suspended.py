"""A sweeper that was suspended deletes nothing that came to life while it slept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.lease_record import LEASE, LeaseRecord
from lakegc_assets_tests.lake import REPOSITORY, SmallLake
from lakegc_assets_tests.sweep.deleting import plant
from lakegc_assets_tests.sweep.suspended import AHEAD, MACHINE_AHEAD

_HOURS = 3 * 3600


def _state(pid: int) -> str:
    """Of a process, as the kernel tells it; ``T`` is suspended."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _sleeping(
    bare: SmallLake, addresses: list[str], meanwhile: Callable[[], None]
) -> tuple[list[dict[str, str]], str]:
    """Suspend a sweeper while it waits for HEADs, behind its first batch; what it says then.

    Args:
        bare: where.
        addresses: that it is to delete.
        meanwhile: happens while it is suspended.
    """
    for ahead in (AHEAD, MACHINE_AHEAD):
        (bare.folder / ahead).write_text("0")
    arguments = [str(bare.folder), bare.server.endpoint, str(bare.server.objects_dir), *addresses]
    process = subprocess.Popen(
        [sys.executable, "-m", "lakegc_assets_tests.sweep.suspended", *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )
    asleep: list[set[str]] = []

    def suspend(_method: str, _path: str) -> None:
        left = bare.keys() & set(addresses)
        if asleep or left == set(addresses):
            return
        os.kill(process.pid, signal.SIGSTOP)
        while _state(process.pid) != "T":
            time.sleep(0.001)
        asleep.append(left)
        meanwhile()
        os.kill(process.pid, signal.SIGCONT)

    bare.on_request = suspend
    counts, said = process.communicate(timeout=600)[0].splitlines()
    assert process.returncode == 0
    assert asleep == [set(addresses[2:])]
    return json.loads(counts), said


@pytest.mark.parametrize(
    "taken",
    [
        pytest.param(False, id="lease ran out", marks=pytest.mark.conformance),
        pytest.param(True, id="lease was taken"),
    ],
)
def test_it_wakes_up_and_deletes_nothing(bare: SmallLake, *, taken: bool) -> None:
    addresses = plant(bare, 6)

    def meanwhile() -> None:
        (bare.folder / AHEAD).write_text(str(_HOURS))
        if taken:
            _take_over(bare)

    told, said = _sleeping(bare, addresses, meanwhile)
    assert [row["outcome"] for row in told] == ["deleted", "lost"]
    why = "another process has the lease: a sweep by somebody" if taken else "expired"
    assert why in told[1]["detail"]
    assert said.startswith("LeaseLostError: ")
    assert bare.keys() & set(addresses) == set(addresses[2:])


@pytest.mark.parametrize(
    ("clocks", "why"),
    [
        ((AHEAD, MACHINE_AHEAD), "this process was suspended"),
        # As with a virtual machine that is paused from outside.
        ((AHEAD,), "the machine stood still"),
    ],
)
def test_it_keeps_its_lease_and_asks_for_a_new_delta_mark(
    bare: SmallLake, clocks: tuple[str, ...], why: str
) -> None:
    """Objects staged while it slept are in no delta mark."""
    addresses = plant(bare, 6)

    def meanwhile() -> None:
        for clock in clocks:
            (bare.folder / clock).write_text("90")

    told, said = _sleeping(bare, addresses, meanwhile)
    assert [row["outcome"] for row in told] == ["deleted", "stale"]
    assert why in told[1]["detail"]
    assert said == "the lease was kept"
    assert bare.keys() & set(addresses) == set(addresses[2:])


def _take_over(bare: SmallLake) -> None:
    """Another machine takes the lease that has run out, and keeps it."""
    store = open_store(f"local://{REPOSITORY}", bare.server.store_config)
    seen = store.head(LEASE).etag
    record = LeaseRecord.from_bytes(store.get(LEASE), "")
    theirs = LeaseRecord("theirs", {"host": "elsewhere"}, record.expires + timedelta(hours=9))
    store.put_if_match(LEASE, theirs.to_bytes(), seen)
