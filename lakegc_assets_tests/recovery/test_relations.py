"""The relations of backups and restores give what their twins give, on each engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from operator import itemgetter
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lakegc_assets.recovery import relations
from lakegc_assets.recovery.backup_task import MARKED
from lakegc_assets.recovery.backups import OUTCOMES
from lakegc_assets.recovery.copies import COPIES, OBJECTS, SHOWN
from lakegc_assets.recovery.liveness import NEEDED
from lakegc_assets.recovery.restore_record import RESTORED
from lakegc_assets.sweep.lost_objects import LOST
from lakegc_assets_tests.frames import Frames, same
from lakegc_assets_tests.recovery import twins

Rows = list[dict[str, Any]]

BEGAN = datetime(2026, 1, 2, tzinfo=timezone.utc)
VERSIONS = pa.schema([("address", pa.string()), ("version", pa.string())])
RECORDED = pa.schema([*NEEDED, ("recorded", pa.int64())])
HELD = pa.schema([("address", pa.string()), ("size", pa.int64()), ("commit_id", pa.string())])
GONE = pa.schema([("objects", pa.int64()), ("first", pa.string())])
TOTALS = pa.schema(
    [
        ("outcome", pa.string()),
        ("source", pa.string()),
        ("another", pa.bool_()),
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


def rows(schema: pa.Schema, unique: str | None = None) -> st.SearchStrategy[Rows]:
    """Some rows; a column may have each value once."""
    row = st.fixed_dictionaries({name: _VALUES[name] for name in schema.names})
    return st.lists(row, max_size=8, unique_by=None if unique is None else itemgetter(unique))


def check(frames: Frames, test: Callable[..., None], *strategies: st.SearchStrategy[Any]) -> None:
    """Call a test with many values, as many as the engine is worth."""
    how = settings(
        max_examples=frames.examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.reuse, Phase.generate),
    )
    how(given(*strategies)(test))()


def holds(
    frames: Frames, name: str, schema: pa.Schema, *given_values: Any, order: bool = False
) -> None:
    """A relation gives what its twin gives: of frames (rows and schema), and of other values."""
    frame = getattr(relations, name)(*(_frame(frames, one) for one in given_values))
    found = frames.rows(frame, schema)
    wanted = getattr(twins, name)(*(_rows(one) for one in given_values))
    cut = [{column: row[column] for column in schema.names} for row in wanted]
    assert found == cut if order else same(found, cut)


def _frame(frames: Frames, one: Any) -> Any:
    return frames.of(*one) if isinstance(one, tuple) else one


def _rows(one: Any) -> Any:
    return one[0] if isinstance(one, tuple) else one


def test_what_a_backup_has_left_to_copy_and_what_it_holds(frames: Frames) -> None:
    def test(marked: Rows, journal: Rows, shown: Rows) -> None:
        objects, recorded, there = (marked, MARKED), (journal, OUTCOMES), (shown, SHOWN)
        holds(frames, "newest", OUTCOMES, recorded)
        holds(frames, "verified", OUTCOMES, recorded, objects, there)
        holds(frames, "without", MARKED, objects, recorded, order=True)
        copied = twins.verified(journal, marked, shown)
        holds(frames, "lacking", GONE, recorded, (copied, OUTCOMES))
        holds(frames, "outcomes", OUTCOMES, (copied, OUTCOMES), recorded, order=True)

    check(frames, test, rows(MARKED, "address"), rows(OUTCOMES, "at"), rows(SHOWN, "address"))


def test_what_a_backup_or_the_trash_can_give_back(frames: Frames) -> None:
    def test(copied: Rows, listed: Rows, found: Rows, journal: Rows, needed: Rows) -> None:
        for finished in (False, True):
            frame = relations.held(
                frames.of(copied, OBJECTS), frames.of(listed, OBJECTS), finished=finished
            )
            assert frames.rows(frame, OBJECTS) == twins.held(copied, listed, finished=finished)
        given_rows = ((needed, NEEDED), (copied, OBJECTS))
        holds(frames, "with_recorded", RECORDED, *given_rows, order=True)
        holds(frames, "each_once", OBJECTS, (found, OBJECTS), order=True)
        holds(frames, "claimed", OUTCOMES, (journal, OUTCOMES))

    objects, listed = rows(OBJECTS), rows(OBJECTS, "address")
    needed = rows(NEEDED, "address")
    check(frames, test, objects, listed, objects, rows(OUTCOMES, "at"), needed)


def test_what_a_restore_is_about(frames: Frames) -> None:
    def test(marked: Rows, swept: Rows, copies: Rows, held: Rows) -> None:
        chosen = (twins.chosen(marked, swept), MARKED)
        holds(frames, "chosen", MARKED, (marked, MARKED), (swept, VERSIONS), order=True)
        given_rows = ((marked, MARKED), (swept, VERSIONS), (copies, COPIES))
        holds(frames, "lost_objects", LOST, *given_rows, order=True)
        holds(frames, "smallest_held", HELD, (held, HELD), chosen, 1, 2, order=True)

    unique = (rows(schema, "address") for schema in (MARKED, VERSIONS, COPIES, HELD))
    check(frames, test, *unique)


def test_what_a_restore_has_done(frames: Frames) -> None:
    def test(ledger: Rows, marked: Rows) -> None:
        holds(frames, "restored", RESTORED, (ledger, RESTORED), order=True)
        each = (twins.restored(ledger), RESTORED)
        holds(frames, "settled", RESTORED, each, order=True)
        holds(frames, "totals", TOTALS, each, "another")
        holds(frames, "lacking", GONE, each, (marked, MARKED))
        holds(frames, "examples", RESTORED, each, "failed", "", 1, order=True)
        holds(frames, "examples", RESTORED, each, "already_there", "another", 2, order=True)

    check(frames, test, rows(RESTORED, "at"), rows(MARKED, "address"))
