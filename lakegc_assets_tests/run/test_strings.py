"""Columns with more than 2 GiB of text: as those below, and as Arrow orders and looks up these."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.run import strings

_EACH = 1 << 20


@pytest.fixture(scope="module")
def large() -> pa.ChunkedArray:
    """More than 2 GiB of text, which are 2 MB of memory: the same piece again and again."""
    piece = pa.array([f"{n:0{_EACH // 2}d}" for n in range(2)])
    return pa.chunked_array([piece] * 2050 + [pa.array(["last"])])


def test_what_is_larger_than_an_array_is_looked_up(large: pa.ChunkedArray) -> None:
    some = pa.chunked_array([["last", "another"]])
    assert strings.among(some, large).to_pylist() == [True, False]
    assert pa.compute.sum(strings.among(large, some)).as_py() == 1


def test_what_is_larger_than_an_array_is_told_apart(large: pa.ChunkedArray) -> None:
    assert strings.first_of_each(large.slice(4095)).to_pylist() == [
        True,
        True,
        True,
        True,
        True,
        True,
    ]


@pytest.mark.conformance
def test_what_is_larger_than_an_array_is_taken_from(large: pa.ChunkedArray) -> None:
    at = pa.array([4100, None, 1])
    assert [one and one[-4:] for one in strings.taken(large, at).to_pylist()] == [
        "last",
        None,
        "0001",
    ]
    with pytest.raises(pa.ArrowInvalid, match="offset overflow"):
        large.combine_chunks()


_TEXTS = st.lists(st.sampled_from(["", "a", "b", "ab", "é", "\U0001f600"]), max_size=8)


@given(_TEXTS, _TEXTS, st.lists(st.integers(0, 3), max_size=3))
def test_what_is_small_is_as_in_python(some: list[str], others: list[str], cuts: list[int]) -> None:
    values = pa.chunked_array([some[:2], some[2:]], pa.string())
    among = pa.chunked_array([others[:1], others[1:]], pa.string())
    assert strings.among(values, among).to_pylist() == [one in others for one in some]
    table = pa.table({"text": values, "n": pa.array(range(len(some)), pa.int64())})
    ordered = strings.in_order(table, [("text", "ascending"), ("n", "descending")])
    assert ordered.schema == table.schema
    rows = sorted(((t, -n) for n, t in enumerate(some)), key=lambda row: (row[0].encode(), row[1]))
    assert ordered["text"].to_pylist() == [t for t, _ in rows]
    assert ordered["n"].to_pylist() == [-n for _, n in rows]
    first = [n == 0 or t != rows[n - 1][0] for n, (t, _) in enumerate(rows)]
    assert strings.first_of_each(ordered["text"]).to_pylist() == first
    at = [None if cut >= len(some) else cut for cut in cuts]
    taken = strings.taken(values, pa.array(at, pa.int32())).to_pylist()
    assert taken == [None if one is None else some[one] for one in at]
