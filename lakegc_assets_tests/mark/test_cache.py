"""What is read from the cache is what was put there under that very name, or nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakegc_assets.mark.cache import DecodedCache
from lakegc_assets.storage.opening import open_store

ONE, TWO = "1" * 64, "2" * 64
TABLE = pa.table({"range_id": ["a", "b"]})


@pytest.fixture
def cache(tmp_path: Path) -> DecodedCache:
    return DecodedCache(open_store(str(tmp_path)))


def file_of(cache: DecodedCache, table_id: str) -> str:
    (key,) = [k for b in cache.store.list() for k in b["key"].to_pylist() if table_id in k]
    return str(key)


def test_a_table_is_kept_by_kind_and_name(cache: DecodedCache) -> None:
    cache.put("ranges", ONE, TABLE)
    assert cache.get("ranges", ONE) == TABLE
    assert cache.has("ranges", ONE)
    assert cache.get("metaranges", ONE) is cache.get("ranges", TWO) is None


@pytest.mark.parametrize("at", [0, 31, 32, -1])
def test_a_damaged_table_is_none(cache: DecodedCache, at: int) -> None:
    cache.put("ranges", ONE, TABLE)
    data = bytearray(cache.store.get(file_of(cache, ONE)))
    data[at] ^= 1
    cache.store.put(file_of(cache, ONE), bytes(data))
    assert cache.get("ranges", ONE) is None


def test_the_whole_table_of_another_name_is_none(cache: DecodedCache) -> None:
    cache.put("ranges", ONE, TABLE)
    cache.put("ranges", TWO, TABLE.slice(0, 1))
    cache.store.copy(file_of(cache, TWO), file_of(cache, ONE))
    assert cache.get("ranges", ONE) is None
