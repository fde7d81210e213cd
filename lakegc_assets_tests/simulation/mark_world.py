"""A world in which marks are made: slices, uploads in parts, clocks that jump, and days that pass.

Every object of it has a time at which it came to be, whatever time the store gives it: one that is
uploaded in parts has the time at which its upload began.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any, Final

from lakegc_assets.graveler.namespace import new_slice_name
from lakegc_assets.mark.installation import MARKER
from lakegc_assets_tests.simulation.client import NAMESPACE, REPOSITORY
from lakegc_assets_tests.simulation.lake import DAY, Lake
from lakegc_assets_tests.simulation.mark_oracle import MarkOracle
from lakegc_assets_tests.simulation.oracle import Since
from lakegc_assets_tests.simulation.store import Kept, SimStore
from lakegc_assets_tests.simulation.world import BASE, PREFIX, World

#: For how long lakeFS gives addresses of a slice, and for how long each may be used, in seconds.
SLICE_S: Final = 3600.0
HANDED_S: Final = float(DAY)


class MarkWorld(World):
    """A world in which marks are made.

    Attributes:
        slice: the present one, and when it was made, in seconds.
        promised: addresses that were given out and have no object yet.
        trial: whether objects of any age may be candidates, as for tests and trials.
        every_slice: whether slices are listed that are too new by their names.
        second: what another server has of the repository; None without one.
        server_known: whether a marker in the namespace names the first from the beginning.
        telling_ids: whether servers tell their installation ids.
    """

    oracle: MarkOracle
    earlier_marks = True

    def __init__(self, *given: Any, **how: Any) -> None:
        super().__init__(*given, **how)
        self.oracle = MarkOracle(self)
        self.slice = ("", float("-inf"))
        self.promised: list[str] = []
        self.trial = self.every_slice = self.server_known = False
        self.second: Lake | None = None

    @property
    def is_second(self) -> bool:
        """Whether the present process works with the other server."""
        return self.second is not None and self.process.boot == "machine b"

    @property
    def own(self) -> Lake:
        """The repository, as the server has it with which the present process works."""
        return self.second if self.second is not None and self.is_second else self.lake

    def mark_server(self) -> None:
        """The first server has collected before."""
        self.server_known = True
        told = {"installation_id": self.installation(second=False), "repository": REPOSITORY}
        self.write_directly(MARKER, json.dumps(told | {"creation_date": 0}).encode())

    def begin_serials(self) -> None:
        """Give names that no object has which is there from the beginning."""
        self._serials = 100

    # Slices

    def address(self) -> str:
        """An address that lakeFS gives out now."""
        now = self.scheduler.now
        if now - self.slice[1] > SLICE_S:
            made = BASE + timedelta(seconds=now)
            self.slice = (new_slice_name(made, b"sim", 1, len(self.oracle.born)), now)
        return f"data/{self.slice[0]}/{self.serial()}"

    def write_directly(
        self, key: str, data: bytes, modified: datetime | None = None, of: str = REPOSITORY
    ) -> Kept:
        """As ``World.write_directly``; what is not lakeFS's own came to be now."""
        if key.startswith("data/"):
            self.oracle.born[key] = self.oracle.now()
        return super().write_directly(key, data, modified, of)

    def bring_back(self, key: str, etag: str = "", version: str | None = None) -> bool:
        """As ``World.bring_back``: it is as old as it was, and there from now on."""
        if not super().bring_back(key, etag, version):
            return False
        self.oracle.born[key.removeprefix(PREFIX)] = self.oracle.now()
        self.oracle.back.add(key.removeprefix(PREFIX))
        return True

    # Notes for the oracle

    def written(self, store: SimStore, key: str, data: bytes) -> None:
        """As ``World.written``; and of marks."""
        super().written(store, key, data)
        if store.url == NAMESPACE and key.startswith("_lakefs/retention/gc/unified/"):
            if key.endswith("/summary.json"):
                self.oracle.listed(key.split("/")[-2])
        elif key == "attempt.json":
            self.oracle.lists_now(store.url.rsplit("/", 1)[-1])
        elif key == "deletion_candidates/manifest.json":
            self.oracle.chosen[json.loads(data)["run"]] = self.is_second
        elif key == "gc_report/manifest.json":
            self.oracle.finished_mark(store.url, json.loads(data))

    def manifest(self, key: str) -> Any:
        """A manifest, as values."""
        return json.loads(self.buckets["artifacts"][key].data)

    @staticmethod
    def at(since: Since) -> datetime:
        """When something was, by the true time."""
        return BASE + timedelta(seconds=since.time)
