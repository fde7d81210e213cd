"""Deleted objects can be restored, as a sweep says before it begins, until they are too old."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakegc_assets.defs.metadata import of_sweep
from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.estate.run_outcome import outcome_of
from lakegc_assets.recovery import old_trash, relations
from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.run.undo import undoable
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.trash import TRASH, trash_folder
from lakegc_assets.storage.values import Lost, Recovery
from lakegc_assets.sweep import sweep as sweeping
from lakegc_assets.sweep.lease_record import PROBES
from lakegc_assets.sweep.ledger_state import LedgerState
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.kills import Killed
from lakegc_assets_tests.lake import (
    REPOSITORY,
    RUN,
    Marked,
    SmallLake,
    copy_lake,
    copy_of,
    mark,
    running,
)
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.outcomes import check_swept


def trash_of(lake: SmallLake, spark: Session) -> list[str]:
    connections = lake.context(spark).connect().connections
    store = connections.store()
    return [key for batch in store.list(TRASH) for key in batch["key"].to_pylist()]


def test_all_that_was_swept_comes_back_from_the_trash(
    lake: SmallLake, marked: Marked, spark: Session, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the ledger lost what the store had told, as of every second object here."""
    before = lake.keys()
    with caplog.at_level(logging.INFO):
        manifest = sweep(lake.context(spark, sweep_batch=4))
    assert "this sweep can be undone for 7 days: " in caplog.text
    recovery = manifest.facts["recovery"]
    assert isinstance(recovery, dict)
    assert (recovery["kind"], recovery["days"]) == ("trash", 7.0)
    until = datetime.fromisoformat(recovery["until"]) - timedelta(days=7)
    assert manifest.started <= until <= manifest.finished
    check_swept(lake, marked, {})
    attempt = lake.root.attempt(REPOSITORY, RUN)
    rows = {row["address"]: row["version"] for row in attempt.read("swept_set").to_pylist()}
    assert sorted(rows.values()) == trash_of(lake, spark)
    assert all(version.endswith(f"/{address}") for address, version in rows.items())
    listed = attempt.read("deletion_candidates").to_pylist()
    lost = [
        Lost(row["address"], row["size"], row["etag"], rows[row["address"]] if n % 2 else None)
        for n, row in enumerate(listed)
    ]
    connections = lake.context(spark).connect().connections
    outcomes = connections.store().undelete_many(lost)
    assert {outcome.outcome for outcome in outcomes} == {"restored"}
    assert lake.keys() == before
    assert trash_of(lake, spark) == []
    for one in lost:
        assert connections.store().head(one.key).etag == one.etag


def test_without_a_trash_the_sweep_says_that_it_cannot_be_undone(
    lake: SmallLake, marked: Marked, spark: Session, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = sweep(lake.context(spark, trash_days=0))
    off = "trash_days is 0, so deleted files are not moved into the trash"
    assert (
        f"this sweep cannot be undone: set backup_url, or turn versions on ({off})" in caplog.text
    )
    assert manifest.facts["space"]["notice"] == off
    for untrue in ("did not come back", "files are moved into"):
        assert untrue not in caplog.text
    recovery = manifest.facts["recovery"]
    assert isinstance(recovery, dict)
    assert (recovery["kind"], recovery["days"]) == ("nothing", None)
    check_swept(lake, marked, {})
    assert trash_of(lake, spark) == []
    rows = lake.root.attempt(REPOSITORY, RUN).read("swept_set")
    assert rows["version"].null_count == rows.num_rows


def test_a_rule_that_removes_live_objects_is_told(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    days = {"data/": 30.0}
    monkeypatch.setattr(LocalStore, "expires_after", lambda _store, keys: [*map(days.get, keys)])
    sweep(lake.context(spark))
    check_swept(lake, marked, {})
    (told,) = (one for one in caplog.messages if "lifecycle rule" in one)
    assert "removes what is older than 30 days below" in told
    assert told.endswith("/data/: branches may need them. Exclude this folder from the rule")
    attempt = lake.root.attempt(REPOSITORY, RUN)
    assert outcome_of(attempt)["warnings"][-1] == told
    assert of_sweep(attempt.manifest("swept_set"))["warnings"] == told


def test_a_rule_that_removes_the_copies_of_a_backup_is_told(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The sweep can be undone from its backup only, and only until then."""
    days = {"": 30.0}
    monkeypatch.setattr(LocalStore, "expires_after", lambda _store, keys: [*map(days.get, keys)])
    backups = lake.folder.parent / "backups"
    ctx = lake.context(spark, trash_days=0, backup_url=str(backups))
    make_backup(ctx)
    sweep(ctx)
    check_swept(lake, marked, {})
    (told,) = (one for one in caplog.messages if "lifecycle rule" in one)
    assert told.startswith("a lifecycle rule removes what is older than 30 days below ")
    assert f"{backups}/{REPOSITORY}/{RUN}/: what it removes cannot be restored" in told
    assert outcome_of(lake.root.attempt(REPOSITORY, RUN))["warnings"] == [told]


@pytest.mark.parametrize(
    ("before", "after", "unclear"),
    [
        # What the store told when it deleted is what it kept.
        (7, ("nothing", None), True),
        (7, ("versions", 30.0), False),
        # As in test_what_an_earlier_try_records_late_is_not_said_to_be_kept.
        pytest.param(0, ("versions", 30.0), True, marks=pytest.mark.conformance),
        pytest.param(0, ("nothing", None), False, marks=pytest.mark.conformance),
        pytest.param(0, ("soft_delete", 30.0), True, marks=pytest.mark.conformance),
    ],
)
def test_what_an_earlier_try_deleted_under_other_settings_is_not_said_to_be_kept(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    before: int,
    after: tuple[str, float | None],
    *,
    unclear: bool,
) -> None:
    """Versions were turned on since, say."""

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(LedgerState, "require_whole", die)
        with pytest.raises(Killed):
            sweep(lake.context(spark, trash_days=before))
    kept = Recovery(*after, "as it is now")  # type: ignore[arg-type] # one of its words
    monkeypatch.setattr(sweeping, "recovery_options", lambda *_: kept)
    facts = sweep(lake.context(spark, trash_days=0)).facts
    check_swept(lake, marked, {})
    told = undoable(facts, datetime.now(timezone.utc))
    words = f"; the store may not have kept {len(marked.candidates)} objects that an earlier try "
    assert (words in told) == unclear


@pytest.mark.parametrize(
    ("when", "now"),
    [
        ("before", Recovery("versions", 1.0, "one day")),
        ("during", Recovery("nothing", None, "versions are off")),
    ],
)
def test_a_store_that_keeps_less_than_was_promised_ends_the_sweep(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
    now: Recovery,
) -> None:
    """Versioning is suspended, or a lifecycle rule is added, while it waits or deletes."""
    promised, before = Recovery("versions", 30.0, "thirty days"), lake.keys()

    def changed(_store: LocalStore) -> Recovery:
        return promised if when == "during" and lake.keys() == before else now

    monkeypatch.setattr(sweeping, "recovery_options", lambda *_: promised)
    monkeypatch.setattr(LocalStore, "recovery", changed)
    with pytest.raises(RefusedError, match=r"begin: thirty days\. Now: (versions are|one day)"):
        sweep(lake.context(spark, trash_days=0))
    assert lake.keys() == (before if when == "before" else marked.live)
    monkeypatch.setattr(sweeping, "recovery_options", lambda *_: now)
    sweep(lake.context(spark, trash_days=0))
    check_swept(lake, marked, {})


def test_what_an_earlier_try_records_late_is_not_said_to_be_kept(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task was suspended after the store had answered, and wakes while the next try runs."""
    records = dict[str, bytes]()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    compared = LedgerState.require_whole

    def wake(recorded: LedgerState) -> None:
        for key, data in records.items():
            lake.root.attempt(REPOSITORY, RUN).store().put(key, data)
        compared(recorded)

    with monkeypatch.context() as patch:
        patch.setattr(LedgerState, "require_whole", die)
        with pytest.raises(KeyboardInterrupt):
            sweep(lake.context(spark, trash_days=0))
    store = lake.root.attempt(REPOSITORY, RUN).store()
    for batch in store.list("swept_set/ledger/"):
        records |= {key: store.get(key) for key in batch["key"].to_pylist()}
    store.delete_many(list(records))
    monkeypatch.setattr(LedgerState, "require_whole", wake)
    monkeypatch.setattr(sweeping, "recovery_options", lambda *_: Recovery("versions", 30.0, "now"))
    facts = sweep(lake.context(spark, trash_days=0)).facts
    check_swept(lake, marked, {})
    assert facts["perhaps_kept"] == len(marked.candidates)


def test_old_trash_goes_at_the_end_of_a_sweep(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    connections = lake.context(spark).connect().connections
    store = connections.store()
    now = store.server_time()
    old, young = (trash_folder("a", now - timedelta(days=days)) for days in (8, 6))
    for folder in (old, young):
        store.put(f"{folder}data/before", b"1")
    sweep(lake.context(spark))
    left = trash_of(lake, spark)
    assert f"{young}data/before" in left
    assert f"{old}data/before" not in left
    assert len(left) == 1 + len(marked.candidates)
    assert not any(store.list(PROBES))


def test_a_sweep_of_many_days_leaves_its_own_trash(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began so long ago that its trash is over, and has just deleted its last objects."""

    def long_ago(sweep: str, now: datetime, stays: timedelta) -> str:
        return trash_folder(sweep, now - timedelta(days=8), stays)

    monkeypatch.setattr(sweeping, "trash_folder", long_ago)
    sweep(lake.context(spark))
    assert len(trash_of(lake, spark)) == len(marked.candidates)
    restore(lake.context(spark), Choice(everything=True))
    assert all((lake.objects / address).exists() for address in marked.candidates)


@pytest.fixture(scope="module")
def swept_and_marked(
    marked: Marked, spark: Session, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A lake whose sweep has left trash that is old by now, with a mark ``later``; to be copied."""
    folder = copy_of(marked, tmp_path_factory.mktemp("swept"))
    with running(folder) as lake:
        sweep(lake.context(spark))
        (made,) = (lake.objects / TRASH).iterdir()
        began = datetime.now(timezone.utc) - timedelta(days=8)
        made.rename(lake.objects / trash_folder("a", began))
        lake.upload("main", "more", "garbage")
        lake.client.delete_object(REPOSITORY, "main", "more")
        mark(lake.context(spark, "later", clean=True, min_age_hours=0, max_candidate_share=1.0))
    return folder


@pytest.fixture
def later(swept_and_marked: Path, tmp_path: Path) -> Iterator[SmallLake]:
    with running(copy_lake(swept_and_marked, tmp_path / "lake")) as lake:
        yield lake


def old_trash_of(lake: SmallLake) -> Path:
    """The folder of the trash that is old."""
    return min((lake.objects / TRASH).iterdir())


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_old_trash_stays_where_it_is_the_only_copy_of_what_is_needed(
    later: SmallLake, marked: Marked, spark: Session, caplog: pytest.LogCaptureFixture
) -> None:
    folder = old_trash_of(later)
    assert files_in(folder) == marked.candidates
    staged, back, other, *_ = sorted(marked.candidates)
    for path, address in (("one", staged), ("two", back), ("three", other)):
        later.stage("main", f"late/{path}", address)
    # One of these is in the store again, and another object is where the third was.
    for address, more in ((back, b""), (other, b"more")):
        (later.objects / address).parent.mkdir(parents=True, exist_ok=True)
        content = (folder / address).read_bytes()
        (later.objects / address).write_bytes(content + more)
    sweep(later.context(spark, "later", max_candidate_share=1.0))
    assert files_in(folder) == {staged, other}
    assert (
        "2 objects of the trash are needed now and not in the store, and stay though older than "
        f"trash_days, for example {staged!r} (it is staged on a branch). Restore them: `lakegc "
        f"restore repo --run RUN --address {staged}`, with the run whose sweep deleted them"
        in caplog.text
    )
    # As it says.
    restore(later.context(spark), Choice(addresses=(staged,)))
    assert (later.objects / staged).exists()


@pytest.mark.parametrize("name", ["each_once", "chosen"])
def test_old_trash_stays_where_an_engine_loses_rows_of_it(
    later: SmallLake,
    marked: Marked,
    spark: Session,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    whole = getattr(relations, name)

    def losing(*frames: Any) -> Any:
        return whole(*frames).where("address is null")

    monkeypatch.setattr(relations, name, losing)
    sweep(later.context(spark, "later", max_candidate_share=1.0))
    assert "old trash stays until the next sweep: embedded has lost rows" in caplog.text
    assert files_in(old_trash_of(later)) == marked.candidates


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(LakegcError("no answer"), marks=pytest.mark.conformance),
        ValueError("a bug, and no answer"),
    ],
)
def test_old_trash_stays_where_nobody_can_tell_what_is_needed(
    later: SmallLake,
    marked: Marked,
    spark: Session,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    def unknown(*_: object) -> pa.Table:
        raise error

    monkeypatch.setattr(old_trash, "needed_now", unknown)
    sweep(later.context(spark, "later", max_candidate_share=1.0))
    assert f"old trash stays until the next sweep: {error}" in caplog.text
    assert later.root.attempt(REPOSITORY, "later").has("swept_set")
    assert files_in(old_trash_of(later)) == marked.candidates


def test_no_mark_takes_the_trash_for_data(later: SmallLake, marked: Marked) -> None:
    """Trash has the times of what is in it, so that all of it is older than any cutoff."""
    assert files_in(old_trash_of(later)) == marked.candidates
    attempt = later.root.attempt(REPOSITORY, "later")
    (more,) = attempt.read("deletion_candidates")["address"].to_pylist()
    listed = attempt.read("store_listing")["address"].to_pylist()
    assert more in listed
    assert set(listed) - {more} <= marked.live


def test_trash_that_cannot_be_pruned_does_not_undo_a_sweep(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> int:
        raise StorageError("somebody else's file")

    monkeypatch.setattr(sweeping, "prune_trash", refuse)
    assert sweep(lake.context(spark)).rows == len(marked.candidates)
    assert "old trash stays until the next sweep: somebody else's file" in caplog.text
    check_swept(lake, marked, {})
