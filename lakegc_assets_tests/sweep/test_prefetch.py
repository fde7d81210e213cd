"""The next batch of a task is compared with the store while the one before it is deleted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.run import object_lookup
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError, StoreUnavailableError
from lakegc_assets.storage.values import LISTING_SCHEMA, ObjectInfo
from lakegc_assets.sweep import store_comparison
from lakegc_assets.sweep.store_comparison import Compared, Marked, Prefetch, compare
from lakegc_assets.sweep.task_orders import Orders
from lakegc_assets_tests.clocks import StubClocks
from lakegc_assets_tests.lake import SmallLake
from lakegc_assets_tests.sweep.deleting import (
    Time,
    fill,
    keys,
    meddling,
    names,
    orders,
    recorded,
    run,
    s3_orders,
    s3_time,
)
from lakegc_assets_tests.sweep.stand_ins import LONG_AGO, table_of

__all__ = ["orders", "s3_orders", "s3_time"]

_PAGE = 10


class _Paged:
    """A store of some keys that tells pages of ten, and notes what it is asked for."""

    def __init__(self, objects: Mapping[str, str]) -> None:
        self.objects = dict(objects)
        self.size, self.modified = 1, LONG_AGO
        self.begun: list[str] = []
        self.pages = 0
        self.asked: list[str] = []
        self.happen: Callable[[], object] = lambda: None

    def list(
        self, prefix: str = "", start_after: str | None = None, end_before: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        self.begun.append(start_after or "")
        # As MinIO does: nothing is listed behind a key that begins otherwise.
        assert (start_after or prefix).startswith(prefix)
        of_it = (key for key in self.objects if key.startswith(prefix))
        within = sorted(key for key in of_it if (start_after or "") < key < (end_before or ""))
        # As MinIO does: what later pages show is what was there when the listing was begun.
        shown = [(key, self.size, self.modified, self.objects[key]) for key in within]
        for at in range(0, len(shown), _PAGE):
            self.pages += 1
            self.happen()
            columns = zip(*shown[at : at + _PAGE], strict=True)
            yield pa.RecordBatch.from_arrays(
                [pa.array(c, f.type) for c, f in zip(columns, LISTING_SCHEMA, strict=True)],
                schema=LISTING_SCHEMA,
            )

    def head(self, key: str) -> ObjectInfo:
        self.asked.append(key)
        if key not in self.objects:
            raise ObjectNotFoundError(key)
        return ObjectInfo(key, self.size, self.modified, self.objects[key])


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is a glance, as with real stores."""
    monkeypatch.setattr(object_lookup, "GLANCE", _PAGE)
    monkeypatch.setattr(object_lookup, "SPARSE", 5)
    monkeypatch.setattr(object_lookup, "SINGLES", 2)
    monkeypatch.setattr(object_lookup, "FEW", 0)


def _key(number: int) -> str:
    return f"data/s/{number:04d}"


def _marked(numbers: Sequence[int]) -> list[Marked]:
    return [Marked(_key(n), 1, LONG_AGO, "e") for n in numbers]


def _taken(store: _Paged, rows: Sequence[Marked], batch: int, time: Time) -> list[Compared]:
    """All of a stretch, batch by batch."""
    found: list[Compared] = []
    with Prefetch(
        cast("ObjectStore", store), table_of(rows), StubClocks(time.sleep, time)
    ) as prefetch:
        while some := prefetch.take(batch):
            prefetch.begin(batch)
            found += some
    return found


@pytest.mark.parametrize("few", [0, 4], ids=["listed", "asked for"])
@pytest.mark.parametrize(
    ("size", "later", "etag", "state"),
    [
        (1, 0, "e", "same"),
        (2, 0, "e", "rewritten"),
        (1, 1, "e", "rewritten"),
        (1, 0, "x", "rewritten"),
    ],
)
def test_what_differs_in_anything_was_rewritten(
    monkeypatch: pytest.MonkeyPatch, few: int, size: int, later: int, etag: str, state: str
) -> None:
    """An upload of the same bytes has the size and the etag of the one before it."""
    monkeypatch.setattr(object_lookup, "FEW", few)
    store = _Paged({_key(1): etag})
    store.size, store.modified = size, LONG_AGO + timedelta(seconds=later)
    (found,) = compare(cast("ObjectStore", store), _marked([1]), Time())
    assert (found.state, len(store.asked)) == (state, 1 if few else 0)


@pytest.mark.parametrize(
    ("few", "then", "now", "state"),
    [(0, 4, 5, "rewritten"), (0, 4, 0, "rewritten"), (0, 0, 5, "same"), (4, 4, 0, "same")],
)
def test_parts_of_a_second_count_where_both_are_known(
    monkeypatch: pytest.MonkeyPatch, few: int, then: int, now: int, state: str
) -> None:
    monkeypatch.setattr(object_lookup, "FEW", few)
    store = _Paged({_key(1): "e"})
    store.modified = LONG_AGO.replace(microsecond=now)
    marked = Marked(_key(1), 1, LONG_AGO.replace(microsecond=then), "e")
    (found,) = compare(cast("ObjectStore", store), [marked], Time())
    assert found.state == state


@pytest.mark.parametrize("batch", [3, 10, 40])
def test_a_stretch_is_listed_once(batch: int) -> None:
    """With as many pages as its keys fill, however many batches it is."""
    store = _Paged({_key(n): "e" for n in range(200)})
    rows = _marked(range(20, 120, 2))
    found = _taken(store, rows, batch, Time())
    assert [one.marked for one in found] == rows
    assert {one.state for one in found} == {"same"}
    assert (len(store.begun), store.pages, store.asked) == (1, 10, [])


@given(
    st.lists(st.tuples(st.integers(0, 400), st.sampled_from("eeex")), max_size=300),
    st.sets(st.integers(0, 400), max_size=120),
    st.integers(1, 50),
    st.sampled_from([0.0, 7.0]),
)
def test_whatever_lies_between_each_object_is_told_as_it_is(
    there: list[tuple[int, str]], marked: set[int], batch: int, seconds: float
) -> None:
    """Dense, sparse, missing, rewritten; also where each batch lasts longer than a listing may."""
    store, time = _Paged({_key(n): etag for n, etag in there}), Time()
    store.happen = lambda: time.sleep(seconds)
    rows = _marked(sorted(marked))
    states = {"e": "same", "x": "rewritten", "": "missing"}
    expected = {one: states[store.objects.get(one.address, "")] for one in rows}
    found = _taken(store, rows, batch, time)
    assert {one.marked: one.state for one in found} == expected
    assert len(found) == len(rows)
    anyhow = compare(cast("ObjectStore", store), rows[::-1], time)
    assert {one.marked: one.state for one in anyhow} == expected


def test_where_few_are_marked_each_is_asked_for() -> None:
    """And a page more often than not is none: twice as many are asked for behind each."""
    store = _Paged({_key(n): "e" for n in range(1000)})
    found = _taken(store, _marked(range(0, 1000, 10)), 100, Time())
    assert len(found) == 100
    assert store.pages <= 8
    assert len(store.asked) >= 90


def test_a_long_gap_is_not_listed() -> None:
    store = _Paged({_key(n): "e" for n in range(1000)})
    found = _taken(store, _marked([*range(40), *range(900, 940)]), 40, Time())
    assert len(found) == 80
    assert (len(store.begun), store.pages, store.asked) == (2, 4 + 1 + 4, [])


def test_a_listing_counts_from_its_beginning_and_is_begun_anew_when_it_is_old() -> None:
    """A listing may show late what was there early."""
    store, time = _Paged({_key(n): "e" for n in range(200)}), Time()
    store.happen = lambda: time.sleep(7)
    found = _taken(store, _marked(range(100)), 10, time)
    assert store.asked == []
    assert store.begun == [_key(n)[:-1] for n in (0, 50)]
    assert [one.asked for one in found] == [0.0] * 50 + [35.0] * 50


def test_what_is_asked_for_counts_from_before_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_lookup, "FEW", 4)
    store, time = _Paged({_key(1): "e"}), Time()
    head = store.head

    def slow(key: str) -> ObjectInfo:
        time.sleep(7)
        return head(key)

    monkeypatch.setattr(store, "head", slow)
    assert [one.asked for one in _taken(store, _marked([1]), 1, time)] == [0.0]


def test_a_listing_that_ends_early_is_begun_anew_for_the_next_batch() -> None:
    store = _Paged({_key(n): "e" for n in range(60)})
    whole = store.list
    ended: list[bool] = []

    def cut(*args: Any, **bounds: Any) -> Iterator[pa.RecordBatch]:
        pages = list(whole(*args, **bounds))
        yield from pages if ended else pages[:1]
        ended.append(True)

    store.list = cut  # type: ignore[method-assign]
    found = _taken(store, _marked(range(60)), 20, Time())
    assert {one.state for one in found} == {"same"}
    assert store.asked == [_key(n) for n in range(10, 20)]
    assert len(store.begun) == 2


def test_the_next_batch_is_compared_before_this_one_is_answered(
    bare: SmallLake, s3_orders: Orders, s3_time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And HEADs are read behind its comparison, right before it is sent."""
    addresses = sorted(fill(s3_orders, 6))
    happened: list[str] = []
    compared = {address: threading.Event() for address in addresses}
    real = store_comparison.Comparison.compare

    def note(comparison: Any, batch: Sequence[Marked]) -> list[Compared]:
        found = real(comparison, batch)
        happened.append(f"compared {batch[0].address[-1]}")
        for one in batch:
            compared[one.address].set()
        return found

    def delete(sent: Sequence[str]) -> None:
        following = addresses.index(sent[-1]) + 1
        assert following == len(addresses) or compared[addresses[following]].wait(60)
        happened.append(f"sent {sent[0][-1]}")

    def see(_method: str, path: str) -> None:
        if path.endswith("/settings/gc_rules"):
            happened.append("looked")

    bare.on_request = see
    monkeypatch.setattr(store_comparison.Comparison, "compare", note)
    reach, _ = meddling(s3_orders, delete, s3_time)
    assert names(run(s3_orders, addresses, reach=reach)) == ["deleted"] * 3
    for first in "024":
        before = happened[: happened.index(f"sent {first}")]
        assert f"compared {first}" in before[: len(before) - before[::-1].index("looked")]
    assert happened.count("looked") == 3
    assert happened.index("compared 2") < happened.index("sent 0")
    assert happened.index("compared 4") < happened.index("sent 2")


@pytest.mark.parametrize("took", [44, 46])
def test_what_was_compared_long_ago_is_compared_anew(
    s3_orders: Orders, s3_time: Time, took: int
) -> None:
    """A batch that takes long: what somebody wrote meanwhile is seen, unless it is still fresh."""
    addresses = sorted(fill(s3_orders, 4))
    store = s3_orders.connections.store()
    reach, _ = meddling(s3_orders, lambda _keys: s3_time.sleep(took), s3_time)
    task = run(s3_orders, addresses, reach=reach)
    assert next(task).outcome == "deleted"
    store.put(addresses[2], b"written again")
    told = names(task)
    # Within its lifetime only a conditional delete spares it, as behind any comparison.
    assert told == (["deleted"] if took < 45 else ["spared", "deleted"])
    assert keys(s3_orders) == (set() if took < 45 else {addresses[2]})


def test_an_error_of_a_comparison_ahead_ends_the_task_in_its_turn(
    s3_orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch under way is recorded, nothing behind it is sent, and no thread is left."""
    addresses = sorted(fill(s3_orders, 6))
    real = store_comparison.Comparison.compare

    def fail(comparison: Any, batch: Sequence[Marked]) -> list[Compared]:
        if batch[0].address == addresses[2]:
            raise StoreUnavailableError("no answer")
        return real(comparison, batch)

    monkeypatch.setattr(store_comparison.Comparison, "compare", fail)
    task = run(s3_orders, addresses)
    assert next(task).outcome == "deleted"
    with pytest.raises(StoreUnavailableError, match="no answer"):
        next(task)
    assert recorded(s3_orders) == dict.fromkeys(addresses[:2], "deleted")
    assert keys(s3_orders) == set(addresses[2:])
    assert not [one for one in threading.enumerate() if one.name == "lakegc-compare"]
