"""The ranges of metaranges are read from the cache by the rows, not by the files around them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
import pytest

from lakegc_assets.engine import datasets
from lakegc_assets.engine.answers import dumps
from lakegc_assets.mark import metaranges as module
from lakegc_assets.mark.metaranges import KIND, pairs_of, ranges_of
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.table_cache import Decoded, TableCache
from lakegc_assets_tests.lake import REPOSITORY, running
from lakegc_assets_tests.sessions import Session

#: Ranges of each metarange.
_EACH = 20
_FILES = 6


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory, spark: Session) -> Iterator[RunContext]:
    with running(tmp_path_factory.mktemp("lake") / "lake") as lake:
        lake.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        found = lake.context(spark).connect()
        yield replace(found, settings=found.settings.changed(range_num_partitions=4))


@pytest.fixture(scope="module")
def held(ctx: RunContext) -> Mapping[str, Mapping[str, int]]:
    """Entries by range by metarange, which are cached in several files."""
    rng = random.Random(1)
    ranges = {f"{n:064x}": n for n in range(100)}
    found = {
        f"{n:064x}": {i: ranges[i] for i in sorted(rng.sample(sorted(ranges), _EACH))}
        for n in range(1000, 1300)
    }
    cache, ids = TableCache(ctx.connections.cache(), KIND), sorted(found)
    for number in range(_FILES):
        cache.write(
            [
                Decoded(
                    i,
                    pa.table({"range_id": list(found[i]), "entries": list(found[i].values())}),
                    {},
                )
                for i in ids[number::_FILES]
            ]
        )
    return found


def test_pairs_are_those_of_the_metaranges_and_ranges_in_question(
    ctx: RunContext, held: Mapping[str, Mapping[str, int]]
) -> None:
    some = sorted(held)[::7]
    wanted = {(m, i, n) for m in some for i, n in held[m].items()}
    rows = pairs_of(ctx, some)
    assert {tuple(row.values()) for row in rows.to_pylist()} == wanted
    assert rows.num_rows == len(wanted)
    (one, *_) = {i for _, i, _ in wanted}
    rows = pairs_of(ctx, held, [one])
    assert sorted(rows["metarange_id"].to_pylist()) == [m for m in sorted(held) if one in held[m]]
    assert pairs_of(ctx, []).num_rows == 0


@pytest.mark.parametrize("at_a_time", [1, 50, 1_000_000])
def test_each_range_is_returned_once_with_the_highest_rank(
    ctx: RunContext,
    held: Mapping[str, Mapping[str, int]],
    at_a_time: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KIND", KIND._replace(file_rows=at_a_time))
    ranks = {m: number % 11 for number, m in enumerate(sorted(held)[:40])}
    without = pa.array(sorted(held[min(held)])[:3], pa.string())
    wanted: dict[str, tuple[int, int]] = {}
    for metarange, rank in ranks.items():
        for range_id, entries in held[metarange].items():
            if range_id not in without.to_pylist():
                before = wanted.get(range_id, (entries, rank))[1]
                wanted[range_id] = (entries, max(rank, before))
    rows = ranges_of(ctx, ranks, without).rows.to_pylist()
    assert {row["range_id"]: (row["entries"], row["rank"]) for row in rows} == wanted
    assert len(rows) == len(wanted)


def test_versions_of_a_range_are_close_by(ctx: RunContext) -> None:
    # Ids are digests, and say nothing of where the range of a metarange lies.
    versions = [[f"{v * 7 % 5}{place * 11 % 13:063x}" for place in range(10)] for v in range(5)]
    cache = TableCache(ctx.connections.cache(), KIND)
    tables = [
        Decoded(f"{v + 2000:064x}", pa.table({"range_id": ids, "entries": [1] * 10}), {})
        for v, ids in enumerate(versions)
    ]
    cache.write(tables)
    found = ranges_of(ctx, {one.table_id: 0 for one in tables}).rows["range_id"].to_pylist()
    places = [next(v.index(i) for v in versions if i in v) for i in found]
    assert places == sorted(places)
    assert len(places) == 50


def test_each_file_is_read_once_however_many_tasks_there_are(
    ctx: RunContext, held: Mapping[str, Mapping[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: Counter[str] = Counter()
    plain = datasets.read_part

    def counting(store: object, part: datasets.Part, *more: object) -> pa.Table:
        read[part.key] += 1
        return plain(store, part, *more)  # type: ignore[arg-type]

    monkeypatch.setattr("lakegc_assets.run.table_cache.read_part", counting)
    # Work enough for as many tasks as the settings allow.
    monkeypatch.setattr(module, "CACHED_S", 10.0)
    monkeypatch.setattr("lakegc_assets.engine.tasks.PROCESS_SECONDS", 1e9)
    ranges_of(ctx, dict.fromkeys(held, 0))
    assert len(read) == _FILES
    assert set(read.values()) == {1}


def test_what_is_read_of_one_table_does_not_hold_its_file(ctx: RunContext) -> None:
    cache = TableCache(ctx.connections.cache(), KIND._replace(version=99))
    tables = {i: pa.table({"range_id": [i * 64] * 10_000}) for i in "abc"}
    slots = cache.write([Decoded(i, rows, {}) for i, rows in tables.items()])
    file = slots["b"].file

    def read(*ids: str) -> list[pa.Table]:
        return cache.read(file, [slots[i] for i in ids]) or []

    assert [read(*ids) for ids in ("b", "cab", "ca")] == [
        [tables[i] for i in ids] for ids in ("b", "cab", "ca")
    ]
    assert read("b")[0].get_total_buffer_size() < 1.1 * tables["b"].get_total_buffer_size()
    assert len(dumps(read("a", "c")[0].slice(0, 1))) < 2_000
