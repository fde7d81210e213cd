"""The relations of the sweep give what their twins in plain Python give, on each engine."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import product
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from lakegc_assets.engine.ddl import schema
from lakegc_assets.sweep import relations
from lakegc_assets.sweep.ledger import SWEPT
from lakegc_assets_tests.frames import Frames, Rows, check, holds, random_rows
from lakegc_assets_tests.sweep import twins

BEGAN = datetime(2026, 1, 2, tzinfo=timezone.utc)
MARKED = schema("address string, hash bigint, size bigint")
HASHES = schema("hash bigint")
LAST_PARTS = schema("last_part string")
NAMED = schema("address string, why string")
SPARED = pa.schema([*NAMED, ("size", pa.int64()), ("certain", pa.bool_())])
ADDRESSES = schema("address string")

addresses = st.sampled_from(
    ["", "data/a", "data/s/a", "data/s\n/a/b", "data//a", "data/s/'\"\U0001f600", "data/s/\uffff"]
)
whys = st.sampled_from(
    [
        "an active commit holds it now",
        "it is staged on a branch now",
        "pinned until 2026-01-02 03:04 UTC: restored",
        "pinned",
        "repository 'other' names it by its full address, in a commit",
    ]
)
OUTCOMES = ["deleted", "already_missing", "spared", "locked", "put_back", "failed", "copied"]
outcomes = st.sampled_from(OUTCOMES)
texts = st.one_of(st.none(), st.sampled_from(["", "a", "'\"|\n;--", "NULL"]))
_VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "address": addresses,
    "hash": st.sampled_from([0, 1, 2, -(2**63), 2**63 - 1]),
    "size": st.integers(0, 3) | st.just(2**60),
    "etag": st.sampled_from(["", "a"]),
    "last_part": st.sampled_from(["a", "b", "", "'\"\U0001f600"]),
    "why": whys,
    "outcome": outcomes,
    "error_code": texts,
    "detail": texts,
    "version": texts,
    "certain": st.booleans(),
    "at": st.integers(0, 10**6).map(lambda n: BEGAN + timedelta(microseconds=n)),
}


rows = partial(random_rows, _VALUES)


def test_what_is_left_to_do(frames: Frames) -> None:
    def test(marked: Rows, ledger: Rows) -> None:
        given = (marked, MARKED), (ledger, SWEPT)
        holds(frames, relations.remaining, twins, MARKED, *given, order=True)

    check(frames, test, rows(MARKED, "address"), rows(SWEPT))


COMPARED = pa.schema([(name, pa.int64()) for name in ("recorded", "strangers", "untold")])


def test_outcomes_are_compared_with_what_was_marked(frames: Frames) -> None:
    def test(ledger: Rows, marked: Rows) -> None:
        holds(frames, relations.compared, twins, COMPARED, (ledger, SWEPT), (marked, MARKED))

    check(frames, test, rows(SWEPT), rows(MARKED, "address"))


TOTALS = schema("outcome string, kept boolean, objects bigint, bytes bigint, first timestamp")


def test_one_outcome_of_each_object_counts(frames: Frames) -> None:
    def test(ledger: Rows, most: int) -> None:
        holds(frames, relations.outcomes, twins, SWEPT, (ledger, SWEPT), order=True)
        one_each = (twins.outcomes(ledger), SWEPT)
        holds(frames, relations.totals, twins, TOTALS, one_each)
        schema = pa.schema([SWEPT.field("address"), SWEPT.field("detail")])
        holds(frames, relations.put_back, twins, schema, one_each, most, order=True)

    # Which of two counts that were recorded at the same time, nobody can tell.
    check(frames, test, rows(SWEPT, "at"), st.integers(1, 3))
    # What is drawn may leave out the two that a rank is about.
    each = product(enumerate(product(OUTCOMES, OUTCOMES)), (0, 1))
    ledger = [
        {"address": f"data/{n}", "size": 1, "outcome": pair[at], "error_code": None}
        | {"detail": f"{at}", "at": BEGAN + timedelta(seconds=2 * n + at), "version": None}
        for (n, pair), at in each
    ]
    test(ledger, len(ledger))


def test_what_is_thought_to_be_gone(frames: Frames) -> None:
    def test(ledger: Rows, alive: Rows, missing: Rows) -> None:
        given = (ledger, SWEPT), (alive, SPARED), (missing, ADDRESSES)
        holds(frames, relations.thought_gone, twins, SPARED, *given)

    check(frames, test, rows(SWEPT, "address"), rows(SPARED, "address"), rows(ADDRESSES))


def test_what_is_in_doubt_or_missing_or_was_spared_is_not_thought_to_be_gone(
    frames: Frames,
) -> None:
    told = {"a": "deleted", "b": "deleted", "c": "deleted", "d": "spared", "e": "already_missing"}
    empty = dict.fromkeys(SWEPT.names)
    ledger = [
        {**empty, "address": address, "outcome": outcome, "size": 1, "at": BEGAN}
        for address, outcome in told.items()
    ]
    alive = [{"address": a, "why": "pinned", "size": 1, "certain": a != "b"} for a in "abcde"]
    given = (ledger, SWEPT), (alive, SPARED), ([{"address": "c"}], ADDRESSES)
    holds(frames, relations.thought_gone, twins, SPARED, *given)


OBJECTS = schema("address string, size bigint, etag string")
TOLD = pa.schema([(name, pa.string()) for name in ("address", "outcome", "error_code")])
COUNT = pa.schema([("objects", pa.int64())])


def test_what_is_backed_up(frames: Frames) -> None:
    def test(objects: Rows, held: Rows) -> None:
        holds(frames, relations.backed_up, twins, COUNT, (objects, OBJECTS), (held, OBJECTS))

    check(frames, test, rows(OBJECTS, "address"), rows(OBJECTS, "address"))


LACKING = pa.schema([*NAMED, ("size", pa.int64())])


def test_what_is_not_backed_up(frames: Frames) -> None:
    def test(marked: Rows, held: Rows, told: Rows) -> None:
        given = (marked, OBJECTS), (held, OBJECTS), (told, TOLD)
        holds(frames, relations.not_backed_up, twins, LACKING, *given)

    several = rows(OBJECTS, "address"), rows(OBJECTS, "address"), rows(TOLD, "address")
    check(frames, test, *several)
    marked = [{"address": a, "size": 1, "etag": "e"} for a in "abcd"]
    held = [marked[0], {**marked[1], "size": 2}, {**marked[2], "etag": "x"}]
    told = [{"address": a, "outcome": "copied", "error_code": None} for a in "abc"]
    test(marked, held, told)
