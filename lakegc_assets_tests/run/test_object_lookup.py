"""Objects are looked at by name: all that are there are found, and with few requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.run import object_lookup
from lakegc_assets.run.object_lookup import stat_many
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import InvalidKeyError, ObjectNotFoundError
from lakegc_assets.storage.values import LISTING_SCHEMA, ObjectInfo
from lakegc_assets_tests.mark.test_listing import KEY, NOW, Keys


class _Counting(Keys):
    """Counts what it is asked for; names with a NUL can be no keys."""

    def __init__(self, keys: Sequence[str], page: int = 1000) -> None:
        super().__init__(keys, page)
        self.there = frozenset(self.keys)
        self.pages, self.heads = 0, 0

    def list(
        self, prefix: str = "", start_after: str | None = None, end_before: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        self.pages += 1
        return super().list(prefix, start_after, end_before)

    def head(self, key: str) -> ObjectInfo:
        self.heads += 1
        if "\0" in key:
            raise InvalidKeyError(key)
        if key not in self.there:
            raise ObjectNotFoundError(key)
        return ObjectInfo(key, 1, NOW, "")


def looked(store: _Counting, keys: Sequence[str]) -> list[str]:
    batches = list(stat_many(cast("ObjectStore", store), sorted(set(keys))))
    assert all(batch.schema == LISTING_SCHEMA and batch.num_rows for batch in batches)
    return [key for batch in batches for key in batch["key"].to_pylist()]


@given(
    st.lists(KEY, max_size=40), st.lists(KEY, max_size=40), st.integers(1, 5), st.integers(1, 12)
)
def test_what_is_there_is_found(there: list[str], others: list[str], page: int, worth: int) -> None:
    wanted = {*there[::2], *others}
    store = _Counting([key for key in there if "\0" not in key], page)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_lookup, "WORTH", worth)
        patch.setattr(object_lookup, "ASKED", 2)
        assert looked(store, sorted(wanted)) == sorted(wanted & set(store.keys))


def names(numbers: range) -> list[str]:
    return [f"data/slice/{number:09d}" for number in numbers]


@pytest.mark.parametrize(
    ("there", "wanted", "pages", "heads"),
    [
        # All that is there is wanted: a page tells of a thousand.
        (range(5_000), range(5_000), 5, 0),
        # One in fifty: a page tells of twenty, and is cheaper than these.
        (range(50_000), range(0, 50_000, 50), 50, 0),
        # One in a thousand: pages are tried now and then, and hardly ever.
        (range(300_000), range(0, 300_000, 1_000), 5, 295),
        # Nothing is there any more: one page says so.
        (range(0), range(5_000), 1, 0),
        # Few are asked for one by one.
        (range(5_000), range(9), 0, 9),
    ],
)
def test_what_is_cheaper_is_done(there: range, wanted: range, pages: int, heads: int) -> None:
    store, asked = _Counting(names(there)), names(wanted)
    assert looked(store, asked) == sorted({*store.keys} & {*asked})
    assert (store.pages, store.heads) == (pages, heads)
