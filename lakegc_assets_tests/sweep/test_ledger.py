"""The ledger: whole batches, one outcome for each object, and what was done counts first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.errors import IntegrityError
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.records import best_of_each, read_rows
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.ledger import Outcome

Read = Callable[[], dict[str, tuple[object, ...]]]


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptArtifacts:
    return AttemptArtifacts(ArtifactRoot(str(tmp_path), StoreConfig()), "repo", "run", "attempt")


@pytest.fixture
def read(attempt: AttemptArtifacts) -> Read:
    def found() -> dict[str, tuple[object, ...]]:
        rows = ledger.read(attempt).to_pylist()
        assert len({row["address"] for row in rows}) == len(rows)
        return {r["address"]: (r["size"], r["outcome"], r["error_code"], r["detail"]) for r in rows}

    return found


def test_an_empty_ledger(read: Read) -> None:
    assert read() == {}


def test_what_was_recorded_is_read(attempt: AttemptArtifacts, read: Read) -> None:
    outcomes = [
        Outcome("data/ü\n,", 2**40, "deleted"),
        Outcome("b", 0, "failed", "SlowDown", "later"),
        Outcome("c", 3, "spared", detail="it is staged"),
    ]
    ledger.record(attempt.store(), "1", outcomes[:2])
    ledger.record(attempt.store(), "2", outcomes[2:])
    assert read() == {o.address: (o.size, o.outcome, o.error_code, o.detail) for o in outcomes}


@pytest.mark.parametrize(
    ("first", "second", "counts"),
    [
        ("failed", "deleted", "deleted"),
        ("deleted", "failed", "deleted"),
        ("deleted", "already_missing", "deleted"),
        ("already_missing", "failed", "already_missing"),
        ("spared", "failed", "spared"),
        ("spared", "deleted", "deleted"),
    ],
)
def test_what_was_done_counts_before_what_failed(
    attempt: AttemptArtifacts, read: Read, first: str, second: str, counts: str
) -> None:
    for outcome in (first, second):
        ledger.record(attempt.store(), outcome, [Outcome("a", 1, outcome)])
    assert read()["a"][1] == counts


def test_what_is_spared_is_recorded_with_its_size(attempt: AttemptArtifacts, read: Read) -> None:
    """Whole tables at once, among records of other tasks."""
    spared = pa.table(
        {"address": ["b", "a"], "size": [2, 1], "why": ["it is staged", "it is held"]}
    )
    ledger.record(attempt.store(), "1", [Outcome("c", 3, "deleted"), Outcome("a", 1, "failed")])
    ledger.record_spared(attempt.store(), "spared", spared)
    assert read() == {
        "a": (1, "spared", None, "it is held"),
        "b": (2, "spared", None, "it is staged"),
        "c": (3, "deleted", None, None),
    }
    done = ledger.done(ledger.read(attempt))
    assert sorted(done["address"].to_pylist()) == ["a", "b", "c"]


def test_what_failed_is_not_done(attempt: AttemptArtifacts) -> None:
    ledger.record(attempt.store(), "1", [Outcome("a", 1, "failed"), Outcome("b", 1, "deleted")])
    assert ledger.done(ledger.read(attempt))["address"].to_pylist() == ["b"]


_NAMES = st.sampled_from(["deleted", "already_missing", "spared", "failed"])


@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), _NAMES), max_size=4), max_size=4))
def test_any_records(batches: list[list[tuple[str, str]]]) -> None:
    """Against the rule, told one record at a time."""
    tables, best = [], dict[str, tuple[int, int, str]]()
    for at, batch in enumerate(batches):
        rows = [
            {"address": a, "size": 1, "outcome": o, "at": datetime.fromtimestamp(at, timezone.utc)}
            for a, o in dict(batch).items()
        ]
        tables.append(pa.Table.from_pylist(rows, schema=ledger.SWEPT))
        for row in rows:
            outcome = str(row["outcome"])
            rank = 2 if outcome == "deleted" else int(outcome != "failed")
            found = (rank, at, outcome)
            best[str(row["address"])] = max(best.get(str(row["address"]), found), found)
    rows = pa.concat_tables([ledger.SWEPT.empty_table(), *tables])
    one_each = best_of_each(rows, ledger.outcome_rank)
    rows_read = [(row["address"], row["outcome"]) for row in one_each.to_pylist()]
    assert sorted(rows_read) == sorted((a, outcome) for a, (_, _, outcome) in best.items())


def test_of_two_failures_the_last_counts(attempt: AttemptArtifacts, read: Read) -> None:
    for code in ("First", "Second"):
        ledger.record(attempt.store(), code, [Outcome("a", 1, "failed", code)])
    assert read()["a"][2] == "Second"


def test_a_record_that_was_cut_short_does_not_count(
    attempt: AttemptArtifacts, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies while it records leaves no row, and nothing that cannot be read."""
    ledger.record(attempt.store(), "1", [Outcome("a", 1, "deleted")])

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("lakegc_assets.storage.local.replace", die)
        patch.setattr("lakegc_assets.storage.local.remove_if_there", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            ledger.record(attempt.store(), "2", [Outcome("b", 1, "deleted")])
    left = list(Path(attempt.url, ledger.ASSET, "ledger").iterdir())
    assert any(path.name.startswith(".lakegc-tmp-") for path in left)
    assert set(read()) == {"a"}


@given(st.floats(0, 1, exclude_max=True))
def test_a_bit_that_is_not_what_it_was_is_told_or_changes_nothing(where: float) -> None:
    with TemporaryDirectory() as folder:
        store = LocalStore(Path(folder), "file:///lake")
        ledger.record(store, "1", [Outcome("a", 1, "deleted", version="é"), Outcome("b", 2, "no")])
        key = "swept_set/ledger/1.parquet"
        whole, content = read_rows(store, key, ledger.SWEPT), bytearray(store.get(key))
        bit = int(where * 8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        store.put(key, bytes(content))
        with suppress(IntegrityError):
            assert read_rows(store, key, ledger.SWEPT) == whole


def test_a_damaged_ledger_is_told(attempt: AttemptArtifacts, read: Read) -> None:
    ledger.record(attempt.store(), "1", [Outcome("a", 1, "deleted")])
    (file,) = Path(attempt.url, ledger.ASSET, "ledger").iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(IntegrityError, match=r"1\.parquet is damaged .*Restore the file"):
        read()


def test_a_listing_that_ends_early_hides_nothing(
    attempt: AttemptArtifacts, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deleted object without a record would not be looked at."""
    names = [f"data/{number}" for number in range(7)]
    for name in names:
        ledger.record(attempt.store(), name.replace("/", "-"), [Outcome(name, 1, "deleted")])
    real = LocalStore.list

    def cut(*asked: Any, **bounds: Any) -> Iterator[pa.RecordBatch]:
        yield from (page.slice(0, 2) for page in islice(real(*asked, **bounds), 1))

    monkeypatch.setattr(LocalStore, "list", cut)
    assert sorted(read()) == names
