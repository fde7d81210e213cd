"""Deleting tasks on a store behind a proxy, and whether what they recorded is true."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pyarrow.parquet as pq

from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.probes import Condition
from lakegc_assets.sweep.lease import repository_lease
from lakegc_assets_tests.lake import SmallLake
from lakegc_assets_tests.reliability.places import Fault, Place
from lakegc_assets_tests.reliability.proxy import leave_alone
from lakegc_assets_tests.sweep.test_stores import Sweep, plant

DURATION = timedelta(minutes=3)
KEPT = {"data/kept", "data/slice é/kept"}
DONE = ("deleted", "already_missing", "spared")


def records(sweep: Sweep) -> list[dict[str, Any]]:
    """All that the ledger holds."""
    found = sweep.folder.glob("swept_set/ledger/*.parquet")
    return [row for path in found for row in pq.read_table(path).to_pylist()]


class Trial:
    """25 marked objects, to be deleted in batches of ten, beside two that are not marked."""

    def __init__(self, bare: SmallLake, place: Place) -> None:
        self.bare = bare
        self.place = place
        direct = open_store(place.url, place.direct)
        self.marked = plant(direct, 25)
        for key in KEPT:
            direct.put(key, b"not marked")

    @contextmanager
    def sweeping(self) -> Iterator[Sweep]:
        with repository_lease(self.place.store, {"pid": "1"}, duration=DURATION) as lease:
            sweep = Sweep(self.bare, (self.place.url, self.place.config), lease)
            # A task that sends a batch again does not wait before it.
            sweep.sleep = lambda _seconds: None
            yield sweep

    @property
    def addresses(self) -> set[str]:
        return {marked.address for marked in self.marked}

    def there(self) -> set[str]:
        return {key for key in self.place.truth() if key.startswith("data/")}

    def check_records(self, sweep: Sweep) -> None:
        """What is recorded as gone is gone, and only marked objects are."""
        there = self.there()
        assert there >= KEPT
        assert not there & sweep.outcomes("deleted", "already_missing").keys()

    def finish(self, sweep: Sweep, condition: Condition = "none") -> None:
        """Another round, without faults, does what is left: then all is gone, and recorded once."""
        self.place.proxy.meddle = leave_alone
        sweep.round(self.marked, condition)
        self.check_finished(sweep)

    def check_finished(self, sweep: Sweep) -> None:
        assert sweep.outcomes(*DONE).keys() == self.addresses
        assert self.there() == KEPT

    def goes_on(self, fault: Fault, times: int, condition: Condition = "none") -> dict[str, int]:
        """One round that meets a fault some times, and ends exact; objects by outcome."""
        with self.sweeping() as sweep:
            self.place.meddle(self.place.says.deletes, fault, times=times)
            totals = sweep.round(self.marked, condition)
            assert len(records(sweep)) == len(self.marked)
            self.check_finished(sweep)
        return totals

    def stops(self, fault: Fault, *codes: str) -> None:
        """A fault that never ends: the task stops, what it says is true, and a later round ends."""
        with self.sweeping() as sweep:
            self.place.meddle(self.place.says.deletes, fault)
            assert sweep.round(self.marked, "none") == {"failed": 10}
            found = {row["error_code"] for row in records(sweep)}
            assert found <= set(codes), found
            self.check_records(sweep)
            self.finish(sweep)
