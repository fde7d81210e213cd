"""An approval is about one mark and ends; it starts a sweep, and weakens none of its checks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.checks.invariants import candidate_share_of, check_candidates
from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError, RefusedError
from lakegc_assets.mark.report import report
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.run.clocks import Clocks
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.values import DeleteOutcome, Recovery
from lakegc_assets.sweep.approval import (
    Limits,
    approval_of,
    approve,
    approved,
    recorded_sweep,
    waits_for,
    when,
    withdraw,
)
from lakegc_assets.sweep.lease import repository_lease
from lakegc_assets.sweep.lease_record import owner_of
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.kills import Killed, let_the_killed_be_gone
from lakegc_assets_tests.lake import REPOSITORY, RUN, STAGES, Marked, SmallLake, mark
from lakegc_assets_tests.sessions import Session

_WEEK = timedelta(days=7)
_NO_LIMITS = Limits()


@dataclass(frozen=True)
class Later(Clocks):
    """This machine's clock is ahead."""

    by: timedelta

    def now(self) -> datetime:
        return super().now() + self.by


def later(ctx: RunContext, by: timedelta) -> RunContext:
    return replace(ctx, clocks=Later(by))


def attempt_folder(lake: SmallLake) -> Path:
    return Path(lake.root.attempt(REPOSITORY, RUN).url)


def unpublished(lake: SmallLake) -> None:
    """Take the publication back, as if the checks had refused it."""
    shutil.rmtree(attempt_folder(lake) / "gc_report")
    marks = lake.objects / "_lakefs/retention/gc"
    for folder in [*marks.glob(f"*/{RUN}"), *marks.glob(f"*/mark_id={RUN}")]:
        shutil.rmtree(folder)


def test_an_approval_says_who_when_and_for_what(lake: SmallLake, spark: Session) -> None:
    ctx = lake.context(spark)
    given, published = approve(ctx, " Ada ", _WEEK)
    assert published is None
    attempt = lake.root.attempt(REPOSITORY, RUN)
    assert given.by == "Ada"
    assert given.digest == attempt.manifest("deletion_candidates").digest
    assert given.mark == attempt.manifest("gc_report").sha256
    assert given.ends - given.at == _WEEK
    assert approval_of(attempt, ctx.clocks.now()) == given
    assert waits_for(ctx, "approved", _NO_LIMITS) is None


def test_it_ends(lake: SmallLake, spark: Session) -> None:
    ctx = lake.context(spark)
    given, _ = approve(ctx, "Ada", _WEEK)
    attempt = lake.root.attempt(REPOSITORY, RUN)
    assert approval_of(attempt, given.ends - timedelta(seconds=1)) == given
    assert approval_of(attempt, given.ends) is None
    # The clock of who approved may be ahead of that of who sweeps, but not by a day.
    assert approval_of(attempt, given.at - timedelta(minutes=5)) == given
    assert approval_of(attempt, given.at - timedelta(days=1)) is None
    waits = waits_for(later(ctx, _WEEK + timedelta(minutes=1)), "approved", _NO_LIMITS)
    assert waits is not None
    assert waits.sentence.startswith(f"mark {RUN} of {REPOSITORY} waits for approval: ")


def test_it_is_withdrawn_and_stays_recorded(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = lake.context(spark)
    attempt = lake.root.attempt(REPOSITORY, RUN)
    with pytest.raises(RefusedError, match="is not approved"):
        withdraw(ctx, "Bob")
    for name in ("Ada", "Eve"):
        given, _ = approve(ctx, name, _WEEK)
    # A sweep holds it, and renews its lease.
    owner = owner_of(repository=REPOSITORY, run=RUN)
    with (
        repository_lease(lake.store, owner, duration=timedelta(minutes=1)),
        pytest.raises(RefusedError, match="another process holds the lease"),
    ):
        withdraw(ctx, "Bob")
    assert approval_of(attempt, ctx.clocks.now()) == given
    delete_many = LocalStore.delete_many

    def killed(store: LocalStore, keys: Iterable[str], **asked: Any) -> Sequence[DeleteOutcome]:
        if store.url == attempt.store().url:
            raise Killed
        return delete_many(store, keys, **asked)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete_many", killed)
        with pytest.raises(Killed):
            withdraw(ctx, "Bob")
    assert approval_of(attempt, ctx.clocks.now()) == given
    let_the_killed_be_gone(monkeypatch)

    def unanswered(store: LocalStore, keys: Iterable[str], **asked: Any) -> Sequence[DeleteOutcome]:
        if store.url == attempt.store().url:
            return [DeleteOutcome(key, "failed", "NoAnswer", "lost") for key in keys]
        return delete_many(store, keys, **asked)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete_many", unanswered)
        with pytest.raises(StorageError, match=r"NoAnswer: lost\. The approval may still be"):
            withdraw(ctx, "Bob")
    withdraw(ctx, "Bob")
    assert waits_for(ctx, "approved", _NO_LIMITS) is not None
    records = [
        json.loads(one.read_text()) for one in (attempt_folder(lake) / "withdrawn").iterdir()
    ]
    assert {record["by"] for record in records} == {"Bob"}
    assert {json.loads(record["approval"])["by"] for record in records} == {"Ada", "Eve"}
    # One that is given afterwards holds.
    given, _ = approve(ctx, "Ada", _WEEK)
    assert approval_of(attempt, ctx.clocks.now()) == given
    sweep(ctx)
    with pytest.raises(RefusedError, match="was swept on"):
        withdraw(ctx, "Bob")


def test_it_is_about_exactly_this_mark(lake: SmallLake, spark: Session) -> None:
    ctx = lake.context(spark)
    approve(ctx, "Ada", _WEEK)
    # Another mark under the same id: the same approval lies beside it.
    unpublished(lake)
    check_candidates(ctx)
    report(ctx)
    assert approval_of(lake.root.attempt(REPOSITORY, RUN), ctx.clocks.now()) is None
    assert waits_for(ctx, "approved", _NO_LIMITS) is not None


def test_a_mark_that_was_made_again_is_not_approved_for_the_one_that_was_read(
    lake: SmallLake, spark: Session
) -> None:
    """It has the same id; only its digest tells that it names other objects."""
    read = lake.root.attempt(REPOSITORY, RUN).recorded("deletion_candidates").digest
    unpublished(lake)
    ctx = lake.context(spark, retain={"branches": {"main": {"last_commits": 2}}})
    mark(ctx, STAGES[:-1])
    attempt = lake.root.attempt(REPOSITORY, RUN)
    with pytest.raises(RefusedError, match=f"{read} was to be approved: the mark was made again"):
        approve(ctx, "Ada", _WEEK, read)
    assert not attempt.has("gc_report")
    digest = attempt.recorded("deletion_candidates").digest
    given, published = approve(ctx, "Ada", _WEEK, digest)
    assert published is not None
    assert given.digest == digest == published.digest
    shutil.rmtree(attempt_folder(lake) / "approvals")
    said = waits_for(ctx, "approved", _NO_LIMITS)
    assert said is not None
    assert f"`lakegc approve {REPOSITORY} --run {RUN} --digest {digest}`" in said.sentence


def test_a_damaged_one_approves_nothing(lake: SmallLake, spark: Session) -> None:
    ctx = lake.context(spark)
    approve(ctx, "Ada", _WEEK)
    (file,) = (attempt_folder(lake) / "approvals").iterdir()
    without_zone = {**json.loads(file.read_bytes()), "ends": "2999-01-01T00:00:00"}
    for damage in (b"", b"{}", b'{"by": "Ada"}', b"[1]"):
        file.write_bytes(damage)
        with pytest.raises(IntegrityError, match="remove it, then approve again"):
            waits_for(ctx, "approved", _NO_LIMITS)
    file.write_text(json.dumps(without_zone))
    with pytest.raises(IntegrityError, match="ends: it has no time zone"):
        waits_for(ctx, "approved", _NO_LIMITS)


def test_who_and_how_long_must_be_said(lake: SmallLake, spark: Session) -> None:
    with pytest.raises(ConfigurationError, match="the person who approves"):
        approve(lake.context(spark), "  ", _WEEK)
    with pytest.raises(ConfigurationError, match="must be positive"):
        approve(lake.context(spark), "Ada", timedelta(0))


def test_what_came_back_to_life_cannot_be_approved(lake: SmallLake, spark: Session) -> None:
    """The checks are evaluated again, as of now."""
    first = lake.client.branches(REPOSITORY)
    assert first
    lake.client.create_branch(REPOSITORY, "back", _commit(lake))
    with pytest.raises(RefusedError, match="none_head_reachable"):
        approve(lake.context(spark), "Ada", _WEEK)
    assert not (attempt_folder(lake) / "approvals").exists()


def _commit(lake: SmallLake) -> str:
    """The first commit of main that has objects, which the mark took for expired."""
    return [c.id for c in lake.client.log(REPOSITORY, "main")][-2]


def test_a_share_is_approved_for_the_mark_that_it_refused(lake: SmallLake, spark: Session) -> None:
    unpublished(lake)
    ctx = lake.context(spark, max_candidate_share=0.01)
    # The mark was made under the low limit.
    manifest = attempt_folder(lake) / "deletion_candidates/manifest.json"
    values = json.loads(manifest.read_bytes())
    values["settings"]["max_candidate_share"] = 0.01
    manifest.write_text(json.dumps(values, indent=1, sort_keys=True))
    refusals: list[LakegcError] = []
    for stage in (check_candidates, report):
        try:
            stage(ctx)
        except RefusedError as error:
            refusals.append(error)
    assert "candidate_share" in str(refusals)
    with pytest.raises(RefusedError, match="candidate_share"):
        approve(ctx, "Ada", _WEEK)
    with_more = lake.context(spark, max_candidate_share=0.95)
    given, published = approve(with_more, "Ada", _WEEK)
    assert published is not None
    assert given.max_candidate_share == 0.95
    # Without the approval the sweep would refuse the share.
    with pytest.raises(RefusedError, match="candidate_share"):
        sweep(ctx)
    swept = sweep(approved(ctx))
    assert swept.rows == manifest_rows(lake)


def manifest_rows(lake: SmallLake) -> int:
    return lake.root.attempt(REPOSITORY, RUN).manifest("deletion_candidates").rows


def test_an_approval_does_not_lower_a_share(lake: SmallLake, spark: Session) -> None:
    approve(lake.context(spark, max_candidate_share=0.9), "Ada", _WEEK)
    ctx = lake.context(spark, max_candidate_share=0.95)
    assert approved(ctx).settings.max_candidate_share == 0.95


def test_the_sweep_spares_what_came_back_after_the_approval(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    ctx = lake.context(spark)
    approve(ctx, "Ada", _WEEK)
    lake.client.create_branch(REPOSITORY, "back", _commit(lake))
    assert waits_for(ctx, "approved", _NO_LIMITS) is None
    swept = sweep(approved(ctx))
    assert swept.facts["outcomes"]["spared"]["objects"] > 0
    assert marked.live <= lake.keys()


def test_what_was_swept_is_recorded_and_not_approved(lake: SmallLake, spark: Session) -> None:
    ctx = lake.context(spark)
    assert recorded_sweep(ctx) is None
    swept = sweep(ctx)
    assert recorded_sweep(ctx) == swept
    with pytest.raises(RefusedError, match=f"was {when(swept)}: there is nothing to approve"):
        approve(ctx, "Ada", _WEEK)


def test_an_unfinished_mark_is_not_approved(lake: SmallLake, spark: Session) -> None:
    ctx = lake.context(spark, run="half")
    mark(ctx, STAGES[:3])
    with pytest.raises(RefusedError, match="did not finish"):
        approve(ctx, "Ada", _WEEK)
    with pytest.raises(RefusedError, match="there is no mark 'nothing'"):
        approve(lake.context(spark, run="nothing"), "Ada", _WEEK)


WAITS: tuple[tuple[str, Limits, str | None], ...] = (
    ("never", Limits(), "`sweep` is `never`"),
    ("approved", Limits(), "waits for approval: read its report"),
    ("auto", Limits(share=0.1), "of what was listed, the limit is 10%"),
    ("auto", Limits(share=0.0004), "of what was listed, the limit is 0.04%"),
    ("auto", Limits(objects=3), "objects, the limit is 3"),
    ("auto", Limits(bytes=10), "bytes, the limit is 10"),
    (
        "auto",
        Limits(growth=2),
        "no earlier mark was swept, so there is none to compare it with",
    ),
    ("auto", Limits(required="undo"), "undo is required: "),
    ("auto", Limits(required="backup or undo"), "and there is no backup_url"),
    ("auto", Limits(), None),
    ("auto", Limits(1, 10**6, 10**9), None),
)


def test_what_a_mark_waits_for(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "recovery", lambda _: Recovery("nothing", None, "none kept"))
    for mode, limits, said in WAITS:
        found = waits_for(lake.context(spark), mode, limits)
        assert (found is None) == (said is None), said
        if found is not None and said is not None:
            assert said in found.sentence
            # What a notice says of it: only the exceeded limits, without instructions.
            assert found.limits.startswith("since ") == (mode == "auto")
            assert "read its report" not in found.limits
            assert mode != "auto" or said in found.limits


def test_a_mark_that_is_as_large_as_the_limits_keeps_them(lake: SmallLake, spark: Session) -> None:
    attempt = lake.root.attempt(REPOSITORY, RUN)
    facts = attempt.manifest("gc_report").facts
    share = candidate_share_of(attempt, attempt.manifest("deletion_candidates"))
    limits = Limits(share, facts["objects"], facts["bytes"])
    assert waits_for(lake.context(spark), "auto", limits) is None


def test_a_backup_is_no_undo(
    lake: SmallLake, spark: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "recovery", lambda _: Recovery("nothing", None, "none kept"))
    ctx = lake.context(spark, backup_url=str(tmp_path / "backups"))
    assert waits_for(ctx, "auto", Limits(required="backup")) is None
    assert waits_for(ctx, "auto", Limits(required="undo")) is not None


def test_the_share_where_nothing_was_listed_is_of_what_heads_hold_too(
    lake: SmallLake, spark: Session
) -> None:
    """Else each mark of a policy with the mode committed would wait."""
    ctx = mark(lake.context(spark, "by-name", mode="committed"))
    candidates = lake.root.attempt(REPOSITORY, "by-name").manifest("deletion_candidates")
    assert candidates.rows == candidates.facts["listed"]
    assert waits_for(ctx, "auto", Limits(share=0.7)) is None
    said = waits_for(ctx, "auto", Limits(share=0.1))
    assert said is not None
    assert "of what was looked at, or HEADs hold, the limit is 10%" in said.sentence


def test_a_store_that_gives_back_what_it_keeps_is_enough_where_undo_is_required(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects that come back are relied on, whatever the store says that it keeps."""
    ctx, without = lake.context(spark), lake.context(spark, trash_days=0)
    before = lake.keys()
    for required in ("undo", "backup or undo"):
        limits = Limits(required=required)
        for kind in ("trash", "versions", "unknown"):
            told = Recovery(kind, None, "as the store says")
            monkeypatch.setattr(LocalStore, "recovery", lambda _, told=told: told)
            assert waits_for(ctx, "auto", limits) is None
            said = waits_for(without, "auto", limits)
            assert said is not None
            # With trash_days 0 nothing is moved into the trash, and no probe is needed to know it.
            off = "trash_days is 0, so deleted files are not moved into the trash"
            assert (off if kind == "trash" else "a deleted object did not come back") in said.limits
            assert ("as the store says" in said.limits) == (kind != "trash")
    assert waits_for(ctx, "auto", Limits(required="backup")) is not None
    assert lake.keys() == before


def test_growth_is_told_against_the_last_mark_that_was_swept(
    lake: SmallLake, spark: Session
) -> None:
    """Else a mark that waits, or one that gc_rules has made, would allow the next one as large."""
    ctx: Any = lake.context(spark, run="mark-2")
    mark(ctx)
    said = waits_for(ctx, "auto", Limits(growth=1))
    assert said is not None
    assert "no earlier mark was swept" in said.limits
    sweep(lake.context(spark))
    assert waits_for(ctx, "auto", Limits(growth=1)) is None
    said = waits_for(ctx, "auto", Limits(growth=0.5))
    assert said is not None
    assert f"more than 0.5 times the {manifest_rows(lake)} of mark {RUN}" in said.limits


def test_growth_is_not_told_against_a_sweep_that_was_undone(
    lake: SmallLake, spark: Session
) -> None:
    """Else the objects that somebody had to bring back would be swept again without a question."""
    ctx: Any = lake.context(spark, run="mark-2")
    mark(ctx)
    sweep(lake.context(spark))
    assert waits_for(ctx, "auto", Limits(growth=1)) is None
    restore(lake.context(spark), Choice(everything=True))
    said = waits_for(ctx, "auto", Limits(growth=1))
    assert said is not None
    expected = "no earlier mark was swept, except for marks whose objects were all restored"
    assert expected in said.limits


def test_restored_objects_do_not_count_in_growth(lake: SmallLake, spark: Session) -> None:
    """Else a sweep that was a mistake in part allows the next one to be as large."""
    ctx: Any = lake.context(spark, run="mark-2")
    mark(ctx)
    sweep(lake.context(spark))
    before = lake.root.attempt(REPOSITORY, RUN)
    address = before.rows(before.manifest("deletion_candidates"), "data")["address"][0].as_py()
    restore(lake.context(spark), Choice(addresses=(address,)))
    said = waits_for(ctx, "auto", Limits(growth=1))
    assert said is not None
    assert (
        f"more than 1 times the {manifest_rows(lake) - 1} of mark {RUN} that were not restored"
    ) in said.limits
