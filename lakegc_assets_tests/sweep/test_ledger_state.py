"""The remaining objects, by the files of the ledger: read files count, missing outcomes stop."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakegc_assets.engine.choice import Engine
from lakegc_assets.engine.datasets import read_parts, write_part
from lakegc_assets.engine.embedded import EmbeddedSession
from lakegc_assets.engine.tasks import Tasks
from lakegc_assets.errors import IntegrityError
from lakegc_assets.mark.marked_objects import Stretch, stretches
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run.artifacts import LISTING, ArtifactRoot, AttemptArtifacts
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.ledger import ASSET, Outcome
from lakegc_assets.sweep.ledger_state import LedgerState
from lakegc_assets_tests.listings import listing

NAMES = [f"data/{n}" for n in range(6)]


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptArtifacts:
    return AttemptArtifacts(ArtifactRoot(str(tmp_path), StoreConfig()), "repo", "run", "attempt")


@pytest.fixture
def recorded(attempt: AttemptArtifacts) -> LedgerState:
    """Six objects in two files, of which nothing is done."""
    now = datetime.now(timezone.utc)
    rows = [(name, 7, now, "etag") for name in NAMES]
    parts = [write_part(attempt.store(), "marked/", listing(some)) for some in (rows[:4], rows[4:])]
    session: Any = EmbeddedSession(open_store, None)
    tasks = Tasks(Engine("embedded", "a test says so"), lambda: session)
    connections = SimpleNamespace(open=open_store)
    ctx: Any = SimpleNamespace(
        run="run", tasks=tasks, frames=lambda: session, connections=connections
    )
    space = Workspace(ctx, attempt, f"{ASSET}/own/")
    return LedgerState(space, space.dataset(parts, LISTING))


def record(attempt: AttemptArtifacts, batch: str, outcome: str, names: Sequence[str]) -> None:
    ledger.record(attempt.store(), batch, [Outcome(name, 7, outcome) for name in names])


def left(recorded: LedgerState, folder: str) -> list[str]:
    store, parts = recorded.space.attempt.store(), recorded.remaining(folder).parts
    return [a for rows in read_parts(store, parts) for a in rows["address"].to_pylist()]


def ledger_files(attempt: AttemptArtifacts, folder: str = "ledger") -> list[Path]:
    return sorted(Path(attempt.url, ASSET, folder).glob("*.parquet"))


def test_what_is_done_is_left_out_once_it_was_read(
    attempt: AttemptArtifacts, recorded: LedgerState
) -> None:
    assert left(recorded, "1") == NAMES
    record(attempt, "own-1", "deleted", NAMES[:2])
    record(attempt, "other-1", "failed", NAMES[3:4])
    assert left(recorded, "2") == NAMES[2:]
    # What a listing lacks later is known.
    for path in ledger_files(attempt):
        path.unlink()
    record(attempt, "other-2", "spared", NAMES[5:])
    assert left(recorded, "3") == NAMES[2:5]
    assert {total.outcome: total.objects for total in recorded.totals()} == {
        "deleted": 2,
        "failed": 1,
        "spared": 1,
    }
    assert {total.outcome for total in recorded.totals_of_others()} == {"failed", "spared"}
    record(attempt, "own-2", "already_missing", NAMES[2:5])
    assert left(recorded, "4") == []
    recorded.require_whole()
    (part,) = recorded.write()
    assert part.rows == len(NAMES)
    assert recorded.gone() == 5


def test_a_ledger_read_by_others_first_is_left_out_all_the_same(
    attempt: AttemptArtifacts, recorded: LedgerState
) -> None:
    """Whoever asks how much is gone reads it, too."""
    record(attempt, "own-1", "deleted", NAMES[:2])
    assert recorded.gone() == 2
    assert left(recorded, "1") == NAMES[2:]


def test_a_ledger_of_more_files_than_are_read_at_a_time(
    attempt: AttemptArtifacts, recorded: LedgerState
) -> None:
    for number in range(501):
        record(attempt, f"own-{number:04d}", "failed", NAMES[:1])
    record(attempt, "own-9999", "deleted", NAMES[:2])
    assert left(recorded, "1") == NAMES[2:]
    assert recorded.outcomes.rows == 503


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([*NAMES, "data/9"], "has 7 outcomes, 1 of them for objects that were not marked"),
        (NAMES[:5], "the mark has 6, of which 1 have none"),
        ([*NAMES[:5], "data/9"], "has 6 outcomes, 1 of them .*, of which 1 have none"),
    ],
)
def test_outcomes_of_other_objects_than_were_marked_stop_a_sweep(
    attempt: AttemptArtifacts, recorded: LedgerState, names: list[str], words: str
) -> None:
    record(attempt, "own-1", "deleted", names)
    with pytest.raises(IntegrityError, match=words):
        recorded.require_whole()


def test_a_stranger_that_is_recorded_later_stops_a_sweep(
    attempt: AttemptArtifacts, recorded: LedgerState
) -> None:
    record(attempt, "own-1", "deleted", NAMES)
    recorded.require_whole()
    record(attempt, "put-back", "put_back", ["data/9"])
    with pytest.raises(IntegrityError, match="1 of them for objects that were not marked"):
        recorded.require_whole()


@pytest.mark.parametrize("how", ["missing", "changed"])
@pytest.mark.parametrize("which", ["marked", "ledger"])
def test_a_file_that_is_not_what_it_was_stops_a_sweep(
    attempt: AttemptArtifacts, recorded: LedgerState, which: str, how: str
) -> None:
    record(attempt, "own-1", "deleted", NAMES[:2])
    recorded.read()
    part = (recorded.marked if which == "marked" else recorded.outcomes).parts[0]
    path = Path(attempt.url, part.key)
    data = path.read_bytes()
    path.unlink()
    if how == "changed":
        path.write_bytes(data[:9] + bytes([data[9] ^ 1]) + data[10:])
    with pytest.raises(IntegrityError, match=rf"{path.name} is (missing|not what)"):
        recorded.remaining("left")


def test_a_damaged_file_of_the_ledger_stops_a_sweep(
    attempt: AttemptArtifacts, recorded: LedgerState
) -> None:
    record(attempt, "own-1", "deleted", NAMES[:2])
    (path,) = ledger_files(attempt)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(IntegrityError, match=r"own-1\.parquet is damaged"):
        recorded.remaining("left")


def test_stretches_are_all_rows_in_their_order(recorded: LedgerState) -> None:
    first, second = recorded.marked.parts
    assert stretches([first, second], 6) == [[Stretch(first, 0, 4), Stretch(second, 0, 2)]]
    assert stretches([first, second], 3) == [
        [Stretch(first, 0, 3)],
        [Stretch(first, 3, 1), Stretch(second, 0, 2)],
    ]
    assert stretches([], 3) == []
