"""Rows in lists do what Arrow does: its answers to the same questions are the same."""

# ruff: noqa: ARG005 - each question is asked of both modules in the same way

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.mark.addresses import UNNAMEABLE, UNUSUAL
from lakegc_assets.mark.listing_rows import MULTIPART
from lakegc_assets_tests.simulation import columns, rows

#: Names of few letters, so that many are equal, with what patterns look for.
_TEXT = st.text("ab/.-0\\\n$é\x07\x9f\ufffe", max_size=5)
_TEXTS = st.lists(st.none() | _TEXT, max_size=6)
_KNOWN = st.lists(_TEXT, max_size=6)
_PAIRS = st.lists(st.tuples(_TEXT, st.none() | st.integers(-3, 3)), max_size=6)
_SCHEMA = pa.schema([("address", pa.string()), ("size", pa.int64())])
_PATTERNS = (UNUSUAL, UNNAMEABLE, MULTIPART, "^[0-9a-f]{32}$", r"(^|/)\.\.?(/|$)|://", "a$")
_NOON = datetime(2026, 1, 1, 12, 0, 0, 7, tzinfo=timezone.utc)

Module = Any


def _tables(pairs: list[tuple[str, int | None]]) -> list[tuple[Module, Module, Any]]:
    """The same rows, with the modules that know of them."""
    data = {"address": [a for a, _ in pairs], "size": [s for _, s in pairs]}
    return [(m, c, m.table(data, schema=_SCHEMA)) for m, c in ((rows, columns), (pa, pc))]


def _told(found: Any) -> Any:
    """An answer in plain values."""
    if isinstance(found, (rows.Scalar, pa.Scalar)):
        return found.as_py()
    if isinstance(found, np.ndarray):
        return found.tolist()
    return found.to_pylist() if hasattr(found, "to_pylist") else found


def _same(pairs: list[tuple[str, int | None]], ask: Callable[[Module, Module, Any], Any]) -> None:
    ours, arrow = (_told(ask(*one)) for one in _tables(pairs))
    assert ours == arrow


_TABLES: list[Callable[[Module, Module, Any], Any]] = [
    lambda m, c, t: t.filter(c.is_valid(t["size"])),
    lambda m, c, t: t.filter(c.greater(t["size"], 0)),
    lambda m, c, t: t.sort_by("address"),
    lambda m, c, t: t.sort_by([("size", "descending"), ("address", "ascending")]),
    lambda m, c, t: t.slice(1, 2).select(["size"]),
    lambda m, c, t: m.concat_tables([t, t.slice(1), t.slice(0, 0)]),
    lambda m, c, t: t.append_column("why", t["address"]).drop_columns(["size"]),
    lambda m, c, t: t.set_column(1, "other", t["address"]).rename_columns(["x", "y"]),
    lambda m, c, t: (
        t.group_by("address", use_threads=False)
        .aggregate([("size", "count"), ("size", "sum"), ("size", "min"), ("size", "max")])
        .sort_by("address")
    ),
    lambda m, c, t: m.Table.from_batches(t.to_batches(), **({} if t.num_rows else _AS_IS[m])),
    lambda m, c, t: t.cast(m.schema([("address", m.large_string()), ("size", m.int64())])),
    lambda m, c, t: c.sum(t["size"]),
    lambda m, c, _: c.add(
        m.array([datetime(2026, 1, 1, tzinfo=timezone.utc), None], m.timestamp("us", "UTC")),
        m.scalar(timedelta(minutes=5)),
    ),
    lambda m, c, t: c.min(t["size"]),
    lambda m, c, t: c.max(t["size"]),
    lambda m, c, t: c.any(c.equal(t["size"], 1)),
    lambda m, c, t: c.equal(t["size"], 1),
    lambda m, c, t: c.not_equal(t["address"], t["address"]),
    lambda m, c, t: c.less_equal(t["size"], m.scalar(1)),
    lambda m, c, t: c.if_else(c.equal(t["size"], 1), t["address"], "other"),
    lambda m, c, t: c.if_else(c.is_null(t["size"]), 0, c.fill_null(t["size"], 7)),
    lambda m, c, t: c.coalesce(t["size"], c.fill_null(t["size"], 7)),
    lambda m, c, t: c.utf8_slice_codeunits(t["address"], 1),
    lambda m, c, t: c.and_not(c.is_valid(t["size"]), c.equal(t["size"], 1)),
    lambda m, c, t: c.or_(c.invert(c.equal(t["size"], 1)), c.starts_with(t["address"], "a")),
    lambda m, c, t: c.and_(c.less(t["size"], 2), c.match_substring(t["address"], "b")),
    lambda m, c, t: c.multiply(t["size"], 1_000_000).cast(m.timestamp("us", "UTC")),
    lambda m, c, t: c.binary_join_element_wise(t["address"], t["address"], "/"),
    lambda m, c, t: c.binary_join_element_wise("not:", t["address"], "x", " "),
    lambda m, c, t: c.utf8_trim_whitespace(t["address"]),
    lambda m, c, t: c.utf8_slice_codeunits(t["address"], 1, 3),
    lambda m, c, t: c.replace_substring_regex(t["address"], pattern="(?s)^.*/", replacement=""),
    lambda m, c, t: c.unique(t["address"]),
    lambda m, c, t: sorted(map(str, c.value_counts(t["address"]).to_pylist())),
    lambda m, c, t: m.array(["x", "y"]).take(c.index_in(t["address"], m.array(["a", "b"]))),
    lambda m, c, t: m.concat_arrays([t["address"].combine_chunks(), m.repeat(m.scalar("a"), 2)]),
    lambda m, c, t: m.nulls(2, m.string()),
    lambda m, c, t: t["address"].to_numpy(),
]
_AS_IS: dict[Module, dict[str, Any]] = {rows: {}, pa: {"schema": _SCHEMA}}


@pytest.mark.parametrize("ask", _TABLES)
@given(_PAIRS)
def test_tables_answer_as_arrow_s(
    ask: Callable[[Module, Module, Any], Any], pairs: list[tuple[str, int | None]]
) -> None:
    _same(pairs, ask)


@given(_TEXTS, _KNOWN)
def test_columns_are_looked_for_as_arrow_does(values: list[str | None], known: list[str]) -> None:
    for ask in ("is_in", "index_in"):
        ours = getattr(columns, ask)(rows.array(values), rows.array(known))
        arrow = getattr(pc, ask)(pa.array(values, pa.string()), pa.array(known, pa.string()))
        assert ours.to_pylist() == arrow.to_pylist()


@pytest.mark.parametrize("pattern", _PATTERNS)
@given(values=_TEXTS)
def test_patterns_mean_what_they_mean_to_arrow(pattern: str, values: list[str | None]) -> None:
    ours = columns.match_substring_regex(rows.array(values), pattern)
    arrow = pc.match_substring_regex(pa.array(values, pa.string()), pattern)
    assert ours.to_pylist() == arrow.to_pylist()


@pytest.mark.parametrize("how", ["left semi", "left anti", "left outer", "inner"])
@given(left=_PAIRS, right=_PAIRS)
def test_joins_find_what_arrow_finds(
    how: str, left: list[tuple[str, int | None]], right: list[tuple[str, int | None]]
) -> None:
    found = []
    for (_, _, one), (_, _, other) in zip(_tables(left), _tables(right), strict=True):
        more = other.rename_columns(["address", "more"])
        found.append([
            sorted(map(str, one.join(more, "address", join_type=how).to_pylist())),
            sorted(map(str, one.join(other, ["address", "size"], join_type=how).to_pylist())),
        ])  # fmt: skip
    assert found[0] == found[1]


def test_times_are_cast_as_arrow_casts_them() -> None:
    for module in (rows, pa):
        times = module.array([_NOON, None], module.timestamp("us", "UTC"))
        numbers = times.cast(module.int64())
        assert numbers.to_pylist() == [1_767_268_800_000_007, None]
        assert numbers.cast(module.timestamp("us", "UTC")).to_pylist() == [_NOON, None]


def test_arrays_of_numbers_go_there_and_back() -> None:
    hashes = np.array([1, 2**64 - 1], np.uint64)
    for module in (rows, pa):
        found = module.table({"hash": hashes})["hash"].to_numpy()
        assert found.dtype == np.uint64
        assert found.tolist() == hashes.tolist()
        assert module.array(hashes, mask=hashes == 1).to_pylist() == [None, 2**64 - 1]


@pytest.mark.parametrize("module", [rows, pa])
def test_what_cannot_be_is_refused(module: Module) -> None:
    table = module.table({"address": ["one", None]})
    with pytest.raises(KeyError):
        table["other"]
    with pytest.raises(ValueError, match="null"):
        table.cast(module.schema([module.field("address", module.string(), nullable=False)]))
    with pytest.raises(pa.ArrowInvalid):
        table["address"].cast(module.int64())
    with pytest.raises(pa.ArrowInvalid):
        module.concat_tables([table, table.rename_columns(["other"])])


def test_what_is_said_of_a_table_stays_with_it() -> None:
    for module in (rows, pa):
        table = module.table({"address": ["one"]}).replace_schema_metadata({"why": "wanted"})
        assert table.schema.metadata == {b"why": b"wanted"}
        assert module.schema([("a", module.string())]).equals(module.table({"a": ["x"]}).schema)
