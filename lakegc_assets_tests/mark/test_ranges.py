"""The data frame of ranges holds their entries, all of them and no others, or the run stops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.ranges import read_range
from lakegc_assets.mark import ranges as module
from lakegc_assets.mark.metaranges import ranges_of
from lakegc_assets.mark.ranges import KIND, ROWS, Wanted, range_frame, run_on_ranges
from lakegc_assets.run import table_cache
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import address_hashes, signed
from lakegc_assets.run.table_cache import Decoded, TableCache
from lakegc_assets_tests.frames import Frames
from lakegc_assets_tests.lake import REPOSITORY, SmallLake, running
from lakegc_assets_tests.sessions import Session

BRANCHES = ("main", "one", "two")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallLake]:
    """Branches with a range of their own each."""
    with running(tmp_path_factory.mktemp("lake") / "lake") as found:
        found.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        for branch in BRANCHES[1:]:
            found.client.create_branch(REPOSITORY, branch, "main")
        for branch in BRANCHES:
            for number in range(3):
                found.upload(branch, f"of/{branch}/{number}", f"{number} of {branch}")
            found.commit(branch)
        yield found


class Reading:
    """Reads the ranges of the branches, with a cache that begins empty."""

    def __init__(self, lake: SmallLake, spark: Session, frames: Frames) -> None:
        self.lake, self.frames = lake, frames
        self.ctx: RunContext = lake.context(spark).connect()
        self.connections: Connections = self.ctx.connections
        self.store = self.connections.cache()
        self.store.delete_many([k for b in self.store.list() for k in b["key"].to_pylist()])
        self.cache = TableCache(self.store, KIND)

    def ranges(self, *branches: str) -> pa.Table:
        """Those of some branches."""
        client = self.lake.client
        heads = [client.branch(REPOSITORY, branch).commit_id for branch in branches]
        metaranges = [client.commit(REPOSITORY, head).meta_range_id for head in heads]
        return ranges_of(self.ctx, dict.fromkeys(metaranges, 0)).rows

    def read(self, ranges: pa.Table) -> list[tuple[str, int]]:
        """Range and hash of each row, in order."""
        schema = pa.schema([ROWS.field(name) for name in ("hash", "range_id")])
        with self.frames.another() as session:
            frame = range_frame(self.ctx, session, ranges, schema.names)
            rows = session.collect_rows(frame, schema, "a test")
        return sorted((row["range_id"], row["hash"]) for row in rows)

    def plain(self, ranges: pa.Table) -> list[tuple[str, int]]:
        """The same, by the slow reader."""
        found: list[tuple[str, int]] = []
        for range_id in ranges["range_id"].to_pylist():
            data = self.connections.store().get(f"_lakefs/{range_id}")
            addresses = pa.array([entry.address for _, entry in read_range(data, range_id)])
            hashes = signed(address_hashes(addresses)).to_pylist()
            found += [(range_id, one) for one in hashes]
        return sorted(found)


@pytest.fixture
def reading(lake: SmallLake, spark: Session, frames: Frames) -> Reading:
    return Reading(lake, spark, frames)


def test_entries_of_these_ranges_and_of_no_others(reading: Reading) -> None:
    every, one = reading.ranges(*BRANCHES), reading.ranges("one")
    assert reading.read(one.slice(0, 0)) == []
    assert len(reading.read(one)) == 3
    assert reading.read(every) == reading.plain(every)
    assert reading.read(one) == reading.plain(one)
    assert reading.cache.slots().keys() == set(every["range_id"].to_pylist())


@pytest.mark.parametrize("few", [0, 100_000])
def test_a_damaged_file_of_the_cache_is_decoded_anew(
    reading: Reading, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_cache, "FEW_ROWS", few)
    ranges = reading.ranges(*BRANCHES)
    first = reading.read(ranges)
    damaged = {slot.file.part.key for slot in reading.cache.slots().values()}
    for number, key in enumerate(damaged):
        content = bytearray(reading.store.get(key))
        content[len(content) // 2] ^= 1
        reading.store.put(key, bytes(content if number else content[:-1]))
    assert reading.read(ranges) == first
    assert damaged.isdisjoint(slot.file.part.key for slot in reading.cache.slots().values())
    key = next(iter(reading.cache.slots().values())).file.part.key
    reading.store.delete_many([key])
    assert reading.read(ranges) == first


def test_a_range_that_no_task_has_decoded(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.read_into_cache

    def all_but_one(connections: Connections, strict: bool, some: Sequence[Wanted]) -> Any:  # noqa: FBT001
        return real(connections, strict, some[1:])

    monkeypatch.setattr(module, "read_into_cache", all_but_one)
    with pytest.raises(IntegrityError, match="was not read"):
        reading.read(reading.ranges("one"))


def test_a_range_that_is_not_cached_in_full(reading: Reading) -> None:
    ranges = reading.ranges("one")
    reading.read(ranges)
    slots = reading.cache.slots()
    reading.cache.forget({slot.file for slot in slots.values()})
    nothing = ROWS.empty_table().drop_columns([KIND.id_column])
    reading.cache.write([Decoded(i, nothing, slot.facts) for i, slot in slots.items()])
    with pytest.raises(IntegrityError, match=r"0 rows are known of the \d entries of range"):
        reading.read(ranges)


def test_a_range_of_another_length_than_its_metarange_says(reading: Reading) -> None:
    ranges = reading.ranges("one")
    wrong = ranges.set_column(1, "entries", pc.add(ranges["entries"], 1))
    for _ in ("decoded", "cached"):
        with pytest.raises(IntegrityError, match="but its metarange says"):
            reading.read(wrong)
        reading.read(ranges)


def test_a_task_has_ranges_that_follow_each_other(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakegc_assets.engine.tasks.PROCESS_SECONDS", 1e9)
    # Work for several tasks; the larger ones first would spread what lies close by.
    ranges = [Wanted(f"{n * 7 % 20:064x}", 1_000_000 + n % 3, None) for n in range(20)]
    ctx = replace(reading.ctx, settings=reading.ctx.settings.changed(address_num_partitions=8))
    tasks = run_on_ranges(ctx, "take ranges", list, ranges)
    assert len(tasks) == 8
    assert [one for task in tasks for one in task] == ranges


def test_a_range_that_is_gone(reading: Reading, tmp_path: Path) -> None:
    ranges = reading.ranges("one")
    range_id, *_ = ranges["range_id"].to_pylist()
    file = reading.lake.objects / "_lakefs" / range_id
    file.rename(tmp_path / "aside")
    try:
        with pytest.raises(IntegrityError, match="is missing"):
            reading.read(ranges)
    finally:
        (tmp_path / "aside").rename(file)
