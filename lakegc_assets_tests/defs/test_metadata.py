"""What the UI shows: sizes for people, small tables, and a plot with few bars."""

from __future__ import annotations

import base64

import pytest

from lakegc_assets.defs.metadata import by_slice_age, human_bytes, plot_of_ages, table


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (5 * 1024**4, "5.0 TiB"),
        (3 * 1024**6, "3,072.0 PiB"),
    ],
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_a_table_keeps_its_columns_and_their_types() -> None:
    shown = table(("key", "objects"), [("a | b\n", 3)])
    columns = [(column.name, column.type) for column in shown.schema.columns]
    assert columns == [("key", "string"), ("objects", "int")]
    assert [record.data for record in shown.records] == [{"key": "a | b\n", "objects": 3}]


def test_no_rows_are_told_in_a_word() -> None:
    assert table(("key",), []) == "nothing"
    assert plot_of_ages([]) == "nothing"
    assert by_slice_age([["reason", "expired", 1, 1]]) == "nothing"


def test_slices_are_shown_by_classes_of_age() -> None:
    rows = [
        ["slice age", "not in a slice", 1, 10],
        ["slice age", "7 days", 2, 20],
        ["slice age", "8 days", 4, 40],
        ["slice age", "30 days", 8, 80],
        ["slice age", "5000 days", 16, 160],
        ["reason", "expired", 31, 310],
    ]
    assert [record.data for record in by_slice_age(rows).records] == [
        {"slice age": "not in a slice", "objects": 1, "size": "10 B"},
        {"slice age": "up to 7 days", "objects": 2, "size": "20 B"},
        {"slice age": "up to 30 days", "objects": 12, "size": "120 B"},
        {"slice age": "older", "objects": 16, "size": "160 B"},
    ]


@pytest.mark.parametrize("oldest", [0, 49, 50, 4000])
def test_the_plot_is_a_picture(oldest: int) -> None:
    rows = [["age in days", str(day), 1, 100] for day in range(oldest + 1)]
    head, _, encoded = plot_of_ages(rows).md_str.partition("base64,")
    assert head == "![bytes freed against age](data:image/png;"
    assert base64.b64decode(encoded[:-1]).startswith(b"\x89PNG")
