"""Two processes that start a run of the same id at once do not mix their attempts.

On one machine a lock keeps them apart; on two machines nothing does until a stage has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lakegc_assets.errors import ConfigurationError, RefusedError
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.listing import list_store
from lakegc_assets.mark.uncommitted_snapshot import snapshot_uncommitted
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.storage.errors import (
    PreconditionFailedError,
    StorageError,
    StoreUnavailableError,
)
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, STAGES, Marked, SmallLake, candidates, mark
from lakegc_assets_tests.marked import lake
from lakegc_assets_tests.sessions import Session

__all__ = ["lake"]


class Overtaken(RunContext):
    """A run that another process starts again right before a stage writes its manifest."""

    def finish(self, *stage: Any, **more: Any) -> Manifest:
        list_store(RunContext(**vars(self)))
        return super().finish(*stage, **more)


@pytest.mark.parametrize("stage", [snapshot_uncommitted, find_candidates])
def test_a_stage_of_an_attempt_that_was_replaced_records_nothing(
    lake: SmallLake, marked: Marked, spark: Session, stage: Callable[[RunContext], object]
) -> None:
    ctx = lake.context(spark, "twice")
    mark(ctx, STAGES[: STAGES.index(stage)])
    first = lake.root.attempt(REPOSITORY, "twice")
    with pytest.raises(RefusedError, match="was started again by another process"):
        stage(Overtaken(**vars(ctx)))
    # The other process goes on by itself, whatever the first one has left.
    assert lake.root.attempt(REPOSITORY, "twice").attempt != first.attempt
    mark(ctx, STAGES[1:])
    assert candidates(ctx) == marked.candidates


def _meanwhile(monkeypatch: pytest.MonkeyPatch, write: str, act: Callable[[], object]) -> None:
    """Let another process act once, right before this one records an attempt."""
    whole, acts = getattr(LocalStore, write), [act]

    def late(store: LocalStore, key: str, *how: Any) -> Any:
        if key == "attempt.json" and acts:
            acts.pop()()
        return whole(store, key, *how)

    monkeypatch.setattr(LocalStore, write, late)


def test_an_attempt_that_is_recorded_after_the_mark_was_swept_hides_neither(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process was suspended after it had seen that the run was not published."""
    ctx = lake.context(spark, "twice")
    mark(ctx, STAGES[:1])
    first = lake.root.attempt(REPOSITORY, "twice")

    def publish_and_sweep() -> None:
        mark(ctx, STAGES[1:])
        sweep(ctx)

    _meanwhile(monkeypatch, "put_if_match", publish_and_sweep)
    second = lake.root.new_attempt(REPOSITORY, "twice")
    assert [one.attempt for one in lake.root.attempts(REPOSITORY, "twice")] == [
        first.attempt,
        second.attempt,
    ]
    restore(lake.context(spark, "twice"), Choice(everything=True))
    assert lake.keys() == marked.live | marked.candidates
    with pytest.raises(RefusedError, match="exists already and is frozen"):
        lake.root.new_attempt(REPOSITORY, "twice")


@pytest.mark.parametrize("write", ["put_if_absent", "put_if_match"])
def test_an_attempt_that_is_recorded_meanwhile_is_not_replaced(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    """Otherwise the record would lack an attempt that may be published and swept by now."""
    if write == "put_if_match":
        lake.root.new_attempt(REPOSITORY, "twice")
    others: list[AttemptArtifacts] = []
    _meanwhile(
        monkeypatch, write, lambda: others.append(lake.root.new_attempt(REPOSITORY, "twice"))
    )
    with pytest.raises(RefusedError, match="has begun run 'twice'"):
        lake.root.new_attempt(REPOSITORY, "twice")
    assert lake.root.attempt(REPOSITORY, "twice").attempt == others[0].attempt


@pytest.mark.parametrize(
    "error",
    [
        # NFS, on which a cluster may share the artifacts.
        ConfigurationError("this file system cannot lock a directory"),
        StorageError("NotImplemented (A header implies what is not implemented)"),
    ],
)
def test_an_attempt_at_a_place_without_if_match_is_begun_again(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object) -> str:
        raise error

    monkeypatch.setattr(LocalStore, "put_if_match", refuse)
    begun = [lake.root.new_attempt(REPOSITORY, "twice") for _ in range(2)]
    assert lake.root.attempts(REPOSITORY, "twice") == begun[::-1]


@pytest.mark.parametrize("error", [PreconditionFailedError, StoreUnavailableError])
def test_an_attempt_whose_record_is_written_without_an_answer_goes_on(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch, error: type[StorageError]
) -> None:
    """A proxy may lose the answer, and the retry finds the object of the first try."""
    first, whole = lake.root.new_attempt(REPOSITORY, "twice"), LocalStore.put_if_match

    def unanswered(*how: Any) -> str:
        whole(*how)
        raise error("lost")

    monkeypatch.setattr(LocalStore, "put_if_match", unanswered)
    second = lake.root.new_attempt(REPOSITORY, "twice")
    assert lake.root.attempts(REPOSITORY, "twice") == [second, first]
