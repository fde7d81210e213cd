"""What earlier marks hand on, on a lakeFS whose branches, tags and rules change between them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from lakegc_assets.embedded.lake import catalog
from lakegc_assets.embedded.refs import history
from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.mark import commits
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.commits import find_active_commits
from lakegc_assets.mark.earlier_marks import (
    MADE,
    READ,
    REMEMBERED,
    Memory,
    latest_marks,
    unread_marks,
)
from lakegc_assets.mark.listing import list_store
from lakegc_assets.recovery.copies import OBJECTS
from lakegc_assets.retention.active_commits import active_commits
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.rules import Rules
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.history import Earlier
from lakegc_assets.storage.local import LocalStore
from lakegc_assets_tests.files import age
from lakegc_assets_tests.lake import REPOSITORY, STAGES, SmallLake, running
from lakegc_assets_tests.recovery.prunes import needed
from lakegc_assets_tests.sessions import Session

TEN = datetime(2026, 1, 1, 10, tzinfo=timezone.utc)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[SmallLake]:
    with running(tmp_path / "lake") as found:
        yield found


class Past:
    """A commit of 40 days ago, which was the HEAD of main until a moment ago."""

    def __init__(self, lake: SmallLake, spark: Session, **settings: Any) -> None:
        self.lake, self.spark, self.settings = lake, spark, settings
        lake.calendar.days_ago = 60
        lake.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        for number in range(6):
            lake.upload("main", f"keep/{number}", f"kept {number}")
        self.before = lake.commit("main")
        lake.calendar.days_ago = 40
        self.address = lake.upload("main", "held/x", "what HEAD had until a moment ago")
        self.commit = lake.commit("main")
        lake.calendar.days_ago = 0
        self.age()

    def age(self) -> None:
        """Let all objects be older than the youngest age at which the tests allow candidates."""
        age(self.lake.objects / "data", days=1)

    def mark(self, run: str, last: object = find_active_commits, **settings: Any) -> RunContext:
        ctx = self.lake.context(self.spark, run, **self.settings, **settings)
        for stage in STAGES[: STAGES.index(last) + 1]:
            stage(ctx)
        return ctx

    def is_kept(self, run: str) -> bool:
        """Whether the commit is active in a mark: no object of such a one is a candidate."""
        attempt = self.mark(run).root.attempt(REPOSITORY, run)
        return self.commit in attempt.read("active_commits")["commit_id"].to_pylist()

    def is_candidate(self, run: str) -> bool:
        attempt = self.mark(run, find_candidates).root.attempt(REPOSITORY, run)
        return self.address in attempt.read("deletion_candidates")["address"].to_pylist()

    def reset(self) -> None:
        history.hard_reset(self.lake.server.lake, REPOSITORY, "main", self.before)


Event = Callable[[Past], object]


def rules(past: Past) -> None:
    past.lake.rules(5, main=30)


def no_rules(past: Past) -> None:
    past.lake.client.delete_gc_rules(REPOSITORY)


def tag(past: Past) -> None:
    past.lake.client.create_tag(REPOSITORY, "v1", past.commit)


def delete_tag(past: Past) -> None:
    with past.lake.server.lake.state.write() as db:
        catalog.delete_tag(db, catalog.writable_repository(db, REPOSITORY), "v1")


def branch(past: Past) -> None:
    past.lake.client.create_branch(REPOSITORY, "tmp", past.commit)


def delete_branch(past: Past) -> None:
    past.lake.client.delete_branch(REPOSITORY, "tmp")


#: What happens before each mark; main is back at its first commit from ``Past.reset`` on.
CHAINS: dict[str, list[list[Event]]] = {
    "nothing": [[], [Past.reset]],
    "a protected tag": [[], [Past.reset, tag], [delete_tag]],
    "a branch, for two marks": [[], [Past.reset, branch], [], [delete_branch], []],
    "no rules before the reset": [[], [no_rules], [rules, Past.reset]],
    "no rules after the reset": [[], [no_rules, Past.reset], [rules]],
    "no rules, and a branch": [[], [no_rules, Past.reset, branch], [delete_branch], [rules], []],
}


#: What others of them have among other things.
_PARTS_OF_OTHERS = ("nothing", "a branch, for two marks", "no rules after the reset")


@pytest.mark.parametrize(
    "chain",
    [
        pytest.param(
            chain, id=name, marks=[pytest.mark.conformance] if name in _PARTS_OF_OTHERS else []
        )
        for name, chain in CHAINS.items()
    ],
)
def test_what_happens_between_marks_hides_no_date(
    lake: SmallLake, spark: Session, chain: list[list[Event]]
) -> None:
    past = Past(lake, spark, protect_tags=True)
    rules(past)
    for number, events in enumerate(chain):
        for event in events:
            event(past)
        assert past.is_kept(f"mark-{number}")
    # It is for its retention that it stays.
    lake.rules(5, main=0)
    assert not past.is_kept("shorter")


def test_what_was_a_candidate_once_may_go(lake: SmallLake, spark: Session) -> None:
    past = Past(lake, spark)
    rules(past)
    past.mark("first")
    past.reset()
    lake.rules(5, main=0)
    assert past.is_candidate("shorter")
    rules(past)
    assert past.is_candidate("longer-again")


def test_of_paths_the_date_stays_known_too(lake: SmallLake, spark: Session) -> None:
    past = Past(lake, spark, protect_tags=True, retain={"paths": {"held/**": 30}})
    lake.rules(0, main=0)
    for number, events in enumerate(CHAINS["a protected tag"]):
        for event in events:
            event(past)
        assert not past.is_candidate(f"mark-{number}")


def test_of_several_paths_the_longest_days_are_remembered(lake: SmallLake, spark: Session) -> None:
    """They count once the tag is gone and main is set elsewhere; 40 days ago it was HEAD."""
    days = {"held/**": 50, "keep/**": 1}
    past = Past(lake, spark, protect_tags=True, retain={"paths": days})
    lake.rules(0, main=0)
    lake.client.create_tag(REPOSITORY, "v1", past.before)
    attempt = past.mark("first").root.attempt(REPOSITORY, "first")
    assert past.before in attempt.read("active_commits", REMEMBERED)["commit_id"].to_pylist()


def test_of_a_head_the_dates_by_other_branches_are_handed_on_too() -> None:
    """They count once the branch that has it now is gone, and the others are set elsewhere."""

    def commit(name: str, days_ago: int, *parents: str) -> Commit:
        at = TEN - timedelta(days=days_ago)
        return Commit(name, parents, int(at.timestamp()), f"of {name}")

    line = (commit("a", 40), commit("b", 10, "a"), commit("c", 1, "b"))
    commits = {one.id: one for one in line}
    before, now = ({"main": "c", "tmp": "a", "moved": head} for head in ("b", "c"))
    read_at, rules = TEN - timedelta(hours=1), Rules(5, {"main": 30})
    memory = Memory([], [before, now], read_at, rules, rules, TEN)
    active = active_commits(commits, now, rules, TEN).active
    kinds = {one: reason.kind for one, reason in active.items()}
    assert kinds == {"a": "head", "b": "replaced inside", "c": "head"}
    rows = memory.table(commits, [active]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("a", "of a", "main", "replaced inside", TEN - timedelta(days=10)),
        ("b", "of b", "moved", "previous mark", read_at),
    ]


@pytest.mark.parametrize(
    ("again", "kept"),
    [
        ("second", "by the rules"),
        ("first", "by its metadata"),
        pytest.param("first", "by the rules", marks=pytest.mark.conformance),
        pytest.param("second", "by its metadata", marks=pytest.mark.conformance),
    ],
)
def test_a_run_begun_anew_knows_what_its_earlier_attempt_did(
    lake: SmallLake, spark: Session, again: str, kept: str
) -> None:
    metadata = kept == "by its metadata"
    past = Past(lake, spark, **({"retain": {"metadata": {"hold": "yes"}}} if metadata else {}))
    rules(past)
    if metadata:
        lake.calendar.days_ago = 15
        lake.client.create_branch(REPOSITORY, "dev", past.before)
        lake.upload("dev", "x", "held by law")
        past.commit = lake.client.commit_branch(
            REPOSITORY, "dev", "held", metadata={"hold": "yes"}
        ).id
        lake.calendar.days_ago = 0
        past.age()
    past.mark("first")
    if metadata:
        lake.client.delete_branch(REPOSITORY, "dev")
    else:
        past.reset()
    past.mark("first", list_store)
    assert past.is_kept(again)


@pytest.fixture
def overlapping(monkeypatch: pytest.MonkeyPatch) -> Callable[[Past, Callable[[], object]], None]:
    """Two marks, on two machines: one has read all before the other, and ends in the middle of it.

    Between the two something happens.
    """

    def run(past: Past, meanwhile: Callable[[], object]) -> None:
        finish = RunContext.finish
        ends: list[Callable[[], object]] = []

        def held(ctx: RunContext, asset: str, *more: Any) -> Any:
            if asset != "active_commits" or ctx.run not in {"early", "late"}:
                return finish(ctx, asset, *more)
            if ctx.run == "late":
                ends.pop()()
                return finish(ctx, asset, *more)
            ends.append(lambda: finish(ctx, asset, *more))
            meanwhile()
            past.mark("late")
            return ctx.root.attempt(REPOSITORY, "early").recorded(asset)

        with monkeypatch.context() as patch:
            patch.setattr(RunContext, "finish", held)
            past.mark("early")
        assert not ends

    return run


def test_of_marks_that_overlap_each_hands_on_what_it_knew(
    lake: SmallLake, spark: Session, overlapping: Callable[[Past, Callable[[], object]], None]
) -> None:
    past = Past(lake, spark)
    rules(past)
    overlapping(past, past.reset)
    for number in range(2):
        assert past.is_kept(f"next-{number}")
    read = past.lake.root.attempt(REPOSITORY, "next-1").recorded("active_commits").facts
    attempt = past.lake.root.attempt(REPOSITORY, "next-0").attempt
    assert read["handed_on"] == [f"next-0/{attempt}"]


def test_marks_of_earlier_versions_that_overlap_hand_on_what_each_knew(
    lake: SmallLake,
    spark: Session,
    overlapping: Callable[[Past, Callable[[], object]], None],
) -> None:
    past = Past(lake, spark)
    rules(past)
    overlapping(past, past.reset)
    for run in ("early", "late"):
        amend(past, run, handed_on=None)
    assert past.is_kept("next")


def amend(past: Past, run: str, **facts: Any) -> None:
    """Let a mark have recorded other facts; those that are None not at all."""
    attempt = past.lake.root.attempt(REPOSITORY, run)
    manifest = attempt.recorded("active_commits")
    known = {name: fact for name, fact in {**manifest.facts, **facts}.items() if fact is not None}
    attempt.store().put("active_commits/manifest.json", replace(manifest, facts=known).to_bytes())


def test_a_mark_hands_on_what_another_knew_that_ended_while_it_began(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = Past(lake, spark)
    lake.rules(0, main=30)
    lake.calendar.days_ago = 15
    lake.client.create_branch(REPOSITORY, "dev", past.before)
    lake.upload("dev", "x", "held by law")
    past.commit = lake.client.commit_branch(REPOSITORY, "dev", "held", metadata={"hold": "yes"}).id
    lake.calendar.days_ago = 0
    past.age()
    find = commits.find_liveness

    def meanwhile(*args: Any, **more: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(commits, "find_liveness", find)
            past.mark("other")
        lake.client.delete_branch(REPOSITORY, "dev")
        return find(*args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(commits, "find_liveness", meanwhile)
        past.mark("first")
    past.settings = {"retain": {"metadata": {"hold": "yes"}}}
    assert past.is_kept("second")


def test_what_a_restored_repository_has_still_counts(lake: SmallLake, spark: Session) -> None:
    past = Past(lake, spark)
    rules(past)
    past.mark("first")
    # Of another creation date: refs that were dumped are restored into a repository made bare.
    amend(past, "first", repository_made=1)
    past.reset()
    assert past.is_kept("second")


@contextmanager
def without_commit(past: Past, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For a while, lakeFS does not find the commit of the past by its id."""
    real = LakeFSClient.call

    def call(client: LakeFSClient, method: str, *path: str, **more: Any) -> Any:
        if past.commit in path:
            raise NotFoundError("commit not found")
        return real(client, method, *path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(LakeFSClient, "call", call)
        yield


def test_what_a_restored_repository_has_and_cannot_be_read_stops_a_mark(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real lakeFS does not find by its id what was cherry-picked in the last ten minutes."""
    past = Past(lake, spark)
    rules(past)
    past.mark("first")
    amend(past, "first", repository_made=1)
    past.reset()
    metadata = {"cherry-pick-origin": past.commit, "cherry-pick-committer": "lab"}
    lake.client.commit_branch(REPOSITORY, "main", "picked", metadata=metadata, allow_empty=True)
    refused = pytest.raises(IntegrityError, match="may not find a commit that was cherry-picked")
    with without_commit(past, monkeypatch), refused:
        past.mark("second")
    assert past.is_kept("third")
    assert past.is_kept("fourth")


def test_what_only_another_repository_of_the_name_has_read_still_counts(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was restored from an early dump first, without the commit, and then from a later one."""
    past = Past(lake, spark)
    rules(past)
    past.mark("first")
    amend(past, "first", repository_made=1)
    past.reset()
    with without_commit(past, monkeypatch):
        past.mark("second")
    amend(past, "second", repository_made=2)
    for run in ("third", "fourth"):
        assert past.is_kept(run)
    attempts = {run: lake.root.attempt(REPOSITORY, run) for run in ("first", "second", "third")}
    names = {run: f"{run}/{attempt.attempt}" for run, attempt in attempts.items()}
    read = lake.root.attempt(REPOSITORY, "fourth").recorded("active_commits").facts
    assert read["handed_on"] == [names["third"]]
    read = attempts["third"].recorded("active_commits").facts
    assert read["handed_on"] == [names["second"], names["first"]]


def test_commits_that_a_restored_repository_lacks_take_a_request_each(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not lists of all branches and tags: a mark may know very many of them."""
    past = Past(lake, spark)
    rules(past)
    past.mark("first")
    amend(past, "first", repository_made=1)
    asked: list[str] = []
    real = LakeFSClient.call

    def call(client: LakeFSClient, method: str, *path: str, **more: Any) -> Any:
        asked.append(path[-2] if "commits" in path else path[-1])
        if asked[-1] == "commits":
            raise NotFoundError("commit not found")
        return real(client, method, *path, **more)

    ctx = lake.context(spark, "second").connect()
    marks = latest_marks(ctx, {})
    monkeypatch.setattr(LakeFSClient, "call", call)
    head = marks.forgotten()["commit_id"].to_pylist()
    assert head == [past.commit]
    assert sorted(asked) == ["branches", "commits", "commits", "tags"]


@pytest.mark.parametrize("cut", ["list_prefixes", "list"])
def test_lists_of_artifacts_that_end_early_hide_nothing_that_a_mark_knew(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    """Neither of runs nor of files: they look like whole ones."""
    past = Past(lake, spark)
    rules(past)
    past.mark("first")
    past.reset()
    real: dict[str, Callable[..., Any]] = {
        name: getattr(LocalStore, name) for name in ("list_prefixes", "list")
    }

    def runs(store: LocalStore, prefix: str = "", *more: Any, **named: Any) -> Any:
        found = real["list_prefixes"](store, prefix, *more, **named)
        return found._replace(prefixes=[]) if store.url.endswith(f"/{REPOSITORY}") else found

    def files(store: LocalStore, prefix: str = "", *more: Any, **named: Any) -> Any:
        if prefix == "active_commits/" and "/first/" in store.url:
            return iter(())
        return real["list"](store, prefix, *more, **named)

    monkeypatch.setattr(LocalStore, cut, runs if cut == "list_prefixes" else files)
    assert past.is_kept("second")


def test_a_mark_that_cannot_be_read_is_passed_over_with_a_warning(
    lake: SmallLake, spark: Session, caplog: pytest.LogCaptureFixture
) -> None:
    past = Past(lake, spark)
    rules(past)
    for run in ("first", "second"):
        past.mark(run)
    attempt = lake.root.attempt(REPOSITORY, "first")
    attempt.store().put("active_commits/manifest.json", b"{}")
    attempt = lake.root.attempt(REPOSITORY, "second")
    attempt.store().delete_many([attempt.recorded("active_commits").parts["data"][0].key])
    # A folder in which no mark was begun is none of a mark.
    lake.root.open(REPOSITORY, "notes").put("notes.txt", b"of a person")
    with caplog.at_level("WARNING"):
        past.mark("third")
    assert "passed over, with what only that mark knew" in caplog.text
    assert "first" in caplog.text
    assert f"files of {attempt.url}/active_commits are missing" in caplog.text
    assert "notes" not in caplog.text


def test_a_mark_that_cannot_be_read_stops_one_that_keeps_commits_by_their_metadata(
    lake: SmallLake, spark: Session
) -> None:
    """A branch of theirs may be deleted: no other witness has them."""
    past = Past(lake, spark, retain={"metadata": {"hold": "yes"}})
    rules(past)
    ctx = past.mark("first")
    ctx.root.attempt(REPOSITORY, "first").store().put("active_commits/manifest.json", b"{}")
    with pytest.raises(IntegrityError, match=r"first.*restore the file from a copy"):
        past.mark("second")


@pytest.mark.parametrize("kept", ["by the rules", "by its metadata"])
def test_a_damaged_file_of_an_earlier_mark_stops_each_mark_until_a_person_decides(
    lake: SmallLake, spark: Session, kept: str
) -> None:
    metadata = kept == "by its metadata"
    past = Past(lake, spark, **({"retain": {"metadata": {"hold": "yes"}}} if metadata else {}))
    rules(past)
    ctx = past.mark("first")
    attempt = ctx.root.attempt(REPOSITORY, "first")
    # Rules of metadata need commits that have expired, too.
    name = "expired" if metadata else "data"
    (part,) = attempt.recorded("active_commits").parts[name]
    file = Path(attempt.url, part.key)
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    advice = r"changed it.*A new mark does not help.*restore the file from a copy.*'first'"
    for run in ("second", "third"):
        with pytest.raises(IntegrityError, match=advice):
            past.mark(run)
    shutil.rmtree(Path(ctx.root.url, REPOSITORY, "first"))
    past.mark("fourth")


def test_for_a_prune_what_its_own_mark_knew_counts_too(lake: SmallLake, spark: Session) -> None:
    """Trash and backups of others may hold the only copy of what only this mark has seen."""
    past = Past(lake, spark)
    rules(past)
    ctx = past.mark("first")
    past.reset()
    objects = pa.table({"address": [past.address], "size": [1]}, schema=OBJECTS)
    assert needed(ctx, objects) == {past.address: "an active commit holds it"}


def recorded(run: str, began: int, ended: int, **facts: object) -> Earlier:
    """A mark that began and ended so many minutes after ``TEN``."""
    started, finished = (TEN + timedelta(minutes=number) for number in (began, ended))
    manifest = SimpleNamespace(
        run=run, attempt="one", facts=facts, started=started, finished=finished
    )
    return cast("Earlier", SimpleNamespace(manifest=manifest))


def test_of_marks_of_versions_before_no_clock_tells_within_minutes_which_came_first() -> None:
    """They do not say what they have read: one may have ended while another one had begun."""
    last = recorded("last", 5, 20)
    marks = [recorded("long before", -30, -20), recorded("just before", 0, 3), last]
    found = unread_marks(marks, last.manifest.finished)
    assert [mark.manifest.run for mark in found] == ["last", "just before"]


def test_marks_of_versions_before_have_read_what_ended_before_the_last_of_them_began() -> None:
    marks = [recorded("old", -90, -80), recorded("one", -70, -20), recorded("last", -50, 0)]
    found = unread_marks(marks, TEN)
    assert [mark.manifest.run for mark in found] == ["last", "one"]


@pytest.mark.parametrize(
    ("b", "c", "made", "unread"),
    [
        ({"read": "a"}, {"read": "b"}, 1, "c"),
        # They overlapped.
        ({"read": "a"}, {"read": "a"}, 1, "cb"),
        # Made while the clocks were ahead: dates that it took for over still count.
        ({"read": "a"}, {"read": "b", "began": 16}, 1, "cb"),
        ({"read": "a"}, {"read": "b", "began": 10}, 1, "c"),
        # Of another repository in this place, which lacked commits that this one has.
        ({"read": "a"}, {"read": "b", "made": 2}, 1, "cb"),
        ({"read": "a", "made": 2}, {"read": "b", "made": 1}, 1, "ca"),
        ({"read": "a", "made": 1}, {"read": "", "made": 2}, None, "cba"),
        ({"read": "a", "made": 1}, {"read": "b"}, None, "c"),
        # Its files are gone, so it hands nothing on.
        ({"read": "a"}, {"read": "b", "whole": False}, 1, "b"),
    ],
)
def test_what_a_mark_has_read_need_not_be_read_again_unless_it_dropped_dates(
    b: dict[str, Any], c: dict[str, Any], made: int | None, unread: str
) -> None:
    def mark(run: str, minute: int, given: dict[str, Any]) -> Earlier:
        made_then = {MADE: given["made"]} if "made" in given else {}
        read = [f"{name}/one" for name in given["read"]]
        return recorded(run, given.get("began", minute), minute + 5, **{READ: read}, **made_then)

    whole = {"a": True, "b": True, "c": c.get("whole", True)}
    marks = [mark("a", -60, {"read": ""}), mark("b", -40, b), mark("c", -20, c)]
    found = unread_marks(marks, TEN, lambda one: whole[one.manifest.run], made=made)
    assert "".join(one.manifest.run for one in found) == unread
