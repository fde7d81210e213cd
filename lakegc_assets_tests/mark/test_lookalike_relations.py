"""Look-alikes: relations give what their twins in plain Python give, on each engine."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from lakegc_assets.mark import lookalike_relations
from lakegc_assets.mark.evidence import ETAGS, EVIDENCE
from lakegc_assets.mark.lookalike_relations import SMALL
from lakegc_assets.mark.ranges import ROWS
from lakegc_assets_tests.frames import Frames, same
from lakegc_assets_tests.mark import lookalike_twins as twins

NOW = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)
#: Few of each, so that they meet, and the ends of what a number can be.
HASHES = st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)])
ETAG_HASHES = st.sampled_from([0, 1, -1, -(2**63)])
SIZES = st.sampled_from([0, SMALL, SMALL + 1, 2**40])
TIMES = st.sampled_from([NOW + timedelta(microseconds=n) for n in (-1, 0, 10**9)])
ENTRIES = st.lists(
    st.fixed_dictionaries(
        {
            "range_id": st.sampled_from(["r1", "r2", "r3"]),
            "hash": HASHES,
            "size": SIZES,
            "etag_hash": ETAG_HASHES,
        }
    ),
    max_size=8,
)
LISTED = st.lists(
    st.fixed_dictionaries({"hash": HASHES, "etag_hash": ETAG_HASHES, "last_modified": TIMES}),
    max_size=6,
)


def test_etag_evidence(frames: Frames) -> None:
    @settings(max_examples=frames.examples, deadline=None, phases=[Phase.explicit, Phase.generate])
    @given(ENTRIES, st.lists(LISTED, min_size=1, max_size=3))
    def check(entries: Any, store: Any) -> None:
        listed = [frames.of(rows, ETAGS) for rows in store]
        found = lookalike_relations.etag_evidence(frames.of(entries, ROWS), listed)
        told = frames.rows(found, EVIDENCE)
        for row in told:
            row["newest"] = row["newest"] and row["newest"].astimezone(timezone.utc)
        assert same(told, twins.etag_evidence(entries, store))

    check()
