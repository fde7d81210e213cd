"""A restore that is killed at any point and run again ends as if it had never been killed."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.recovery import portions, undeletion
from lakegc_assets.recovery import restore_record as recording
from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.restore import restored_set as restoring
from lakegc_assets.recovery.restore import task
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.run import pins
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.pins import pinned, read_pins
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.sweep.lease import LeaseLostError
from lakegc_assets.sweep.lease_record import LEASE, LeaseRecord, read_lease
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.kills import Killed, Reaper
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked
from lakegc_assets_tests.recovery.conftest import Place

ALL = Choice(everything=True)

#: In this order each is reached by a restore that the ones before have left behind.
KILLS = (
    ("before begin", 1),
    ("after begin", 1),
    ("before choose_sample", 1),
    ("after choose_sample", 1),
    ("before write_pin", 1),
    ("after write_pin", 1),
    ("before cut_portions", 1),
    ("after cut_portions", 1),
    ("before bring_back", 1),
    ("before undelete", 1),
    ("after undelete", 2),
    ("before copy_object", 1),
    ("after copy_object", 2),
    ("after bring_back", 1),
    ("before record", 1),
    ("after record", 1),
    ("after bring_back", 2),
    ("before require_all", 1),
    ("after require_all", 1),
    ("before read_sample", 1),
    ("after read_sample", 1),
    ("before finish", 1),
    ("after finish", 1),
)


def test_killed_at_every_step(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch, reaper: Reaper
) -> None:
    """Half is in the trash, half only in the backup."""
    lake = place.lake
    before = lake.contents(marked.candidates)
    make_backup(place.context())
    sweep(place.context())
    store = place.lake.store
    trash = "_lakefs/retention/gc/lakegc/trash/"
    kept = sorted(key for page in store.list(trash) for key in page["key"].to_pylist())
    store.delete_many(kept[::2])
    monkeypatch.setattr(task, "BATCH", 5)
    # One after the other, so that a kill ends all.
    monkeypatch.setattr(undeletion, "THREADS", 1)
    for owner, name in (
        (recording, "begin"),
        (restoring, "choose_sample"),
        (restoring, "write_pin"),
        (restoring, "cut_portions"),
        (task, "bring_back"),
        (undeletion, "copy_object"),
        (task, "record"),
        (restoring, "require_all"),
        (restoring, "read_sample"),
        (AttemptArtifacts, "finish"),
    ):
        reaper.watch(owner, name)
    reaper.watch_undelete()
    there = [0]
    for target, count in KILLS:
        reaper.arm(target, count)
        with pytest.raises(Killed):
            restore(place.context(), ALL)
        keys = lake.keys()
        assert marked.live <= keys <= marked.live | marked.candidates
        # Nothing comes back that a mark would take again.
        held = set(pinned(store)["address"].to_pylist())
        assert keys - marked.live <= held <= marked.candidates
        for key in keys - marked.live:
            assert (lake.objects / key).read_bytes() == before[key]
        there.append(len(keys - marked.live))
    assert there == sorted(there)
    assert len(set(there)) > 4
    reaper.arm("", 0)
    assert lake.contents(marked.candidates) == before
    # All of them were one restore, with one outcome for each object.
    attempt = lake.root.attempt(REPOSITORY, RUN)
    (restore_id,) = recording.restores(attempt)
    rows = attempt.read(recording.folder(restore_id)).to_pylist()
    assert sorted(row["address"] for row in rows) == sorted(marked.candidates)
    # What a kill left without its record is found to be there.
    assert {row["outcome"] for row in rows} == {"restored", "already_there"}
    assert {row["source"] for row in rows if row["outcome"] == "restored"} == {"store", "backup"}
    assert [pin.id for pin, _ in read_pins(store)] == [restore_id]
    # Done is done: what is asked for again is another restore, which finds everything.
    manifest = restore(place.context(), ALL)
    assert manifest.facts["outcomes"].keys() == {"already_there"}
    assert len(recording.restores(attempt)) == 2


def test_another_request_does_not_go_on_with_it(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch, reaper: Reaper
) -> None:
    sweep(place.context(backup_url=None))
    reaper.watch(restoring, "write_pin")
    reaper.arm("after write_pin", 1)
    with pytest.raises(Killed):
        restore(place.context(backup_url=None), ALL)
    one = min(marked.candidates)
    manifest = restore(place.context(backup_url=None), Choice(addresses=(one,)))
    assert manifest.rows == 1
    attempt = place.lake.root.attempt(REPOSITORY, RUN)
    assert len(recording.restores(attempt)) == 2
    # Nor does one whose pin may be about to end.
    monkeypatch.setattr(restoring, "PATIENCE", timedelta(0))
    restore(place.context(backup_url=None), ALL)
    assert len(recording.restores(attempt)) == 3
    assert place.lake.keys() == marked.live | marked.candidates


def test_a_restore_that_lost_its_lease_brings_nothing_back(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was suspended, and somebody else sweeps by now."""
    sweep(place.context(backup_url=None))
    store = place.lake.store
    cut_portions = portions.cut_portions

    def suspended(*args: Any) -> Any:
        record = read_lease(store)
        values = {**record.__dict__, "token": "another", "owner": {"host": "elsewhere"}}
        store.put(LEASE, LeaseRecord(**values).to_bytes())
        return cut_portions(*args)

    monkeypatch.setattr(restoring, "cut_portions", suspended)
    with pytest.raises(LeaseLostError, match=r"another process has the lease: .* on elsewhere"):
        restore(place.context(backup_url=None), ALL)
    assert place.lake.keys() == marked.live


def test_two_restores_at_once(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One waits for the other, and finds that all is there."""
    sweep(place.context(backup_url=None))
    monkeypatch.setattr("lakegc_assets.sweep.lease.POLL_S", 0.05)
    started, ended = threading.Event(), threading.Event()
    write_pin = pins.write_pin

    def slow(*args: Any) -> None:
        if not started.is_set():
            started.set()
            assert ended.wait(600)
        write_pin(*args)

    monkeypatch.setattr(restoring, "write_pin", slow)
    told: list[Any] = []

    def first() -> None:
        told.append(restore(place.context(backup_url=None), ALL))

    thread = threading.Thread(target=first)
    thread.start()
    assert started.wait(600)
    monkeypatch.setattr("lakegc_assets.sweep.lease.PATIENCE", timedelta(0))
    with pytest.raises(RefusedError, match=r"holds the lease of .*: a restore of run"):
        restore(place.context(backup_url=None), ALL)
    threading.Timer(1, ended.set).start()
    second = restore(place.context(backup_url=None, lease_wait_seconds=120), ALL)
    thread.join()
    assert told[0].facts["outcomes"].keys() == {"restored"}
    assert second.facts["outcomes"].keys() == {"already_there"}
    assert place.lake.keys() == marked.live | marked.candidates


def test_a_restore_during_a_sweep_waits_or_is_refused(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakegc_assets.sweep.lease.PATIENCE", timedelta(0))
    refused: list[str] = []

    def look(_method: str, _path: str) -> None:
        if not refused and not marked.candidates <= place.lake.keys():
            refused.append("asked")
            with pytest.raises(RefusedError, match="holds the lease") as error:
                restore(place.context(backup_url=None), ALL)
            refused.append(str(error.value))

    place.lake.on_request = look
    sweep(place.context(backup_url=None, sweep_batch=6))
    assert len(refused) == 2
    assert place.lake.keys() == marked.live
    assert pinned(place.lake.store).num_rows == 0


def test_a_sweep_that_was_killed_spares_what_was_restored_since(
    place: Place, marked: Marked, reaper: Reaper
) -> None:
    """It has deleted some and goes on; what it spares then is what was not recorded."""
    ctx = place.context(backup_url=None, sweep_batch=5)
    reaper.watch(LocalStore, "delete_file", about="data/")
    reaper.arm("after delete_file", 7)
    with pytest.raises(Killed):
        sweep(ctx)
    reaper.arm("", 0)
    left = place.lake.keys() & marked.candidates
    assert left
    assert left != marked.candidates
    restore(ctx, ALL)
    assert place.lake.keys() == marked.live | marked.candidates
    sweep(ctx)
    # Neither what came back nor what was there yet: all of it was asked for.
    assert place.lake.keys() == marked.live | marked.candidates
    rows = ctx.root.attempt(REPOSITORY, RUN).read("swept_set").to_pylist()
    assert {row["outcome"] for row in rows} == {"deleted", "spared"}
