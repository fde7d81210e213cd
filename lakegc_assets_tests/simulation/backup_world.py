"""A world with a backup: what is deleted must be in it, and what comes back must be what it was."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lakegc_assets.run.pins import PINS
from lakegc_assets_tests.simulation import row_files
from lakegc_assets_tests.simulation.client import NAMESPACE, REPOSITORY
from lakegc_assets_tests.simulation.oracle import Finished, LossError, Oracle, Sent
from lakegc_assets_tests.simulation.pruning import require_another_copy
from lakegc_assets_tests.simulation.world import PREFIX, World

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakegc_assets_tests.simulation.store import Kept, SimStore

#: Where backups are.
BACKUPS: Final = "s3://backup/all"
#: Why an object stays that a store did not let be copied, and one whose copy lists may lack.
_NOT_COPIED: Final = "not in the backup: failed"
_NOT_LISTED: Final = "not in the backup: the copy is gone or another"
_LACKING: Final = frozenset({"cut page", "stale list"})


def _pinned_by(data: bytes) -> list[str]:
    """The addresses that the file of a pin names."""
    return [row["address"] for row in row_files.rows_of(data)]


@dataclass
class BackupOracle(Oracle):
    """Watches a world with a backup.

    Attributes:
        content: of what may come back, by key.
        restored: how many restores ended well.
    """

    content: dict[str, bytes] = field(default_factory=dict)
    restored: int = 0

    def require_copy(self, key: str, data: bytes, copy: Kept | None, sent: Sent) -> bytes:
        """What is deleted is in the backup; what may come back."""
        if copy is not None and copy.data == data:
            return data
        if key in self.rewritten and self.rewritten[key].time >= sent.compared:
            # Behind the comparison: what is to come back is what was marked.
            return data if copy is None else copy.data
        what = "has no copy" if copy is None else "has another copy"
        raise LossError(f"{key} is deleted, and {what} in the backup")

    def came(self, key: str, data: bytes) -> None:
        """Somebody wrote an object to the key of one that was deleted."""
        if data != self.content.get(key):
            raise LossError(f"{key} comes back, and is not what was deleted")
        self.brought_back(key)

    def require_pin(self, key: str) -> None:
        """What a restore brings back is pinned before."""
        if key not in self.pinned:
            raise LossError(f"{key} is restored, and not pinned")

    def require_outcomes(self, done: Finished) -> None:
        told = self.world.outcomes(done.url)
        # What could not be copied stays for a true reason.
        lacking = _LACKING & {what for what, _ in self.world.covered}
        true = (_NOT_COPIED, _NOT_LISTED) if lacking else (_NOT_COPIED,)
        self.once_live |= {key for key, _, why in told if why and why.startswith(true)}
        super().require_outcomes(done)

    def ended_restore(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """A restore says what became of each object."""
        there = self.world.buckets["lake"]
        for row in rows:
            address, outcome = row["address"], row["outcome"]
            if outcome in {"restored", "already_there"} and PREFIX + address not in there:
                raise LossError(f"{address} is said to be {outcome}, and is gone")
            if outcome == "not_kept" and PREFIX + address in there:
                raise LossError(f"{address} is said to be {outcome}, and is there")
        self.restored += 1
        self.world.say("  the restore has ended well")


class BackupWorld(World):
    """A world with a backup."""

    oracle: BackupOracle
    _taken: tuple[str, Kept] | None = None

    def watch(self) -> None:
        """Let an oracle watch that knows of backups."""
        self.oracle = BackupOracle(self, marked=self.oracle.marked)

    def keep(self, key: str, kept: Kept, trash: str | None = None) -> str | None:
        """As ``World.keep``."""
        self._taken = (key, kept)
        return super().keep(key, kept, trash)

    def deleted(self, store: SimStore, key: str, sent: object) -> None:
        """As ``World.deleted``; and it must be in the backup."""
        if isinstance(sent, Sent) and store.url == NAMESPACE and self._taken is not None:
            data = self._taken[1].data
            copy = f"all/{REPOSITORY}/{sent.run}/{key}"
            kept = self.buckets["backup"].get(copy)
            self.oracle.content[key] = self.oracle.require_copy(key, data, kept, sent)
        super().deleted(store, key, sent)
        if store.url.startswith(BACKUPS):
            require_another_copy(self, key, "backup")

    def came_back(self, key: str) -> None:
        """As ``World.came_back``."""
        super().came_back(key)
        # Probes delete and bring back objects of their own.
        if key.startswith("data/"):
            self._came(key, self.buckets["lake"][PREFIX + key].data)

    def written(self, store: SimStore, key: str, data: bytes) -> None:
        """As ``World.written``; and of pins, restores and what they bring back."""
        super().written(store, key, data)
        if store.url == NAMESPACE and key.startswith("data/"):
            self._came(key, data)
        elif store.url == NAMESPACE and key.startswith(PINS):
            for address in _pinned_by(data):
                self.oracle.pinned.setdefault(address, self.oracle.now())
            self.oracle.look()
        elif key.startswith("restored_set/") and key.endswith("/manifest.json"):
            folder = f"{store.url.removeprefix('s3://artifacts/')}/"
            kept = self.buckets["artifacts"]
            rows: list[Mapping[str, Any]] = []
            for part, *_ in json.loads(data)["parts"]["data"]:
                rows += row_files.rows_of(kept[folder + part].data)
            self.oracle.ended_restore(rows)

    def unlisted(self, store: SimStore, keys: Sequence[str]) -> None:
        """As ``World.unlisted``; and of pins."""
        for key in keys:
            if store.url == NAMESPACE and key.startswith(PINS):
                for address in _pinned_by(self.buckets["lake"][PREFIX + key].data):
                    self.oracle.unlisted[address] = self.oracle.now().step

    def _came(self, key: str, data: bytes) -> None:
        actor = self.scheduler.current
        assert actor is not None
        if actor.facts.get("restores"):
            self.oracle.require_pin(key)
        self.oracle.came(key, data)
