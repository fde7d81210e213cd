"""Live sets are whole: what a task or the cache lost of them stops the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakegc_assets.errors import IntegrityError
from lakegc_assets.mark import live_ranges, ranges, uncommitted_snapshot
from lakegc_assets.mark.live_ranges import isolate
from lakegc_assets.mark.ranges import KIND, ROWS, cached_ranges
from lakegc_assets.mark.uncommitted_snapshot import listed_once
from lakegc_assets.run.table_cache import Decoded, TableCache
from lakegc_assets_tests.lake import REPOSITORY, STAGES, SmallLake, running
from lakegc_assets_tests.sessions import Session


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[SmallLake]:
    """Two branches with ranges of their own, and something staged."""
    with running(tmp_path / "lake") as found:
        found.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        found.client.create_branch(REPOSITORY, "dev", "main")
        for branch in ("main", "dev"):
            found.upload(branch, f"of/{branch}", f"of {branch}")
            found.commit(branch)
            found.upload(branch, f"staged/{branch}", f"staged on {branch}")
        yield found


def mark(lake: SmallLake, spark: Session, run: str = "mark-1") -> None:
    ctx = lake.context(spark, run)
    for stage in STAGES[:4]:
        stage(ctx)


def test_a_range_that_no_task_has_read(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = ranges.read_entries

    def all_but_one(*args: Any) -> Iterator[Any]:
        yield from list(read(*args))[1:]

    monkeypatch.setattr(live_ranges, "read_entries", all_but_one)
    with pytest.raises(IntegrityError, match=r"of 2 live ranges of .* 1 were read"):
        mark(lake, spark)


def test_a_staged_object_that_no_task_has_written(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanings = uncommitted_snapshot.meanings

    def all_but_one(*args: Any) -> Iterator[pa.Table]:
        for rows in meanings(*args):
            yield rows.slice(1)

    monkeypatch.setattr(uncommitted_snapshot, "meanings", all_but_one)
    with pytest.raises(IntegrityError, match="1 rows were written for 2 staged objects"):
        mark(lake, spark)


def test_a_cached_range_that_lacks_rows(lake: SmallLake, spark: Session) -> None:
    mark(lake, spark)
    connections = lake.context(spark).connect().connections
    cache = TableCache(connections.cache(), KIND)
    slots = cache.slots()
    cache.forget({slot.file for slot in slots.values()})
    nothing = ROWS.empty_table().drop_columns([KIND.id_column])
    cache.write([Decoded(range_id, nothing, slot.facts) for range_id, slot in slots.items()])
    assert len(cached_ranges(connections)) == 2
    with pytest.raises(IntegrityError, match="0 rows are known of the 1 entries of range"):
        mark(lake, spark, "mark-2")


def test_beside_what_is_damaged_all_is_read() -> None:
    def read(items: Sequence[tuple[int, bool]]) -> list[int]:
        if any(damaged for _, damaged in items):
            raise IntegrityError("one of them is damaged")
        return [number for number, _ in items]

    for damaged in product([False, True], repeat=5):
        found, others = isolate(read, list(enumerate(damaged)))
        assert [n for part in found for n in part] == [n for n in range(5) if not damaged[n]]
        assert [item for item, _ in others] == [(n, True) for n in range(5) if damaged[n]]
    assert isolate(read, []) == ([], [])


def test_what_several_tries_list_again_is_no_number_of_staged_objects() -> None:
    """A list that lacks some would have as many as the branches' diffs."""
    assert [listed_once(5, tries) for tries in (1, 2, 3)] == [5, 0, 0]
