"""With a backup, only what is in it is deleted, and restores bring back what was deleted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from lakegc_assets.recovery import backup_creation
from lakegc_assets.recovery.backup_location import require_no_other_backup
from lakegc_assets.recovery.backups import BEGIN, Record, Subject, subject_of
from lakegc_assets.run.pins import PINS
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets_tests.simulation import row_files, seams
from lakegc_assets_tests.simulation.backup_world import BackupOracle, BackupWorld
from lakegc_assets_tests.simulation.choices import Choices
from lakegc_assets_tests.simulation.client import NAMESPACE
from lakegc_assets_tests.simulation.interleaving import THEMES, interleave
from lakegc_assets_tests.simulation.store import Kept
from lakegc_assets_tests.simulation.themes import BACKUP_THEMES, MARK_THEMES
from lakegc_assets_tests.simulation.world import Result

_FIRST = THEMES + len(MARK_THEMES)


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with seams.installed():
        yield


def _oracle(ended: Result) -> BackupOracle:
    oracle = ended.world.oracle
    assert isinstance(oracle, BackupOracle)
    return oracle


def test_a_dull_interleaving_backs_up_all_that_it_deletes() -> None:
    ended = interleave(Choices(None, (0, _FIRST)))
    assert ended.failure is None
    marked = _oracle(ended).marked["mark-1"]
    assert _oracle(ended).deletes.keys() == marked
    copies = {key.removeprefix("all/repo/mark-1/") for key in ended.world.buckets["backup"]}
    assert marked <= copies


def test_two_who_begin_a_backup_at_a_time_finish_one(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Subject] = []

    def subject(chain: Any) -> Subject:
        told.append(subject_of(chain))
        return told[-1]

    def overtaken(store: ObjectStore, stores: StoreConfig) -> None:
        """Another begins, between two questions of this one."""
        store.put(BEGIN, Record(told[-1], datetime(2026, 1, 1, tzinfo=timezone.utc)).to_bytes())
        require_no_other_backup(store, stores)

    monkeypatch.setattr(backup_creation, "subject_of", subject)
    monkeypatch.setattr(backup_creation, "require_no_other_backup", overtaken)
    ended = interleave(Choices(None, (0, _FIRST)))
    assert ended.failure is None
    assert ended.world.covered["ended well", "backup"] == len(told) == 1


def test_interleavings_with_backups_break_no_promise() -> None:
    seeds = [(seed, _FIRST + seed % len(BACKUP_THEMES)) for seed in range(30)]
    ended = [interleave(Choices(seed, (seed % 4, theme))) for seed, theme in seeds]
    assert [one.failure for one in ended] == [None] * len(ended)
    # Some of them restore all that was swept.
    assert sum(_oracle(one).restored for one in ended) > 0
    assert any(_oracle(one).brought for one in ended)


def test_a_world_knows_which_objects_a_stale_list_of_pins_does_not_protect() -> None:
    world = interleave(Choices(None, (0, _FIRST))).world
    assert isinstance(world, BackupWorld)
    pin = f"{PINS}r1.parquet"
    with seams.inside(world):
        data = row_files.encode(pa.table({"address": ["data/old/one"]}))
        world.buckets["lake"][f"repo/{pin}"] = Kept(data, "e", world.store_time(), len(data))
        world.unlisted(world.store(NAMESPACE), ["data/old/two", pin])
    assert world.oracle.unlisted == {"data/old/one": world.scheduler.steps}


def test_prunes_remove_backups_and_keep_those_that_are_needed() -> None:
    seen: set[str] = set()
    for seed in range(80):
        ended = interleave(Choices(seed, (seed % 4, _FIRST + len(BACKUP_THEMES) - 1)))
        assert ended.failure is None
        seen |= {what for how, what in ended.world.covered if how == "prune"}
        if {"backup kept", "backup removed"} <= seen:
            return
    raise AssertionError(f"prunes only did {seen}")
