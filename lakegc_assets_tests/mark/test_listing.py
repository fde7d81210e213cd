"""The key ranges of a listing cover every key once, however a namespace is laid out."""

from __future__ import annotations

import logging
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from itertools import islice, takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.namespace import Xid, encode_xid, new_slice_name
from lakegc_assets.mark import key_ranges
from lakegc_assets.mark.key_ranges import KeyRange, Plan, TimeRange, plan
from lakegc_assets.mark.listing_pages import require_ages, slices_of
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.values import KeyRange as Bounds
from lakegc_assets.storage.values import ObjectInfo, Prefixes, to_batch

NOW = datetime(2026, 11, 21, tzinfo=timezone.utc)


class Keys:
    """A store of names alone, in pages of three or more."""

    def __init__(self, keys: Sequence[str], page: int = 3) -> None:
        self.page = page
        self.keys = sorted(set(keys), key=str.encode)
        self.requests = 0

    def list(
        self, prefix: str = "", start_after: str | None = None, end_before: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        wanted = Bounds(prefix, start_after, end_before)
        begin = bisect_left(self.keys, prefix.encode(), key=str.encode)
        if start_after is not None:
            begin = max(begin, bisect_right(self.keys, start_after.encode(), key=str.encode))
        # Many callers want one page of very many.
        keys = takewhile(wanted.__contains__, islice(self.keys, begin, None))
        self.requests += 1
        while page := [ObjectInfo(key, 1, NOW, "") for key in islice(keys, self.page)]:
            yield to_batch(page)
            self.requests += len(page) == self.page

    def list_prefixes(self, prefix: str = "", max_objects: int | None = None) -> Prefixes:
        self.requests += 1
        found = Prefixes([], [])
        for key in self.keys:
            folder, slash, _ = key.removeprefix(prefix).partition("/")
            if not key.startswith(prefix) or prefix + folder + "/" in found.prefixes:
                continue
            if slash:
                found.prefixes.append(prefix + folder + "/")
                continue
            found.objects.append(ObjectInfo(key, 1, NOW, ""))
            if max_objects is not None and len(found.objects) > max_objects:
                break
        return found


def store_of(keys: Sequence[str], page: int = 3) -> ObjectStore:
    return cast("ObjectStore", Keys(keys, page))


def planned(store: ObjectStore, new: TimeRange | None = None) -> Plan:
    return plan(store, 3, new)


def listed(store: ObjectStore, new: TimeRange | None = None) -> list[str]:
    """All keys of all ranges, as the tasks list them."""
    return [key for r in planned(store, new).ranges for key in keys_in(store, r)]


def keys_in(store: ObjectStore, wanted: KeyRange) -> list[str]:
    end = None if wanted.high is None else wanted.high + "\0"
    pages = store.list(start_after=wanted.low, end_before=end)
    return [key for page in pages for key in page["key"].to_pylist()]


SLICE = st.text("!0ft9vz_~ ", min_size=1, max_size=4)
PART = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), max_size=3)
KEY = st.one_of(
    st.tuples(st.just("data"), SLICE, PART).map("/".join),
    st.tuples(st.just("data"), st.sampled_from(["!ab", "!a", "!"]), SLICE, PART).map("/".join),
    st.tuples(st.just("data"), PART).map("/".join),
    st.tuples(st.sampled_from(["_lakefs", "_lakefs0", "dat", "data0", "zz"]), PART).map("/".join),
    st.tuples(PART, PART, PART).map("/".join),
    st.tuples(st.just("data/"), PART, st.sampled_from(["\U0010ffff", "\0"]), PART).map("".join),
    PART,
).filter(bool)


@settings(max_examples=100)
@given(st.lists(KEY, max_size=40), st.integers(1, 12), st.integers(1, 12), st.integers(0, 5))
def test_every_key_is_listed_once(keys: list[str], flat: int, each: int, many: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_ranges, "FLAT", flat)
        patch.setattr(key_ranges, "KEYS_EACH", each)
        patch.setattr(key_ranges, "MANY", many)
        patch.setattr(key_ranges, "SHARD_KEYS", each)
        found = listed(store_of(keys))
    assert len(found) == len(set(found))
    assert {k for k in keys if not k.startswith("_lakefs/")} <= set(found)
    # Below _lakefs/ nothing but the folder's own name or the last name there could be is listed.
    assert {k for k in found if k.startswith("_lakefs/")} <= {"_lakefs/"} | {
        k for k in keys if k.startswith("_lakefs/\U0010ffff")
    }


def sizes(store: ObjectStore, cuts: Sequence[str] = ()) -> list[int]:
    """How many keys each range has."""
    return [len(keys_in(store, r)) for r in plan(store, 20, None, cuts).ranges]


def xids(count: int, seconds: float) -> list[str]:
    """Names as lakeFS makes them, so many, one after the other in so many seconds."""
    start = int(NOW.timestamp())
    return [
        encode_xid(Xid(int(start + n * seconds / count), b"abc", 7, 4000 + n)) for n in range(count)
    ]


HEX = [f"{n * 2654435761 % 2**32:08x}" for n in range(4000)]


# Each worker collects all tests, and one runs them: it makes the keys.
@pytest.mark.parametrize(
    "keys",
    [
        lambda: HEX,
        lambda: [f"data/{name}" for name in HEX],
        lambda: [f"data/part-{n:012d}-of-many.parquet" for n in range(4000)],
        lambda: [f"data/{name}" for name in xids(4000, 90_000)],
        lambda: [*(f"{n:03d}" for n in range(900)), *(f"data/{name}" for name in HEX[900:])],
    ],
    ids=["hex at the root", "hex in data", "numbers", "xids in data", "two layouts"],
)  # fmt: skip
def test_ranges_have_about_the_same_size(
    keys: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_ranges, "KEYS_EACH", 200)
    monkeypatch.setattr(key_ranges, "FLAT", 100)
    found = sizes(store_of(keys(), 20))
    assert sum(found) == 4000
    assert len(found) >= 4
    assert max(found) <= 1000


def shard(number: int, partition: str, xid: str) -> str:
    name = f"{number:03x}"
    return f"data/!{name[:2]}/{name[2]}/{partition}/{xid}"


def sharded(keys: int, shards: int = 4096) -> list[str]:
    """As many addresses, which a hash has spread over so many shards."""
    partition = new_slice_name(NOW, b"abc", 7, 1)
    numbers = (n * 2654435761 % 2**32 * shards >> 32 for n in range(keys))
    return [shard(s, partition, xid) for s, xid in zip(numbers, xids(keys, 3600), strict=True)]


@pytest.mark.parametrize(
    ("keys", "requests"),
    [
        # One for the folders, one each for what is before and behind them, and a few looks.
        (lambda: sharded(880), 20),
        (lambda: sharded(30_000), 80),
        # Folders that somebody else has made.
        (lambda: [f"data/part={n}/file" for n in range(3000)], 40),
    ],
    ids=["880 objects in shards", "30,000 in shards", "3,000 folders"],
)
def test_small_folders_are_planned_and_listed_without_a_request_for_each(
    keys: Callable[[], list[str]], requests: int
) -> None:
    there = keys()
    store = Keys(there, 1000)
    looks = Keys(there, 100)
    ranges = plan(cast("ObjectStore", looks), 100).ranges
    found = [key for r in ranges for key in keys_in(cast("ObjectStore", store), r)]
    assert sorted(found) == sorted(there)
    assert looks.requests + store.requests <= requests


def test_shards_are_spread_over_ranges_of_about_the_same_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_ranges, "FEW", 500)
    found = sizes(store_of(sharded(8000), 20))
    assert sum(found) == 8000
    assert len(found) >= 16
    assert max(found) <= 1000


def test_few_keys_are_one_task() -> None:
    keys = [f"data/{name}/{number}" for name in "abc" for number in range(5)]
    found = plan(store_of([*keys, "_lakefs/x", "dummy"]), 20).ranges
    # What is before _lakefs/ and what is behind it.
    assert len(found) == 2
    assert listed(store_of(keys)) == keys


def slices_of_xids(slices: int, each: int) -> list[str]:
    return [
        f"data/{new_slice_name(NOW, b'abc', 7, n)}/{name}"
        for n in range(slices) for name in xids(each, 3600)
    ]  # fmt: skip


def test_slices_are_listed_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ranges, "KEYS_EACH", 200)
    monkeypatch.setattr(key_ranges, "SLICE_KEYS", 200)
    assert sizes(store_of(slices_of_xids(5, 800), 20))[-5:] == [800] * 5


@pytest.mark.parametrize("slices", [1, 4])
def test_what_an_earlier_listing_saw_to_be_large_is_cut(
    slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_ranges, "KEYS_EACH", 200)
    keys = sorted(slices_of_xids(slices, 4000 // slices))
    cuts = keys[99::100]
    found = sizes(store_of(keys, 20), cuts)
    assert sum(found) == 4000
    assert len(found) >= 20
    assert max(found) <= 200


@settings(max_examples=100)
@example(["data/_/0", "data/", "data/0"], frozenset({"_"}), 1)
@given(st.lists(KEY, max_size=40), st.frozensets(SLICE, max_size=6), st.integers(1, 12))
def test_all_but_known_slices_is_listed_once(
    keys: list[str], known: frozenset[str], flat: int
) -> None:
    store = store_of(keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_ranges, "FLAT", flat)
        ranges = plan(store, 3, None, (), known).ranges
    found = [key for r in ranges for key in keys_in(store, r)]
    inside = tuple(f"data/{name}/" for name in known)
    assert len(found) == len(set(found))
    assert {k for k in keys if not k.startswith(("_lakefs/", *inside))} <= set(found)
    # The name of a known folder itself, and what is behind all usual names in it, may be listed; so
    # may a folder that begins unlike all slices, since it is not seen in a flat data/.
    usual = tuple(f"data/{first}" for first in key_ranges.FIRST_CHARACTERS)
    assert not {
        k for k in found if k.startswith(inside) and k.startswith(usual) and not k.endswith("/")
    } - {k for k in keys if "/\U0010ffff" in k}


@given(st.lists(KEY, max_size=40), st.lists(KEY, max_size=10))
def test_any_cuts_leave_every_key_listed_once(keys: list[str], cuts: list[str]) -> None:
    store = store_of(keys)
    found = [key for r in plan(store, 3, None, cuts).ranges for key in keys_in(store, r)]
    assert len(found) == len(set(found))
    assert {k for k in keys if not k.startswith("_lakefs/")} <= set(found)


def test_slices_of_a_time_are_left_out() -> None:
    def name(**age: float) -> str:
        return new_slice_name(NOW - timedelta(**age), b"abc", 7, 1)

    old, new, future = name(days=3), name(hours=1), name(days=-3)
    names = [f"data/{slice_name}/{n}" for slice_name in (old, new, future) for n in range(5)]
    names += [f"data/{new}", f"data/{new}0", f"data/{new}\U0010ffff", "data/x", "dummy", "data"]
    time_range = TimeRange(NOW - timedelta(days=1), NOW)
    found = listed(store_of(names), time_range)
    assert sorted(found) == sorted(k for k in names if not k.startswith(f"data/{new}/"))
    assert planned(store_of(names), time_range).skipped == [f"data/{new}/"]


def test_an_empty_store_has_no_keys(tmp_path: Path) -> None:
    assert listed(open_store(str(tmp_path))) == []


def test_real_files_are_listed_once(tmp_path: Path) -> None:
    names = ["dummy", "data/a/1", "data/a/2", "data/b/1,token", "data/flat", "z/y", "_lakefs/x"]
    names += ["data/é/1", "data/%41/+ 1", "data.txt", "data/a0"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = listed(open_store(str(tmp_path)))
    assert sorted(found) == sorted(set(names) - {"_lakefs/x"})


@pytest.mark.parametrize("skip", [True, False])
def test_an_object_older_than_its_slice_stops_where_names_are_believed(
    caplog: pytest.LogCaptureFixture, *, skip: bool
) -> None:
    def look(age: timedelta, slice_age: timedelta) -> int:
        name = new_slice_name(NOW - slice_age, b"abc", 7, 1)
        rows = [ObjectInfo(f"data/{name}/{n}", n, NOW - age, "") for n in range(3)]
        ctx = SimpleNamespace(
            settings=Settings(skip_new_slices=skip), log=logging.getLogger("lakegc")
        )
        found = slices_of(to_batch([*rows, ObjectInfo("dummy", 7, NOW, "")]).rename_columns(NAMES))
        require_ages(cast("RunContext", ctx), found, NOW)
        return sum(one.size for one in found)

    hour, minute = timedelta(hours=1), timedelta(minutes=1)
    assert look(hour, hour) == 10
    assert look(hour + 10 * minute, hour) == 10, "clocks may differ so much"
    assert look(hour, -hour) == 10, "the future is no slice's"
    assert not caplog.messages
    if skip:
        with pytest.raises(IntegrityError, match="a clock was wrong"):
            look(hour + 11 * minute, hour)
    else:
        assert look(hour + 11 * minute, hour) == 10
        assert "younger than an object in it" in caplog.text


NAMES = ["address", "size", "last_modified", "etag"]
NAME = st.sampled_from(["0" * 20, "1" * 20, "0" * 19, "x" * 21, "a", ""])


@given(
    st.lists(st.tuples(st.sampled_from(["data/", "dat/", "", "data/é"]), NAME, PART), min_size=1)
)
def test_objects_are_counted_in_the_slices_of_their_names(
    parts: list[tuple[str, str, str]],
) -> None:
    keys = sorted({f"{folder}{name}/{rest}" for folder, name, rest in parts}, key=str.encode)
    rows = [ObjectInfo(key, n, NOW - timedelta(days=n), "") for n, key in enumerate(keys)]
    expected: dict[str, list[ObjectInfo]] = {}
    for row in rows:
        found = re.match("data/(.{20})/", row.key, re.DOTALL)
        expected.setdefault(found[1] if found else "", []).append(row)
    told = {s.name: s for s in slices_of(to_batch(rows).rename_columns(NAMES))}
    assert told.keys() == expected.keys()
    for name, objects in expected.items():
        assert told[name].keys == len(objects)
        assert told[name].size == sum(o.size for o in objects)
        assert told[name].oldest == min(o.last_modified for o in objects)
