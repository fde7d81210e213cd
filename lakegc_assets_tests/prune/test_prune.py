"""What a prune removes from the artifacts, what a kill leaves of it, and when none begins."""

from __future__ import annotations

import json
import secrets
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError, RefusedError
from lakegc_assets.mark.installation import MARKER, OtherServerError
from lakegc_assets.prune import prune as module
from lakegc_assets.prune import removal
from lakegc_assets.prune.decisions import judge
from lakegc_assets.prune.prune import Pruned, prune
from lakegc_assets.prune.removal import PRUNING
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.lock import repository_lock
from lakegc_assets.run.manifest import MARK_ASSETS
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.sweep.hold import write_hold
from lakegc_assets.sweep.lease import LeaseLostError, repository_lease
from lakegc_assets.sweep.lease_record import LEASE, read_lease
from lakegc_assets_tests.files import age
from lakegc_assets_tests.kills import Killed, dying
from lakegc_assets_tests.lake import REPOSITORY, RUN, mark
from lakegc_assets_tests.prune.estate import AGE, KEEP, OLD, Estate, NoRecords, Records, again
from lakegc_assets_tests.sessions import Session


def test_an_old_run_that_nothing_needs_goes_as_a_whole(estate: Estate) -> None:
    before = estate.of()
    records = Records()
    dry = estate.prune(records, dry_run=True)
    assert [(one.run, bool(one.kept)) for one in dry.runs] == [
        (OLD, False),
        ("later-1", True),
        ("later-2", True),
        (RUN, True),
    ]
    assert dry.runs[0].files == len(before) - 1
    assert estate.of() == before
    assert records.forgotten == []
    found = estate.kept(records)
    assert (found[OLD], found["later-1"]) == ("", "it is one of the last 3 marks")
    assert found[RUN] == "it is 0 days old"
    assert estate.of() == {}
    assert records.forgotten == [OLD]
    assert OLD not in estate.kept()


def test_the_next_mark_is_what_it_would_have_been(estate: Estate, spark: Session) -> None:
    ctx = estate.lake.context(spark, "mark-2")
    mark(ctx)
    before = ctx.root.attempt(REPOSITORY, "mark-2").manifest("deletion_candidates")
    assert estate.kept()[OLD] == ""
    later = estate.lake.context(spark, "mark-3")
    mark(later)
    attempt = later.root.attempt(REPOSITORY, "mark-3")
    assert attempt.manifest("deletion_candidates").digest == before.digest
    assert attempt.manifest("store_listing").facts["mode"] == "optimized"


def test_another_store_or_a_copy_of_the_server_removes_nothing(estate: Estate) -> None:
    """Such a store lacks the hold that needs the run."""
    write_hold(estate.namespace(), {"alarm": "something is gone"})
    before, elsewhere = estate.of(), estate.folder / "elsewhere"
    (elsewhere / REPOSITORY).mkdir(parents=True)
    ctx = estate.context()
    stores = replace(ctx.root.stores, local_root=str(elsewhere))
    wrong = replace(ctx, root=replace(ctx.root, stores=stores))
    with pytest.raises(IntegrityError, match="this is not the store of the marks"):
        prune(wrong, KEEP, NoRecords(), dry_run=False)
    told = json.loads(estate.namespace().get(MARKER))
    estate.namespace().put(MARKER, json.dumps(told | {"creation_date": 1}).encode())
    with pytest.raises(OtherServerError):
        estate.prune()
    assert estate.of() == before


@pytest.mark.parametrize(
    "before",
    # What the store holds after one change it holds before the next.
    [True, pytest.param(False, marks=pytest.mark.conformance)],
)
def test_whoever_is_killed_leaves_what_the_next_prune_ends(
    estate: Estate,
    monkeypatch: pytest.MonkeyPatch,
    before: bool,  # noqa: FBT001 - a parameter
) -> None:
    whole = estate.of()
    monkeypatch.setattr(module, "repository_lock", lambda _: repository_lock(secrets.token_hex(4)))
    for after in range(1, 9):
        for name, data in whole.items():
            path = estate.artifacts() / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        age(estate.artifacts(), AGE)
        with monkeypatch.context() as patch:
            calls = dying(patch, after, before=before, below=f"/{REPOSITORY}/{OLD}")
            try:
                estate.prune()
            except Killed:
                died = True
            else:
                died = False
        left = estate.of()
        if "attempt.json" in left:
            # Who looks at it meanwhile finds all of it.
            assert left.items() >= whole.items()
        elif left:
            assert PRUNING in left
            with pytest.raises(RefusedError):
                estate.root.attempt(REPOSITORY, OLD)
        records = Records()
        estate.prune(records)
        assert estate.of() == {}
        assert records.forgotten == ([OLD] if left else [])
        if not died:
            assert len(calls) < after
            return
    pytest.fail("a removal takes more steps than were looked at")


def test_records_are_forgotten_before_the_last_file_goes(estate: Estate) -> None:
    with pytest.raises(KeyboardInterrupt):
        estate.prune(Records(dies=True))
    assert list(estate.of()) == [PRUNING]
    records = Records()
    assert estate.prune(records, dry_run=True).left == [OLD]
    assert (records.forgotten, list(estate.of())) == ([], [PRUNING])
    assert estate.prune(records).left == [OLD]
    assert (records.forgotten, estate.of()) == ([OLD], {})


def test_a_run_that_was_begun_again_under_the_id_of_one_that_went_stays(estate: Estate) -> None:
    with pytest.raises(KeyboardInterrupt):
        estate.prune(Records(dies=True))
    attempt = estate.root.new_attempt(REPOSITORY, OLD)
    attempt.store().put("store_listing/data/part-1.parquet", b"rows")
    before = estate.of()
    assert estate.kept()[OLD] == "it is 0 days old"
    assert estate.of() == before


def test_a_run_that_is_begun_again_meanwhile_stays(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    again(estate, assets=MARK_ASSETS[:2])
    real = removal.remove_run

    def late(root: ArtifactRoot, repository: str, run: str, *more: Any) -> None:
        root.new_attempt(repository, run)
        real(root, repository, run, *more)

    monkeypatch.setattr(removal, "remove_run", late)
    before = estate.of()
    with pytest.raises(RefusedError, match="was begun again: it stays"):
        estate.prune()
    after = estate.of()
    assert {k: v for k, v in after.items() if k != "attempt.json"} == {
        k: v for k, v in before.items() if k != "attempt.json"
    }


def test_a_folder_that_no_prune_has_left_is_not_touched(estate: Estate) -> None:
    (estate.artifacts() / "attempt.json").unlink()
    before = estate.of()
    assert OLD not in estate.kept()
    assert estate.of() == before


def test_nobody_prunes_while_somebody_works_on_the_repository(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = estate.of()
    asked: list[str] = []

    def held(_ctx: object, _store: object, *, doing: str) -> object:
        asked.append(doing)
        raise RefusedError("somebody else holds the lease")

    monkeypatch.setattr(module, "leased", held)
    with pytest.raises(RefusedError, match="somebody else"):
        estate.prune()
    assert (asked, estate.of()) == (["prune"], before)
    # Who only looks keeps nobody out, and is not kept out.
    with repository_lock(f"local://{REPOSITORY}"):
        assert estate.prune(dry_run=True).runs[0].kept == ""


def test_whoever_was_suspended_for_longer_than_the_lease_holds_removes_nothing(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own memory says that it has the lease still; somebody else sweeps under it."""
    before, store = estate.of(), estate.namespace()
    taken: list[object] = []

    def suspended(*asked: Any) -> Any:
        found = judge(*asked)
        if taken or not store.exists(LEASE):
            return found
        store.put(LEASE, replace(read_lease(store), released=True).to_bytes())
        lease = repository_lease(store, {"run": OLD}, duration=timedelta(minutes=3))
        taken.append(leases.enter_context(lease))
        return found

    monkeypatch.setattr(module, "judge", suspended)
    with (
        ExitStack() as leases,
        pytest.raises(LeaseLostError, match="another process has the lease"),
    ):
        estate.prune()
    assert taken
    assert estate.of() == before


def test_a_store_that_does_not_answer_stops_the_prune_before_anything_goes(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = estate.of()
    real = LocalStore.get

    def get(store: LocalStore, key: str) -> bytes:
        if key == "active_commits/manifest.json" and "later-2" in store.url:
            raise StorageError("it does not answer")
        return real(store, key)

    monkeypatch.setattr(LocalStore, "get", get)
    with pytest.raises(LakegcError, match="it does not answer"):
        estate.prune()
    assert estate.of() == before


def test_where_clocks_are_off_nobody_knows_what_is_old(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = estate.of()
    late = estate.namespace().server_time() - timedelta(days=60)
    monkeypatch.setattr(LocalStore, "server_time", lambda _: late)
    with pytest.raises(RefusedError, match="clock"):
        estate.prune(dry_run=True)
    assert estate.of() == before


def test_of_a_repository_that_was_never_marked_there_is_nothing_to_tell(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwanted(*_: object, **__: object) -> None:
        pytest.fail("nobody needs a lease of it")

    monkeypatch.setattr(module, "leased", unwanted)
    monkeypatch.setattr(ArtifactRoot, "runs", lambda _root, _repository: [])
    assert estate.prune() == Pruned(REPOSITORY, [], [])


def test_too_short_a_time_is_refused(estate: Estate) -> None:
    with pytest.raises(ConfigurationError, match="must be at least 2 days"):
        prune(estate.context(), timedelta(hours=47), NoRecords(), dry_run=True)
