"""Order and bounds of pages, for stores that sort and skip in their own ways."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.pages import (
    Page,
    all_sorted,
    check_order,
    follow,
    in_byte_order,
    inside,
    objects_of,
    read_level,
    shared_prefix,
    without_cut_prefixes,
)
from lakegc_assets.storage.values import KeyRange, ObjectInfo, to_batch

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
        check_order(found["key"], "", "there")
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


@pytest.mark.parametrize("order", [["a", "b", "a"], ["a", "a"], ["a", "b", "c", "b"]])
def test_a_token_that_comes_again_is_refused(order: list[str]) -> None:
    """Pages without keys show no order, and could go round for ever."""
    tokens = iter(order)
    pages = follow(lambda _token: Page(batch_of([]), [], next(tokens)), "", "there")
    with pytest.raises(StorageError, match="a token came twice"):
        list(pages)


def test_tokens_are_followed_over_empty_pages() -> None:
    told = {
        None: Page(batch_of(["a"]), [], "1"),
        "1": Page(batch_of([]), [], "2"),
        "2": Page(batch_of(["b"]), [], None),
    }
    assert list(follow(told.__getitem__, "", "there")) == list(told.values())


@pytest.mark.parametrize(
    ("keys", "prefixes", "one_level"),
    [
        (["a/1", "b"], [], False),
        (["a/1"], ["a/2/"], False),
        (["b"], [], True),
        ([], ["b/"], True),
        (["a/b/c"], [], True),
        ([], ["a/b/c/"], True),
        ([], ["a/b"], True),
        ([], ["a/"], True),
    ],
)
def test_what_was_not_asked_for_is_refused(
    keys: list[str], prefixes: list[str], *, one_level: bool
) -> None:
    """A common prefix hides objects from who asked for all; one above leads round and round."""
    page = Page(batch_of(keys), prefixes, None)
    with pytest.raises(StorageError, match="not requested"):
        list(follow(lambda _token: page, "a/", "there", one_level=one_level))


def test_a_level_may_hold_the_directory_itself_and_empty_names() -> None:
    page = Page(batch_of(["a/", "a/b"]), ["a//", "a/b/"], None)
    assert list(follow(lambda _token: page, "a/", "there", one_level=True)) == [page]


def level_of(*pages: tuple[list[str], list[str]]) -> list[Page]:
    """Pages of objects and common prefixes."""
    return [Page(batch_of(keys), prefixes, None) for keys, prefixes in pages]


@pytest.mark.parametrize(
    "pages",
    [
        [(["b"], []), ([], ["a/"])],
        [([], ["b/"]), (["a"], [])],
        [(["a"], []), (["a"], [])],
        [([], ["a/"]), ([], ["a/"])],
        [(["b", "a"], [])],
        [([], ["b/", "a/"])],
        [([], ["a/"]), ([], ["b/"]), ([], ["a/"])],
    ],
)
def test_a_level_that_is_out_of_order_is_refused(pages: list[tuple[list[str], list[str]]]) -> None:
    with pytest.raises(StorageError, match="out of order"):
        read_level(level_of(*pages), "there", None)
    with pytest.raises(StorageError, match="out of order"):
        read_level(level_of(*pages), "there", None, in_byte_order)


def test_of_a_level_in_no_known_order_no_name_may_come_twice() -> None:
    found = read_level(level_of((["b"], ["c/"]), (["a"], ["a/"])), "there", None, all_sorted)
    assert (found.prefixes, [info.key for info in found.objects]) == (["a/", "c/"], ["a", "b"])
    for pages in (level_of(([], ["a/", "b/"]), ([], ["a/"])), level_of((["a"], []), (["a"], []))):
        with pytest.raises(StorageError, match="out of order"):
            read_level(pages, "there", None, all_sorted)


@given(
    names=st.lists(st.tuples(_TEXT.filter(bool), st.booleans()), unique=True, max_size=20),
    size=st.integers(1, 5),
    utf16=st.booleans(),
)
def test_levels_come_in_either_order(
    names: list[tuple[str, bool]], size: int, *, utf16: bool
) -> None:
    level = {name.replace("/", "-") + "/" * folder for name, folder in names}
    ordered = sorted(level, key=lambda name: name.encode("utf-16-be" if utf16 else "utf-8"))
    cut = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    pages = level_of(
        *(([n for n in p if n[-1] != "/"], [n for n in p if n[-1] == "/"]) for p in cut)
    )
    found = read_level(pages, "there", None, in_byte_order)
    assert found.prefixes == sorted(name for name in level if name[-1] == "/")
    assert [info.key for info in found.objects] == sorted(n for n in level if n[-1] != "/")


def test_a_level_ends_after_more_objects_than_asked_for() -> None:
    pages = iter(level_of((["a", "b"], []), (["c"], []), (["d"], [])))
    assert len(read_level(pages, "there", 1).objects) == 2
    assert next(pages).objects["key"].to_pylist() == ["c"]


def test_a_prefix_that_a_page_cuts_is_one() -> None:
    pages = level_of(([], ["a/"]), ([], ["a/"]), ([], []), (["b"], ["a/", "c/"]), ([], ["a/"]))
    found = [page.prefixes for page in without_cut_prefixes(pages)]
    assert found == [["a/"], [], [], ["c/"], ["a/"]]


def as_written(**changes: object) -> pa.RecordBatch:
    """Two objects, of which the second is another in something."""
    one: dict[str, Any] = {"key": "a", "size": "1", "last_modified": _TIME, "etag": '"e"'}
    other = {**one, "key": "b", **changes}
    keys, sizes, times, etags = ([one[name], other[name]] for name in one)
    return objects_of(keys, sizes, pa.array(times, pa.timestamp("ns", "UTC")), etags)


@pytest.mark.parametrize("name", ["key", "size", "last_modified", "etag"])
def test_an_object_of_which_something_is_missing_is_refused(name: str) -> None:
    assert as_written() == batch_of(["a", "b"])
    with pytest.raises(ValueError, match=name):
        as_written(**{name: None})


def test_an_object_of_an_unknown_time_is_refused() -> None:
    with pytest.raises(ValueError, match="last_modified"):
        as_written(last_modified=datetime(1970, 1, 1, tzinfo=timezone.utc))
