"""What is read from the cache is what was put there under that very name, or nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakegc_assets.errors import IntegrityError
from lakegc_assets.run import table_cache
from lakegc_assets.run.table_cache import Decoded, Kind, TableCache, by_file
from lakegc_assets.storage import parquet
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.frames import Frames

ONE, TWO, THREE = "1" * 64, "2" * 64, "3" * 64
RANGES = Kind("ranges", 1, "range_id")
ROWS = pa.schema([("range_id", pa.string()), ("key", pa.string())])
KEYS = {ONE: ["a", "b"], TWO: ["c"]}


def decoded(name: str, keys: list[str]) -> Decoded:
    return Decoded(name, pa.table({"key": pa.array(keys, pa.string())}), {"entries": len(keys)})


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    found = open_store(str(tmp_path))
    TableCache(found, RANGES).write([decoded(*one) for one in KEYS.items()])
    return found


def keys_of(store: ObjectStore, suffix: str) -> list[str]:
    return [k for b in store.list() for k in b["key"].to_pylist() if k.endswith(suffix)]


def read(store: ObjectStore, kind: Kind = RANGES) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    cache = TableCache(store, kind)
    slots = cache.slots()
    names = {id(slot): name for name, slot in slots.items()}
    for file, members in by_file(slots.values()):
        tables = cache.read(file, members)
        for slot, table in zip(members, tables or [], strict=False):
            found[names[id(slot)]] = table["key"].to_pylist()
    return found


def test_tables_are_cached_by_kind_version_and_name(store: ObjectStore) -> None:
    assert read(store) == KEYS
    assert TableCache(store, RANGES).slots()[TWO].facts == {"entries": 1}
    others = (RANGES._replace(name="metaranges"), RANGES._replace(version=2))
    assert [read(store, kind) for kind in others] == [{}, {}]


def test_a_file_is_a_dataset_with_the_id_beside_each_row(store: ObjectStore) -> None:
    (key,) = keys_of(store, ".parquet")
    rows = pq.read_table(pa.BufferReader(store.get(key))).cast(ROWS).to_pylist()
    assert rows == [{"range_id": i, "key": key} for i, keys in KEYS.items() for key in keys]


def test_a_damaged_index_is_none(store: ObjectStore) -> None:
    (key,) = keys_of(store, ".index")
    whole = store.get(key)
    for at in range(0, len(whole), 13):
        store.put(key, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert read(store) == {}
    store.put(key, whole)
    assert read(store)


_NESTED = pa.table({"a": [1]}).replace_schema_metadata({"file": "[" * 100_000})


@pytest.mark.parametrize(
    "content",
    [b"", b"no Parquet", parquet.encode(pa.table({"a": [1]})), parquet.encode(_NESTED)],
)
def test_an_index_that_is_none_stops_nobody(store: ObjectStore, content: bytes) -> None:
    """Whoever may write to the cache can give a file the name of its digest."""
    (key,) = keys_of(store, ".index")
    folder = key.rpartition("/")[0]
    store.put(f"{folder}/{hashlib.sha256(content).hexdigest()}.index", content)
    assert read(store).keys() == {*KEYS}


def test_damaged_rows_are_none_and_forgotten(store: ObjectStore) -> None:
    (key,) = keys_of(store, ".parquet")
    whole = store.get(key)
    store.put(key, whole[:-9] + b"x" + whole[-8:])
    assert read(store) == {}
    store.put(key, whole)
    assert TableCache(store, RANGES).slots() == {}, "the next reader decodes again"


def test_the_whole_index_of_another_file_is_none(store: ObjectStore) -> None:
    (first,) = keys_of(store, ".index")
    TableCache(store, RANGES).write([decoded(ONE, ["z"])])
    other = next(key for key in keys_of(store, ".index") if key != first)
    store.put(first, store.get(other))
    store.delete_many([other])
    assert read(store) == {}


def test_a_table_that_is_written_twice_is_in_the_file_once(store: ObjectStore) -> None:
    written = TableCache(store, RANGES).write([decoded(THREE, ["x"]), decoded(THREE, ["x"])])
    assert written[THREE].file.part.rows == 1


# As data frames


def framed(store: ObjectStore, frames: Frames, wanted: Iterable[str]) -> list[tuple[str, str]]:
    cache = TableCache(store, RANGES)
    slots = {i: slot for i, slot in cache.slots().items() if i in set(wanted)}
    frame = cache.frame(frames.session, store.url, slots, ROWS, ["key", "range_id"])
    rows = frames.rows(frame, ROWS)
    return sorted((row["range_id"], row["key"]) for row in rows)


def pairs(*wanted: str, **keys: list[str]) -> list[tuple[str, str]]:
    known = {**KEYS, **{i * 64: values for i, values in keys.items()}}
    return sorted((i, key) for i in wanted for key in known[i])


def test_a_frame_has_the_rows_of_these_tables_and_of_no_others(
    store: ObjectStore, frames: Frames
) -> None:
    for wanted in ([], [ONE], [TWO], [ONE, TWO]):
        assert framed(store, frames, wanted) == pairs(*wanted)


def test_a_frame_has_tables_once_that_are_in_several_files(
    store: ObjectStore, frames: Frames
) -> None:
    cache = TableCache(store, RANGES)
    more = {"3": ["d"], "4": ["e", "f"], "5": ["g"]}
    ids = [ONE, TWO, *(i * 64 for i in more)]
    for some in ((TWO, "3" * 64), ("3" * 64, "4" * 64), ("4" * 64, "5" * 64), (ONE, "5" * 64)):
        cache.write([decoded(i, [key for _, key in pairs(i, **more)]) for i in some])
    assert framed(store, frames, ids) == pairs(*ids, **more)
    for i in ids:
        assert framed(store, frames, [i]) == pairs(i, **more)
        others = [other for other in ids if other != i]
        assert framed(store, frames, others) == pairs(*others, **more)


def test_a_frame_of_a_damaged_file_cannot_be_read(store: ObjectStore, frames: Frames) -> None:
    (key,) = keys_of(store, ".parquet")
    content = store.get(key)
    store.put(key, content[:-9] + b"x" + content[-8:])
    with pytest.raises(IntegrityError, match="is not what its manifest says"):
        framed(store, frames, [ONE])


# Rows that stand for those of a file


def least(rows: pa.Table) -> pa.Table:
    """Each key once."""
    return rows.group_by("key", use_threads=False).aggregate([]).select(["key"])


SUMMARIZED = Kind("summarized", 1, "range_id", summarize=least)
SHARED = {ONE: ["a", "b"], TWO: ["b", "c"]}


@pytest.fixture
def shared(store: ObjectStore) -> TableCache:
    cache = TableCache(store, SUMMARIZED)
    cache.write([decoded(*one) for one in SHARED.items()])
    return cache


def summary(cache: TableCache, store: ObjectStore, frames: Frames, *ids: str) -> list[str]:
    slots = {i: slot for i, slot in cache.slots().items() if i in ids}
    frame = cache.frame(frames.session, store.url, slots, ROWS, ["key"], summarized=True)
    return sorted(row["key"] for row in frames.rows(frame, ROWS.remove(0)))


def test_what_stands_for_a_file_is_read_where_all_of_its_tables_are(
    store: ObjectStore, shared: TableCache, frames: Frames
) -> None:
    assert summary(shared, store, frames, ONE, TWO) == ["a", "b", "c"]
    assert [summary(shared, store, frames, i) for i in SHARED] == [["a", "b"], ["b", "c"]]
    shared.write([decoded(THREE, ["c", "d"])])
    assert summary(shared, store, frames, ONE, TWO, THREE) == ["a", "b", "c", "c", "d"]
    assert summary(shared, store, frames, TWO, THREE) == ["b", "c", "c", "d"]
    whole = shared.frame(frames.session, store.url, shared.slots(), ROWS, ["key"])
    assert len(frames.rows(whole, ROWS.remove(0))) == 6


def test_what_stands_for_a_file_is_damaged_goes_and_is_made_again_with_it(
    store: ObjectStore, shared: TableCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = {slot.file for slot in shared.slots().values()}
    assert file.summary is not None
    assert set(gone_of(shared, store)) == {file.index, file.part.key, file.summary.key}
    assert gone_of(shared, store, TWO) == []
    monkeypatch.setattr(table_cache, "MANY_FILES", 1)
    shared.write([decoded(THREE, ["d"])])
    (together,) = {slot.file for slot in shared.compact().values()}
    assert together.summary is not None
    assert (together.part.rows, together.summary.rows) == (5, 4)
    content = store.get(together.summary.key)
    store.put(together.summary.key, content[:-9] + b"x" + content[-8:])
    assert not shared.is_whole(together)
    assert shared.slots() == {}


def gone_of(cache: TableCache, store: ObjectStore, *wanted: str) -> list[str]:
    when = store.server_time() + timedelta(days=1)
    return [key for key, _ in cache.unneeded(set(wanted), when)]


# Written together


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three small files are many."""
    monkeypatch.setattr(table_cache, "MANY_FILES", 3)
    monkeypatch.setattr(table_cache, "COMPACTED_ROWS", 260)


def test_few_small_files_stay_as_they_are(store: ObjectStore) -> None:
    TableCache(store, RANGES).write([decoded(THREE, ["d"])])
    before = keys_of(store, "")
    assert TableCache(store, RANGES).compact() == TableCache(store, RANGES).slots()
    assert keys_of(store, "") == before


@pytest.mark.usefixtures("few")
def test_small_files_are_written_together(store: ObjectStore) -> None:
    cache = TableCache(store, RANGES)
    cache.write([decoded(THREE, ["d"])])
    cache.write([decoded("4" * 64, [])])
    before = read(store)
    files = set(keys_of(store, ".parquet"))
    slots = cache.compact()
    assert slots == cache.slots()
    assert {i: slot.facts for i, slot in slots.items()} == {
        i: {"entries": len(keys)} for i, keys in before.items()
    }
    assert read(store) == before
    (index,) = {slot.file.index for slot in slots.values()}
    assert keys_of(store, ".index") == [index]
    # Who has read an index of before is about to read these.
    assert files < set(keys_of(store, ".parquet"))
    when = store.server_time() + timedelta(days=1)
    assert {key for key, _ in cache.unneeded({ONE}, when)} == files


@pytest.mark.usefixtures("few")
def test_a_damaged_file_is_not_written_together_with_others(store: ObjectStore) -> None:
    cache = TableCache(store, RANGES)
    (key,) = keys_of(store, ".parquet")
    for name in "345":
        cache.write([decoded(name * 64, [name])])
    content = store.get(key)
    store.put(key, content[:-9] + b"x" + content[-8:])
    assert cache.compact().keys() == {"3" * 64, "4" * 64, "5" * 64}
    assert read(store) == {"3" * 64: ["3"], "4" * 64: ["4"], "5" * 64: ["5"]}


class KilledError(Exception):
    """The process is gone."""


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("after", range(6))
def test_who_is_killed_while_writing_files_together_loses_nothing(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    cache = TableCache(store, RANGES)
    for name in "34567":
        cache.write([decoded(name * 64, [name])])
    before, calls = read(store), list[Any]()

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if len(calls) == after:
                raise KilledError
            calls.append(args)
            return real(*args)

        return call

    delete = dying(store.delete_many)
    with monkeypatch.context() as patch:
        patch.setattr(store, "put", dying(store.put))
        patch.setattr(store, "delete_many", lambda keys: [delete([key]) for key in keys])
        with pytest.raises(KilledError):
            cache.compact()
    assert read(store) == before
    cache.compact()
    assert read(store) == before


@pytest.mark.usefixtures("few")
def test_who_looks_while_files_are_written_together_finds_every_table(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "345":
        TableCache(store, RANGES).write([decoded(name * 64, [name])])
    before = read(store)
    real, compacted = store.get, list[str]()

    def get(key: str) -> bytes:
        if not compacted:
            compacted.append(key)
            TableCache(store, RANGES).compact()
        return real(key)

    monkeypatch.setattr(store, "get", get)
    assert read(store) == before
    assert compacted


# What nobody needs


def gone(store: ObjectStore, *wanted: str, before: timedelta = timedelta(days=1)) -> list[str]:
    """What nobody needs, of what was written before some time from now."""
    when = store.server_time() + before
    return [key for key, _ in TableCache(store, RANGES).unneeded(set(wanted), when)]


def test_a_file_goes_as_a_whole_when_none_of_its_tables_is_wanted(store: ObjectStore) -> None:
    assert gone(store, ONE) == gone(store, TWO, THREE) == []
    assert gone(store, before=timedelta(days=-1)) == []
    (index,), (file,) = keys_of(store, ".index"), keys_of(store, ".parquet")
    # Who is killed after the index leaves no file that seems whole.
    assert gone(store, THREE) == [index, file]
    store.delete_many([index])
    assert gone(store, ONE) == [file]


def test_what_another_version_or_a_damaged_index_left_goes(store: ObjectStore) -> None:
    for kind in (RANGES._replace(version=0), RANGES._replace(name="witness")):
        TableCache(store, kind).write([decoded(ONE, ["z"])])
    found = gone(store, ONE)
    assert len(found) == 2
    assert all(key.startswith("ranges/v0-") for key in found)
    store.delete_many(found)
    (index,) = (key for key in keys_of(store, ".index") if key.startswith("ranges/"))
    store.put(index, b"damaged")
    assert set(gone(store, ONE)) == {key for key in keys_of(store, "") if "ranges/" in key}
