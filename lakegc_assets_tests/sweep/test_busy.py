"""A repository that is written to all the time is swept in one round, and loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from lakegc_assets.engine.tasks import Tasks
from lakegc_assets.sweep import delta_extension
from lakegc_assets.sweep.delta_extension import ALIKE, HELD
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked, SmallLake
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.outcomes import spared

Event = Callable[[], object]


@dataclass
class BeforeBatches:
    """Lets one thing happen before each batch of a sweep, at the first look that precedes it.

    A look asks for HEADs, then for rules; so what happens at the question for HEADs is seen by it,
    and what happens at that for rules only by the next.

    Attributes:
        lake: where.
        marked: its candidates.
        events: one for each batch; an event may come more than once.
        at: the end of the path of the request.
    """

    lake: SmallLake
    marked: Marked
    events: Sequence[Event]
    at: str = "/branches"
    happened: int = 0
    _left: int = -1
    _began: bool = field(default=False)

    def watch(self) -> None:
        """From now on."""
        self.lake.on_request = self._see

    def _see(self, method: str, path: str) -> None:
        # Once the lease names a round, and its delta mark is taken, tasks look.
        if path.endswith("/gc/prepare_uncommited"):
            self._began = True
        left = len(self.lake.keys() & self.marked.candidates)
        due = self._began and self._tasks_have_begun() and left != self._left
        if not due or method != "GET" or not path.endswith(self.at):
            return
        self._left = left
        if self.happened < len(self.events):
            event = self.events[self.happened]
            self.happened += 1
            event()

    def _tasks_have_begun(self) -> bool:
        folder = self.lake.folder / "artifacts"
        return any(folder.glob(f"{REPOSITORY}/{RUN}/*/swept_set/tasks/*/*/*.begun"))


def check_readable(lake: SmallLake, *refs: str) -> None:
    """Whatever some refs show can be read."""
    for ref in refs:
        for stats in lake.client.objects(REPOSITORY, ref):
            address = stats.physical_address.removeprefix(f"local://{REPOSITORY}/")
            assert (lake.objects / address).exists(), f"{stats.path} of {ref}"


@pytest.mark.parametrize("at", ["/branches", "/settings/gc_rules"])
def test_something_happens_before_every_batch(
    lake: SmallLake, marked: Marked, spark: Session, at: str
) -> None:
    """Commits, a branch from an expired commit, a revert, a commit that a deleted branch leaves.

    Candidates are deleted in the order of their addresses, the youngest slices first, so nothing
    comes to life that is in the batch of the same look.
    """
    client = lake.client
    made: list[str] = []
    lost = min(marked.groups["replaced"])

    def commit() -> None:
        lake.upload("busy", f"new/{len(made)}", f"something new that is large, {len(made)}" * 9)
        made.append(lake.commit("busy"))

    def leave_a_commit() -> None:
        """Its objects are inside the retention, although no branch leads there."""
        lake.stage("dev", "late/commit", lost, size=10**6)
        made.append(lake.commit("dev"))
        client.delete_branch(REPOSITORY, "dev")

    events: list[Event] = [
        lambda: client.revert(REPOSITORY, "main", marked.commits["removal"]),
        leave_a_commit,
        lambda: client.create_branch(REPOSITORY, "rescue", marked.commits["second"]),
        *[commit] * 20,
    ]
    schedule = BeforeBatches(lake, marked, events, at)
    schedule.watch()
    manifest = sweep(lake.context(spark, sweep_batch=2))
    lake.on_request = lambda _method, _path: None

    assert schedule.happened >= 6
    assert manifest.facts["rounds"] == 1
    found = spared(lake)
    assert lake.keys() & marked.candidates == found.keys()
    assert lake.keys() >= marked.live
    held = {address for address, why in found.items() if why == HELD}
    assert held >= marked.groups["second"] | marked.groups["removed"] | {lost}
    # Beyond need is only what is as large as an object of a branch that moved.
    assert set(found.values()) <= {HELD, ALIKE}
    check_readable(lake, "main", "busy", "rescue", *made)


def test_a_branch_is_set_back_between_batches(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """To where it was: what it held in between is asked of lakeFS, and spared."""
    lost = max(marked.groups["replaced"])
    made: list[str] = []

    def aside() -> None:
        before = lake.head("busy")
        lake.stage("busy", "late/commit", lost, size=10**6)
        made.append(lake.commit("busy"))
        lake.client.delete_branch(REPOSITORY, "busy")
        lake.client.create_branch(REPOSITORY, "busy", before)
        lake.commit("busy")
        lake.client.delete_branch(REPOSITORY, "busy")
        lake.client.create_branch(REPOSITORY, "busy", marked.commits["second"])

    BeforeBatches(lake, marked, [lambda: None, aside]).watch()
    manifest = sweep(lake.context(spark, sweep_batch=2))
    assert manifest.facts["rounds"] == 1
    assert spared(lake)[lost] == HELD
    check_readable(lake, "main", "busy", *made)


def test_a_branch_is_back_where_it_was_before_it_is_followed(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """The look saw a commit that no branch leads to when they are read to be followed."""
    lost = max(marked.groups["replaced"])
    before = lake.head("busy")
    made: list[str] = []

    def move() -> None:
        lake.stage("busy", "late/commit", lost, size=10**6)
        made.append(lake.commit("busy"))

    def move_back(_method: str, path: str) -> None:
        schedule._see(_method, path)
        if made and path.endswith("/settings/gc_rules") and lake.head("busy") in made:
            lake.client.delete_branch(REPOSITORY, "busy")
            lake.client.create_branch(REPOSITORY, "busy", before)

    schedule = BeforeBatches(lake, marked, [lambda: None, move])
    lake.on_request = move_back
    manifest = sweep(lake.context(spark, sweep_batch=2))
    assert lake.head("busy") == before
    assert manifest.facts["rounds"] == 1
    assert spared(lake)[lost] == HELD
    check_readable(lake, "main", "busy", *made)


def test_without_rules_a_branch_that_goes_needs_a_new_delta_mark(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """No list names what only that branch held, so all ranges that are there are looked at."""
    lost = max(marked.groups["orphans"])
    lake.client.delete_gc_rules(REPOSITORY)
    made: list[str] = []

    def leave_a_commit() -> None:
        lake.stage("dev", "late/commit", lost, size=10**6)
        made.append(lake.commit("dev"))
        lake.client.delete_branch(REPOSITORY, "dev")

    schedule = BeforeBatches(lake, marked, [lambda: None, leave_a_commit])
    schedule.watch()
    manifest = sweep(lake.context(spark, sweep_batch=1))
    assert schedule.happened == 2
    assert manifest.facts["rounds"] == 2
    assert spared(lake)[lost] == HELD
    check_readable(lake, "main", "busy", *made)


def test_what_is_too_much_for_a_task_is_left_to_a_delta_mark(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_extension, "MOST_TABLES", 0)

    def rescue() -> None:
        lake.client.create_branch(REPOSITORY, "rescue", marked.commits["first"])

    BeforeBatches(lake, marked, [lambda: None, rescue]).watch()
    manifest = sweep(lake.context(spark, sweep_batch=2))
    assert manifest.facts["rounds"] == 2
    assert spared(lake) == dict.fromkeys(marked.groups["replaced"], HELD)
    check_readable(lake, "main", "rescue")


def test_the_look_after_a_sweep_reads_no_commit_again(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    logs: list[str] = []
    deleted: list[int] = []

    def see(_method: str, path: str) -> None:
        if path.endswith("/commits"):
            logs.append(path)
            if not lake.keys() & marked.candidates:
                deleted.append(len(logs))

    lake.on_request = see
    sweep(lake.context(spark))
    assert logs
    assert not deleted


@pytest.mark.parametrize("changed", [False, True])
def test_a_sweep_is_few_jobs(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    *,
    changed: bool,
) -> None:
    """Their number follows from what changed, not from the size; here none needs Spark."""
    jobs: list[str] = []
    run = Tasks.run

    def counted(
        tasks: Tasks, what: str, task: Any, inputs: Sequence[Any], *more: Any, **how: Any
    ) -> Any:
        if inputs:
            jobs.append(what)
            assert tasks.engine.kind == "embedded"
        return run(tasks, what, task, inputs, *more, **how)

    monkeypatch.setattr(Tasks, "run", counted)
    if changed:
        lake.client.create_branch(REPOSITORY, "rescue", marked.commits["first"])
    manifest = sweep(lake.context(spark))
    assert manifest.facts["rounds"] == 1
    assert jobs.count("delete") == 1
    # Before and after the deletes: what is staged, and what lakeFS serves.
    assert len([what for what in jobs if not what.startswith("check ")]) <= (14 if changed else 11)
    # Of ranges only those of the new branch, and only once.
    assert jobs.count("read ranges") == int(changed)
