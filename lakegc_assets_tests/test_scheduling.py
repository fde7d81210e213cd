"""Which tests run together, and which begin first."""

from __future__ import annotations

from typing import Any

import pytest

from lakegc_assets_tests import scheduling


class Item:
    """A test that may be long."""

    def __init__(self, name: str, *, long: bool = False) -> None:
        self.name = name
        self.long = long

    def get_closest_marker(self, name: str) -> object:
        return self if self.long and name == "long" else None


def test_the_long_begin_first_and_the_rest_stays_in_order() -> None:
    items: list[Any] = [Item("a"), Item("b", long=True), Item("c"), Item("d", long=True)]
    scheduling.pytest_collection_modifyitems(items)
    assert [item.name for item in items] == ["b", "d", "a", "c"]


@pytest.mark.parametrize(
    ("test", "scope"),
    [
        ("lakegc_assets_tests/mark/test_modes.py::test_it_on_spark", "spark"),
        ("lakegc_assets_tests/engine/test_task_errors.py::test_errors", "spark"),
        ("lakegc_assets_tests/clusters/test_submit.py::test_spark_submit", None),
        ("lakegc_assets_tests/mark/test_modes.py::test_it", None),
        ("lakegc_assets_tests/mark/test_recorded.py::test_it", "recordings"),
        ("lakegc_assets_tests/mark/test_recorded.py::test_it[spark]", "spark"),
    ],
)
def test_what_needs_spark_or_recordings_runs_in_one_worker(test: str, scope: str | None) -> None:
    assert scheduling.scope_of(test) == scope
