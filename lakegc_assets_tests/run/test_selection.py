"""A selection has the rows of its parts, but for exactly the addresses that are left out."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.engine.datasets import Part, write_part
from lakegc_assets.errors import IntegrityError
from lakegc_assets.run.selection import Selection
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.opening import open_store


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(f"file://{tmp_path}/artifacts")


def written(store: ObjectStore, addresses: list[str]) -> Part:
    sizes = pa.array(range(len(addresses)), pa.int64())
    table = pa.table({"address": pa.array(addresses, pa.string()), "size": sizes})
    return write_part(store, "any/", table)


def test_what_is_done_or_spared_is_left_out_and_nothing_else(store: ObjectStore) -> None:
    first = written(store, ["data/a", "data/b", "data/é"])
    second = written(store, ["data/c", "data/b "])
    done, spared = written(store, ["data/b", "data/x"]), written(store, ["data/é", "data/c"])
    selection = Selection([first, second], [done, spared])
    assert selection.read(store, first).to_pydict() == {"address": ["data/a"], "size": [0]}
    assert selection.read(store, second, ["address"]).to_pydict() == {"address": ["data/b "]}
    assert Selection([first]).read(store, first).num_rows == 3
    assert selection.rows == 5


def test_nothing_left_out_leaves_all(store: ObjectStore) -> None:
    first, nothing = written(store, ["data/a"]), written(store, [])
    assert Selection([first], [nothing]).read(store, first)["address"].to_pylist() == ["data/a"]
    assert Selection([first], [first]).read(store, first).num_rows == 0


@pytest.mark.parametrize("which", ["parts", "without"])
def test_a_file_that_is_not_what_it_was_is_refused(which: str, store: ObjectStore) -> None:
    rows, done = written(store, ["data/a"]), written(store, ["data/b"])
    changed = rows if which == "parts" else done
    store.put(changed.key, store.get(changed.key) + b"x")
    with pytest.raises(IntegrityError):
        Selection([rows], [done]).read(store, rows)


@given(st.lists(st.integers(0, 40)), st.integers(1, 50))
def test_pieces_are_the_whole(rows: list[int], each: int) -> None:
    parts = [Part(str(number), count, 1, "") for number, count in enumerate(rows)]
    without = [Part("done", 1, 1, "")]
    pieces = Selection(parts, without).pieces(each)
    assert [part for piece in pieces for part in piece.parts] == parts
    assert all(piece.parts and list(piece.without) == without for piece in pieces)
    assert all(piece.rows - piece.parts[-1].rows < each for piece in pieces)
