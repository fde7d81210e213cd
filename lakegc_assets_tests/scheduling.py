"""How tests spread over workers: by modules, what needs one thing in one, what is long first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

#: What the ids of tests hold whose tasks run on Spark: a second session takes longer to start, and
#: to become fast, than most of these tests. One that is forgotten here costs time, and no more.
_ON_SPARK: Final = ("spark", "engine/test_task_errors.py")
#: Modules whose tests share marks of the recorded repositories: each worker makes its own.
_OF_RECORDINGS: Final = tuple(
    f"/mark/test_{module}.py::"
    for module in ("adopting", "comparison", "modes_recorded", "recorded", "served")
)
#: But not where each has a Spark of its own.
_OF_ITS_OWN: Final = "/clusters/"


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest."""
    config.addinivalue_line("markers", "long: takes a minute or more, so it begins before others")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let no worker begin what is long when the others have nothing left to do."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling | None:
    """Keep what needs Spark together where ``--dist loadscope`` is asked for."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - where there is xdist

    class Scopes(LoadScopeScheduling):  # type: ignore[misc] # it is untyped here
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid) or super()._split_scope(nodeid)

    return Scopes(config, log)


def scope_of(nodeid: str) -> str | None:
    """The group of a test; None for its module."""
    if _OF_ITS_OWN not in nodeid and any(part in nodeid for part in _ON_SPARK):
        return "spark"
    return "recordings" if any(part in nodeid for part in _OF_RECORDINGS) else None
