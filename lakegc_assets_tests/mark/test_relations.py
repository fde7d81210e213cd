"""What relations of the mark give is what their twins say, on every engine."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import product
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegc_assets.mark import relations
from lakegc_assets.mark.candidates import COUNTS, JUDGED, SEEN, TOTALS
from lakegc_assets.mark.incremental_listing import SWEPT
from lakegc_assets.mark.live_sets import UNRESOLVED
from lakegc_assets.mark.served_candidates import SPARED
from lakegc_assets.run.artifacts import LISTING
from lakegc_assets.run.hashing import HASHES
from lakegc_assets_tests.frames import Frames, same
from lakegc_assets_tests.mark import twins

NOW = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)
UUID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
#: Few names, so that they meet; and such as break lists, patterns and SQL.
NAMES = [
    "data/a/x", "data/b/x", "x", "data/a/x\n", "data/a/\x00", "data/é/\u0085", "data/'; --",
    "data/a\\b", "data/a|b", "data//", "data/%2F\ufffe", "data/\uffff", "data/\ufffd",
    "data/" + "long" * 300, "", "data/a/x.part_00001", "data/a/x.part_00001_1_2\n",
    "x.multipart", "data/.part_1_", "data/xpart_1",
    "0a" * 16 + "-00001", "0a" * 16 + "-123456", "data/" + "0a" * 16 + "-00001", "0a" * 16 + "-1",
    "data/t/v1.metadata.json", "data/t/v1.metadata.json\n", "v1.json", f"data/s/{UUID}",
    f"data/t/00000-1-{UUID}-00001.parquet", f"{UUID}-m0.avro", f"data/{UUID}.parquet.bak",
]  # fmt: skip
ADDRESSES = st.sampled_from(NAMES)
EACH_ETAG = ["a" * 32, "b" * 32, "a" * 32 + "-2", "A" * 32 + "-11\n", "", "-1"]
ETAGS = st.sampled_from(EACH_ETAG)
HASH = st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)])
MOMENT = timedelta(microseconds=1)
LONG_AGO = NOW - timedelta(days=7)
EACH_TIME = [NOW, NOW - MOMENT, NOW + timedelta(days=1), LONG_AGO, LONG_AGO - MOMENT]
TIMES = st.sampled_from(EACH_TIME)
WHY = st.sampled_from(["pinned until then", "pinned until 'now'"])
SIZES = st.sampled_from([0, 1, 2**40])


def rows(schema: pa.Schema, **columns: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    assert list(columns) == schema.names
    return st.lists(st.fixed_dictionaries(columns), max_size=8)


STORE = rows(
    LISTING,
    address=ADDRESSES,
    hash=HASH,
    size=SIZES,
    last_modified=TIMES,
    etag=ETAGS,
    etag_hash=HASH,
    in_place=st.booleans(),
)
LIVE = rows(HASHES, hash=HASH)


def test_candidates(frames: Frames) -> None:
    @settings(max_examples=frames.examples)
    @given(STORE, LIVE, LIVE)
    def check(store: Any, committed: Any, uncommitted: Any) -> None:
        live = frames.of(committed, HASHES), frames.of(uncommitted, HASHES)
        listed = frames.of(store, LISTING)
        dead = relations.dead_hashes(listed, live[0], live[1], NOW)
        hashes = twins.dead_hashes(store, committed, uncommitted, NOW)
        assert same(frames.rows(dead, HASHES), hashes)
        found = relations.candidates(listed, dead, NOW)
        assert same(frames.rows(found, LISTING), twins.candidates(store, hashes, NOW))

    check()


def listed(**values: Any) -> dict[str, Any]:
    """A row of ``LISTING`` that is a candidate, but for some values."""
    row = {"address": "data/a/x", "hash": 0, "size": 1, "etag": "a" * 32, "etag_hash": 0}
    return {**row, "last_modified": LONG_AGO - MOMENT, "in_place": True, **values}


def test_what_lies_elsewhere_or_is_as_old_as_the_cutoff_is_no_candidate(frames: Frames) -> None:
    """What is drawn may leave out the one that a rule is about."""
    store = [
        listed(hash=number, last_modified=time, in_place=in_place)
        for number, (time, in_place) in enumerate(product(EACH_TIME, [True, False]))
    ]
    rows, live = frames.of(store, LISTING), frames.of([], HASHES)
    dead = twins.dead_hashes(store, [], [], NOW)
    assert same(frames.rows(relations.dead_hashes(rows, live, live, NOW), HASHES), dead)
    every = frames.of([{"hash": row["hash"]} for row in store], HASHES)
    found = frames.rows(relations.candidates(rows, every, NOW), LISTING)
    assert same(found, twins.candidates(store, store, NOW))


def test_what_either_live_set_holds_is_no_candidate(frames: Frames) -> None:
    store = [listed(hash=number) for number in (0, 1, 2, 3, 3)]
    committed, uncommitted = ([{"hash": one} for one in some] for some in ((0, 1), (1, 2)))
    live = frames.of(committed, HASHES), frames.of(uncommitted, HASHES)
    rows = frames.of(store, LISTING)
    dead = relations.dead_hashes(rows, *live, NOW)
    assert same(frames.rows(dead, HASHES), [{"hash": 3}, {"hash": 3}])
    assert same(frames.rows(relations.candidates(rows, dead, NOW), LISTING), store[3:])


def test_what_was_marked_is_put_in_order(frames: Frames) -> None:
    @settings(max_examples=frames.examples)
    @given(STORE)
    def check(store: Any) -> None:
        found = relations.in_order(frames.of(store, LISTING))
        assert frames.rows(found, LISTING) == twins.in_order(store)

    check()


def test_what_sweeps_deleted_is_left_out(frames: Frames) -> None:
    outcomes = st.sampled_from(["deleted", "already_missing", "spared", "put_back", "failed", None])

    @settings(max_examples=frames.examples)
    @given(STORE, st.lists(rows(SWEPT, address=ADDRESSES, outcome=outcomes), max_size=2))
    def check(store: Any, swept: Any) -> None:
        sweeps = [frames.of(some, SWEPT) for some in swept]
        found = relations.without_swept(frames.of(store, LISTING), sweeps)
        assert same(frames.rows(found, LISTING), twins.without_swept(store, swept))

    check()
    each = ["deleted", "already_missing", "spared", "put_back", "failed", None]
    store = [listed(address=f"{one}") for one in each]
    sweeps = [[{"address": f"{one}", "outcome": one}] for one in each]
    found = relations.without_swept(
        frames.of(store, LISTING), [frames.of(one, SWEPT) for one in sweeps]
    )
    assert same(frames.rows(found, LISTING), store[2:])


def test_what_is_spared_and_why(frames: Frames) -> None:
    seen_by_one = rows(SEEN, address=ADDRESSES, etag=ETAGS)
    last = st.sampled_from(["x", "x\n", "", "'; --", "a|b"])
    pins = st.dictionaries(ADDRESSES, WHY, max_size=4).map(
        lambda pins: [{"address": a, "why": why} for a, why in pins.items()]
    )

    @settings(max_examples=frames.examples)
    @given(
        STORE,
        rows(UNRESOLVED, last_part=last),
        st.lists(seen_by_one, max_size=2),
        pins,
        st.none() | LIVE.map(twins.named_twice),
    )
    def check(store: Any, unresolved: Any, seen: Any, pins: Any, twice: Any) -> None:
        found = relations.judged(
            frames.of(store, LISTING),
            frames.of(unresolved, UNRESOLVED),
            [frames.of(some, SEEN) for some in seen],
            frames.of(pins, SPARED),
            LONG_AGO,
            None if twice is None else frames.of(twice, HASHES),
        )
        expected = twins.judged(store, unresolved, seen, pins, LONG_AGO, twice)
        assert same(frames.rows(found, JUDGED), expected)
        spared = relations.spared(found)
        assert same(frames.rows(spared, SPARED), twins.spared(expected))
        counted = twins.counts_by_reason(twins.spared(expected))
        assert same(frames.rows(relations.counts_by_reason(spared), COUNTS), counted)
        assert same(frames.rows(relations.not_spared(found), JUDGED), twins.not_spared(expected))
        rest = relations.without_spared(frames.of(store, LISTING), frames.of(pins, SPARED))
        assert same(frames.rows(rest, LISTING), twins.without_spared(store, pins))

    check()


def test_each_rule_spares_what_its_twin_does(frames: Frames) -> None:
    """What is drawn may leave out the one that a rule is about."""
    store = [
        *(listed(address=name, last_modified=time) for name, time in product(NAMES, EACH_TIME)),
        *(listed(address=name, etag=etag) for name, etag in product(NAMES[:3], EACH_ETAG)),
        *(listed(address=name, hash=1) for name in NAMES),
        *(listed(address=f"{name}/last") for name in NAMES),
    ]
    seen = [[{"address": NAMES[0], "etag": one} for one in EACH_ETAG], []]
    unresolved, twice = [{"last_part": "last"}], [{"hash": 1}]
    pins = [{"address": name, "why": "pinned until then"} for name in NAMES[::2]]
    found = relations.judged(
        frames.of(store, LISTING),
        frames.of(unresolved, UNRESOLVED),
        [frames.of(some, SEEN) for some in seen],
        frames.of(pins, SPARED),
        LONG_AGO,
        frames.of(twice, HASHES),
    )
    expected = twins.judged(store, unresolved, seen, pins, LONG_AGO, twice)
    assert same(frames.rows(found, JUDGED), expected)


def test_totals_and_duplicates(frames: Frames) -> None:
    times = pa.schema([("address", pa.string()), ("times", pa.int64())])

    @settings(max_examples=frames.examples)
    @given(STORE, rows(SPARED, address=ADDRESSES, why=WHY))
    def check(store: Any, spared: Any) -> None:
        frame = frames.of(store, LISTING)
        totals = frames.rows(relations.listing_totals(frame, NOW), TOTALS)
        assert totals == twins.listing_totals(store, NOW)
        twice = frames.rows(relations.duplicates(frame, 99), times)
        assert same(twice, twins.duplicates(store, 99))
        assert len(frames.rows(relations.duplicates(frame, 1), times)) <= 1
        either = relations.listed_twice(frame, frames.of(spared, SPARED), 99)
        assert same(frames.rows(either, times), twins.listed_twice(store, spared, 99))

    check()
