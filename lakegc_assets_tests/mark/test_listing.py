"""The key ranges of a listing cover every key once, however a namespace is laid out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegc_assets.mark import listing
from lakegc_assets.mark.listing import key_ranges
from lakegc_assets.storage.base import KeyRange, ObjectInfo, ObjectStore, Prefixes, to_batch
from lakegc_assets.storage.config import StoreConfig

NOW = datetime(2026, 11, 21, tzinfo=timezone.utc)


class _Keys:
    """A store of names alone, in pages of three."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = sorted(set(keys), key=str.encode)

    def list(
        self, prefix: str = "", start_after: str | None = None, end_before: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        wanted = KeyRange(prefix, start_after, end_before)
        found = [ObjectInfo(key, 1, NOW, "") for key in self.keys if key in wanted]
        for at in range(0, len(found), 3):
            yield to_batch(found[at : at + 3])

    def list_prefixes(self, prefix: str = "") -> Prefixes:
        below = [k.removeprefix(prefix) for k in self.keys if k.startswith(prefix)]
        return Prefixes(sorted({prefix + k.split("/")[0] + "/" for k in below if "/" in k}), [])


def store_of(keys: Sequence[str]) -> ObjectStore:
    return cast("ObjectStore", _Keys(keys))


def listed(store: ObjectStore) -> list[str]:
    """All keys of all ranges, as the tasks list them."""
    found: list[str] = []
    for low, high in key_ranges(store):
        end = None if high is None else high + "\0"
        for page in store.list(start_after=low, end_before=end):
            found += page["key"].to_pylist()
    return found


SLICE = st.text("0ft9vz_~ ", min_size=1, max_size=4)
PART = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), max_size=3)
KEY = st.one_of(
    st.tuples(st.just("data"), SLICE, PART).map("/".join),
    st.tuples(st.just("data"), PART).map("/".join),
    st.tuples(st.sampled_from(["_lakefs", "_lakefs0", "dat", "data0", "zz"]), PART).map("/".join),
    st.tuples(PART, PART, PART).map("/".join),
    st.tuples(st.just("data/"), PART, st.sampled_from(["\U0010ffff", "\0"]), PART).map("".join),
    PART,
).filter(bool)


@settings(max_examples=300)
@given(st.lists(KEY, max_size=40), st.integers(1, 12))
def test_every_key_is_listed_once(keys: list[str], dense: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_DENSE", dense)
        found = listed(store_of(keys))
    assert len(found) == len(set(found))
    assert {k for k in keys if not k.startswith("_lakefs/")} <= set(found)
    # Below _lakefs/ nothing but the folder's own name or the last name there could be is listed.
    assert {k for k in found if k.startswith("_lakefs/")} <= {"_lakefs/"} | {
        k for k in keys if k.startswith("_lakefs/\U0010ffff")
    }


def test_slices_are_listed_apart() -> None:
    keys = [f"data/{name}/{number}" for name in "abc" for number in range(5)]
    ranges = key_ranges(store_of([*keys, "_lakefs/x", "dummy"]))
    for name in "abc":
        low_high = [r for r in ranges if r[1] == f"data/{name}/" or r[0] == f"data/{name}/"]
        assert len(low_high) == 2
    assert listed(store_of(keys)) == keys


def test_a_dense_flat_repository_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"{number:032x}" for number in range(0, 16**4, 97)]
    assert len(key_ranges(store_of(keys))) == 4
    monkeypatch.setattr(listing, "_DENSE", 100)
    assert len(key_ranges(store_of(keys))) == 40
    assert sorted(listed(store_of(keys))) == keys
    flat = [f"data/{key}" for key in keys]
    assert len(key_ranges(store_of(flat))) > 60
    assert sorted(listed(store_of(flat))) == flat


def test_an_empty_store_has_no_keys(tmp_path: Path) -> None:
    assert listed(StoreConfig().open(str(tmp_path))) == []


def test_real_files_are_listed_once(tmp_path: Path) -> None:
    names = ["dummy", "data/a/1", "data/a/2", "data/b/1,token", "data/flat", "z/y", "_lakefs/x"]
    names += ["data/é/1", "data/%41/+ 1", "data.txt", "data/a0"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = listed(StoreConfig().open(str(tmp_path)))
    assert sorted(found) == sorted(set(names) - {"_lakefs/x"})
