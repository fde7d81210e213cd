"""What other repositories of the server name is alive, for the mark, the sweep and after it.

They name it by its full address, which real lakeFS and the embedded one let anybody stage.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from hashlib import md5

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakegc_assets.embedded.lake import catalog
from lakegc_assets.embedded.objects import objects
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.entry import AddressType, Entry
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.mark import full
from lakegc_assets.mark.references import UnreadableRepositoryError, read_references
from lakegc_assets.mark.why import why
from lakegc_assets.recovery.liveness import needed_now
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.parts import read_parts
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.sweep import rounds
from lakegc_assets.sweep.alarm import AlarmError
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, STAGES, Marked, SmallLake
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.outcomes import check_swept

OTHER = "other"
IN_A_COMMIT = "repository 'other' names it by its full address, in a commit"
STAGED = "repository 'other' names it by its full address, in what it has staged"


def make_other(lake: SmallLake, name: str = OTHER) -> None:
    lake.client.create_repository(name, f"local://{name}")


def forget(lake: SmallLake, name: str) -> None:
    with lake.server.lake.state.write() as db:
        catalog.delete_repository(db, name)


def name_it(
    lake: SmallLake, address: str, path: str = "x", branch: str = "main", of: str = OTHER
) -> None:
    """Let another repository stage an object of this one."""
    entry = Entry(
        address=address if "://" in address else f"local://{REPOSITORY}/{address}",
        size=1,
        # Else a second one at the same path would be no change to lakeFS.
        e_tag=md5(address.encode(), usedforsecurity=False).hexdigest(),
        address_type=AddressType.FULL,
        content_type="text/plain",
    )
    objects.stage_entry(lake.server.lake, of, branch, path, entry)


def commit(lake: SmallLake, branch: str = "main", of: str = OTHER) -> str:
    return lake.client.commit_branch(of, branch, "a commit", allow_empty=True).id


def mark(
    lake: SmallLake,
    spark: Session,
    run: str = "again",
    *,
    publish: bool = False,
    **settings: object,
) -> RunContext:
    ctx = lake.context(spark, run, **settings)
    for stage in STAGES if publish else STAGES[:5]:
        stage(ctx)
    return ctx


def candidates(ctx: RunContext) -> set[str]:
    found = ctx.root.attempt(REPOSITORY, ctx.run).read("deletion_candidates")
    return set(found["address"].to_pylist())


@contextmanager
def counted(lake: SmallLake) -> Iterator[Counter[str]]:
    """The requests that are about other repositories, and about their list."""
    seen: Counter[str] = Counter()

    def see(method: str, path: str) -> None:
        if not path.startswith(f"/api/v1/repositories/{REPOSITORY}"):
            seen[f"{method} {path.removeprefix('/api/v1')}"] += 1

    lake.on_request = see
    yield seen
    lake.on_request = lambda _method, _path: None


# What a mark keeps


def test_what_another_repository_names_is_no_candidate(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    make_other(lake)
    held, staged, branched, *rest = sorted(marked.candidates)
    name_it(lake, held)
    commit(lake)
    name_it(lake, staged, "staged")
    lake.client.create_branch(OTHER, "dev", "main")
    name_it(lake, branched, "on dev", "dev")
    ctx = mark(lake, spark, publish=True)
    assert candidates(ctx) == set(rest)
    found = ctx.root.attempt(REPOSITORY, ctx.run)
    assert found.manifest("committed_addresses").facts["references"] == {OTHER: 3}
    assert why(ctx, held).because == IN_A_COMMIT
    assert why(ctx, held).facts == {"repository": OTHER, "held": "committed"}
    assert why(ctx, staged).because == STAGED
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
    for days, address in ((100, expired), (90, tagged), (10, active)):
        lake.calendar.days_ago = days
        name_it(lake, address)
        made = commit(lake)
        if address == tagged:
            lake.client.create_tag(OTHER, "v1", made)
    lake.calendar.days_ago = 0
    ctx = mark(lake, spark)
    assert candidates(ctx) == marked.candidates - {tagged, active}


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


@pytest.mark.parametrize("moment", ["branches", "branches/main/diff", "refs/main/objects/ls"])
def test_what_is_committed_while_it_is_read_is_seen_as_staged_or_committed(
    lake: SmallLake, marked: Marked, spark: Session, moment: str
) -> None:
    make_other(lake)
    named = min(marked.candidates)
    name_it(lake, named)
    seen: list[str] = []

    def see(_method: str, path: str) -> None:
        if path.endswith(f"/other/{moment}") and not seen:
            seen.append(path)
            commit(lake)

    lake.on_request = see
    assert candidates(mark(lake, spark)) == marked.candidates - {named}
    assert seen


def test_an_address_that_nobody_can_place_spares_what_ends_like_it(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    make_other(lake)
    kept = min(marked.candidates)
    name_it(lake, f"local://{REPOSITORY}/a/../{kept}", "up")
    assert kept not in candidates(mark(lake, spark))
    lake.client.reset_branch(OTHER, "main")
    assert kept in candidates(mark(lake, spark, "later"))


# What a sweep spares


def test_what_is_named_after_the_mark_is_spared(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    held, staged, *_ = sorted(marked.candidates)
    make_other(lake)
    name_it(lake, held)
    commit(lake)
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
    named, free, *_ = sorted(marked.candidates)
    name_it(lake, named)
    addresses = pa.chunked_array([[named, free]])
    found = needed_now(lake.context(spark), f"local://{REPOSITORY}", addresses)
    assert found.to_pylist() == [{"address": named, "why": "another repository names it"}]


# What cannot be read


def test_a_repository_that_cannot_be_read_stops_the_run_unless_it_is_ignored(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    make_other(lake)
    name_it(lake, min(marked.candidates))
    commit(lake)
    tables = lake.server.objects_dir / OTHER / "_lakefs"
    shutil.rmtree(tables)
    with pytest.raises(UnreadableRepositoryError, match=r"'other' of the same server .* is not li"):
        mark(lake, spark, "stopped")
    with pytest.raises(UnreadableRepositoryError, match="ignored_repositories"):
        sweep(lake.context(spark))
    assert lake.keys() == marked.live | marked.candidates
    ctx = mark(lake, spark, "ignoring", publish=True, ignored_repositories=(OTHER,))
    assert candidates(ctx) == marked.candidates
    facts = ctx.root.attempt(REPOSITORY, "ignoring").manifest("gc_report").facts
    assert facts["ignored_repositories"] == [OTHER]


def test_a_range_that_is_missing_stops_the_run_although_it_is_no_head(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    make_other(lake)
    before = {path.name for path in (lake.server.objects_dir / OTHER / "_lakefs").iterdir()}
    name_it(lake, min(marked.candidates))
    commit(lake)
    lake.client.delete_object(OTHER, "main", "x")
    lake.upload("main", "y", "of no interest")
    for path in (lake.server.objects_dir / OTHER / "_lakefs").iterdir():
        if path.name not in before and b"metaranges" not in path.read_bytes():
            path.unlink()
    commit(lake)
    with pytest.raises(UnreadableRepositoryError, match="is missing"):
        mark(lake, spark)


def test_a_damaged_range_stops_the_run(lake: SmallLake, marked: Marked, spark: Session) -> None:
    make_other(lake)
    name_it(lake, min(marked.candidates))
    commit(lake)
    for path in (lake.server.objects_dir / OTHER / "_lakefs").iterdir():
        if path.is_file() and b"metaranges" not in (data := path.read_bytes()):
            path.unlink()
            path.write_bytes(data[:20] + b"\0" + data[21:])
    with pytest.raises(UnreadableRepositoryError, match="'other'"):
        mark(lake, spark)


def test_a_repository_that_is_deleted_meanwhile_is_no_error(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    make_other(lake)
    deleting = [True]

    def see(_method: str, path: str) -> None:
        if path.endswith("/other/branches") and deleting:
            deleting.clear()
            forget(lake, OTHER)

    lake.on_request = see
    assert candidates(mark(lake, spark)) == marked.candidates


def test_not_found_of_a_repository_that_is_listed_stops_the_run(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_other(lake)
    listed = LakeFSClient.repositories

    def with_a_ghost(client: LakeFSClient, prefix: str = "") -> Iterator[Repository]:
        yield from (
            found.model_copy(update={"id": "ghost"}) if found.id == OTHER else found
            for found in listed(client, prefix)
        )

    monkeypatch.setattr(LakeFSClient, "repositories", with_a_ghost)
    with pytest.raises(UnreadableRepositoryError, match=r"'ghost' .* answered 404"):
        mark(lake, spark)
    assert lake.keys() == marked.live | marked.candidates


def test_a_repository_that_is_made_while_others_are_read_is_read_too(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    make_other(lake)
    named = min(marked.candidates)

    def see(_method: str, path: str) -> None:
        if path.endswith("/other/branches"):
            lake.on_request = lambda _method, _path: None
            make_other(lake, "another")
            name_it(lake, named, of="another")

    lake.on_request = see
    assert candidates(mark(lake, spark)) == marked.candidates - {named}


def test_a_list_without_the_repository_itself_is_not_whole(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LakeFSClient, "repositories", lambda *_: iter(()))
    with pytest.raises(IntegrityError, match="list of repositories has 0, and not 'repo'"):
        mark(lake, spark)
    assert lake.keys() == marked.live | marked.candidates


# What it costs


def test_a_server_with_one_repository_is_asked_for_its_list_alone(
    lake: SmallLake, spark: Session
) -> None:
    with counted(lake) as before:
        for stage in STAGES[:3]:
            stage(lake.context(spark, "again"))
    with counted(lake) as seen:
        STAGES[3](lake.context(spark, "again"))
    assert {path for path in before if "/repositories" in path} == {"GET /repositories"}
    # One for the comparison of namespaces, as in every stage, and one more.
    assert seen["GET /repositories"] == 2


def test_what_did_not_change_is_not_read_again(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a repository with two branches its branches and their diffs are asked for, and a list."""
    make_other(lake)
    lake.client.create_branch(OTHER, "dev", "main")
    commit(lake)
    mark(lake, spark)
    fetched: list[str] = []
    monkeypatch.setattr(full, "fetch", lambda _store, _url, name: fetched.append(name))
    with counted(lake) as seen:
        ctx = mark(lake, spark, "later")
    assert candidates(ctx) == marked.candidates
    other = {path: count for path, count in seen.items() if "/repositories/other" in path}
    assert other == {
        "GET /repositories/other/branches": 1,
        "GET /repositories/other/branches/main/diff": 1,
        "GET /repositories/other/branches/dev/diff": 1,
    }
    assert not fetched


def test_one_look_at_a_repository_serves_all_that_are_collected(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a range names in one of them is not what it names in another."""
    make_other(lake)
    make_other(lake, "third")
    third = lake.client.upload_object("third", "main", "x", b"of the third").physical_address
    lake.client.reset_branch("third", "main")
    name_it(lake, third, "third")
    commit(lake)
    assert candidates(mark(lake, spark, "first")) == marked.candidates
    fetched: list[str] = []

    def fetch(store: ObjectStore, url: str, name: str) -> bytes:
        fetched.append(f"{url}/{name}")
        return store.get(f"_lakefs/{name}")

    monkeypatch.setattr(full, "fetch", fetch)
    ctx = replace(lake.context(spark, "of-third"), repository="third")
    for stage in STAGES[:5]:
        stage(ctx)
    found = ctx.root.attempt("third", "of-third")
    assert found.manifest("committed_addresses").facts["references"] == {OTHER: 1}
    assert found.read("deletion_candidates").num_rows == 0
    assert not [url for url in fetched if "://other" in url]


def test_a_damaged_cache_is_read_again(lake: SmallLake, marked: Marked, spark: Session) -> None:
    make_other(lake)
    named = min(marked.candidates)
    name_it(lake, named)
    commit(lake)
    mark(lake, spark)
    caches = [p for p in (lake.folder / "artifacts").rglob("_cache/*/*/*/*") if p.is_file()]
    kinds = {path.parent.parent.name for path in caches}
    assert kinds >= {"full", "commits", "others", "ranges", "metaranges"}
    for path in caches:
        path.write_bytes(path.read_bytes()[:-9] + b"damaged!!")
    assert candidates(mark(lake, spark, "later")) == marked.candidates - {named}


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
    """What is read of one repository, in a folder of its own."""
    client, connections = ctx.connect()
    artifacts = ctx.root.open(REPOSITORY, "scratch", secrets.token_hex(4))
    found = read_references(ctx, client, connections, artifacts, "", datetime.now(timezone.utc))
    rows = [row for part in read_parts(artifacts, found.parts) for row in part.to_pylist()]
    assert {row["repository"] for row in rows} <= {other}
    return {row["address"] for row in rows}


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
