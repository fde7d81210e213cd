"""What is alive, and why, is what the twin says, on every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegc_assets.engine.datasets import read_values, write_part
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.mark.live_sets import LiveSets
from lakegc_assets.mark.references import REFERENCES
from lakegc_assets.mark.relations import came_back, referenced, still_live
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import HASHES
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.frames import Frames, same
from lakegc_assets_tests.mark import twins

MARKED = pa.schema([("address", pa.string()), *HASHES, ("size", pa.int64())])
LAST_PARTS = pa.schema([("last_part", pa.string())])
NAMED = pa.schema([("address", pa.string()), ("why", pa.string())])
NAMES = pa.schema([("name", pa.string())])
FOUND = pa.schema([*NAMED, ("size", pa.int64()), ("certain", pa.bool_())])

ADDRESS = st.sampled_from(
    ["", "data/a", "data/s/a", "data/s\n/a/b", "data//a", "data/s/'\"\U0001f600", "data/s/\uffff"]
)
HASH = st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)])
WHY = st.sampled_from([
    "an active commit holds it now", "it is staged on a branch now", "pinned",
    "pinned until 2026-01-02 03:04 UTC: restored", twins.AMBIGUOUS, twins.UNVERIFIED,
    twins.SAME_HASH, "repository 'other' names it by its full address, in a commit",
])  # fmt: skip
LAST_PART = st.sampled_from(["a", "b", "", "'\"\U0001f600"])


def rows(unique: str | None = None, **columns: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    by = None if unique is None else lambda row: row[unique]
    return st.lists(st.fixed_dictionaries(columns), max_size=8, unique_by=by)


OBJECTS = rows("address", address=ADDRESS, hash=HASH, size=st.integers(0, 3) | st.just(2**60))
LIVE = rows(hash=HASH)


def test_what_is_alive_is_found_with_its_surest_reason(frames: Frames) -> None:
    @settings(max_examples=frames.examples)
    @given(OBJECTS, LIVE, LIVE, rows(last_part=LAST_PART), rows(address=ADDRESS, why=WHY))
    def check(marked: Any, live: Any, staged: Any, unresolved: Any, named: Any) -> None:
        objects, four = frames.of(marked, MARKED), frames.of(named, NAMED)
        whys = ("an active commit holds it now", twins.SAME_HASH)
        one, two = frames.of(live, HASHES), frames.of(staged, HASHES)
        three = frames.of(unresolved, LAST_PARTS)
        found = came_back(objects, [(one, whys[0]), (two, whys[1])], [three], [four])
        sets = [(live, whys[0]), (staged, whys[1])]
        assert same(frames.rows(found, FOUND), twins.came_back(marked, sets, [unresolved], [named]))
        alone = came_back(objects, [], [], [four])
        assert same(frames.rows(alone, FOUND), twins.came_back(marked, [], [], [named]))

    check()


def test_what_is_alive_is_found_from_the_other_side(frames: Frames) -> None:
    @settings(max_examples=frames.examples)
    @given(OBJECTS, LIVE, LIVE, rows(last_part=LAST_PART), rows(address=ADDRESS, why=WHY))
    def check(objects: Any, live: Any, staged: Any, unresolved: Any, named: Any) -> None:
        of = frames.of(objects, MARKED)
        sets = [frames.of(live, HASHES), frames.of(staged, HASHES)]
        ends, names = [frames.of(unresolved, LAST_PARTS)], [frames.of(named, NAMED)]
        every = frames.rows(still_live(of, sets, ends, names, 100), NAMES)
        twin = twins.still_live(objects, [live, staged], [unresolved], [named], 100)
        assert same(every, twin)
        one = frames.rows(still_live(of, sets, [], [], 1), NAMES)
        assert len(one) == len(twins.still_live(objects, [live, staged], [], [], 1))

    check()


@pytest.mark.parametrize("by", ["nothing", "a hash", "a last part", "a name", "a reference"])
def test_what_one_set_alone_holds_is_alive_and_not_dead(
    by: str, frames: Frames, tmp_path: Path
) -> None:
    store, session = open_store(str(tmp_path)), frames.session
    rows = [{"address": f"data/{n}", "hash": n, "size": n} for n in range(2)]
    parts = [write_part(store, "objects/", pa.Table.from_pylist(rows, MARKED))]
    named = pa.table({"address": ["data/1"], "why": ["pinned"]})
    reference = {"address": "data/1", "repository": "other", "held": "staged"}
    sets: list[tuple[Any, list[dict[str, Any]]]] = [
        (HASHES, [{"hash": 1}] if by == "a hash" else []),
        (REFERENCES, [reference] if by == "a reference" else []),
    ]
    hashes, references = (
        [write_part(store, "sets/", pa.Table.from_pylist(some, of))] for of, some in sets
    )
    root = ArtifactRoot(str(tmp_path), StoreConfig())
    alive = LiveSets(
        RunContext("repo", "run", Settings(engine="embedded"), LakeFSConfig(), root, _no_spark),
        store.url,
        {"an active commit holds it": hashes},
        {"1"} if by == "a last part" else set(),
        [named if by == "a name" else named.slice(1)],
        references,
    )
    objects = Dataset(store.url, parts, MARKED)
    found = alive.came_back(session, objects, "found/")
    addresses = [row["address"] for part in found.parts for row in read_values(store, part)]
    alive.require_dead(session, objects, found)
    if by == "nothing":
        assert not addresses
        alive.require_dead(session, objects)
        return
    assert addresses == ["data/1"]
    with pytest.raises(IntegrityError, match="embedded has lost rows in run 'run' of 'repo': live"):
        alive.require_dead(session, objects)


def _no_spark() -> Any:
    raise AssertionError


def test_what_other_repositories_name(frames: Frames) -> None:
    @settings(max_examples=frames.examples)
    @given(
        rows(
            address=ADDRESS,
            repository=st.sampled_from(["a", "b-c"]),
            held=st.sampled_from(["committed", "staged"]),
        )
    )
    def check(references: Any) -> None:
        found = referenced(frames.of(references, REFERENCES))
        assert same(frames.rows(found, NAMED), twins.referenced(references))

    check()


def test_each_input_alone_finds_what_is_alive(frames: Frames) -> None:
    """What is drawn may leave out the one that an input is about."""
    why = twins.SAME_HASH
    marked = [{"address": f"data/s/{n}", "hash": n, "size": n} for n in range(6)]
    sets = [([{"hash": 0}, {"hash": 1}], "live"), ([{"hash": 1}, {"hash": 2}], why)]
    ends = [[{"last_part": "2"}, {"last_part": "3"}]]
    named = [[{"address": marked[n]["address"], "why": why} for n in some] for some in ([3], [4])]
    frame = frames.of(marked, MARKED)
    live = [(frames.of(rows, HASHES), text) for rows, text in sets]
    parts = [frames.of(rows, LAST_PARTS) for rows in ends]
    names = [frames.of(rows, NAMED) for rows in named]
    found = frames.rows(came_back(frame, live, parts, names), FOUND)
    assert same(found, twins.came_back(marked, sets, ends, named))
    assert {row["size"] for row in found} == {0, 1, 2, 3, 4}
    hashes = [rows for rows, _ in sets]
    again = frames.rows(still_live(frame, [one for one, _ in live], parts, names, 99), NAMES)
    assert same(again, twins.still_live(marked, hashes, ends, named, 99))
    assert len(again) == 8
