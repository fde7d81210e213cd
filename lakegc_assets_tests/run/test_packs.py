"""What is read from the cache is what was put there under that very name, or nothing."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from lakegc_assets.run.packs import Decoded, by_pack, read_group, read_slots, unneeded, write_pack
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.opening import open_store

ONE, TWO = "1" * 64, "2" * 64


@pytest.fixture
def cache(tmp_path: Path) -> ObjectStore:
    store = open_store(str(tmp_path))
    tables = [
        Decoded(name, {"keys": pa.table({"key": keys})}, {"entries": len(keys)})
        for name, keys in ((ONE, ["a", "b"]), (TWO, ["c"]))
    ]
    write_pack(store, "ranges", 1, tables)
    return store


def keys_of(cache: ObjectStore, suffix: str) -> list[str]:
    return [k for b in cache.list() for k in b["key"].to_pylist() if k.endswith(suffix)]


def read(cache: ObjectStore, kind: str = "ranges", version: int = 1) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    slots = read_slots(cache, kind, version)
    names = {id(slot): name for name, slot in slots.items()}
    for pack, members in by_pack(slots.values()):
        tables = read_group(cache, pack, "keys", members)
        for slot, table in zip(members, tables or [], strict=False):
            found[names[id(slot)]] = table["key"].to_pylist()
    return found


def test_tables_are_kept_by_kind_version_and_name(cache: ObjectStore) -> None:
    assert read(cache) == {ONE: ["a", "b"], TWO: ["c"]}
    assert read_slots(cache, "ranges", 1)[TWO].facts == {"entries": 1}
    assert read(cache, "metaranges") == read(cache, version=2) == {}


def test_a_damaged_index_is_none(cache: ObjectStore) -> None:
    (key,) = keys_of(cache, ".index")
    whole = cache.get(key)
    for at in range(0, len(whole), 13):
        cache.put(key, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert read(cache) == {}
    cache.put(key, whole)
    assert read(cache)


def test_damaged_rows_are_none_and_forgotten(cache: ObjectStore) -> None:
    (key,) = keys_of(cache, ".parquet")
    whole = cache.get(key)
    cache.put(key, whole[:-9] + b"x" + whole[-8:])
    assert read(cache) == {}
    cache.put(key, whole)
    assert read_slots(cache, "ranges", 1) == {}, "the next reader decodes again"


def test_the_whole_index_of_another_pack_is_none(cache: ObjectStore) -> None:
    (first,) = keys_of(cache, ".index")
    write_pack(cache, "ranges", 1, [Decoded(ONE, {"keys": pa.table({"key": ["z"]})}, {})])
    other = next(key for key in keys_of(cache, ".index") if key != first)
    cache.copy(other, first)
    cache.delete_many([other])
    assert read(cache) == {}


def gone(cache: ObjectStore, *wanted: str, before: timedelta = timedelta(days=1)) -> list[str]:
    """What nobody needs, of what was written before some time from now."""
    when = cache.server_time() + before
    return [key for key, _ in unneeded(cache, "ranges", 1, set(wanted), when)]


def test_a_pack_goes_as_a_whole_when_none_of_its_tables_is_wanted(cache: ObjectStore) -> None:
    assert gone(cache, ONE) == gone(cache, TWO, "3" * 64) == []
    assert gone(cache, before=timedelta(days=-1)) == []
    (index,), (file,) = keys_of(cache, ".index"), keys_of(cache, ".parquet")
    # Who is killed after the index leaves no pack that seems whole.
    assert gone(cache, "3" * 64) == [index, file]
    cache.delete_many([index])
    assert gone(cache, ONE) == [file]


def test_what_another_version_or_a_damaged_index_left_goes(cache: ObjectStore) -> None:
    write_pack(cache, "ranges", 0, [Decoded(ONE, {"keys": pa.table({"key": ["z"]})}, {})])
    write_pack(cache, "witness", 1, [Decoded(ONE, {"keys": pa.table({"key": ["z"]})}, {})])
    found = gone(cache, ONE)
    assert len(found) == 2
    assert all(key.startswith("ranges/v0-") for key in found)
    cache.delete_many(found)
    (index,) = (key for key in keys_of(cache, ".index") if key.startswith("ranges/"))
    cache.put(index, b"damaged")
    assert set(gone(cache, ONE)) == {key for key in keys_of(cache, "") if "ranges/" in key}
