"""Sets of hashes hold what was put in, and nothing is taken for a member by mistake."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.errors import IntegrityError
from lakegc_assets.run import sets
from lakegc_assets.run.hashing import Hashes
from lakegc_assets.run.sets import (
    members,
    members_of,
    read_run,
    union,
    write_set,
)
from lakegc_assets.storage.opening import open_store

NUMBERS = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 20), max_size=60)


def hashes(numbers: list[int]) -> Hashes:
    return np.array(numbers, np.uint64)


@given(st.lists(NUMBERS, max_size=4), NUMBERS)
def test_members_are_those_of_any_run(runs: list[list[int]], wanted: list[int]) -> None:
    found = members_of([union([hashes(run)]) for run in runs], hashes(wanted))
    there = {number for run in runs for number in run}
    assert found.tolist() == [number in there for number in wanted]


def test_a_set_is_written_in_runs_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sets, "RUN_LENGTH", 10)
    store = open_store(str(tmp_path))
    numbers = [n * 2**58 for n in range(31)]
    runs = write_set(store, "set/", [hashes(numbers), hashes(numbers[:5])])
    assert [run.rows for run in runs] == [10, 10, 10, 1]
    wanted = hashes([*numbers[::3], 7, 2**63 + 1])
    assert members(store, runs, wanted).tolist() == [True] * 11 + [False] * 2
    assert write_set(store, "none/", []) == []


def test_a_run_that_changed_or_is_gone_stops_the_reader(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    changed, gone = (write_set(store, "s/", [hashes([n, n + 1])])[0] for n in (5, 7))
    path = tmp_path / changed.key
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(IntegrityError, match="something changed it"):
        read_run(store, changed)
    (tmp_path / gone.key).unlink()
    with pytest.raises(IntegrityError, match="something removed it"):
        members(store, [gone], hashes([7]))
