"""A sweeper that was suspended for hours wakes up and deletes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.lease_record import LEASE, LeaseRecord
from lakegc_assets_tests.lake import REPOSITORY, SmallLake
from lakegc_assets_tests.sweep.suspended import AHEAD

_HOURS = 3 * 3600


def _state(pid: int) -> str:
    """Of a process, as the kernel tells it; ``T`` is suspended."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _plant(bare: SmallLake) -> list[str]:
    addresses = [f"data/planted/{n}" for n in range(6)]
    for address in addresses:
        path = bare.objects / address
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("planted")
    return addresses


@pytest.mark.parametrize("taken", [False, True], ids=["lease ran out", "lease was taken"])
def test_it_wakes_up_and_deletes_nothing(bare: SmallLake, *, taken: bool) -> None:
    """It sleeps while it waits for HEADs, after a first batch that it was allowed to send."""
    addresses = _plant(bare)
    ahead = bare.folder / AHEAD
    ahead.write_text("0")
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
        ahead.write_text(str(_HOURS))
        if taken:
            _take_over(bare)
        os.kill(process.pid, signal.SIGCONT)

    bare.on_request = suspend
    counts, said = process.communicate(timeout=600)[0].splitlines()
    assert process.returncode == 0
    assert [row["outcome"] for row in json.loads(counts)] == ["deleted", "lost"]
    assert ("another's: host elsewhere" if taken else "ran out") in json.loads(counts)[1]["detail"]
    assert said.startswith("LeaseLostError: ")
    assert asleep == [set(addresses[2:])]
    assert bare.keys() & set(addresses) == set(addresses[2:])


def _take_over(bare: SmallLake) -> None:
    """Another machine takes the lease that has run out, and keeps it."""
    store = open_store(f"local://{REPOSITORY}", bare.server.store_config)
    seen = store.head(LEASE).etag
    record = LeaseRecord.from_bytes(store.get(LEASE), "")
    theirs = LeaseRecord("theirs", {"host": "elsewhere"}, record.expires + timedelta(hours=9))
    store.put_if_match(LEASE, theirs.to_bytes(), seen)
