"""The relations of the forecast give what their twins in plain Python give, on each engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lakegc_assets.forecast import relations
from lakegc_assets.forecast.outlook import DOUBTFUL, LATER, OUTLOOK, PATHS, RANGES, TOTALS
from lakegc_assets.mark.served_candidates import SPARED
from lakegc_assets_tests.forecast import twins
from lakegc_assets_tests.frames import Frames, same

CUTOFF = datetime(2026, 1, 2, tzinfo=timezone.utc)
ENTRY = pa.schema([("range_id", pa.string()), ("hash", pa.int64())])
FILED = ENTRY.append(pa.field("folder", pa.string()))
HELD = pa.schema([("hash", pa.int64()), ("days", pa.int64()), ("left", pa.int64())])
JUDGED = pa.schema(
    [
        *((name, OUTLOOK.field(name).type) for name in ("address", "size", "last_modified")),
        ("hash", pa.int64()),
        ("why", pa.string()),
    ]
)
_VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "hash": st.sampled_from([0, 1, 2, -(2**63), 2**63 - 1]),
    "range_id": st.sampled_from(["r1", "r2", "r3"]),
    "address": st.sampled_from(["data/a", "data/s/a", "data/s\n/b", "data//'\"", "data/s/", "c"]),
    "last_part": st.sampled_from(["a", "b", "'\"", "", "c"]),
    "size": st.integers(0, 5) | st.just(2**50),
    "last_modified": st.sampled_from([CUTOFF + timedelta(microseconds=n) for n in (-1, 0, 1)]),
    "why": st.none() | st.sampled_from([twins.NOT_SEEN, "lakeFS serves it", ""]),
    "days": st.sampled_from([0, 1, 30, twins.NEVER]),
    "left": st.sampled_from([0, 1, 30, twins.FOREVER]),
    "unseen": st.booleans(),
    "folder": st.sampled_from(["", "a/", "a/b/", "ab/", "a%/", "A/", "é/_/"]),
    "prefix": st.sampled_from(["", "a/", "a/b/", "a%/", "é/", "_/"]),
}


def rows(schema: pa.Schema, unique: str | None = None) -> st.SearchStrategy[list[dict[str, Any]]]:
    row = st.fixed_dictionaries({name: _VALUES[name] for name in schema.names})
    by: Callable[[Mapping[str, Any]], Any] | None = (lambda one: one[unique]) if unique else None
    return st.lists(row, max_size=6, unique_by=by)


def holds(
    frames: Frames,
    name: str,
    given_rows: Sequence[tuple[pa.Schema, str | None]],
    schema: pa.Schema,
    *values: st.SearchStrategy[Any],
) -> None:
    """Hold a relation against its twin, with random rows and some plain values."""

    @settings(
        max_examples=frames.examples,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.tuples(*(rows(*one) for one in given_rows)), st.tuples(*values))
    def check(tables: Sequence[Any], plain: Sequence[Any]) -> None:
        made = [frames.of(table, of) for table, (of, _) in zip(tables, given_rows, strict=True)]
        found = frames.rows(getattr(relations, name)(*made, *plain), schema)
        assert same(found, getattr(twins, name)(*tables, *plain))

    check()


def test_what_lakefs_serves_stays(frames: Frames) -> None:
    holds(frames, "spared_by_lakefs", [(SPARED, None)], SPARED)


def test_an_object_is_kept_by_what_keeps_it_longest(frames: Frames) -> None:
    given_rows = [(JUDGED, None), (ENTRY, None), (RANGES, "range_id"), (DOUBTFUL, "last_part")]
    holds(frames, "outlook", given_rows, OUTLOOK)
    holds(frames, "outlook", [*given_rows, (HELD, None)], OUTLOOK)


def test_below_paths_objects_are_held_by_these_entries_alone(frames: Frames) -> None:
    holds(frames, "held_below", [(FILED, None), (PATHS, None)], HELD)


def test_objects_are_counted_by_the_default_that_keeps_them(frames: Frames) -> None:
    holds(frames, "totals_by_days", [(OUTLOOK, None)], TOTALS, st.just(CUTOFF))


def test_what_is_freed_later_is_what_is_not_kept_for_longer(frames: Frames) -> None:
    days = st.sampled_from([0, 1, 90])
    holds(frames, "total_later", [(OUTLOOK, None)], LATER, st.just(CUTOFF), days)
