"""Backups and restores of what is cut into many pieces, on each engine, are as those of one."""

from __future__ import annotations

import pytest

from lakegc_assets.mark import marked_objects
from lakegc_assets.recovery import workspace
from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.restore import dry_run, restored_set
from lakegc_assets.recovery.restore.dry_run import plan
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.run.pins import read_pins
from lakegc_assets_tests.lake import Marked
from lakegc_assets_tests.recovery.conftest import Place


@pytest.mark.parametrize(
    "engine", ["embedded", pytest.param("spark", marks=pytest.mark.conformance)]
)
def test_many_pieces(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    for module, name in (
        (marked_objects, "ROWS_PER_TASK"),
        (workspace, "OBJECTS_PER_TASK"),
        (dry_run, "OBJECTS_PER_TASK"),
        (restored_set, "OBJECTS_PER_TASK"),
        (restored_set, "OBJECTS_PER_PIN"),
    ):
        monkeypatch.setattr(module, name, 5)
    # Each task has the work of a few objects.
    monkeypatch.setattr(restored_set, "TASK_S", 0.005)
    ctx = place.context(engine=engine, backup_list_threads=40, sweep_batch=5)
    before = place.lake.contents(marked.candidates)
    assert make_backup(ctx) is not None
    assert place.contents() == before
    for address in marked.candidates:
        (place.lake.objects / address).unlink()
    everything = Choice(everything=True)
    assert plan(ctx, everything)["would_come_back"]["objects"] == len(before)
    manifest = restore(ctx, everything)
    assert manifest.rows == len(before)
    assert manifest.facts["outcomes"].keys() == {"restored"}
    assert place.lake.contents(before) == before
    pins = read_pins(ctx.connect().connections.store())
    assert len(pins) == -(-len(before) // 5)
    assert {a for _, some in pins for a in some.to_pylist()} == marked.candidates
    # Done again, the same pins would be written, and nothing is left to do.
    assert plan(ctx, everything)["already_there"]["objects"] == len(before)
