"""What relations of the checks give is what their twins say, on every engine."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import FunctionType
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame

from lakegc_assets.checks import relations
from lakegc_assets.checks.witness import named
from lakegc_assets_tests.checks import twins
from lakegc_assets_tests.frames import Frames, same

NOW = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)
MD5 = "0123456789abcdef" * 2
#: Few names, so that they meet; and such as break patterns, paths and SQL.
NAMES = [
    "data/a/x", "data/b/x", "x", "data/", "data//", "data//x", "data/x", "data/a", "other/x", "",
    ".", "..", "data/..", "data/../x", "data/a/./b", "data/.a", "data/...", "./data/a", "a://b",
    "s3://b/data/x", "data/a\n", "data/a\r", "\n", "_lakefs", "_lakefs/x", "_lakefsx", "dummy",
    "data/_lakefs/x", "data/_lakefs", "data/dummy", "data/dummy/x", "data/xdummy", "dummy\n",
    "data/é/\u0085", "data/'; --", "data/a\\b", "data/a\\..\\b", "data/%2e%2e/b", "data/\uffff",
    "data/a*b?", "DATA/a/x", " data/a/x", "/", "/data/a/x", "data/" + "long" * 300,
    "data/a/b/x", "data/a/b/", "data///x", "data/!ab/c/d/x", "data/!ab/c/d/e/x", "data/a/!b/c/x",
    "data/./x", "data/!a://b", "a/dummy", "a/_lakefs/x",
]  # fmt: skip
ADDRESSES = st.sampled_from(NAMES)
MAYBE = st.none() | ADDRESSES
ETAGS = st.sampled_from([MD5, "f" * 32, MD5 + "\n", MD5.upper(), MD5 + "-2", MD5[1:], "", "\n"])
SIZES = st.sampled_from([0, 1, 64, 2**62])
RANGES = st.sampled_from(["ra", "rb", "rc", "r'd"])
TIMES = st.sampled_from([NOW, NOW - timedelta(microseconds=1), NOW + timedelta(days=1)])
MOMENTS = st.sampled_from([0, twins.micros(NOW), twins.micros(NOW) - 1, 2**63 - 1, -(2**63)])

FIELDS: Final[dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]]] = {
    "address": (pa.string(), MAYBE),
    "size": (pa.int64(), SIZES),
    "etag": (pa.string(), ETAGS),
    "last_modified": (pa.timestamp("us", "UTC"), TIMES),
    "range_id": (pa.string(), RANGES),
    "number": (pa.int64(), st.integers(0, 5)),
    "first": (pa.int64(), st.integers(0, 5)),
    "behind": (pa.int64(), st.integers(0, 6)),
    "modified": (pa.int64(), MOMENTS),
    "name": (pa.string(), st.none() | st.sampled_from(["v1", "v2"])),
    "check": (pa.string(), st.sampled_from(["one", "another"])),
    "branch": (pa.string(), st.sampled_from(["main", "b'"])),
    "commit_id": (pa.string(), st.sampled_from(["c1", "c2"])),
    "run": (pa.string(), st.none() | st.sampled_from(["r1", "r2", ""])),
    "folder": (pa.string(), st.sampled_from(["data/a/", "data//", "data/b/", "other/"])),
    "objects": (pa.int64(), st.integers(0, 5)),
    "listed": (pa.int64(), st.none() | SIZES),
    "outcome": (pa.string(), st.sampled_from(["deleted", "already_missing", "spared", ""])),
}
SPAN = ("range_id", "first", "behind")
ENTRY = ("range_id", "number", "address", "modified", "size", "etag")


def schema(*names: str) -> pa.Schema:
    return pa.schema([(name, FIELDS[name][0]) for name in names])


def rows(*names: str, **others: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    columns = {name: others.get(name, FIELDS[name][1]) for name in names}
    return st.lists(st.fixed_dictionaries(columns), max_size=8)


def held_together(
    frames: Frames,
    name: str,
    inputs: dict[str, st.SearchStrategy[list[dict[str, Any]]]],
    columns: tuple[tuple[str, ...], ...],
    gives: tuple[str, ...],
    *plain: st.SearchStrategy[Any],
    ordered: bool = False,
    sequences: int = 0,
) -> None:
    """Compare a relation with its twin.

    Args:
        frames: of an engine.
        name: of both.
        inputs: rows of the frames that they take.
        columns: of these frames.
        gives: columns of what they give.
        plain: what else they take, behind the frames.
        ordered: whether what they give is in order.
        sequences: how many of the last frames they take each as the only one of several.
    """
    rule: Callable[..., DataFrame] = getattr(relations, name)
    twin: Callable[..., list[dict[str, Any]]] = getattr(twins, name)

    @given(st.tuples(*inputs.values()), st.tuples(*plain))
    @settings(max_examples=frames.examples)
    def compared(tables: tuple[list[dict[str, Any]], ...], values: tuple[Any, ...]) -> None:
        pairs = zip(tables, columns, strict=True)
        given_frames = [frames.of(table, schema(*names)) for table, names in pairs]
        of_rule, of_twin = list[Any](given_frames), list[Any](tables)
        for at in range(len(of_rule) - sequences, len(of_rule)):
            of_rule[at], of_twin[at] = [of_rule[at]], [of_twin[at]]
        made = frames.rows(rule(*of_rule, *values), schema(*gives))
        wanted = twin(*of_twin, *values)
        assert (made == wanted) if ordered else same(made, wanted)

    compared()


@pytest.mark.parametrize("name", ["outside", "special"])
def test_every_address_is_judged_as_its_twin_does(frames: Frames, name: str) -> None:
    """What is drawn may leave out the one that a rule is about."""
    table, columns = [{"address": one} for one in [None, *NAMES]], schema("address")
    made = frames.rows(getattr(relations, name)(frames.of(table, columns)), columns)
    assert same(made, getattr(twins, name)(table))


def test_a_span_begins_with_its_first_and_ends_before_its_last(frames: Frames) -> None:
    entries = [{"range_id": "ra", "number": n, "address": f"data/a/{n}"} for n in range(6)]
    spans = frames.of([{"range_id": "ra", "first": 2, "behind": 4}], schema(*SPAN))
    held = relations.within(frames.of(entries, schema("range_id", "number", "address")), spans)
    found = frames.rows(held, schema("address"))
    assert same(found, [{"address": "data/a/2"}, {"address": "data/a/3"}])


@pytest.mark.parametrize(
    ("etag", "candidate"), [(MD5, MD5), (MD5, f"{MD5}-2"), (None, MD5), (None, f"{MD5}-2")]
)
def test_what_looks_like_a_candidate_is_asked_for(
    frames: Frames, etag: str | None, candidate: str
) -> None:
    entry = {"range_id": "ra", "number": 1, "address": "x", "modified": 0, "size": 64, "etag": etag}
    asked = relations.questions(
        frames.of([entry], schema(*ENTRY)),
        frames.of([{"size": 64, "etag": candidate}], schema("size", "etag")),
        frames.of([{"range_id": "ra", "commit_id": "c1"}], schema("range_id", "commit_id")),
        frames.of([{"commit_id": "c1", "branch": "main"}], schema("commit_id", "branch")),
        [],
        [],
    )
    found = frames.rows(asked, schema("range_id", "branch", "number"))
    assert found == [{"range_id": "ra", "branch": "main", "number": 1}]


def test_an_object_of_another_size_than_its_entry_is_unlike_it(frames: Frames) -> None:
    held = [
        {"address": f"data/a/{n}", "modified": 0, "size": 64, "number": n, "range_id": "ra"}
        for n in range(2)
    ]
    listed = [{"address": "data/a/0", "size": 64}, {"address": "data/a/1", "size": 1}]
    entries = frames.of(held, schema("range_id", "number", "address", "modified", "size"))
    unlike = relations.unlike(entries, frames.of(listed, schema("address", "size")), NOW)
    found = frames.rows(unlike, schema("address", "listed"))
    assert same(found, [{"address": "data/a/1", "listed": 1}])


def test_where_sizes_differ_an_entry_is_confirmed_by_its_own_size_only(frames: Frames) -> None:
    entry = {"range_id": "ra", "modified": 0, "etag": MD5}
    held = [{**entry, "number": n, "address": f"data/a/{n}", "size": 64} for n in range(2)]
    listed = [{"address": "data/a/0", "size": 64}, {"address": "data/a/1", "size": 1}]
    ranges = frames.of([{"range_id": "ra", "commit_id": "c1"}], schema("range_id", "commit_id"))
    heads = frames.of([{"commit_id": "c1", "branch": "main"}], schema("commit_id", "branch"))
    asked = relations.questions(
        frames.of(held, schema(*ENTRY)),
        frames.of([], schema("size", "etag")),
        ranges,
        heads,
        [],
        [frames.of(listed, schema("address", "size"))],
    )
    found = frames.rows(asked, schema("range_id", "branch", "number"))
    assert found == [{"range_id": "ra", "branch": "main", "number": 1}]


ADDRESS = ("address",)
MOST = st.integers(1, 5)
PURE: Final[list[tuple[str, tuple[tuple[str, ...], ...], tuple[str, ...], tuple[Any, ...]]]] = [
    ("outside", (("address", "size"),), ADDRESS, ()),
    ("special", (("address", "size"),), ADDRESS, ()),
    ("not_old", (ADDRESS, ("address", "last_modified")), ADDRESS, (st.just(NOW),)),
    (
        "of_tags",
        (ENTRY, ("range_id", "commit_id"), ("name", "commit_id")),
        ("name", "address"),
        (),
    ),
    ("within", (ENTRY, SPAN), ADDRESS, ()),
    ("named", (ADDRESS,), ("check", "name", "address"), (st.just("one"),)),
    ("named", (("name", "address"),), ("check", "name", "address"), (st.just("one"),)),
    ("found", (("check", "name", "address"), ADDRESS), ("check", "name", "address"), ()),
    ("counts", (("check", "name", "address"),), ("check", "name", "objects"), ()),
    ("expected", (ENTRY,), ADDRESS, (st.none() | TIMES,)),
    ("unlike", (ENTRY, ("address", "size")), ("address", "listed"), (st.none() | TIMES,)),
    ("distinct", (ADDRESS,), ADDRESS, ()),
    ("without", (ADDRESS, ADDRESS), ADDRESS, ()),
    ("deleted_before", (ADDRESS, ("address", "run")), ("address", "run"), ()),
    ("total", (ADDRESS,), ("objects",), ()),
]


@pytest.mark.parametrize(("name", "takes", "gives", "plain"), PURE)
def test_a_relation_is_its_twin(
    name: str,
    takes: tuple[tuple[str, ...], ...],
    gives: tuple[str, ...],
    plain: tuple[Any, ...],
    frames: Frames,
) -> None:
    inputs = {f"{n}": rows(*columns) for n, columns in enumerate(takes)}
    held_together(frames, name, inputs, takes, gives, *plain)


def test_what_is_in_no_unlisted_slice_is_its_twin(frames: Frames) -> None:
    for some in (ADDRESS, ("address", "listed")):
        inputs = {"addresses": rows(*some, address=ADDRESSES), "unlisted": rows("folder")}
        held_together(frames, "outside_slices", inputs, (some, ("folder",)), some)


def test_what_sweeps_deleted_since_is_its_twin(frames: Frames) -> None:
    listed, outcomes = ("address", "size"), ("address", "outcome")
    inputs = {"anew": rows(*listed), "carried": rows(*listed), "swept": rows(*outcomes)}
    columns = (listed, listed, outcomes)
    held_together(frames, "still_there", inputs, columns, listed)


@pytest.mark.parametrize(("name", "address"), [("first", MAYBE), ("sample", ADDRESSES)])
def test_what_is_shown_or_asked_for_is_its_twin(
    name: str, address: st.SearchStrategy[Any], frames: Frames
) -> None:
    inputs = {"addresses": rows("address", address=address)}
    held_together(frames, name, inputs, (ADDRESS,), ADDRESS, MOST, ordered=True)


def test_what_was_deleted_and_is_shown_is_its_twin(frames: Frames) -> None:
    columns = ("address", "run")
    each = st.dictionaries(ADDRESSES, st.sampled_from(["r1", "r2"]), max_size=8)
    deleted = each.map(lambda runs: [{"address": a, "run": run} for a, run in runs.items()])
    inputs = {"addresses": deleted}
    held_together(frames, "first", inputs, (columns,), columns, MOST, ordered=True)


def test_what_lakefs_is_asked_for_is_its_twin(frames: Frames) -> None:
    """Entries that stand twice in the cache, and ranges that a branch has twice, are asked once."""
    looks, ranges, heads = ("size", "etag"), ("range_id", "commit_id"), ("commit_id", "branch")
    entries = rows(*ENTRY, etag=st.none() | st.sampled_from([MD5, "f" * 32]))
    inputs = {"entries": entries, "candidates": rows(*looks)}
    inputs |= {"ranges": rows(*ranges), "heads": rows(*heads)}
    gives = ("range_id", "branch", "number")
    columns: tuple[tuple[str, ...], ...] = (ENTRY, looks, ranges, heads)
    none: st.SearchStrategy[list[Any]] = st.just([])
    held_together(frames, "questions", inputs, columns, gives, none, none, ordered=True)
    # Where what HEADs name is not there.
    inputs["lost"], columns = rows("address"), (*columns, ("address",))
    held_together(frames, "questions", inputs, columns, gives, none, ordered=True, sequences=1)
    # Where sizes must be confirmed, by what is listed.
    inputs["confirming"], columns = rows("address", "size"), (*columns, ("address", "size"))
    held_together(frames, "questions", inputs, columns, gives, ordered=True, sequences=2)


def test_each_relation_has_a_twin_that_is_compared() -> None:
    own = {
        name
        for name, value in vars(relations).items()
        if isinstance(value, FunctionType) and hasattr(value, "__wrapped__")
    }
    others = {"outside_slices", "first", "sample", "questions", "still_there"}
    assert own == {name for name, *_ in PURE} | others


@given(rows(*ENTRY), rows("address", "size"), st.none() | TIMES)
def test_what_stands_for_entries_tells_of_addresses_what_all_of_them_do(
    entries: list[dict[str, Any]], store: list[dict[str, Any]], before: datetime | None
) -> None:
    fewer = named(pa.Table.from_pylist(entries, schema(*ENTRY))).to_pylist()
    assert {row["address"] for row in fewer} == {row["address"] for row in entries} - {None}
    assert len(fewer) == len({(row["address"], row["size"]) for row in fewer})
    assert same(twins.unlike(fewer, store, before), twins.unlike(entries, store, before))
    assert addresses(twins.expected(fewer, before)) == addresses(twins.expected(entries, before))


def addresses(rows: list[dict[str, Any]]) -> set[str]:
    return {row["address"] for row in rows}
