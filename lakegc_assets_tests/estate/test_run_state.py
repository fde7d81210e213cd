"""How far a run came is read from its ledger, the tries of its sweep, the lease and the hold."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from lakegc_assets.errors import IntegrityError
from lakegc_assets.estate.repository_state import standing
from lakegc_assets.estate.run_outcome import outcome_of
from lakegc_assets.estate.run_state import (
    RunManifests,
    RunState,
    deleted_or_missing,
    read_guards,
    run_state,
    state_of,
)
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.manifest import PROTECTION
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.hold import HOLD
from lakegc_assets.sweep.lease_record import LEASE, LeaseRecord
from lakegc_assets.sweep.ledger import Outcome, read, record
from lakegc_assets.sweep.rate_limit import Limits, RateLimiter, round_folder
from lakegc_assets.sweep.status import FOLDER, SweepTry, last_try, recorded_try
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import RUN, Marked, SmallLake
from lakegc_assets_tests.left import BEGAN, checked, deleted, finish, swept
from lakegc_assets_tests.left import marked as published
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.stand_ins import spare, stand_in

_NAMESPACE = "local://repo"
_COMMAND = "lakegc sweep repo --run m1 --set sweep_batch=7"


@pytest.fixture
def root(tmp_path: Path) -> ArtifactRoot:
    (tmp_path / "objects").mkdir()
    stores = StoreConfig(local_root=str(tmp_path / "objects"))
    return ArtifactRoot(str(tmp_path / "artifacts"), stores)


def look(attempt: AttemptArtifacts) -> RunState:
    stores = attempt.root.stores
    return run_state(RunManifests.of(attempt), read_guards(_NAMESPACE, stores))


def put(root: ArtifactRoot, key: str, content: bytes) -> None:
    """Write into the namespace."""
    open_store(_NAMESPACE, root.stores).put(key, content)


def tried(attempt: AttemptArtifacts, error: str = "", *, ended: bool = True) -> None:
    one = SweepTry(BEGAN, _COMMAND, BEGAN + timedelta(hours=1) if ended else None, error)
    attempt.store().put(f"{FOLDER}1.json", one.to_bytes())


def hold(root: ArtifactRoot, run: str) -> None:
    what = {"run": run, "alarm": f"1 object of mark {run!r} is gone, and is needed"}
    put(root, HOLD, json.dumps(what).encode())


def lease(root: ArtifactRoot, *, run: str = "m1", released: bool = False, **more: str) -> None:
    owner = {"host": "ada", "pid": "7", "run": run, **more}
    ends = datetime.now(timezone.utc) + timedelta(minutes=3)
    put(root, LEASE, LeaseRecord("ab" * 16, owner, ends, released=released).to_bytes())


def test_a_mark_that_nobody_swept_says_what_sweeps_it(root: ArtifactRoot) -> None:
    found = look(published(root, "repo", "m1"))
    assert (found.state, found.gone.objects) == ("marked", 0)
    assert found.command == "lakegc sweep repo --run m1"


def test_a_mark_of_a_repository_that_was_made_anew_elsewhere_has_no_command(
    root: ArtifactRoot,
) -> None:
    attempt = published(root, "repo", "m1")
    for here in ("", _NAMESPACE):
        assert state_of(attempt, here).command == "lakegc sweep repo --run m1"
    found = state_of(attempt, "local://other")
    assert (found.state, found.command) == ("marked", "")
    assert "is of local://repo, and 'repo' is at local://other now" in found.because
    assert "Mark again under a new id" in found.because
    deleted(attempt, "deleted")
    tried(attempt, "the store denied it.")
    assert state_of(attempt, _NAMESPACE).command == _COMMAND
    stopped = state_of(attempt, "local://other")
    assert (stopped.state, stopped.command) == ("stopped in its sweep", "")


def test_a_sweep_that_failed_says_how_far_it_came_why_and_what_goes_on(root: ArtifactRoot) -> None:
    attempt = published(root, "repo", "m1")
    deleted(attempt, "deleted", "deleted", "already_missing", "spared", "failed")
    tried(attempt, "the store denied it.")
    found = look(attempt)
    assert found.state == "stopped in its sweep"
    assert found.because == (
        "the sweep of 2026-03-01 02:00 UTC of mark m1 has stopped: the store denied it. "
        f"3 of 40 objects are deleted. `{_COMMAND}` continues it"
    )
    assert (found.gone, found.done) == ((3, 300), (4, 400))
    assert found.command == _COMMAND


def test_no_command_goes_on_with_the_sweep_of_a_mark_of_another_version(root: ArtifactRoot) -> None:
    attempt = checked(root, "repo", "m1")
    finish(attempt, "gc_report", 0, {"objects": 40, "bytes": 4000, PROTECTION: 0})
    deleted(attempt, "deleted")
    tried(attempt, "the store is full")
    found = look(attempt)
    assert (found.state, found.gone.objects, found.command) == ("stopped in its sweep", 1, "")
    assert found.because.endswith("does not sweep it: mark again under a new id")


def test_a_sweep_that_was_killed_says_that_nobody_knows_why(root: ArtifactRoot) -> None:
    attempt = published(root, "repo", "m1")
    deleted(attempt, "deleted")
    tried(attempt, ended=False)
    found = look(attempt)
    assert found.state == "stopped in its sweep"
    assert "has stopped: its process has ended, perhaps killed" in found.because
    assert "1 of 40 objects are deleted" in found.because


def test_a_sweep_that_another_program_tried_is_no_secret(root: ArtifactRoot) -> None:
    attempt = published(root, "repo", "m1")
    deleted(attempt, "deleted")
    attempt.store().put(f"{FOLDER}1.json", b"{")
    command = "lakegc sweep repo --run m1"
    found = look(attempt)
    assert (found.state, found.command) == ("stopped in its sweep", command)
    whole = standing(root, "repo", "auto", BEGAN)
    assert (whole.state, whole.because) == (found.state, found.because)
    assert f"`{command}` continues it" in whole.because


def test_a_try_that_was_refused_before_its_first_delete_leaves_the_mark_unswept(
    root: ArtifactRoot,
) -> None:
    attempt = published(root, "repo", "m1")
    tried(attempt, "a check does not hold")
    found = look(attempt)
    assert found.state == "marked"
    assert found.because.endswith("did not begin: a check does not hold")


def test_a_ledger_that_cannot_be_read_hides_no_sweep(root: ArtifactRoot) -> None:
    attempt = published(root, "repo", "m1")
    attempt.store().put("swept_set/ledger/1.parquet", b"")
    found = look(attempt)
    assert found.state == "stopped in its sweep"
    assert "it is not known how many objects are deleted" in found.because


def test_who_holds_the_lease_for_a_run_sweeps_it(root: ArtifactRoot) -> None:
    attempt = published(root, "repo", "m1")
    deleted(attempt, "deleted", "deleted")
    tried(attempt, ended=False)
    lease(root)
    found = look(attempt)
    assert (found.state, found.command) == ("sweeping", "")
    assert "is being swept by somebody on ada (process 7)" in found.because
    assert found.because.endswith("So far 2 of 40 objects are deleted")


@pytest.mark.parametrize(
    "other", [{"run": "m2"}, {"released": True}, {"doing": "restore"}], ids=str
)
def test_a_lease_for_something_else_is_no_sweep(
    root: ArtifactRoot, other: dict[str, object]
) -> None:
    attempt = published(root, "repo", "m1")
    deleted(attempt, "deleted")
    lease(root, **other)  # type: ignore[arg-type] # as lease takes them
    assert look(attempt).state == "stopped in its sweep"


def test_the_hold_of_a_run_says_so_even_if_all_was_deleted(root: ArtifactRoot) -> None:
    attempt = published(root, "repo", "m1")
    deleted(attempt, *["deleted"] * 40)
    tried(attempt, "1 object is gone")
    hold(root, "m1")
    found = look(attempt)
    assert (found.state, found.command) == ("on hold", "")
    assert found.because.startswith("1 object of mark 'm1' is gone, and is needed. No sweep starts")
    assert "`lakegc hold repo` shows what is lost and what you can do" in found.because
    assert found.because.endswith("40 of 40 objects are deleted")
    # Once a person has removed it, the sweep can be finished.
    open_store(_NAMESPACE, root.stores).delete_many([HOLD])
    assert (look(attempt).state, look(attempt).command) == ("stopped in its sweep", _COMMAND)


@pytest.mark.parametrize("content", [b'{"run": "m0"}', b"not JSON", b"[]"])
def test_no_run_is_to_be_swept_while_there_is_a_hold_of_another(
    root: ArtifactRoot, content: bytes
) -> None:
    unswept, done = published(root, "repo", "m1"), swept(root, "repo", "m2")
    put(root, HOLD, content)
    found = look(unswept)
    assert (found.state, found.command) == ("marked", "")
    assert "No sweep starts: `lakegc hold repo`" in found.because
    assert look(done).state == "swept"


def test_what_is_missing_after_a_kill_may_have_been_deleted(root: ArtifactRoot) -> None:
    attempt = published(root, "repo", "m1")
    deleted(attempt, "deleted", "already_missing", "already_missing", "spared")
    assert deleted_or_missing(attempt, read(attempt)).num_rows == 0
    notes = RateLimiter(attempt.store(), round_folder("killed", 1), 0, Limits(1, 1))
    notes.begin()
    # It was killed after these were found missing.
    assert deleted_or_missing(attempt, read(attempt)).num_rows == 0
    rows = [Outcome("data/g/9", 100, "already_missing")]
    record(attempt.store(), "later-0001-00000-000000", rows)
    assert deleted_or_missing(attempt, read(attempt))["address"].to_pylist() == ["data/g/9"]
    # Who ended in order has recorded all that it deleted, unless the store did not answer.
    notes.end()
    assert deleted_or_missing(attempt, read(attempt)).num_rows == 0
    notes.unanswered()
    assert deleted_or_missing(attempt, read(attempt)).num_rows == 1


def test_a_sweep_that_found_all_missing_has_nothing_to_undo(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    for address in marked.candidates:
        (lake.objects / address).unlink()
    ctx = lake.context(spark)
    sweep(ctx)
    found = outcome_of(ctx.root.attempt(ctx.repository, RUN))
    assert found["outcomes"].keys() == {"already_missing"}
    assert found["undo"] == "nothing was deleted"


def test_a_try_that_cannot_be_recorded_goes_on(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    ctx = lake.context(spark)
    monkeypatch.setattr(LocalStore, "put", full)
    with recorded_try(ctx):
        done = True
    assert done
    assert last_try(ctx.root.attempt(ctx.repository, RUN)) is None


def test_a_real_sweep_records_what_ended_it(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = lake.context(spark, sweep_batch=7)
    lost = min(marked.groups["orphans"])
    stand_in(monkeypatch, spare(set()), spare({lost}))
    (lake.objects / lost).unlink()
    with pytest.raises(IntegrityError, match=r"gone, and (is|are) needed"):
        sweep(ctx, recorded_try)
    whole = standing(lake.root, ctx.repository, "auto", BEGAN)
    assert (whole.state, whole.run) == ("on hold", RUN)
    attempt, namespace = (
        ctx.root.attempt(ctx.repository, RUN),
        ctx.connect().connections.namespace_url,
    )
    found = run_state(RunManifests.of(attempt), read_guards(namespace, ctx.root.stores))
    assert found.state == "on hold"
    assert found.gone.objects == len(marked.candidates)
    ctx.connect().connections.store().delete_many([HOLD])
    found = run_state(RunManifests.of(attempt), read_guards(namespace, ctx.root.stores))
    assert found.state == "stopped in its sweep"
    assert found.command.startswith(f"lakegc sweep {ctx.repository} --run {RUN} --set ")
    assert found.command.endswith(" --set sweep_batch=7")
    # What ended it is told once, without the figures that the ledger tells.
    assert found.because.count("objects are deleted") == 1
    assert "gone" in found.because
