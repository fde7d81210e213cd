"""Charts lie within their box, and their areas are the bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.cli.html import HEIGHT, WIDTH, bar_chart, curve_chart, share_chart

_SIZES = st.integers(0, 10**15)


@given(st.lists(st.tuples(st.text(), _SIZES), max_size=12))
def test_shares_fill_the_bar(rows: list[tuple[str, int]]) -> None:
    chart = share_chart("title", rows)
    whole = sum(size for _, size in rows)
    if chart is None:
        assert not whole
        return
    assert sum(box.width for box in chart.boxes) == pytest.approx(WIDTH, abs=0.1)
    for box, (_, size) in zip(chart.boxes, rows, strict=True):
        assert box.width / WIDTH == pytest.approx(size / whole, abs=1e-4)


@given(st.lists(st.tuples(_SIZES, _SIZES), max_size=30), st.booleans())
def test_bars_are_as_high_as_their_bytes(rows: list[tuple[int, int]], stacked: bool) -> None:  # noqa: FBT001 - hypothesis gives it
    series = {"a": [one for one, _ in rows], "b": [other for _, other in rows]}
    names = [str(place) for place in range(len(rows))]
    chart = bar_chart("title", names, series, stacked=stacked)
    sizes = [size for row in rows for size in row if size]
    if chart is None:
        assert not sizes
        return
    most = max((sum(row) if stacked else max(row)) for row in rows)
    scale = chart.grid[0].y - chart.grid[-1].y
    for box, size in zip(chart.boxes, sizes, strict=True):
        assert box.height / scale == pytest.approx(size / most, abs=1e-3)
        assert box.x >= 0
        assert box.x + box.width <= WIDTH
        assert box.y >= 0
        assert box.y + box.height <= HEIGHT


@given(st.lists(_SIZES, min_size=1, max_size=400))
def test_a_curve_goes_through_its_points(sizes: list[int]) -> None:
    chart = curve_chart("title", list(enumerate(sizes, 1)), "days")
    if chart is None:
        assert not any(sizes)
        return
    points = [tuple(map(float, one.split(","))) for one in chart.line.split()]
    assert len(points) == len(sizes)
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    # What is more is higher up.
    low, high = min(sizes), max(sizes)
    assert points[sizes.index(high)][1] <= points[sizes.index(low)][1]
    assert len(chart.labels) <= 4
