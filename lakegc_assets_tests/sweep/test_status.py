"""A sweep that ends early says what it deleted, whether that was looked at, and what goes on."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lakegc_assets.cli.jobs import checked
from lakegc_assets.cli.options import settings_of
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.lakefs.errors import ConnectionFailedError, NotFoundError
from lakegc_assets.run.command_line import command_line, recorded_settings
from lakegc_assets.run.context import RunContext, no_repository
from lakegc_assets.storage.config import S3Access
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.sweep import ledger, rounds
from lakegc_assets.sweep.delta import DeltaMark, DeltaMarks
from lakegc_assets.sweep.lease import LeaseLostError
from lakegc_assets.sweep.lease_record import LEASE, read_lease
from lakegc_assets.sweep.ledger import Outcome
from lakegc_assets.sweep.ledger_state import LedgerState
from lakegc_assets.sweep.status import command
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked, SmallLake
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.stand_ins import spare, stand_in

_UNKNOWN = (
    "could not be computed (Connection refused. Check the endpoint), so it is not known if a "
    "needed object is gone"
)
_SWEEP = (
    "lakegc sweep repo --run mark-1 --set max_candidate_share=0.9 --set range_num_partitions=1 "
    "--set address_num_partitions=1 --set sweep_num_partitions=1"
)
_TO_CONTINUE = f"To continue: `{_SWEEP}`"


def refuse(_deltas: DeltaMarks, _candidates: Dataset) -> DeltaMark:
    """LakeFS is gone."""
    raise ConnectionFailedError("Connection refused. Check the endpoint")


def ending_after(marked: Marked, error: Exception) -> Callable[..., Any]:
    """A round that deletes one object and then fails."""

    def fail(ctx: RunContext, *_: object) -> None:
        attempt = ctx.root.attempt(REPOSITORY, RUN)
        one = min(marked.candidates)
        ledger.record(attempt.store(), "batch", [Outcome(one, 1, "deleted")])
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "look", "looked"),
    [
        (
            ConnectionFailedError("Connection refused. Check the endpoint."),
            refuse,
            _UNKNOWN,
        ),
        (StorageError("on fire"), spare(set()), "was computed: no needed object is gone"),
        (FormatError("x", 3, "cut"), spare(set()), "was computed: no needed object is gone"),
    ],
    ids=["lakeFS died", "the store failed", "something is damaged"],
)
def test_it_tells_the_whole_of_it(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    error: LakegcError,
    look: Any,
    looked: str,
) -> None:
    stand_in(monkeypatch, spare(set()), look)
    monkeypatch.setattr(rounds, "delete", ending_after(marked, error))
    with pytest.raises(type(error)) as raised:
        sweep(lake.context(spark))
    count = len(marked.candidates)
    assert str(raised.value) == (
        f"{str(error).rstrip('.')}. 1 of the {count} objects of mark 'mark-1' are deleted. "
        f"The live set after the deletes {looked}. {_TO_CONTINUE}"
    )
    assert raised.value.figures == {
        "objects deleted": 1,
        "live set after the deletes": looked,
        "to continue": _SWEEP,
    }


def test_a_sweep_whose_repository_was_deleted_meanwhile_does_not_ask_to_be_continued(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(_deltas: DeltaMarks, _candidates: Dataset) -> DeltaMark:
        raise no_repository(lake.root, REPOSITORY)

    stand_in(monkeypatch, spare(set()), look)
    monkeypatch.setattr(rounds, "delete", ending_after(marked, NotFoundError("404")))
    with pytest.raises(NotFoundError) as raised:
        sweep(lake.context(spark))
    assert "could not be computed (there is no repository 'repo'" in str(raised.value)
    # What the error says of its objects and runs is all that can be done.
    assert "To continue" not in str(raised.value)
    assert "to continue" not in raised.value.figures


def test_a_look_that_cannot_be_made_at_the_end_is_told(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, spare(set()), refuse)
    with pytest.raises(ConnectionFailedError) as raised:
        sweep(lake.context(spark))
    count = len(marked.candidates)
    assert f"{count} of the {count} objects of mark 'mark-1' are deleted" in str(raised.value)
    assert "The live set after the deletes could not be computed" in str(raised.value)
    assert not lake.root.attempt(REPOSITORY, RUN).has("swept_set")


def test_what_goes_on_keeps_the_settings_of_the_sweep(lake: SmallLake, spark: Session) -> None:
    """The command sweeps with the same backup and at the same rate as this sweep."""
    ctx = lake.context(
        spark,
        backup_url="s3://kept/back ups",
        trash_days=0.5,
        require_conditional_deletes=True,
        restore_revived=False,
        ignored_repositories=["a", "b"],
        sweep_keys_per_second=20.0,
    )
    way = S3Access(endpoint_url="http://other:9000")
    stores = replace(ctx.root.stores, elsewhere=(("kept", way),))
    ctx = replace(ctx, root=replace(ctx.root, stores=stores))
    words = shlex.split(command(ctx))
    assert words[:5] == ["lakegc", "sweep", "repo", "--run", "mark-1"]
    assert set(words[5::2]) == {"--set"}
    config = checked(settings_of(tuple(words[6::2])))
    assert config == {
        **{f"{name}_num_partitions": 1 for name in ("range", "address", "sweep")},
        "max_candidate_share": 0.9,
        "ignored_repositories": ["a", "b"],
        "backup_url": "s3://kept/back ups",
        "require_conditional_deletes": True,
        "restore_revived": False,
        "trash_days": 0.5,
        "sweep_keys_per_second": 20.0,
        "backup_endpoint_url": "http://other:9000",
    }


def test_what_sweeps_a_mark_has_the_settings_that_it_was_made_with(
    lake: SmallLake, marked: Marked
) -> None:
    """The command that a report prints sweeps with the backup of the mark."""
    assert marked.candidates
    attempt = lake.root.attempt(REPOSITORY, RUN)
    of_run = REPOSITORY, "--run", RUN
    assert command_line("sweep", *of_run, settings=recorded_settings(attempt)) == _SWEEP
    attempt.store().put("gc_report/manifest.json", b"{")
    damaged = command_line("sweep", *of_run, settings=recorded_settings(attempt))
    assert damaged == "lakegc sweep repo --run mark-1"


def test_a_finished_sweep_is_refused_with_who_finished_it(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has waited for the lease meets it."""
    assert marked.candidates
    stand_in(monkeypatch)
    sweep(replace(lake.context(spark), started_by="Dagster run b"))
    with pytest.raises(RefusedError, match=r"was swept already\. Its sweep was finished") as error:
        sweep(replace(lake.context(spark), started_by="Dagster run a"))
    assert "Dagster run b) since" in str(error.value)
    assert str(error.value).endswith(": nothing is left to do")


def test_an_alarm_names_what_goes_on_when_it_is_accepted(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = min(marked.candidates)
    stand_in(monkeypatch, spare(set()), spare({gone}))

    def fail(ctx: RunContext, *_: object) -> None:
        (lake.objects / gone).unlink()
        ending_after(marked, StorageError("on fire"))(ctx)

    monkeypatch.setattr(rounds, "delete", fail)
    with pytest.raises(LakegcError, match="1 object of mark 'mark-1' is gone, and is") as raised:
        sweep(lake.context(spark, restore_revived=False))
    assert raised.value.figures["live set after the deletes"] == "was computed"
    first, *_, look, _, _ = str(raised.value).split("\n")
    # Not now: no sweep starts before the hold is accepted.
    assert first.endswith("are deleted. The live set after the deletes was computed")
    assert look.endswith(f"After the acceptance: `{_SWEEP} --set restore_revived=false`")


def test_other_errors_stay_and_the_rest_is_in_the_log(
    lake: SmallLake,
    marked: Marked,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stand_in(monkeypatch, spare(set()), spare(set()))
    monkeypatch.setattr(rounds, "delete", ending_after(marked, ZeroDivisionError("x")))
    with pytest.raises(ZeroDivisionError, match=r"^x$"):
        sweep(lake.context(spark))
    (said,) = [m for m in caplog.messages if "are deleted" in m]
    assert said.startswith("1 of the ")
    assert said.endswith(_TO_CONTINUE)


def test_a_ledger_that_cannot_be_read_hides_nothing(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, spare(set()), spare(set()))
    fail = ending_after(marked, StorageError("the disk is full"))

    def unreadable(*_: object) -> None:
        raise StorageError("no answer")

    def fail_for_good(ctx: RunContext, *_: object) -> None:
        monkeypatch.setattr(LedgerState, "read", unreadable)
        fail(ctx)

    monkeypatch.setattr(rounds, "delete", fail_for_good)
    with pytest.raises(StorageError) as raised:
        sweep(lake.context(spark))
    assert str(raised.value).startswith("the disk is full. ")
    assert "cannot be read now (no answer)" in str(raised.value)
    assert "The live set after the deletes was computed" in str(raised.value)


def test_a_ledger_that_was_damaged_meanwhile_hides_nothing(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, spare(set()), spare(set()))
    fail = ending_after(marked, StorageError("the disk is full"))

    def damage(ctx: RunContext, *given: object) -> None:
        ctx.root.attempt(REPOSITORY, RUN).store().put("swept_set/ledger/0.parquet", b"PAR1 no")
        fail(ctx, *given)

    monkeypatch.setattr(rounds, "delete", damage)
    with pytest.raises(StorageError) as raised:
        sweep(lake.context(spark))
    assert str(raised.value).startswith("the disk is full. ")
    assert "0.parquet is damaged" in str(raised.value)
    assert "The live set after the deletes was computed" in str(raised.value)


def test_one_that_was_overtaken_says_who_finished_the_mark(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loses its lease to another one, which comes to the end first."""
    stand_in(monkeypatch)
    run, store = rounds.Rounds.run, lake.store

    def overtaken(self: rounds.Rounds) -> int:
        monkeypatch.setattr(rounds.Rounds, "run", run)
        record = replace(read_lease(store), released=True, renewed=99)
        store.put_if_match(LEASE, record.to_bytes(), store.head(LEASE).etag)
        sweep(replace(lake.context(spark), started_by="Dagster run b"))
        return run(self)

    monkeypatch.setattr(rounds.Rounds, "run", overtaken)
    with pytest.raises(LeaseLostError) as raised:
        sweep(replace(lake.context(spark), started_by="Dagster run a"))
    count = len(marked.candidates)
    assert f"{count} of the {count} objects of mark 'mark-1' are deleted" in str(raised.value)
    assert "Its sweep was finished on " in str(raised.value)
    assert "Dagster run b) since" in str(raised.value)
    assert str(raised.value).endswith(": nothing is left to do")
    assert "a new listing" not in str(raised.value)
