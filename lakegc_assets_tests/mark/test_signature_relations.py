"""Look-alikes: relations give what their twins in plain Python give, on each engine."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lakegc_assets.engine.spark_frames import SparkBackedSession
from lakegc_assets.mark import signature_relations as relations
from lakegc_assets.mark.etags import CONTENTS, ETAGS, EVIDENCE, NUMBERED
from lakegc_assets.mark.lookups import ASKED, BEFORE, BY_PATHS, PATHS_OF, SERVED_NAMES
from lakegc_assets.mark.ranges import ROWS
from lakegc_assets.mark.served_candidates import SPARED
from lakegc_assets.mark.signature_relations import ANY, SMALL
from lakegc_assets.mark.signatures import (
    CANDIDATES,
    MATCHES,
    RANGE_IDS,
    RANGES,
    SAMPLED,
    SIGNATURES,
    SIZED,
    SIZES,
    TO_READ,
    UNCLEAR,
)
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.frames import Frames, same
from lakegc_assets_tests.mark import signature_twins as twins
from lakegc_assets_tests.sessions import Session

SIGNATURES_OF = pa.schema([("address", pa.string()), *SIGNATURES])
NOW = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)
#: Few of each, so that they meet, and the ends of what a number can be.
HASHES = st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)])
ETAG_HASHES = st.sampled_from([0, 1, -1, -(2**63), ANY])
SIZE = st.sampled_from([0, SMALL, SMALL + 1, 2**40])
TIMES = st.sampled_from([NOW + timedelta(microseconds=n) for n in (-1, 0, 10**9)])
ADDRESSES = st.sampled_from(
    ["data/a/x", "data/b/x", "x", "data/a/x\n", "data/'; --", "data/é", "data//", "", "data/\uffff"]
)
IDS = st.sampled_from(["r1", "r2", "r3"])
COUNT = st.integers(1, 600)


def rows(*by: str, **columns: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Some rows, each with other values of some columns than all others."""
    unique: Callable[[dict[str, Any]], Any] | None = None
    if by:
        unique = lambda row: tuple(row[name] for name in by)  # noqa: E731 - of these columns
    return st.lists(st.fixed_dictionaries(columns), max_size=8, unique_by=unique)


ENTRIES = rows(range_id=IDS, hash=HASHES, size=SIZE, etag_hash=ETAG_HASHES)
LISTED = rows(hash=HASHES, etag_hash=ETAG_HASHES, last_modified=TIMES, size=SIZE)
OBJECTS = rows(
    "address",
    address=ADDRESSES,
    hash=HASHES,
    size=SIZE,
    last_modified=TIMES,
    etag=st.sampled_from(["a" * 32, "b" * 32, ""]),
    etag_hash=ETAG_HASHES,
)
SOME_SIGNATURES = rows(size=SIZE, signature=ETAG_HASHES)
EACH_SIGNATURE = rows("size", "signature", size=SIZE, signature=ETAG_HASHES)
SOME_MATCHES = rows(
    "range_id", "size", "signature", range_id=IDS, size=SIZE, signature=ETAG_HASHES, entries=COUNT
)
NUMBERS = st.permutations(range(3)).map(
    lambda order: [{"range_id": f"r{n + 1}", "number": number} for n, number in enumerate(order)]
)
OF_RANGES = rows("range_id", range_id=IDS, branches=COUNT, pages=COUNT)
OF_OBJECTS = rows(address=ADDRESSES, size=SIZE, signature=ETAG_HASHES)
PATHS = rows("size", "signature", size=SIZE, signature=ETAG_HASHES, paths=st.integers(1, 3))
UNTIL = st.sampled_from([None, NOW])

Given = tuple[pa.Schema, st.SearchStrategy[Any]]


def holds(
    frames: Frames,
    relation: Callable[..., Any],
    some: list[Given],
    schema: pa.Schema,
    *values: st.SearchStrategy[Any],
) -> None:
    """Hold a relation against its twin, with rows and some plain values."""
    twin = getattr(twins, relation.__name__)

    @settings(
        max_examples=frames.examples,
        deadline=None,
        # An example is a query: small as it is, it need not become the smallest one.
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.tuples(*(strategy for _, strategy in some)), st.tuples(*values))
    def compare(drawn: tuple[Any, ...], plain: tuple[Any, ...]) -> None:
        made = [frames.of(r, s) for r, (s, _) in zip(drawn, some, strict=True)]
        found = frames.rows(relation(*made, *plain), schema)
        assert same([_utc(row) for row in found], [_utc(row) for row in twin(*drawn, *plain)])

    compare()


def _utc(row: dict[str, Any]) -> dict[str, Any]:
    """The same row; engines spell the zone of a time in several ways."""
    return {
        name: value.astimezone(timezone.utc) if isinstance(value, datetime) else value
        for name, value in row.items()
    }


def test_etag_evidence(frames: Frames) -> None:
    def of_pieces(entries: Any, ranges: Any, first: Any, second: Any, few: Any) -> Any:
        return relations.etag_evidence(entries, ranges, [first, second], few)

    of_pieces.__name__ = "etag_evidence_of_two"
    some = [(ROWS, ENTRIES), (NUMBERED, NUMBERS), (ETAGS, LISTED), (ETAGS, LISTED)]
    holds(frames, of_pieces, some, EVIDENCE, st.booleans())


@pytest.mark.conformance
def test_entries_stay_where_they_are_read_beside_few_listed_objects(
    spark: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    """On Spark; an optimized run compares all entries with what was listed since the last one."""
    with SparkBackedSession(spark, open_store) as session:
        row: dict[str, Any] = {
            name: 1 for schema in (ROWS, NUMBERED, ETAGS) for name in schema.names
        }
        row |= {"range_id": "r1", "folder": "", "last_modified": NOW}
        entries, ranges, listed = (
            session.create(pa.Table.from_pylist([row], schema))
            for schema in (ROWS, NUMBERED, ETAGS)
        )
        listed.sparkSession.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
        for few in (True, False):
            relations.etag_evidence(entries, ranges, [listed, listed], few).explain()
            assert ("BroadcastHashJoin" in capsys.readouterr().out) == few


def test_unclear_entries(frames: Frames) -> None:
    holds(frames, relations.unclear_entries, [(ROWS, ENTRIES), (ETAGS, LISTED)], UNCLEAR)


def test_unclear_matches(frames: Frames) -> None:
    some = rows(range_id=IDS, size=SIZE, etag_hash=ETAG_HASHES, entries=COUNT)
    holds(frames, relations.unclear_matches, [(UNCLEAR, some)], MATCHES)


def test_possible_signatures(frames: Frames) -> None:
    holds(frames, relations.possible_signatures, [(CANDIDATES, OBJECTS)], SIGNATURES, st.booleans())


def test_matches_in(frames: Frames) -> None:
    ids = (RANGE_IDS, rows("range_id", range_id=IDS))
    some = [(MATCHES, SOME_MATCHES), ids, (SIGNATURES, SOME_SIGNATURES)]
    holds(frames, relations.matches_in, some, MATCHES)


def test_matches(frames: Frames) -> None:
    holds(frames, relations.matches, [(ROWS, ENTRIES), (SIGNATURES, SOME_SIGNATURES)], MATCHES)


def test_other_signatures(frames: Frames) -> None:
    holds(
        frames,
        relations.other_signatures,
        [(SIGNATURES, SOME_SIGNATURES), (SIGNATURES, SOME_SIGNATURES)],
        SIGNATURES,
    )


def test_signatures_of(frames: Frames) -> None:
    @settings(max_examples=frames.examples, deadline=None, phases=[Phase.explicit, Phase.generate])
    @given(OBJECTS, UNTIL, rows("address", address=ADDRESSES, content=HASHES), st.booleans())
    def compare(objects: Any, until: Any, contents: Any, unclear: Any) -> None:
        given_frames = frames.of(objects, CANDIDATES), frames.of(contents, CONTENTS)
        found = relations.signatures_of(given_frames[0], until, given_frames[1], unclear)
        assert same(
            frames.rows(found, SIGNATURES_OF),
            twins.signatures_of(objects, until, contents, unclear),
        )

    compare()


def test_sample(frames: Frames) -> None:
    few = st.integers(0, 3)
    most = st.sampled_from([SMALL, 2**50])
    holds(frames, relations.sample, [(CANDIDATES, OBJECTS)], SAMPLED, most, few, few)


def test_doubtful_sizes(frames: Frames) -> None:
    some: list[Given] = [(CANDIDATES, OBJECTS), (MATCHES, SOME_MATCHES), (RANGES, OF_RANGES)]
    holds(frames, relations.doubtful_sizes, some, SIZED, UNTIL)


def test_to_read(frames: Frames) -> None:
    sizes = rows("size", size=SIZE, most=st.integers(0, 3))
    some: list[Given] = [(CANDIDATES, OBJECTS), (pa.schema([*SIZES, ("most", pa.int64())]), sizes)]
    holds(frames, relations.to_read, some, TO_READ, UNTIL)


def test_paths_of_signatures(frames: Frames) -> None:
    some: list[Given] = [(MATCHES, SOME_MATCHES), (SIGNATURES_OF, OF_OBJECTS), (RANGES, OF_RANGES)]
    holds(frames, relations.paths_of_signatures, some, PATHS_OF)


def test_signatures_by_paths(frames: Frames) -> None:
    few = st.integers(1, 3)
    holds(frames, relations.signatures_by_paths, [(PATHS_OF, PATHS)], BY_PATHS, few, few)


def test_asked_signatures(frames: Frames) -> None:
    before = rows("paths", paths=st.integers(1, 3), before=st.integers(0, 5))
    some: list[Given] = [(PATHS_OF, PATHS), (BEFORE, before)]
    holds(frames, relations.asked_signatures, some, ASKED, st.integers(0, 9), st.integers(1, 4))


def test_ranges_with(frames: Frames) -> None:
    some: list[Given] = [(MATCHES, SOME_MATCHES), (SIGNATURES, EACH_SIGNATURE)]
    holds(frames, relations.ranges_with, some, RANGE_IDS)


def test_sizes_of(frames: Frames) -> None:
    holds(frames, relations.sizes_of, [(CANDIDATES, OBJECTS)], SIZES)


def test_spared(frames: Frames) -> None:
    some: list[Given] = [
        (CANDIDATES, OBJECTS),
        (SERVED_NAMES, rows(name=ADDRESSES)),
        (SIGNATURES_OF, OF_OBJECTS),
        (SIGNATURES, SOME_SIGNATURES),
    ]
    holds(frames, relations.spared, some, SPARED)
