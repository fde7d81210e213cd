"""Order and bounds of pages, for stores that sort and skip in their own ways."""

from __future__ import annotations

from datetime import datetime, timezone

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.storage.base import KeyRange, ObjectInfo, to_batch
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.pages import (
    Page,
    check_order,
    in_byte_order,
    inside,
    require_prefix,
    shared_prefix,
)

_TIME = datetime(2026, 1, 2, tzinfo=timezone.utc)
# Characters on both sides of those that UTF-16 and UTF-8 sort in different ways.
_TEXT = st.text("a/-\ud7ff\ue000\uffe6\U00010000\U0001f600", max_size=4)
_KEYS = st.lists(_TEXT.filter(bool), unique=True, max_size=30)


def batch_of(keys: list[str]) -> pa.RecordBatch:
    return to_batch([ObjectInfo(key, 1, _TIME, "e") for key in keys])


def keys_of(batches: list[pa.RecordBatch]) -> list[str]:
    return [key for batch in batches for key in batch["key"].to_pylist()]


@given(keys=_KEYS, size=st.integers(1, 5), utf16=st.booleans())
def test_keys_in_either_order_come_out_in_byte_order(
    keys: list[str], size: int, *, utf16: bool
) -> None:
    keys.sort(key=lambda key: key.encode("utf-16-be" if utf16 else "utf-8"))
    pages = [batch_of(keys[start : start + size]) for start in range(0, len(keys), size)]
    found = list(in_byte_order([pages[0], batch_of([]), *pages[1:]] if pages else []))
    assert keys_of(found) == sorted(keys, key=str.encode)
    assert all(batch.num_rows for batch in found)


def test_keys_that_are_in_no_order_stay_so_and_are_refused() -> None:
    (found,) = in_byte_order([batch_of(["b", "a"])])
    with pytest.raises(StorageError, match="out of order"):
        check_order(found["key"], "", "", "there")
    mixed = keys_of(list(in_byte_order([batch_of(["b\U0001f600", "a\ue000", "b\ue000"])])))
    assert mixed == ["b\U0001f600", "a\ue000", "b\ue000"]


@given(
    keys=_KEYS,
    prefix=st.text("a/-", max_size=2),
    low=st.none() | _TEXT,
    high=st.none() | _TEXT,
)
def test_what_is_inside_a_range_has_its_shared_prefix(
    keys: list[str], prefix: str, low: str | None, high: str | None
) -> None:
    wanted = KeyRange(prefix, low, high)
    expected = [key for key in keys if key in wanted]
    assert keys_of([inside(batch_of(keys), wanted)]) == expected
    shared = shared_prefix(wanted)
    assert shared.startswith(prefix)
    assert all(key.startswith(shared) for key in expected)


def test_keys_and_prefixes_that_were_not_asked_for_are_refused() -> None:
    require_prefix(Page(batch_of(["a/1"]), ["a/2/"], None), "a/", "there")
    for page in (Page(batch_of(["a/1", "b"]), [], None), Page(batch_of([]), ["b/"], None)):
        with pytest.raises(StorageError, match="not asked for"):
            require_prefix(page, "a/", "there")
