"""What a commit is about to commit is on no list of lakeFS's once somebody has overwritten it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.embedded.lake import trees
from lakegc_assets.embedded.refs import history
from lakegc_assets.run.clocks import Clocks
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.sweep import sweep as sweeping
from lakegc_assets.sweep.sweep import await_commits, sweep
from lakegc_assets_tests.lake import REPOSITORY, STAGES, SmallLake, running
from lakegc_assets_tests.sessions import Session

_PATIENCE_S = 120
_LONGEST_S = 1_800.0
_SAFE = {"allow_unsafe_min_age": False, "min_age_hours": 24.0}


@dataclass
class Meanwhile(Clocks):
    """Does not wait, but lets something happen, and remembers for how long it was to wait."""

    happens: Callable[[], object]
    waits: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.happens()


@contextmanager
def committing(lake: SmallLake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """A commit of main whose hook takes until what this gives is called."""
    sealed, goes_on = threading.Event(), threading.Event()
    commit_changes = trees.commit_changes

    def with_hook(*arguments: Any) -> Any:
        sealed.set()
        assert goes_on.wait(_PATIENCE_S)
        return commit_changes(*arguments)

    def commit() -> None:
        lake.config.connect_writer().commit_branch(REPOSITORY, "main", "with a hook")

    def end() -> None:
        goes_on.set()
        thread.join()

    with monkeypatch.context() as patch:
        patch.setattr(history, "commit_changes", with_hook)
        thread = threading.Thread(target=commit)
        thread.start()
        assert sealed.wait(_PATIENCE_S)
        try:
            yield end
        finally:
            end()


def marked(ctx: RunContext) -> set[str]:
    """Mark; the addresses that the mark names."""
    for stage in STAGES:
        stage(ctx)
    rows = ctx.root.attempt(REPOSITORY, ctx.run).read("deletion_candidates", columns=["address"])
    return set(rows["address"].to_pylist())


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[SmallLake]:
    with running(tmp_path) as found:
        found.calendar.days_ago = 3
        found.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        # Without rules each range below _lakefs/ counts, that of such a commit, too.
        found.client.set_gc_rules(REPOSITORY, 20, {})
        found.upload("main", "other", "committed")
        found.commit("main")
        yield found


@pytest.mark.parametrize(
    ("deleted", "waits"),
    [
        pytest.param(False, True, id="overwritten, it is waited for"),
        pytest.param(True, False, id="deleted, it is not"),
        pytest.param(True, True, id="deleted, it is waited for", marks=pytest.mark.conformance),
        pytest.param(False, False, id="overwritten, it is not", marks=pytest.mark.conformance),
    ],
)
def test_a_commit_that_was_under_way_at_the_mark_keeps_what_it_commits(
    lake: SmallLake,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    waits: bool,  # noqa: FBT001 - a parameter
    deleted: bool,  # noqa: FBT001 - a parameter
) -> None:
    address = lake.upload("main", "p", "about to be committed")
    lake.calendar.days_ago = 0
    with committing(lake, monkeypatch) as end:
        if deleted:
            lake.client.delete_object(REPOSITORY, "main", "p")
        else:
            lake.upload("main", "p", "something else")
        clocks = Meanwhile(end)
        settings: dict[str, Any] = {**_SAFE, "longest_commit_seconds": _LONGEST_S}
        ctx = replace(lake.context(spark, **settings), clocks=clocks)
        assert marked(ctx) == {address}
        if waits:
            monkeypatch.setattr(sweeping, "await_commits", await_commits)
        outcomes = sweep(ctx).facts["outcomes"]
    if waits:
        assert outcomes == {"spared": {"objects": 1, "bytes": len("about to be committed")}}
        assert [0 < seconds <= _LONGEST_S for seconds in clocks.waits] == [True]
        assert lake.client.get_object(REPOSITORY, "main~0", "p") == b"about to be committed"
    else:
        # So it would be: nobody looks again once the sweep has ended.
        assert outcomes["deleted"]["objects"] == 1
    left = lake.keys()
    assert (address in left) is waits


@pytest.mark.parametrize(
    ("settings", "minutes"),
    [
        ({**_SAFE, "longest_commit_seconds": 0.0}, 0),
        ({**_SAFE, "longest_commit_seconds": 60.0}, 2),
        ({"longest_commit_seconds": _LONGEST_S}, 0),
    ],
    ids=["no hooks", "an old mark", "nobody writes"],
)
def test_else_nothing_is_waited_for(
    lake: SmallLake,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    minutes: float,
) -> None:
    lake.upload("main", "p", "overwritten")
    lake.upload("main", "p", "and this stays")
    lake.calendar.days_ago = 0
    ctx = lake.context(spark, **settings)
    assert len(marked(ctx)) == 1
    clocks = Meanwhile(lambda: pytest.fail("it waits"))
    of_store = LocalStore.server_time
    later = timedelta(minutes=minutes)
    # Whatever the clock of the machine that sweeps is.
    monkeypatch.setattr(LocalStore, "server_time", lambda store: of_store(store) + later)
    monkeypatch.setattr(sweeping, "await_commits", await_commits)
    assert sweep(replace(ctx, clocks=clocks)).facts["outcomes"]["deleted"]["objects"] == 1


def test_no_clock_counts_but_that_of_the_store(lake: SmallLake, spark: Session) -> None:
    """The last stage that reads ran on a machine whose clock was an hour behind the first one's."""
    lake.calendar.days_ago = 0
    settings: dict[str, Any] = {**_SAFE, "longest_commit_seconds": _LONGEST_S}
    ctx = lake.context(spark, **settings)
    marked(ctx)
    manifest = ctx.root.attempt(REPOSITORY, ctx.run).recorded("committed_addresses")
    behind = manifest.finished - timedelta(hours=1)
    until = datetime.fromisoformat(str(manifest.facts["read_until"]))
    read = replace(manifest, started=behind, finished=behind)
    clocks, began = Meanwhile(lambda: None), until + timedelta(seconds=60)
    await_commits(replace(ctx, clocks=clocks), read, began)
    assert clocks.waits == [_LONGEST_S - 60]
