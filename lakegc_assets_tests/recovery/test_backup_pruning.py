"""Which backups end, which stay, and what is told of them."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from hashlib import md5
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
import requests

from lakegc_assets.cli.backups import not_held
from lakegc_assets.embedded.faults import Fault
from lakegc_assets.embedded.objects import objects
from lakegc_assets.errors import RefusedError
from lakegc_assets.graveler.entry import Entry
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.mark import relations as mark_relations
from lakegc_assets.mark.installation import MARKER
from lakegc_assets.recovery import backup_pruning, relations
from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.backups import BEGIN, MANIFEST, Record, all_backups
from lakegc_assets.recovery.copies import OBJECTS, only_copies, scratch_space
from lakegc_assets.recovery.liveness import needed_now
from lakegc_assets.recovery.old_trash import prune_trash
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.lock import repository_lock
from lakegc_assets.run.object_lookup import missing
from lakegc_assets.run.pins import Pin, write_pin
from lakegc_assets.storage import local
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.files import TEMPORARY
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.hold import HOLD, write_hold
from lakegc_assets.sweep.lease import leased_to_prune, repository_lease
from lakegc_assets.sweep.lease_record import LEASE, read_lease
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, RUN, SECRET_KEY, Marked, mark, running
from lakegc_assets_tests.recovery.conftest import Place, anywhere_the_same, on_s3_later
from lakegc_assets_tests.recovery.prunes import NAME, left, prune, pruning
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.stand_ins import stand_in


def test_what_nothing_needs_any_more_goes_as_a_whole(swept: Place) -> None:
    before = left(swept)
    assert prune(swept, days=29) == {NAME: "it is 29 days old"}
    assert prune(swept, dry_run=True) == {NAME: ""}
    assert left(swept) == before
    assert prune(swept) == {NAME: ""}
    assert left(swept) == 0
    assert prune(swept) == {}
    # What hashes were kept for this is gone, too.
    assert not list(Path(swept.root.url, REPOSITORY).glob("_needed/*/*"))


def _staged(place: Place, address: str) -> str:
    place.lake.stage("main", "late/link", address)
    return "it is staged on a branch"


def _pinned(place: Place, address: str) -> str:
    store = place.lake.store
    until = store.server_time() + timedelta(days=1)
    pin = Pin("restore-1", until, RUN, "restored", 1)
    write_pin(store, pin, pa.array([address]))
    return pin.reason


@pytest.mark.parametrize(
    ("revive", "names"),
    [
        (_staged, (NAME,)),
        (_pinned, ()),
        pytest.param(_staged, (), marks=pytest.mark.conformance),
        pytest.param(_pinned, (NAME,), marks=pytest.mark.conformance),
    ],
)
@anywhere_the_same
def test_the_only_copy_of_what_is_needed_now_stays(
    swept: Place,
    marked: Marked,
    revive: Callable[[Place, str], str],
    names: tuple[str, ...],
) -> None:
    address = max(marked.candidates)
    why = revive(swept, address)
    before = swept.contents()
    kept = prune(swept, *names)[NAME]
    assert kept.startswith(
        f"it holds the only copy of 1 object that is needed now, for example {address!r} ({why}): "
        f"restore them first: `lakegc restore {REPOSITORY} --run {RUN} --all "
    )
    assert swept.contents() == before
    assert swept.copied.num_rows == len(marked.candidates)
    # What somebody else wrote there is no copy of it.
    swept.lake.store.put(address, before[address] + b"x")
    assert "the only copy of 1 object" in prune(swept, *names)[NAME]
    # Once the store has it again, it is no longer the only one.
    swept.lake.store.put(address, before[address])
    assert prune(swept) == {NAME: ""}
    assert left(swept) == 0


@anywhere_the_same
@pytest.mark.parametrize(
    ("of", "name"), [(mark_relations, "came_back"), (relations, "held")], ids=["needed", "held"]
)
def test_an_engine_that_loses_rows_of_what_is_needed_prunes_nothing(
    swept: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch, of: ModuleType, name: str
) -> None:
    whole = getattr(of, name)

    def losing(*frames: Any, **how: Any) -> Any:
        return whole(*frames, **how).where("address is null")

    _staged(swept, max(marked.candidates))
    before = swept.contents()
    monkeypatch.setattr(of, name, losing)
    assert "has lost rows in run" in prune(swept)[NAME]
    assert swept.contents() == before
    assert left(swept) > 0


@anywhere_the_same
def test_a_copy_of_the_server_prunes_nothing(swept: Place) -> None:
    """It may lack the commits and branches that need the copies."""
    store = swept.lake.store
    told = json.loads(store.get(MARKER))
    store.put(MARKER, json.dumps(told | {"creation_date": 1}).encode())
    kept = prune(swept, NAME)[NAME]
    assert "is collected by another lakeFS server or repository" in kept
    store.put(MARKER, json.dumps(told).encode())
    assert prune(swept, dry_run=True) == {NAME: ""}


@anywhere_the_same
def test_rules_that_the_last_mark_got_by_an_option_keep_copies(swept: Place) -> None:
    mark(swept.context("later", retain={"branches": {"main": {"last_commits": 10, "days": 1}}}))
    kept = prune(swept, dry_run=True)[NAME]
    assert kept.startswith("it holds the only copy of ")
    assert "an active commit holds it" in kept


@anywhere_the_same
def test_a_list_that_lacks_a_branch_or_tag_of_the_last_mark_prunes_nothing(
    swept: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept.lake.client.create_branch(REPOSITORY, "zone", "main")
    swept.lake.client.create_tag(REPOSITORY, "zero", "main")
    mark(swept.context("later"))
    listed = LakeFSClient.branches

    def cut(*asked: Any, **more: Any) -> Iterator[Any]:
        return (one for one in listed(*asked, **more) if one.id != "zone")

    for name, short in (("branches", cut), ("tags", lambda *_, **__: iter(()))):
        with monkeypatch.context() as patch:
            patch.setattr(LakeFSClient, name, short)
            kept = prune(swept, dry_run=True)[NAME]
            assert kept.startswith("it is not known whether an object of it is needed")
            assert ("'zone'" if name == "branches" else "'zero'") in kept
    assert prune(swept, dry_run=True) == {NAME: ""}


def test_what_lakefs_serves_and_lists_nowhere_stays(tmp_path: Path, spark: Session) -> None:
    """Staged over an entry of the same content, it is in no diff."""
    with running(tmp_path / "lake", faults=frozenset({Fault.SHADOWED_UPLOADS})) as lake:
        lake.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        lake.rules(20)
        served = {}
        for days_ago, content in ((90, "the same"), (80, "or other"), (70, "the same")):
            lake.calendar.days_ago = days_ago
            served[days_ago] = lake.upload("main", "a", content)
            lake.commit("main")
        lake.calendar.days_ago = 0
        place = Place(lake, lake.root, str(tmp_path / "backups"), spark)
        mark(place.context())
        make_backup(place.context())
        sweep(place.context())
        assert not {served[90], served[80]} & lake.keys()
        now = lake.client.stat(REPOSITORY, "main", "a")
        checksum = md5(b"the same").hexdigest()
        entry = Entry(served[90], size=8, e_tag=checksum, content_type=now.content_type or "")
        objects.stage_entry(lake.server.lake, REPOSITORY, "main", "a", entry)
        assert not list(lake.client.diff_branch(REPOSITORY, "main"))
        assert prune(place)[NAME].startswith(
            f"it holds the only copy of 1 object that is needed now, for example {served[90]!r} "
            "(lakeFS serves it): restore them first: "
        )
        restore(place.context(), Choice(everything=True))
        assert prune(place) == {NAME: ""}


@anywhere_the_same
def test_what_a_branch_from_an_old_commit_needs_stays(swept: Place, marked: Marked) -> None:
    swept.lake.client.create_branch(REPOSITORY, "back", marked.commits["first"])
    kept = prune(swept)[NAME]
    held = marked.groups["replaced"] | marked.groups["removed"]
    assert kept.startswith("it holds the only copy of ")
    assert "(an active commit holds it)" in kept
    assert kept.split("'")[1] in held
    assert left(swept) > len(marked.candidates)


def test_a_mark_that_was_not_swept_keeps_its_backup_unless_it_is_named(place: Place) -> None:
    make_backup(place.context())
    kept = prune(place)[NAME]
    assert kept.startswith("the artifacts show no finished sweep of its mark; ")
    assert f"--backup {NAME}" in kept
    assert prune(place, NAME) == {NAME: ""}
    assert left(place) == 0


@anywhere_the_same
def test_while_an_alarm_was_not_looked_at_backups_stay(swept: Place) -> None:
    """It may name what no list of lakeFS's does; and a dry run says so, too."""
    store = swept.lake.store
    write_hold(store, {"alarm": "1 object is gone, and is needed"})

    for dry_run, alone in ((True, not_held), (False, leased_to_prune)):
        (judged,) = pruning(swept, NAME, dry_run=dry_run, alone=alone).run()
        assert "is on hold" in judged.kept
    store.delete_many([HOLD])
    (judged,) = pruning(swept, NAME, alone=leased_to_prune).run()
    assert judged.kept == ""


@anywhere_the_same
def test_a_repository_that_is_unknown_or_made_anew_elsewhere(swept: Place) -> None:
    answer = requests.delete(
        f"{swept.lake.server.endpoint}/api/v1/repositories/{REPOSITORY}",
        auth=(swept.lake.server.access_key, SECRET_KEY),
        timeout=30,
    )
    assert answer.status_code == 204
    assert "it is not known whether an object of it is needed" in prune(swept)[NAME]
    swept.lake.client.create_repository(REPOSITORY, "local://elsewhere")
    assert "local://elsewhere now, and the backup is of local://repo" in prune(swept)[NAME]
    assert left(swept) > 0


@anywhere_the_same
def test_what_is_needed_is_not_looked_for_at_another_place(swept: Place) -> None:
    """The repository may be made anew between two requests: nothing of it needs these objects."""
    ctx = swept.context(RUN).connect()
    with scratch_space(ctx) as space:
        objects = space.dataset((), OBJECTS)
        with pytest.raises(RefusedError, match=r"at local://repo and not at local://elsewhere"):
            needed_now(space, "local://elsewhere", objects)
    with pytest.raises(RefusedError, match=r"the trash of local://elsewhere stays"):
        prune_trash(ctx, "local://elsewhere", lambda: None)


@anywhere_the_same
def test_while_another_run_holds_the_repository_its_backups_stay(swept: Place) -> None:
    with ThreadPoolExecutor(1) as other:
        lock = repository_lock("local://repo")
        other.submit(lock.__enter__).result()
        assert "another run holds local://repo" in prune(swept)[NAME]
        # To say what would go keeps nobody out, and waits for nobody.
        assert prune(swept, dry_run=True) == {NAME: ""}
        other.submit(lock.__exit__, None, None, None).result()
    assert prune(swept) == {NAME: ""}


@anywhere_the_same
def test_while_a_sweep_or_restore_is_at_work_anywhere_backups_stay(swept: Place) -> None:
    """It relies on the backup, or reads it; and until a backup is gone none begins."""
    store = swept.lake.store
    taken: list[str] = []

    @contextmanager
    def alone(ctx: RunContext) -> Iterator[None]:
        duration, owner = timedelta(minutes=3), {"host": ctx.repository}
        with repository_lease(store, owner, duration=duration):
            yield
            # The copies go while it is held.
            taken.append(f"{left(swept)} left")

    prunes = pruning(swept, NAME, alone=alone)
    with (
        repository_lease(store, {"host": "elsewhere"}, duration=timedelta(minutes=3)),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("lakegc_assets.sweep.lease.PATIENCE", timedelta(0))
        (judged,) = prunes.run()
    assert "by somebody on elsewhere" in judged.kept
    assert left(swept) > 0
    (judged,) = prunes.run()
    assert judged.kept == ""
    assert taken == ["0 left"]


@on_s3_later
def test_a_backup_in_which_a_repository_lies_stays(
    swept: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes a repository of it reads, and writes, among the copies."""
    listed = LakeFSClient.repositories

    def with_another(client: LakeFSClient) -> Iterator[Repository]:
        for one in listed(client):
            yield one
            url = f"{swept.store.url}/rescued"
            yield one.model_copy(update={"id": "rescued", "storage_namespace": url})

    before = left(swept)
    with monkeypatch.context() as patch:
        patch.setattr(LakeFSClient, "repositories", with_another)
        assert "is in the storage namespace of repository 'rescued'" in prune(swept)[NAME]
        assert left(swept) == before
    assert prune(swept) == {NAME: ""}


def test_a_name_that_is_not_there(place: Place) -> None:
    make_backup(place.context())
    with pytest.raises(RefusedError, match="holds no backup repo/other"):
        prune(place, "repo/other")


def test_a_store_that_refuses_deletes_ends_the_prune(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_backup(place.context())
    before = place.contents()

    unlink = os.unlink

    def refused(name: str, *, dir_fd: int | None = None) -> None:
        if not str(name).startswith(TEMPORARY):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        unlink(name, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(local, "unlink", refused)
        with pytest.raises(StorageError, match=r"could not be removed.*Let the credentials delete"):
            prune(place, NAME)
        assert place.contents() == before
    assert prune(place, NAME) == {NAME: ""}
    assert left(place) == 0


def test_what_only_the_backup_holds(place: Place, marked: Marked) -> None:
    make_backup(place.context())
    ctx = place.context()
    (found,) = all_backups(place.root.stores, place.url)

    def only() -> list[str]:
        with scratch_space(ctx.connect()) as space:
            tables = list(space.tables(only_copies(space, found)))
        return [address for table in tables for address in table["address"].to_pylist()]

    assert only() == []
    gone = sorted(marked.candidates)[::3]
    for address in gone:
        (place.lake.objects / address).unlink()
    assert only() == gone


def test_what_has_another_size_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is found by a page or asked for."""
    store = open_store(str(tmp_path))
    for number in range(50):
        store.put(f"data/{number:03d}", b"")
    wanted = {"data/000": 1, "data/000-": 0, "data/048": 0, "data/049": 1, "data/0490": 0}
    for worth in (1, 100):
        monkeypatch.setattr("lakegc_assets.run.object_lookup.WORTH", worth)
        gone = missing(store, _objects(wanted), 2).to_pylist()
        assert gone == ["data/000", "data/000-", "data/049", "data/0490"]


def _objects(sizes: dict[str, int]) -> pa.Table:
    return pa.table({"address": list(sizes), "size": pa.array(sizes.values(), pa.int64())})


@pytest.mark.parametrize("moment", ["why_needed", "remove"])
def test_who_was_suspended_for_longer_than_the_lease_removes_no_copy(
    place: Place, marked: Marked, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep may have begun meanwhile, and relies on the backup."""
    make_backup(place.context())
    stand_in(monkeypatch)
    was = getattr(backup_pruning, moment)

    def suspended(*given: Any) -> Any:
        found = was(*given) if moment == "why_needed" else None
        store = place.lake.store
        store.put(LEASE, replace(read_lease(store), released=True).to_bytes())
        sweep(place.context())
        return found if moment == "why_needed" else was(*given)

    before = place.contents()
    with monkeypatch.context() as patch:
        patch.setattr(backup_pruning, moment, suspended)
        with pytest.raises(RefusedError, match=r"the lease on .* was lost"):
            list(pruning(place, NAME, alone=leased_to_prune).run())
    assert not marked.candidates & place.lake.keys()
    assert place.contents() == before
    assert place.copied.num_rows == len(marked.candidates)


def test_a_backup_stays_whose_mark_is_swept_while_the_prune_waits(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_backup(place.context())
    for key in (BEGIN, MANIFEST):
        record = Record.from_bytes(place.store.get(key), key)
        finished = record.finished and record.finished - timedelta(days=40)
        older = replace(record, begun=record.begun - timedelta(days=40), finished=finished)
        place.store.put(key, older.to_bytes())
    stand_in(monkeypatch)

    @contextmanager
    def alone(ctx: RunContext) -> Iterator[Callable[[], None]]:
        sweep(place.context())
        with leased_to_prune(ctx) as require:
            yield require

    before, month = left(place), timedelta(days=30)
    (judged,) = replace(pruning(place, NAME, alone=alone), older_than=month).run()
    assert judged.kept == "its mark was swept 0 days ago"
    assert left(place) == before


@anywhere_the_same
def test_a_backup_stays_for_so_long_after_the_sweep_that_relied_on_it(swept: Place) -> None:
    """However long its mark had waited for approval."""
    for key in (BEGIN, MANIFEST):
        record = Record.from_bytes(swept.store.get(key), key)
        finished = record.finished and record.finished - timedelta(days=40)
        older = replace(record, begun=record.begun - timedelta(days=40), finished=finished)
        swept.store.put(key, older.to_bytes())
    for names in ((), (NAME,)):
        assert prune(swept, *names, days=29) == {NAME: "its mark was swept 29 days ago"}
    assert prune(swept, days=31) == {NAME: ""}
    assert left(swept) == 0
