"""Holders and comparisons: relations give what their twins in plain Python give, on each engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lakegc_assets.mark import comparison_relations, relations
from lakegc_assets_tests.frames import Frames, same
from lakegc_assets_tests.mark import comparison_twins, twins

CUTOFF = datetime(2026, 1, 2, tzinfo=timezone.utc)
HASH = pa.schema([pa.field("hash", pa.int64(), nullable=False)])
ENTRY = pa.schema([("range_id", pa.string()), ("hash", pa.int64())])
RANGE = pa.schema([("range_id", pa.string()), ("rank", pa.int64())])
COMMIT = pa.schema([("rank", pa.int64()), ("commit_id", pa.string()), ("branch", pa.string())])
HOLDER = pa.schema([("hash", pa.int64()), ("commit_id", pa.string()), ("branch", pa.string())])
OBJECT = pa.schema([("hash", pa.int64()), ("address", pa.string()), ("size", pa.int64())])
LISTED = pa.schema([*OBJECT, ("last_modified", pa.timestamp("us", "UTC"))])
NAMED = pa.schema([*OBJECT, ("in_place", pa.bool_()), ("elsewhere", pa.string())])
MARKED = pa.schema(
    [*NAMED, ("reason", pa.string()), ("commit_id", pa.string()), ("branch", pa.string())]
)
SPARED = pa.schema([("address", pa.string()), ("why", pa.string())])
KIND = pa.schema([*HASH, ("kind", pa.string()), ("turn", pa.int32())])
FOLDER = pa.schema([("folder", pa.string())])
SWEPT = pa.schema([("address", pa.string()), ("outcome", pa.string())])

#: Few of each, so that they meet, and the ends of what a number can be.
hashes = st.sampled_from([0, 1, 2, 3, -(2**63), 2**63 - 1])
texts = st.sampled_from(["", "a", "b", "'\"|\n;--", "ü\U0001f600", "NULL"])
addresses = st.sampled_from(
    [*("data/a", "data/s/a", "data/s\n/a/b", "data//a", "/a/b", "data/s/'\"\U0001f600", "dummy")]
)
sizes = st.one_of(st.none(), st.integers(0, 5), st.just(2**62))
times = st.sampled_from([CUTOFF + timedelta(microseconds=n) for n in (-1, 0, 1)])
_VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "hash": hashes,
    "range_id": st.sampled_from(["r1", "r2", "r3"]),
    "rank": st.integers(0, 3),
    "commit_id": st.sampled_from(["c1", "c2"]),
    "branch": st.one_of(st.none(), texts),
    "address": addresses,
    "size": sizes,
    "last_modified": times,
    "in_place": st.booleans(),
    "elsewhere": st.one_of(st.none(), st.none(), texts),
    "reason": st.one_of(st.none(), texts),
    "why": texts,
    "kind": st.sampled_from(["committed", "staged", "", "missing"]),
    "turn": st.integers(0, 2),
    "is_named": st.booleans(),
    "named_by": st.sampled_from(["both", "first", "second"]),
    "outcome": st.sampled_from(["deleted", "already_missing", "spared"]),
    "folder": st.sampled_from(["data/s/", "data//", "/a/", "", "data/s\n/"]),
}


def rows(schema: pa.Schema, unique: str | None = None) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Some rows, in which one column may have each value once."""
    row = st.fixed_dictionaries({name: _VALUES[name] for name in schema.names})
    by: Callable[[Mapping[str, Any]], Any] | None = (lambda one: one[unique]) if unique else None
    return st.lists(row, max_size=6, unique_by=by)


def holds(
    frames: Frames,
    relation: Callable[..., Any],
    given_rows: Sequence[tuple[pa.Schema, st.SearchStrategy[list[dict[str, Any]]]]],
    schema: pa.Schema,
    *values: st.SearchStrategy[Any],
    in_order: bool = False,
) -> None:
    """Hold a relation against its twin, with random rows and some plain values."""
    of_mark = relation.__module__ == relations.__name__
    twin = getattr(twins if of_mark else comparison_twins, relation.__name__)

    @settings(
        max_examples=frames.examples,
        deadline=None,
        # An example is a query: small as it is, it need not become the smallest one.
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.tuples(*(strategy for _, strategy in given_rows)), st.tuples(*values))
    def compare(some: tuple[list[dict[str, Any]], ...], plain: tuple[Any, ...]) -> None:
        made = [frames.of(r, s) for r, (s, _) in zip(some, given_rows, strict=True)]
        found = frames.rows(relation(*made, *plain), schema)
        expected = [{n: row[n] for n in schema.names} for row in twin(*some, *plain)]
        assert found == expected if in_order else same(found, expected)

    compare()


def test_last_holders(frames: Frames) -> None:
    every_rank = st.just([{"rank": n, "commit_id": f"c{n}", "branch": "b"} for n in range(4)])
    some = [
        (OBJECT, rows(OBJECT)),
        (ENTRY, rows(ENTRY)),
        (RANGE, rows(RANGE, "range_id")),
        (COMMIT, every_rank),
    ]
    holds(frames, relations.last_holders, some, HOLDER)


def test_with_holders(frames: Frames) -> None:
    some = [(OBJECT, rows(OBJECT)), (HOLDER, rows(HOLDER, "hash"))]
    schema = pa.schema([*OBJECT, *HOLDER.remove(0)])
    holds(frames, relations.with_holders, some, schema)


def test_with_reasons(frames: Frames) -> None:
    some = [(OBJECT, rows(OBJECT)), (HOLDER, rows(HOLDER, "hash"))]
    schema = pa.schema([*OBJECT, *HOLDER.remove(0), ("reason", pa.string())])
    holds(frames, relations.with_reasons, some, schema)


def test_held_by_expired(frames: Frames) -> None:
    some = [(ENTRY, rows(ENTRY)), (RANGE, rows(RANGE, "range_id"))]
    holds(frames, relations.held_by_expired, some, ENTRY)


def test_with_hashes(frames: Frames) -> None:
    some = [(ENTRY, rows(ENTRY)), (OBJECT, rows(OBJECT))]
    holds(frames, relations.with_hashes, some, ENTRY)


def test_ranges_with_hashes(frames: Frames) -> None:
    some = [(ENTRY, rows(ENTRY)), (OBJECT, rows(OBJECT))]
    holds(frames, relations.ranges_with_hashes, some, pa.schema([ENTRY.field("range_id")]))


def test_named_by_expired(frames: Frames) -> None:
    some = [(OBJECT, rows(OBJECT)), (ENTRY, rows(ENTRY))]
    names = pa.schema([OBJECT.field("address")])
    holds(frames, relations.named_by_expired, some, names, in_order=True)


def test_each_once(frames: Frames) -> None:
    # An address has one hash, whatever lists name it.
    def consistent(some: list[dict[str, Any]]) -> list[dict[str, Any]]:
        first = {row["address"]: row for row in reversed(some)}
        return [first[row["address"]] for row in some]

    holds(frames, comparison_relations.each_once, [(NAMED, rows(NAMED).map(consistent))], NAMED)


def test_as_named(frames: Frames) -> None:
    some = NAMED.remove(NAMED.get_field_index("elsewhere"))
    holds(frames, comparison_relations.as_named, [(some, rows(some))], NAMED)


def test_by_list(frames: Frames) -> None:
    some = [(OBJECT, rows(OBJECT)), (HASH, rows(HASH, "hash"))]
    schema = OBJECT.append(pa.field("is_named", pa.bool_()))
    holds(frames, comparison_relations.by_list, some, schema)


def test_beside(frames: Frames) -> None:
    some = [(MARKED, rows(MARKED, "hash")), (MARKED, rows(MARKED, "hash"))]
    schema = pa.schema([*MARKED, ("named_by", pa.string())])
    holds(frames, comparison_relations.beside, some, schema)


def test_live_by_kind(frames: Frames) -> None:
    some = [(HASH, rows(HASH))] * 3
    holds(frames, comparison_relations.live_by_kind, some, KIND)


def test_why_kept(frames: Frames) -> None:
    live = st.tuples(rows(HASH), rows(HASH), rows(HASH))
    some = [
        (NAMED, rows(NAMED, "hash")),
        (OBJECT, rows(OBJECT).map(lambda some: some[:2])),
        (LISTED, rows(LISTED, "hash")),
        (KIND, live.map(lambda given: comparison_twins.live_by_kind(*given))),
        (SPARED, rows(SPARED)),
        (FOLDER, rows(FOLDER, "folder")),
        (SWEPT, rows(SWEPT)),
    ]
    schema = pa.schema([*OBJECT, ("kind", pa.string()), ("why", pa.string())])
    plain = [
        st.just(CUTOFF),
        st.sampled_from(["an active commit holds it", "'\"|any range"]),
        st.sampled_from(["missing", "not looked at", "not reported"]),
        st.sampled_from(["the sweep of run 'r' has deleted it", "'\"|"]),
        st.sampled_from(["other", "not adopted"]),
    ]
    holds(frames, comparison_relations.survivors, some, schema, *plain)


def test_with_kept(frames: Frames) -> None:
    held = [("commit_id", pa.string()), ("branch", pa.string())]
    marked = pa.schema([*OBJECT, ("reason", pa.string()), *held])
    survivors = pa.schema([*OBJECT, ("kind", pa.string()), ("why", pa.string()), *held])
    some = [(marked, rows(marked, "hash")), (survivors, rows(survivors, "hash"))]
    more = [("kept_size", pa.int64())]
    more += [(name, pa.string()) for name in ("kind", "why", "kept_commit", "kept_branch")]
    holds(frames, comparison_relations.with_survivors, some, pa.schema([*marked, *more]))


def test_totals(frames: Frames) -> None:
    counts = [pa.field(name, pa.int64()) for name in ("objects", "sized", "bytes")]
    schema = pa.schema([MARKED.field("reason"), MARKED.field("branch"), *counts])
    some = [(MARKED, _small(rows(MARKED)))]
    holds(frames, comparison_relations.totals, some, schema, st.just(["reason", "branch"]))


def test_largest(frames: Frames) -> None:
    some = [(OBJECT, rows(OBJECT, "address"))]
    holds(frames, comparison_relations.largest, some, OBJECT, st.integers(0, 7), in_order=True)


def _small(
    some: st.SearchStrategy[list[dict[str, Any]]],
) -> st.SearchStrategy[list[dict[str, Any]]]:
    """The same without sizes whose sum is beyond any number of bytes."""
    return some.map(
        lambda given: [{**row, "size": row["size"] and row["size"] % 2**40} for row in given]
    )
