"""The relations of backups and restores give what their twins give, on each engine."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from lakegc_assets.recovery import relations
from lakegc_assets.recovery.backup_task import MARKED
from lakegc_assets.recovery.backups import OUTCOMES
from lakegc_assets.recovery.copies import COPIES, OBJECTS, SHOWN
from lakegc_assets.recovery.restore_record import RESTORED
from lakegc_assets.sweep.lost_objects import LOST
from lakegc_assets_tests.frames import Frames, Rows, check, holds, random_rows
from lakegc_assets_tests.recovery import twins

BEGAN = datetime(2026, 1, 2, tzinfo=timezone.utc)
VERSIONS = pa.schema([("address", pa.string()), ("version", pa.string())])
NEEDED = pa.schema([("address", pa.string()), ("why", pa.string())])
RECORDED = pa.schema([*NEEDED, ("recorded", pa.int64())])
HELD = pa.schema([("address", pa.string()), ("size", pa.int64()), ("commit_id", pa.string())])
GONE = pa.schema([("objects", pa.int64()), ("first", pa.string())])
TOTALS = pa.schema(
    [
        ("outcome", pa.string()),
        ("source", pa.string()),
        ("noted", pa.bool_()),
        ("objects", pa.int64()),
        ("bytes", pa.int64()),
    ]
)

texts = st.one_of(st.none(), st.sampled_from(["", "a", "another object: '\"|\n;--", "NULL"]))
outcomes = st.sampled_from(
    ["copied", "changed", "missing", "failed", "restored", "already_there", "not_kept"]
)
_VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "address": st.sampled_from(["data/a", "data/s\n/a/b", "data//a", "\U0001f600", "\uffff", "é|"]),
    "size": st.integers(0, 2),
    "etag": st.sampled_from(["", "a"]),
    "copy_etag": st.sampled_from([None, "", "b"]),
    "verified_by": texts,
    "outcome": outcomes,
    "error_code": texts,
    "detail": texts,
    "source": st.sampled_from([None, "store", "backup"]),
    "version": texts,
    "commit_id": st.sampled_from([None, "c"]),
    "why": st.sampled_from(["it is pinned", ""]),
    "at": st.integers(0, 10**6).map(lambda n: BEGAN + timedelta(microseconds=n)),
}


rows = partial(random_rows, _VALUES)


def test_what_a_backup_has_left_to_copy_and_what_it_holds(frames: Frames) -> None:
    def test(marked: Rows, journal: Rows, shown: Rows) -> None:
        objects, recorded, there = (marked, MARKED), (journal, OUTCOMES), (shown, SHOWN)
        holds(frames, relations.newest, twins, OUTCOMES, recorded)
        holds(frames, relations.verified, twins, OUTCOMES, recorded, objects, there)
        holds(frames, relations.without, twins, MARKED, objects, recorded, order=True)
        copied = twins.verified(journal, marked, shown)
        holds(frames, relations.lacking, twins, GONE, recorded, (copied, OUTCOMES))
        holds(frames, relations.outcomes, twins, OUTCOMES, (copied, OUTCOMES), recorded, order=True)

    check(frames, test, rows(MARKED, "address"), rows(OUTCOMES, "at"), rows(SHOWN, "address"))


def test_what_a_backup_or_the_trash_can_give_back(frames: Frames) -> None:
    def test(copied: Rows, listed: Rows, found: Rows, journal: Rows, needed: Rows) -> None:
        for finished in (False, True):
            frame = relations.held(
                frames.of(copied, OBJECTS), frames.of(listed, OBJECTS), finished=finished
            )
            assert frames.rows(frame, OBJECTS) == twins.held(copied, listed, finished=finished)
        given_rows = ((needed, NEEDED), (copied, OBJECTS))
        holds(frames, relations.with_recorded, twins, RECORDED, *given_rows, order=True)
        holds(frames, relations.each_once, twins, OBJECTS, (found, OBJECTS), order=True)
        holds(frames, relations.claimed, twins, OUTCOMES, (journal, OUTCOMES))

    objects, listed = rows(OBJECTS), rows(OBJECTS, "address")
    needed = rows(NEEDED, "address")
    check(frames, test, objects, listed, objects, rows(OUTCOMES, "at"), needed)


def test_what_a_restore_is_about(frames: Frames) -> None:
    def test(marked: Rows, swept: Rows, copies: Rows, held: Rows) -> None:
        chosen = (twins.chosen(marked, swept), MARKED)
        holds(
            frames, relations.chosen, twins, MARKED, (marked, MARKED), (swept, VERSIONS), order=True
        )
        given_rows = ((marked, MARKED), (swept, VERSIONS), (copies, COPIES))
        holds(frames, relations.lost_objects, twins, LOST, *given_rows, order=True)
        holds(frames, relations.smallest_held, twins, HELD, (held, HELD), chosen, 1, 2, order=True)

    unique = (rows(schema, "address") for schema in (MARKED, VERSIONS, COPIES, HELD))
    check(frames, test, *unique)


def test_what_a_restore_has_done(frames: Frames) -> None:
    def test(ledger: Rows, marked: Rows) -> None:
        holds(frames, relations.restored, twins, RESTORED, (ledger, RESTORED), order=True)
        each = (twins.restored(ledger), RESTORED)
        holds(frames, relations.settled, twins, RESTORED, each, order=True)
        holds(frames, relations.totals, twins, TOTALS, each, "another", "archived")
        holds(frames, relations.lacking, twins, GONE, each, (marked, MARKED))
        holds(frames, relations.examples, twins, RESTORED, each, "failed", "", 1, order=True)
        holds(
            frames,
            relations.examples,
            twins,
            RESTORED,
            each,
            "already_there",
            "another",
            2,
            order=True,
        )

    check(frames, test, rows(RESTORED, "at"), rows(MARKED, "address"))


# Fixed rows: what is drawn may leave out the one that a rule is about.


def outcome(address: str, at: int = 0, **more: Any) -> dict[str, Any]:
    """A record of a copy of an object ``e`` of one byte."""
    copied = {"size": 1, "etag": "e", "copy_etag": "c", "outcome": "copied"}
    row = {**dict.fromkeys(OUTCOMES.names), "address": address, "at": BEGAN + timedelta(at)}
    return {**row, **copied, **more}


def test_only_a_copy_of_this_very_object_that_is_there_unchanged_counts(frames: Frames) -> None:
    journal = [
        outcome("a"),
        outcome("another etag", etag="f"),
        outcome("another size", size=2),
        outcome("changed", copy_etag="d"),
        outcome("failed", outcome="failed"),
        outcome("gone"),
        outcome("not marked"),
        outcome("truncated"),
    ]
    marked = [row for row in journal if row["address"] != "not marked"]
    marked = [{"address": row["address"], "size": 1, "etag": "e"} for row in marked]
    there = [row for row in journal if row["address"] != "gone"]
    shown = [{"address": row["address"], "size": row["size"], "copy_etag": "c"} for row in there]
    shown[-1]["size"] = 0
    holds(
        frames,
        relations.verified,
        twins,
        OUTCOMES,
        (journal, OUTCOMES),
        (marked, MARKED),
        (shown, SHOWN),
    )
    assert [row["address"] for row in twins.verified(journal, marked, shown)] == ["a"]


def test_each_object_has_its_copy_or_its_last_failure(frames: Frames) -> None:
    failed = {"outcome": "failed", "copy_etag": None}
    copied = [outcome("b"), outcome("a")]
    tried = [
        outcome("d", 1, **failed, detail="first"),
        outcome("d", 2, **failed, detail="last"),
        outcome("c", 2),
        outcome("a", 1, **failed),
    ]
    given_rows = (copied, OUTCOMES), (tried, OUTCOMES)
    holds(frames, relations.outcomes, twins, OUTCOMES, *given_rows, order=True)
    holds(frames, relations.without, twins, MARKED, (tried, MARKED), given_rows[0], order=True)
    holds(frames, relations.lacking, twins, GONE, (tried, MARKED), given_rows[0])
    assert [row["detail"] for row in twins.outcomes(copied, tried)] == [None, None, "last"]


def test_what_a_backup_recorded_or_shows_it_holds(frames: Frames) -> None:
    def objects(**sizes: int) -> list[dict[str, Any]]:
        return [{"address": address, "size": size} for address, size in sizes.items()]

    copied, listed = [*objects(b=3), *objects(b=2, a=2)], objects(c=4, a=1)
    for finished, expected in ((True, objects(a=2, b=3, c=4)), (False, objects(a=2, c=4))):
        given_rows = (frames.of(rows, OBJECTS) for rows in (copied, listed))
        frame = relations.held(*given_rows, finished=finished)
        assert frames.rows(frame, OBJECTS) == expected
    twice = [*objects(c=2, b=2, a=2), *objects(b=3, a=2)]
    found = frames.rows(relations.each_once(frames.of(twice, OBJECTS)), OBJECTS)
    assert found == objects(a=2, b=-1, c=2)


def test_the_copy_of_another_object_restores_none(frames: Frames) -> None:
    chosen = [{"address": address, "size": 1, "etag": "e"} for address in "cba"]
    swept = [{"address": "a", "version": "v"}]
    copies = [{**chosen[2], "copy_etag": "c"}, {**chosen[1], "etag": "f", "copy_etag": "d"}]
    given_rows = (chosen, MARKED), (swept, VERSIONS), (copies, COPIES)
    holds(frames, relations.lost_objects, twins, LOST, *given_rows, order=True)
    sources = [(r["version"], r["copy_etag"]) for r in twins.lost_objects(chosen, swept, copies)]
    assert sources == [("v", "c"), (None, None), (None, None)]


def test_what_was_restored_stays_so_and_all_but_the_same_object_is_tried_again(
    frames: Frames,
) -> None:
    there, another = {"outcome": "already_there"}, {"outcome": "already_there", "detail": "another"}
    told = [
        ("a", 1, {"outcome": "restored"}),
        ("a", 2, there),
        ("b", 1, there),
        ("b", 2, another),
        ("c", 1, another),
        ("c", 2, {"outcome": "failed"}),
        ("d", 1, {"outcome": "failed"}),
        ("d", 2, {"outcome": "not_kept"}),
    ]
    ledger = [
        {**dict.fromkeys(RESTORED.names), "address": a, "size": 1, "at": BEGAN + timedelta(at), **x}
        for a, at, x in told
    ]
    holds(frames, relations.restored, twins, RESTORED, (ledger, RESTORED), order=True)
    each = twins.restored(ledger)
    found = [(row["outcome"], row["detail"]) for row in each]
    alike = [("restored", None), ("already_there", None)]
    assert found == [*alike, ("failed", None), ("not_kept", None)]
    each += [{**each[0], **another, "address": "e"}]
    holds(frames, relations.settled, twins, RESTORED, (each[::-1], RESTORED), order=True)
    assert [(row["outcome"], row["detail"]) for row in twins.settled(each)] == alike
