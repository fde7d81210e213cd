"""Charts lie within their box, and their areas are the bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.cli.html import bar_chart, share_chart

_SIZES = st.integers(0, 10**15)


@given(st.lists(st.tuples(st.text(), _SIZES), max_size=12))
def test_shares_fill_the_bar(rows: list[tuple[str, int]]) -> None:
    chart = share_chart("title", rows)
    whole = sum(size for _, size in rows)
    if chart is None:
        assert not whole
        return
    assert sum(bar.width for bar in chart.bars) == pytest.approx(100)
    for bar, (_, size) in zip(chart.bars, rows, strict=True):
        assert bar.width / 100 == pytest.approx(size / whole)


@given(st.lists(st.tuples(_SIZES, _SIZES), max_size=90), st.booleans())
def test_bars_are_as_high_as_their_bytes(rows: list[tuple[int, int]], stacked: bool) -> None:  # noqa: FBT001 - hypothesis gives it
    series = {"a": [one for one, _ in rows], "b": [other for _, other in rows]}
    names = [str(place) for place in range(len(rows))]
    chart = bar_chart("title", names, series, stacked=stacked)
    sizes = [size for row in rows for size in row if size]
    if chart is None:
        assert not sizes
        return
    most = max((sum(row) if stacked else max(row)) for row in rows)
    for bar, size in zip(chart.bars, sizes, strict=True):
        assert bar.height / 100 == pytest.approx(size / most)
        assert bar.x >= 0
        assert bar.x + bar.width <= 100 + 1e-9
        assert bar.y >= -1e-9
        assert bar.y + bar.height <= 100 + 1e-9
    assert len(chart.names) <= 4
