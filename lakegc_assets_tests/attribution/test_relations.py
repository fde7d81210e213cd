"""Attribution: relations give what their twins in plain Python give, on each engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lakegc_assets.attribution import relations
from lakegc_assets.attribution.attribution import CELLS
from lakegc_assets_tests.attribution import twins
from lakegc_assets_tests.frames import Frames, same

CUTOFF = datetime(2026, 1, 2, tzinfo=timezone.utc)
START = CUTOFF + timedelta(days=1)
WORDS = ["word_0", "word_1"]
_TIME = pa.timestamp("us", "UTC")
_TOTAL = [("objects", pa.int64()), ("bytes", pa.int64())]
HASH = pa.schema([("hash", pa.int64())])
ADDRESS = pa.schema([("address", pa.string())])
PAIR = pa.schema([("metarange_id", pa.string()), ("range_id", pa.string())])
_BITS = [(word, pa.int64()) for word in WORDS]
COMMIT = pa.schema([("metarange_id", pa.string()), ("age_rank", pa.int64()), *_BITS])
ENTRY = pa.schema([("range_id", pa.string()), *HASH, ("size", pa.int64()), ("folder", pa.string())])
PRINT = pa.schema([("print_0", pa.int64()), ("print_1", pa.int64())])
RANGE = pa.schema([("range_id", pa.string()), *PRINT])
GROUPED = pa.schema([*RANGE, ("oldest", pa.int64()), *_BITS])
NAMED = pa.schema(
    [*HASH, ("entry_size", pa.int64()), ("place", pa.int64()), ("oldest", pa.int64()), *PRINT]
)  # fmt: skip
LISTED = pa.schema(
    [*ADDRESS, *HASH, ("size", pa.int64()), ("last_modified", _TIME), ("in_place", pa.bool_())]
)
DEAD = pa.schema([*ADDRESS, *HASH, ("reason", pa.string())])
OUTCOME = pa.schema([*ADDRESS, ("outcome", pa.string())])
SPARED = pa.schema([*ADDRESS, ("why", pa.string())])
NEED = pa.schema([*HASH, ("is_staged", pa.int32())])
PLACED = pa.schema([("folder", pa.string()), ("place", pa.int64())])
EXCEPTION = pa.schema([*ADDRESS, ("spared_why", pa.string()), ("is_swept", pa.bool_())])
OBJECT = pa.schema(
    [("class", pa.string()), ("why", pa.string()), ("size", pa.int64()),
     ("object", pa.int64()), ("also_needed", pa.bool_()), ("place", pa.int64()),
     ("age", pa.int64()), ("size_class", pa.int64()), ("oldest", pa.int64()), *PRINT]
)  # fmt: skip
PRINTED = pa.schema(
    [*(field for field in CELLS if field.name not in {"folder", "holders"}),
     ("place", pa.int64()), *PRINT, ("object", pa.int64())]
)  # fmt: skip
HOLDING = pa.schema([*PRINT, ("range_id", pa.string())])
HOLDER = pa.schema([*PRINT, ("holders", pa.string())])
FOLDER = pa.schema([("folder", pa.string()), *_TOTAL])
METARANGE_SIZE = pa.schema([("metarange_id", pa.string()), *_TOTAL])

#: Few of each, so that they meet, and the ends of what a number can be.
_folders = st.sampled_from(["", "a/", "a/b/", "a/b/c/d/", "//", "ü\n/'\"/", "a b/"])
_VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "hash": st.sampled_from([0, 1, 2, -(2**63), 2**63 - 1]),
    "address": st.sampled_from(["data/a", "data/s/a", "dummy", "other/a", "data/s\n/'\""]),
    "range_id": st.sampled_from(["r1", "r2", "r3"]),
    "metarange_id": st.sampled_from(["m1", "m2"]),
    "age_rank": st.integers(0, 3),
    "oldest": st.one_of(st.none(), st.integers(0, 3)),
    "word_0": st.sampled_from([0, 1, 2, 5, 2**61]),
    "word_1": st.sampled_from([0, 1, 2**61]),
    "size": st.sampled_from([0, 1, 1 << 10, (1 << 10) + 1, 1 << 40]),
    "place": st.one_of(st.none(), st.integers(1, 3)),
    "print_0": st.sampled_from([None, 0, 1, 2**36 - 1]),
    "print_1": st.sampled_from([0, 1]),
    "object": st.sampled_from([None, 0, 1, -(2**63)]),
    "is_staged": st.integers(0, 1),
    "spared_why": st.sampled_from([None, "a", "b'\""]),
    "is_swept": st.sampled_from([None, True]),
    "entry_size": st.one_of(st.none(), st.integers(0, 5)),
    "folder": st.one_of(st.none(), _folders),
    "holders": st.one_of(st.none(), st.sampled_from(["1,0", "2,0", "3,1"])),
    "last_modified": st.sampled_from(
        [START - timedelta(days=d, microseconds=n) for d in (0, 1, 7, 400, 800) for n in (-1, 0, 1)]
    ),
    "in_place": st.booleans(),
    "also_needed": st.booleans(),
    "reason": st.sampled_from(["expired", "unreferenced"]),
    "outcome": st.sampled_from(["deleted", "already_missing", "spared", "failed"]),
    "why": st.sampled_from(["a", "b'\""]),
    "age": st.sampled_from([None, 1, -1]),
    "size_class": st.sampled_from([1 << 10, -1]),
    "class": st.sampled_from(["live and committed", "staged"]),
    "objects": st.integers(0, 5),
    "bytes": st.integers(0, 2**50),
}


def rows(
    schema: pa.Schema, *unique: str, known: Sequence[str] = ()
) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Some rows, in which some columns together have each value once, and others are not null."""
    row = st.fixed_dictionaries(
        {
            name: _VALUES[name].filter(lambda one: one is not None) if name in known
            else _VALUES[name]
            for name in schema.names
        }
    )  # fmt: skip
    by: Callable[[Mapping[str, Any]], Any] | None = (
        (lambda one: tuple(one[name] for name in unique)) if unique else None
    )
    return st.lists(row, max_size=6, unique_by=by)


def holds(
    frames: Frames,
    relation: Callable[..., Any],
    given_rows: Sequence[tuple[pa.Schema, st.SearchStrategy[list[dict[str, Any]]]]],
    schema: pa.Schema,
    *values: Any,
) -> None:
    """Hold a relation against its twin, with random rows and some plain values."""
    twin = getattr(twins, relation.__name__)

    @settings(
        max_examples=frames.examples,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.tuples(*(strategy for _, strategy in given_rows)))
    def compare(some: tuple[list[dict[str, Any]], ...]) -> None:
        made = [frames.of(r, s) for r, (s, _) in zip(some, given_rows, strict=True)]
        found = frames.rows(relation(*made, *values), schema)
        assert same(found, [{n: row[n] for n in schema.names} for row in twin(*some, *values)])

    compare()


def test_range_groups(frames: Frames) -> None:
    some = [
        (RANGE, rows(RANGE, "range_id", known=RANGE.names)),
        (PAIR, rows(PAIR, *PAIR.names)),
        (COMMIT, rows(COMMIT, "metarange_id")),
    ]
    holds(frames, relations.range_groups, some, GROUPED, WORDS)


def test_named_objects(frames: Frames) -> None:
    some = [
        (ENTRY, rows(ENTRY)),
        (GROUPED, rows(GROUPED, "range_id", known=RANGE.names)),
        (PLACED, rows(PLACED, "folder", known=PLACED.names)),
    ]
    holds(frames, relations.named_objects, some, NAMED)


def test_numbered_folders(frames: Frames) -> None:
    holds(frames, relations.numbered_folders, [(ENTRY, rows(ENTRY))], PLACED)


def test_with_unread(frames: Frames) -> None:
    some = [(NAMED, rows(NAMED, "hash")), (HASH, rows(HASH))]
    holds(frames, relations.with_unread, some, NAMED)


def test_holding_ranges(frames: Frames) -> None:
    some = [(ENTRY, rows(ENTRY)), (PRINTED, rows(PRINTED))]
    holds(frames, relations.holding_ranges, some, HOLDING)


def test_holders(frames: Frames) -> None:
    some = [
        (HOLDING, rows(HOLDING, known=PRINT.names)),
        (GROUPED, rows(GROUPED, "range_id", known=RANGE.names)),
    ]
    holds(frames, relations.holders, some, HOLDER, WORDS)


def test_with_holders(frames: Frames) -> None:
    some = [
        (PRINTED, rows(PRINTED)),
        (HOLDER, rows(HOLDER, *PRINT.names, known=PRINT.names)),
        (PLACED, rows(PLACED, "place", known=PLACED.names)),
    ]
    holds(frames, relations.with_holders, some, CELLS)


def test_needs(frames: Frames) -> None:
    holds(frames, relations.needs, [(HASH, rows(HASH))] * 2, NEED)


def test_exceptions(frames: Frames) -> None:
    for sweeps in range(3):
        some = [(SPARED, rows(SPARED)), *[(OUTCOME, rows(OUTCOME))] * sweeps]
        holds(frames, relations.exceptions, some, EXCEPTION)


def test_classified(frames: Frames) -> None:
    moments = relations.moments_of(CUTOFF, START)
    some = [
        (LISTED, rows(LISTED, "address")),
        (NAMED, rows(NAMED, "hash")),
        (NEED, rows(NEED, "hash")),
        (DEAD, rows(DEAD, "address", "hash")),
        (EXCEPTION, rows(EXCEPTION, "address")),
        (pa.schema([(name, _TIME) for name in moments]), st.just([moments])),
    ]
    holds(frames, relations.classified, some, OBJECT, "unexplained")


def test_cells(frames: Frames) -> None:
    holds(frames, relations.cells, [(OBJECT, rows(OBJECT))], PRINTED)


def test_totals(frames: Frames) -> None:
    schema = pa.schema([*(CELLS.field(name) for name in ("class", "why")), *_TOTAL])
    holds(frames, relations.totals, [(CELLS, rows(CELLS))], schema, ["class", "why"])


def test_by_folder(frames: Frames) -> None:
    for depth in (1, 3):
        holds(frames, relations.by_folder, [(FOLDER, rows(FOLDER))], FOLDER, depth)


def test_commit_sizes(frames: Frames) -> None:
    some = [(PAIR, rows(PAIR, *PAIR.names)), (ENTRY, rows(ENTRY))]
    holds(frames, relations.commit_sizes, some, METARANGE_SIZE)


def test_sizes_that_somebody_told_are_added_up_whatever_they_are(frames: Frames) -> None:
    """Who links an object says how large it is, and could end the attribution of all others'."""
    pair = frames.of([{"metarange_id": "m", "range_id": "r"}], PAIR)
    for sizes, total in (
        ([2**63 - 1] * 3, relations.MOST),
        ([-(2**63)] * 3, -relations.MOST),
        ([2**61, 2**61 - 1, -1, -(2**40) - 5], 2**62 - 2**40 - 7),
    ):
        rows = [{"range_id": "r", "hash": n, "size": size} for n, size in enumerate(sizes)]
        found = frames.rows(relations.commit_sizes(pair, frames.of(rows, ENTRY)), METARANGE_SIZE)
        assert found == [{"metarange_id": "m", "objects": len(sizes), "bytes": total}]
        told = dict.fromkeys(OBJECT.names) | {"class": "staged", "why": "", "also_needed": False}
        cells = relations.cells(frames.of([{**told, "size": size} for size in sizes], OBJECT))
        assert [one["bytes"] for one in frames.rows(cells, PRINTED)] == [total]


def test_the_largest_totals_are_added_up_too(frames: Frames) -> None:
    largest = dict.fromkeys(CELLS.names) | {"class": "staged", "objects": 1}
    schema = pa.schema([CELLS.field("class"), *_TOTAL])
    for most in (relations.MOST, -relations.MOST):
        cells = frames.of([{**largest, "bytes": most}] * 3, CELLS)
        found = frames.rows(relations.totals(cells, ["class"]), schema)
        assert found == [{"class": "staged", "objects": 3, "bytes": most}]


def test_a_total_of_nothing_known_is_not_known(frames: Frames) -> None:
    cell = dict.fromkeys(CELLS.names) | {"class": "staged", "objects": 1}
    schema = pa.schema([CELLS.field("class"), *_TOTAL])
    found = frames.rows(relations.totals(frames.of([cell] * 2, CELLS), ["class"]), schema)
    assert found == [{"class": "staged", "objects": 2, "bytes": None}]
