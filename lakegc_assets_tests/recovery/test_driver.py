"""Nothing in the driver grows with the number of objects: rows pass through tasks and relations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from lakegc_assets.engine import datasets
from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.embedded import EmbeddedSession
from lakegc_assets.engine.tasks import Tasks
from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.restore import sample
from lakegc_assets.recovery.restore.dry_run import plan
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.run import records
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.sweep.ledger import ASSET
from lakegc_assets_tests.lake import REPOSITORY, Marked
from lakegc_assets_tests.recovery.conftest import Place
from lakegc_assets_tests.recovery.prunes import NAME, prune

_IN_TASK: ContextVar[bool] = ContextVar("in a task", default=False)
#: Rows that are collected at most: totals, and a few examples.
_FEW = 5


def _in_task(task: Callable[[Any], Any], one: Any) -> Any:
    token = _IN_TASK.set(True)
    try:
        return task(one)
    finally:
        _IN_TASK.reset(token)


def _noting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Runs tasks, within which rows may be read."""

    def running(tasks: Tasks, what: str, task: Callable[[Any], Any], *given: Any) -> Any:
        return function(tasks, what, partial(_in_task, task), *given)

    return running


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Rows that this process reads outside of tasks, that it gives to an engine, and takes back."""
    rows: dict[str, list[int]] = {"read": [], "created": [], "collected": []}
    fetch, read_rows = datasets.fetch_part, records.read_rows
    create, collect = EmbeddedSession.create, EmbeddedSession.collect

    def fetching(store: ObjectStore, part: Part) -> bytes:
        # Commits fit into the driver. Ranges are those in which the sample has its paths.
        if not _IN_TASK.get() and not part.key.startswith(("active_commits/", "ranges/")):
            rows["read"].append(part.rows)
        return fetch(store, part)

    def reading(*given: Any) -> Any:
        table = read_rows(*given)
        if not _IN_TASK.get():
            rows["read"].append(table.num_rows)
        return table

    def creating(session: EmbeddedSession, table: Any) -> Any:
        rows["created"].append(table.num_rows)
        return create(session, table)

    def collecting(session: EmbeddedSession, *given: Any) -> Any:
        table = collect(session, *given)
        rows["collected"].append(table.num_rows)
        return table

    for function in (Tasks.run, Tasks.run_or_call):
        monkeypatch.setattr(Tasks, function.__name__, _noting(function))
    monkeypatch.setattr(datasets, "fetch_part", fetching)
    monkeypatch.setattr(records, "read_rows", reading)
    monkeypatch.setattr(EmbeddedSession, "create", creating)
    monkeypatch.setattr(EmbeddedSession, "collect", collecting)
    monkeypatch.setattr(sample, "MOST", 2)
    return rows


def few(rows: Sequence[int]) -> bool:
    return all(count <= _FEW for count in rows)


def test_a_backup_a_dry_run_and_a_restore_hold_no_rows_in_the_driver(
    place: Place, marked: Marked, driver: dict[str, list[int]]
) -> None:
    """What they compute is the work of relations; what they read and write, of tasks."""
    assert len(marked.candidates) > 2 * _FEW
    assert make_backup(place.context(engine="embedded")) is not None
    # As a sweep leaves them that deletes all and is killed then.
    gone = sorted(marked.candidates)
    for address in gone:
        (place.lake.objects / address).unlink()
    ctx, everything = place.context(engine="embedded"), Choice(everything=True)
    assert not ctx.root.attempt(ctx.repository, ctx.run).has(ASSET)
    assert plan(ctx, everything)["would_come_back"]["objects"] == len(gone)
    assert restore(ctx, everything).rows == len(gone)
    assert place.lake.keys() >= marked.candidates
    assert driver["read"] == []
    assert few(driver["created"])
    assert few(driver["collected"])
    assert driver["collected"]


def test_a_prune_holds_no_rows_in_the_driver(
    place: Place, marked: Marked, driver: dict[str, list[int]]
) -> None:
    assert make_backup(place.context()) is not None
    for address in marked.candidates:
        (place.lake.objects / address).unlink()
    place.lake.client.create_branch(REPOSITORY, "back", marked.commits["first"])
    driver["read"].clear()
    kept = prune(place, NAME, dry_run=True)[NAME]
    assert kept.startswith("it holds the only copy of ")
    # What lakeFS serves of it, and of what is needed a file at a time; nothing of all other copies.
    needed = int(kept.split()[6])
    assert needed <= _FEW
    assert driver["read"] == [needed, needed]
    # Names of ranges fit into the driver.
    assert max(driver["created"]) < len(marked.candidates)
    assert few(driver["collected"])
