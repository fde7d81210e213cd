"""What the simulation puts in the place of slower things does the same."""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.engine.datasets import Part
from lakegc_assets.run import hashing, sets
from lakegc_assets.run.artifacts import Manifest
from lakegc_assets.run.settings import Settings
from lakegc_assets.sweep.lease_record import LeaseRecord
from lakegc_assets_tests.simulation import encoding, rows, seams, simpler
from lakegc_assets_tests.simulation.choices import Choices
from lakegc_assets_tests.simulation.encoding import Files
from lakegc_assets_tests.simulation.interleaving import interleave
from lakegc_assets_tests.simulation.lake import Lake
from lakegc_assets_tests.simulation.store import Bucket, Kept
from lakegc_assets_tests.simulation.world import BASE, World


@given(st.lists(st.text()), st.integers(0, 2**64 - 1))
def test_hashes_are_those_of_the_kernel(strings: list[str], offset: int) -> None:
    array = pa.array([s.encode("utf-8", "replace").decode() for s in strings], pa.string())
    expected = hashing._of_array(array, np.uint64(offset))
    assert np.array_equal(simpler.hashes_of(array, np.uint64(offset)), expected)


def test_a_key_that_is_null_has_no_hash_here_either() -> None:
    with pytest.raises(ValueError, match="null"):
        simpler.hashes_of(pa.array(["one", None]), np.uint64(1))


def test_files_hold_what_was_written_and_cut_ones_nothing() -> None:
    files, table = Files(), pa.table({"address": ["one", "two"], "size": [1, 2]})
    with encoding.among(files):
        data = encoding.encoded(table)
        assert encoding.read_table(pa.BufferReader(data)).to_pylist() == table.to_pylist()
        assert encoding.read_table(pa.BufferReader(data), ["size"]).column_names == ["size"]
        assert encoding.encoded(table) != data
        with pytest.raises(pa.ArrowInvalid):
            encoding.read_table(pa.BufferReader(data[:-1]))


def test_equal_sets_have_equal_bytes() -> None:
    files = Files()
    one, two = ({"hash": pa.array([7, number], pa.uint64())} for number in (8, 9))
    assert files.encoded(pa.table(one)) == files.encoded(pa.table(one))
    assert files.encoded(pa.table(one)) != files.encoded(pa.table(two))
    assert files.encoded(pa.table({"other": one["hash"]})) != files.encoded(pa.table(one))


def test_a_copy_of_files_begins_with_the_same_and_goes_its_own_way() -> None:
    files = Files()
    data = files.encoded(pa.table({"a": [1], "b": [2]}))
    copied = files.copy()
    assert copied.rows(data).num_rows == 1
    more = copied.encoded(pa.table({"a": [3], "b": [4]}))
    with pytest.raises(pa.ArrowInvalid):
        files.rows(more)


def test_a_lease_is_read_as_it_was_written() -> None:
    lease = LeaseRecord("token", {"host": "one"}, BASE, renewed=2, round=3)
    assert simpler.lease_of(lease.to_bytes(), "somewhere") == lease


def test_a_manifest_that_was_encoded_has_the_digest_of_its_bytes() -> None:
    now = BASE
    manifest = Manifest(
        *("asset", "repo", "run", "attempt", "s3://lake/repo", now, now, now, 1, "digest"),
        parts={"data": [Part("key", 1, 2, "sha256")]},
        previous="",
        settings=Settings().to_json(),
        facts={"b": [1, None], "a": {"x": 1.5}},
    )
    with seams.installed():
        read = Manifest.from_bytes(manifest.to_bytes(), "somewhere")
        assert read.sha256 == manifest.sha256
        assert Manifest.from_bytes(b" " + manifest.to_bytes(), "somewhere").sha256 == read.sha256


@given(st.lists(st.text()))
def test_digests_are_those_of_the_kernel(strings: list[str]) -> None:
    array = pa.array([s.encode("utf-8", "replace").decode() for s in strings], pa.string())
    assert simpler.digest_of(array) == hashing.key_digest(array)


_NUMBERS = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3))


@given(st.lists(_NUMBERS), _NUMBERS)
def test_sets_of_hashes_are_those_of_arrays(runs: list[list[int]], asked: list[int]) -> None:
    arrays = [sets.distinct(np.array(run, np.uint64)) for run in runs]
    for run, array in zip(runs, arrays, strict=True):
        found = simpler.distinct(np.array(run, np.uint64))
        assert found.dtype == array.dtype
        assert np.array_equal(found, array)
    wanted = np.array(asked, np.uint64)
    found = simpler.members_of(iter(arrays), wanted)
    assert found.dtype == np.bool_
    assert np.array_equal(found, sets.members_of(arrays, wanted))


@pytest.mark.parametrize(
    "values",
    [
        {"settings": Settings().to_json(), "started": "now", "facts": {"a": [1.5, None, "é"]}},
        {"settings": {}, "started": ""},
        {"settings": {"a": {"started": 1, "z": 2}}, "started": {"started": 3}, "z": 1},
        {"of": {"settings": {"a": 1}, "started": 2}, "started": 3},
        {"settings": 7, "started": "now"},
        [{"settings": {"a": 1}, "started": 2}],
        [1],
    ],
)
def test_json_is_what_it_was_whatever_is_known_of_settings(values: Any) -> None:
    plain = json.dumps(values, sort_keys=True)
    assert simpler._dumps(values, sort_keys=True) == plain
    assert simpler._loads(plain.encode()) == simpler._loads(f" {plain} ") == values
    for cut in (plain[:-1], f"{plain},"):
        with pytest.raises(ValueError, match="line 1"):
            simpler._loads(cut.encode())


def test_what_is_read_of_settings_may_be_changed() -> None:
    data = json.dumps({"settings": {"a": 1}, "started": 2}).encode()
    simpler._loads(data)["settings"]["a"] = 2
    assert simpler._loads(data)["settings"] == {"a": 1}


def test_the_arrays_of_hashes_that_are_kept_cannot_be_written_to() -> None:
    hashes = simpler.hashes_of(pa.array(["one"]), np.uint64(1))
    with pytest.raises(ValueError, match="read-only"):
        hashes[0] = 0


def test_rows_that_somebody_says_something_of_are_a_file_of_their_own() -> None:
    files = Files()
    table = rows.table({"address": ["one"]})
    said = table.replace_schema_metadata({"why": "wanted"})
    assert files.encoded(table) != files.encoded(said)
    assert files.rows(files.encoded(said)).schema.metadata == {b"why": b"wanted"}


def test_a_bucket_knows_its_keys_in_order() -> None:
    kept = Kept(b"", "", BASE, 0)
    bucket = Bucket(dict.fromkeys(("d/b", "d/a", "e"), kept))
    assert bucket.between("d/", None, None) == ["d/a", "d/b"]
    bucket["d/ab"] = bucket["d"] = bucket["d/ab"] = kept
    del bucket["d/b"]
    assert bucket.pop("e") is kept
    assert bucket.pop("e", None) is None
    assert bucket.between("", None, None) == sorted(bucket) == ["d", "d/a", "d/ab"]
    assert bucket.between("d", "d", "d/ab") == ["d/a"]
    assert bucket.between("d/", "a", "z") == ["d/a", "d/ab"]


def test_a_list_that_is_kept_is_what_is_there() -> None:
    def listed(prefix: str, *ends: str | None) -> list[str]:
        pages = store.list(prefix, *ends)
        return [key for page in pages for key in page["key"].to_pylist()]

    asked: list[tuple[str | None, ...]] = [("",), ("d/",), ("", "d/a", None), ("", None, "d/b")]
    world = World(Choices(), Lake(), {"lake": {}, "artifacts": {}})
    world.ask = lambda *_: ""  # type: ignore[method-assign]
    store = world.store("s3://lake/repo")
    for change in ("+d/b", "+d/a", "+e", "-d/a", "+d/c/f", "+d/c/g", "=d/b", "-d/b"):
        if change.startswith("-"):
            del world.buckets["lake"][f"repo/{change[1:]}"]
        else:
            world.write_directly(change[1:], change.encode())
        there = sorted(key.removeprefix("repo/") for key in world.buckets["lake"])
        for prefix, *ends in asked:
            after, before = [*ends, None, None][:2]
            assert listed(prefix or "", after, before) == [
                key
                for key in there
                if key.startswith(prefix or "")
                and (after is None or key > after)
                and (before is None or key < before)
            ]
        sizes = {key: one.size for key, one in world.buckets["lake"].items()}
        rows = [row for page in store.list() for row in page.to_pylist()]
        assert {f"repo/{row['key']}": row["size"] for row in rows} == sizes
    assert store.list_prefixes("d/").prefixes == ["d/c/"]
    assert store.list_prefixes().prefixes == ["d/"]


def test_a_world_that_is_forgotten_is_freed_at_once() -> None:
    with seams.installed():
        ended = interleave(Choices())
    bucket = weakref.ref(ended.world.buckets["lake"])
    gc.disable()
    try:
        ended.world.forget()
        assert bucket() is None
    finally:
        gc.enable()


def test_an_interleaving_knows_nothing_of_earlier_ones() -> None:
    def told(seed: int) -> list[str]:
        lines: list[str] = []
        interleave(Choices(seed), lines.append)
        return lines

    with seams.installed():
        first = told(3)
        for seed in range(4, 8):
            interleave(Choices(seed))
        assert told(3) == first
