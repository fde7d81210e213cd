"""Commits, merges, diffs and scans of trees do what plain dictionaries do."""

from __future__ import annotations

import hashlib
import tempfile
from bisect import bisect_left

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegc_assets.embedded.errors import ApiError
from lakegc_assets.embedded.lake.trees import Breaks, Trees, commit_changes
from lakegc_assets.embedded.refs.merging import differences, merge
from lakegc_assets.graveler.ranges import is_range_break
from lakegc_assets.graveler.sstable import Record
from lakegc_assets.storage.opening import open_store

Model = dict[bytes, int]

KEYS = st.integers(0, 40).map(lambda number: b"k/%02d" % number)
CHANGES = st.dictionaries(KEYS, st.one_of(st.none(), st.integers(0, 2)), max_size=25)
RAGGEDNESS = 4


def record(key: bytes, value: int) -> Record:
    """Values of one number have one identity, whatever their key; as entries have."""
    return Record(key, hashlib.sha256(b"%d" % value).digest(), b"value %d" % value)


def applied(model: Model, changes: dict[bytes, int | None]) -> Model:
    return {key: value for key, value in {**model, **changes}.items() if value is not None}


def commit(trees: Trees, base: str, changes: dict[bytes, int | None]) -> tuple[str, bool]:
    records = [(k, None if v is None else record(k, v)) for k, v in sorted(changes.items())]
    return commit_changes(trees, base, records)


def content(trees: Trees, tree: str, start: bytes = b"") -> Model:
    return {found.key: int(found.value.split()[1]) for found in trees.scan(tree, start)}


def new_trees(folder: str) -> Trees:
    return Trees(open_store(folder), Breaks(RAGGEDNESS, 1 << 20))


@settings(max_examples=60)
@given(st.lists(CHANGES, max_size=5), KEYS)
def test_commits_are_what_the_changes_say(
    history: list[dict[bytes, int | None]], start: bytes
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trees = new_trees(folder)
        tree, model = "", Model()
        for changes in history:
            before, old = tree, model
            model = applied(model, changes)
            tree, changed = commit(trees, tree, changes)
            assert changed == (model != old)
            assert content(trees, tree) == model
            expected = {k: (old.get(k), model.get(k)) for k in old.keys() | model.keys()}
            found = {
                d.key: tuple(
                    None if r is None else int(r.value.split()[1]) for r in (d.left, d.right)
                )
                for d in differences(trees, before, tree)
            }
            assert found == {k: v for k, v in expected.items() if v[0] != v[1]}
            late = [d.key for d in differences(trees, before, tree, start)]
            assert late == sorted(k for k in found if k >= start)
        # A second reader sees the same files.
        again = new_trees(folder)
        assert content(again, tree, start) == {k: v for k, v in model.items() if k >= start}
        assert again.get(tree, start) == (record(start, model[start]) if start in model else None)
        for info in again.ranges(tree):
            records = again.records(info.id)
            assert info.count == len(records)
            assert not any(is_range_break(r.key, RAGGEDNESS) for r in records[:-1])


@settings(max_examples=80)
@given(CHANGES, CHANGES, CHANGES, st.sampled_from(["", "source-wins", "dest-wins"]))
def test_merges_are_three_way(
    first: dict[bytes, int | None],
    ours: dict[bytes, int | None],
    theirs: dict[bytes, int | None],
    strategy: str,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trees = new_trees(folder)
        base, _ = commit(trees, "", first)
        source, _ = commit(trees, base, ours)
        dest, _ = commit(trees, base, theirs)
        b = applied({}, first)
        s, d = applied(b, ours), applied(b, theirs)
        conflicts = {
            k
            for k in b.keys() | s.keys() | d.keys()
            if s.get(k) != d.get(k) and b.get(k) not in (s.get(k), d.get(k))
        }
        winner = s if strategy == "source-wins" else d
        expected = {}
        for key in b.keys() | s.keys() | d.keys():
            chosen = winner if key in conflicts else (s if d.get(key) == b.get(key) else d)
            if key in chosen:
                expected[key] = chosen[key]
        if conflicts and not strategy:
            with pytest.raises(ApiError, match="conflict found"):
                merge(trees, base=base, source=source, dest=dest, strategy=strategy)
        else:
            merged = merge(trees, base=base, source=source, dest=dest, strategy=strategy)
            assert content(trees, merged) == expected


@settings(max_examples=30)
@given(st.sets(st.binary(min_size=1, max_size=6), min_size=1, max_size=60), st.binary(min_size=1))
def test_unchanged_ranges_are_shared(keys: set[bytes], changed: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trees = new_trees(folder)
        base, _ = commit(trees, "", dict.fromkeys(keys, 1))
        after, _ = commit(trees, base, {changed: 2})
        old = trees.ranges(base)
        entered = bisect_left([r.max_key for r in old], changed)
        kept = {r.id for number, r in enumerate(old) if number != entered}
        assert kept <= {r.id for r in trees.ranges(after)}
