"""What lists lacked in simulated worlds: such things were found there, and are mended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lakegc_assets.engine.datasets import Part
from lakegc_assets.run.records import RecordFiles
from lakegc_assets.sweep import sweep
from lakegc_assets.sweep.alarm import raise_alarm_if_needed
from lakegc_assets.sweep.ledger import SWEPT
from lakegc_assets.sweep.ledger_state import LedgerState
from lakegc_assets_tests.simulation import seams
from lakegc_assets_tests.simulation.choices import Choices
from lakegc_assets_tests.simulation.interleaving import THEMES, interleave
from lakegc_assets_tests.simulation.themes import MARK_THEMES


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with seams.installed():
        yield


def test_no_sweep_ends_well_whose_outcomes_are_not_shown_when_they_are_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: Callable[[Any], None] = LedgerState.read
    looked: list[bool] = []

    def looking(*args: Any) -> None:
        raise_alarm_if_needed(*args)
        looked.append(True)

    monkeypatch.setattr(sweep, "raise_alarm_if_needed", looking)

    def lacking(of: LedgerState) -> None:
        read(of)
        if looked:
            of.outcomes = of.space.dataset((), SWEPT)

    monkeypatch.setattr(LedgerState, "read", lacking)
    ended = interleave(Choices())
    assert looked
    assert ended.world.oracle.deletes.keys() == ended.world.oracle.marked["mark-1"]
    assert ended.world.oracle.finished == []


def test_a_backup_is_finished_whose_journal_was_not_shown_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gather, asked = RecordFiles.gather, list[str]()

    def lacking(files: RecordFiles, *given: Any) -> list[Part]:
        asked.append(files.prefix)
        found = gather(files, *given)
        return [] if len(asked) == 2 else found

    monkeypatch.setattr(RecordFiles, "gather", lacking)
    ended = interleave(Choices(None, (0, THEMES + len(MARK_THEMES))))
    assert len(asked) > 2
    assert ended.failure is None
    assert "all/repo/mark-1/_lakegc/manifest.json" in ended.world.buckets["backup"]
    assert ended.world.oracle.finished
