"""What relations of the mark give is what their twins say, on every engine."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegc_assets.mark import relations
from lakegc_assets.mark.candidates import COUNTS, JUDGED, SEEN, TOTALS, UNRESOLVED
from lakegc_assets.mark.incremental_listing import SWEPT
from lakegc_assets.mark.served import SPARED
from lakegc_assets.run.artifacts import LISTING
from lakegc_assets.run.hashing import HASHES
from lakegc_assets_tests.frames import Frames, same
from lakegc_assets_tests.mark import twins

NOW = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)
UUID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
#: Few names, so that they meet; and such as break lists, patterns and SQL.
ADDRESSES = st.sampled_from([
    "data/a/x", "data/b/x", "x", "data/a/x\n", "data/a/\x00", "data/é/\u0085", "data/'; --",
    "data/a\\b", "data/a|b", "data//", "data/%2F\ufffe", "data/\uffff", "data/\ufffd",
    "data/" + "long" * 300, "", "data/a/x.part_00001", "data/a/x.part_00001_1_2\n",
    "x.multipart", "data/.part_1_", "data/xpart_1",
    "0a" * 16 + "-00001", "0a" * 16 + "-123456", "data/" + "0a" * 16 + "-00001", "0a" * 16 + "-1",
    "data/t/v1.metadata.json", "data/t/v1.metadata.json\n", "v1.json", f"data/s/{UUID}",
    f"data/t/00000-1-{UUID}-00001.parquet", f"{UUID}-m0.avro", f"data/{UUID}.parquet.bak",
])  # fmt: skip
ETAGS = st.sampled_from(["a" * 32, "b" * 32, "a" * 32 + "-2", "A" * 32 + "-11\n", "", "-1"])
HASH = st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)])
MOMENT = timedelta(microseconds=1)
LONG_AGO = NOW - timedelta(days=7)
TIMES = st.sampled_from([NOW, NOW - MOMENT, NOW + timedelta(days=1), LONG_AGO, LONG_AGO - MOMENT])
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


def test_totals_and_duplicates(frames: Frames) -> None:
    times = pa.schema([("address", pa.string()), ("times", pa.int64())])

    @settings(max_examples=frames.examples)
    @given(STORE)
    def check(store: Any) -> None:
        frame = frames.of(store, LISTING)
        totals = frames.rows(relations.listing_totals(frame, NOW), TOTALS)
        assert totals == twins.listing_totals(store, NOW)
        twice = frames.rows(relations.duplicates(frame, 99), times)
        assert same(twice, twins.duplicates(store, 99))
        assert len(frames.rows(relations.duplicates(frame, 1), times)) <= 1

    check()
