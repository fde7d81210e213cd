"""Objects that other repositories name are alive, for the mark, the sweep and after it.

They name it by its full address, which real lakeFS and the embedded one let anybody stage.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegc_assets.engine.datasets import Part, read_parts
from lakegc_assets.mark.explanation import explain_object
from lakegc_assets.mark.references import References, read_references
from lakegc_assets.mark.relations import AMBIGUOUS
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep import rounds
from lakegc_assets.sweep.alarm import AlarmError
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, STAGES, Marked, SmallLake, candidates
from lakegc_assets_tests.recovery.prunes import needed
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.others import (
    OTHER,
    begin_import,
    commit,
    commit_it,
    forget,
    make_other,
    mark,
    name_it,
    once_asked,
)
from lakegc_assets_tests.sweep.outcomes import check_swept

IN_A_COMMIT = "repository 'other' names it by its full address, in a commit"
STAGED = "repository 'other' names it by its full address, in what it has staged"


# What a mark keeps


def test_what_several_repositories_name_is_added_up() -> None:
    def named(name: str, count: int) -> References:
        part, hashes = (Part(f"{what}/{name}", 1, 1, "") for what in ("references", "referenced"))
        counts = {name: count, "both": count}
        return References([part], [hashes], frozenset({name}), counts, [name], [f"of {name}"])

    one, other = named("one", 1), named("other", 2)
    assert one + other == References(
        [*one.parts, *other.parts],
        [*one.hashes, *other.hashes],
        frozenset({"one", "other"}),
        {"one": 1, "other": 2, "both": 3},
        ["one", "other"],
        ["of one", "of other"],
    )


def test_what_another_repository_names_is_no_candidate(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    held, staged, branched, *rest = sorted(marked.candidates)
    commit_it(lake, held)
    name_it(lake, staged, "staged")
    lake.client.create_branch(OTHER, "dev", "main")
    name_it(lake, branched, "on dev", "dev")
    ctx = mark(lake, spark, publish=True)
    assert candidates(ctx) == set(rest)
    found = ctx.root.attempt(REPOSITORY, ctx.run)
    assert found.manifest("committed_addresses").facts["references"] == {OTHER: 3}
    assert explain_object(ctx, held).because == IN_A_COMMIT
    assert explain_object(ctx, held).facts == {"repository": OTHER, "held": "committed"}
    assert explain_object(ctx, staged).because == STAGED
    sweep(ctx)
    assert lake.keys() == marked.live | {held, staged, branched}


def test_what_a_commit_of_a_deleted_branch_names_counts(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """There are no rules, so nothing ever expires there; and no log leads to it any more."""
    make_other(lake)
    lake.client.create_branch(OTHER, "dev", "main")
    held = min(marked.candidates)
    name_it(lake, held, branch="dev")
    commit(lake, "dev")
    lake.client.delete_branch(OTHER, "dev")
    assert candidates(mark(lake, spark)) == marked.candidates - {held}


def test_what_only_an_expired_commit_of_another_repository_names_does_not_count(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    make_other(lake)
    lake.client.set_gc_rules(OTHER, 20, {})
    expired, tagged, active = sorted(marked.candidates)[:3]
    # The parent of the first active commit is active, too.
    between = (80, "local://elsewhere/x")
    for days, address in ((100, expired), (90, tagged), between, (10, active)):
        lake.calendar.days_ago = days
        name_it(lake, address)
        made = commit(lake)
        if address == tagged:
            lake.client.create_tag(OTHER, "v1", made)
    lake.calendar.days_ago = 0
    ctx = mark(lake, spark)
    assert candidates(ctx) == marked.candidates - {tagged, active}


def test_what_another_repository_retains_by_rules_of_its_own_counts(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """Its latest mark says which: this repository's settings know nothing of them."""
    make_other(lake)
    lake.client.set_gc_rules(OTHER, 20, {})
    replaced, retained, by_path = sorted(marked.candidates)[:3]
    for days, address in ((100, replaced), (90, retained), (80, "local://elsewhere/x")):
        lake.calendar.days_ago = days
        name_it(lake, address)
        name_it(lake, by_path if address == replaced else address, "held/y")
        commit(lake)
    lake.calendar.days_ago = 0
    assert candidates(mark(lake, spark)) == marked.candidates
    retain = {"branches": {"main": {"last_commits": 2}}, "paths": {"held/**": 95}}
    ctx = replace(lake.context(spark, "of-other", retain=retain), repository=OTHER)
    for stage in STAGES[:3]:
        stage(ctx)
    assert candidates(mark(lake, spark, "later")) == marked.candidates - {retained, by_path}


def test_what_an_import_names_counts_before_it_is_committed(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """Its ranges lie there for hours, and no commit has them. Expired ones still do not count."""
    make_other(lake)
    lake.client.set_gc_rules(OTHER, 20, {})
    expired, named = sorted(marked.candidates)[:2]
    lake.calendar.days_ago = 100
    name_it(lake, expired)
    commit(lake)
    lake.calendar.days_ago = 90
    lake.client.reset_branch(OTHER, "main")
    lake.client.delete_object(OTHER, "main", "x")
    commit(lake)
    lake.calendar.days_ago = 0
    begin_import(lake, named)
    assert candidates(mark(lake, spark)) == marked.candidates - {named}
    # What was seen then is recorded, and nothing has changed.
    assert candidates(mark(lake, spark, "later")) == marked.candidates - {named}
    sweep(lake.context(spark))
    check_swept(lake, marked, {named: IN_A_COMMIT})


def test_of_a_read_only_repository_every_commit_counts(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    make_other(lake)
    lake.client.set_gc_rules(OTHER, 1, {})
    held = min(marked.candidates)
    lake.calendar.days_ago = 100
    name_it(lake, held)
    commit(lake)
    lake.client.delete_object(OTHER, "main", "x")
    lake.calendar.days_ago = 90
    commit(lake)
    commit(lake)
    lake.calendar.days_ago = 0
    with lake.server.lake.state.write() as db:
        db.execute("UPDATE repositories SET read_only = 1 WHERE id = ?", (OTHER,))
    assert candidates(mark(lake, spark)) == marked.candidates - {held}


@pytest.mark.parametrize("moment", ["branches", "refs/main@/diff/main$", "refs/main/objects/ls"])
def test_what_is_committed_while_it_is_read_is_seen_as_staged_or_committed(
    lake: SmallLake, marked: Marked, spark: Session, moment: str
) -> None:
    make_other(lake)
    named = min(marked.candidates)
    name_it(lake, named)
    asked = once_asked(lake, f"/other/{moment}", lambda: commit(lake))
    assert candidates(mark(lake, spark)) == marked.candidates - {named}
    assert asked


def test_an_address_that_nobody_can_place_spares_what_ends_like_it(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    make_other(lake)
    kept = min(marked.candidates)
    name_it(lake, f"local://{REPOSITORY}/a/../{kept}", "up")
    assert kept not in candidates(mark(lake, spark))
    lake.client.reset_branch(OTHER, "main")
    assert kept in candidates(mark(lake, spark, "later"))
    name_it(lake, f"local://{REPOSITORY}/a/../{kept}", "up")
    commit(lake)
    assert kept not in candidates(mark(lake, spark, "committed"))


# What a sweep spares


def test_what_is_named_after_the_mark_is_spared(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    held, staged, *_ = sorted(marked.candidates)
    commit_it(lake, held)
    name_it(lake, staged, "staged")
    sweep(lake.context(spark))
    check_swept(lake, marked, {held: IN_A_COMMIT, staged: STAGED})


def test_what_is_named_while_it_is_swept_is_put_back_or_an_alarm(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No look before a batch sees it: the last one does."""
    make_other(lake)
    named = min(marked.candidates)
    delete = rounds.delete

    def and_then(*args: object) -> object:
        name_it(lake, named)
        return delete(*args)  # type: ignore[arg-type] # as they came

    monkeypatch.setattr(rounds, "delete", and_then)
    with pytest.raises(AlarmError, match=f"{re.escape(named)}.*{re.escape(STAGED)}"):
        sweep(lake.context(spark, restore_revived=False))
    assert marked.live == lake.keys()


def test_what_another_repository_names_is_needed_by_a_backup(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    make_other(lake)
    named, free, theirs, ours = sorted(marked.candidates)[:4]
    name_it(lake, named)
    # Addresses that nobody can place, staged there and committed here.
    name_it(lake, f"local://{REPOSITORY}/a/../{theirs}", "up")
    name_it(lake, f"local://{REPOSITORY}/a/../{ours}", "up", of=REPOSITORY)
    commit(lake, of=REPOSITORY)
    # HEAD has it no more, and the commit before is young: nothing else tells of it.
    lake.client.delete_object(REPOSITORY, "main", "up")
    commit(lake, of=REPOSITORY)
    objects = pa.table({"address": [named, free, theirs, ours], "size": [1] * 4})
    kept = {named: STAGED, theirs: AMBIGUOUS, ours: AMBIGUOUS}
    assert needed(lake.context(spark), objects) == kept


# Any history


@dataclass
class History:
    """A history of another repository, and what it names."""

    lake: SmallLake
    other: str
    free: Iterator[str]
    branches: list[str] = field(default_factory=lambda: ["main"])
    staged: dict[tuple[str, str], str] = field(default_factory=dict)
    committed: set[str] = field(default_factory=set)

    @property
    def branch(self) -> str:
        return self.branches[-1]

    def _unstage(self) -> set[str]:
        mine = {key for key in self.staged if key[0] == self.branch}
        return {self.staged.pop(key) for key in mine}

    def name(self, path: str) -> None:
        if address := next(self.free, None):
            name_it(self.lake, address, path, self.branch, self.other)
            self.staged[self.branch, path] = address

    def commit(self, _path: str) -> None:
        commit(self.lake, self.branch, self.other)
        self.committed |= self._unstage()

    def reset(self, _path: str) -> None:
        self.lake.client.reset_branch(self.other, self.branch)
        self._unstage()

    def delete(self, path: str) -> None:
        if self.staged.pop((self.branch, path), None):
            self.lake.client.delete_object(self.other, self.branch, path)

    def fork(self, _path: str) -> None:
        if len(self.branches) < 3:
            self.branches.append(f"b{len(self.branches)}")
            self.lake.client.create_branch(self.other, self.branch, self.branches[-2])

    def drop(self, _path: str) -> None:
        if len(self.branches) > 1:
            self.lake.client.delete_branch(self.other, self.branch)
            self._unstage()
            self.branches.pop()


ACTIONS = [History.name, History.name, History.commit, History.reset, History.delete]
STEPS = st.lists(
    st.tuples(st.sampled_from([*ACTIONS, History.fork, History.drop]), st.sampled_from("abc")),
    max_size=12,
)


def named_now(ctx: RunContext, other: str) -> set[str]:
    """The data read of one repository, in a folder of its own."""
    ctx = ctx.connect()
    artifacts = ctx.root.open(REPOSITORY, "scratch", secrets.token_hex(4))
    found = read_references(ctx, artifacts, "", datetime.now(timezone.utc))
    rows = [row for part in read_parts(artifacts, found.parts) for row in part.to_pylist()]
    assert {row["repository"] for row in rows} <= {other}
    return {row["address"] for row in rows}


@settings(max_examples=6)
@given(before=STEPS, after=STEPS)
def test_whatever_another_repository_does_what_it_names_stays(
    before: Sequence[tuple[Callable[[History, str], None], str]],
    after: Sequence[tuple[Callable[[History, str], None], str]],
    lake: SmallLake,
    marked: Marked,
    spark: Session,
) -> None:
    """Without rules there, what was ever committed counts, and what is staged now."""
    other = f"other-{secrets.token_hex(4)}"
    make_other(lake, other)
    history = History(lake, other, iter(sorted(marked.candidates)))
    ctx = lake.context(spark, "any")
    for steps in (before, after):
        for step, path in steps:
            step(history, path)
        kept = history.committed | set(history.staged.values())
        assert named_now(ctx, other) == kept
    forget(lake, other)
