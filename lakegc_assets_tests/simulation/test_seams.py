"""What the simulation puts in the place of slower things does the same."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.run import hashing
from lakegc_assets.run.artifacts import Manifest
from lakegc_assets.run.parts import Part
from lakegc_assets.run.settings import Settings
from lakegc_assets.sweep.lease import LeaseRecord
from lakegc_assets_tests.simulation import encoding, rows, seams, simpler
from lakegc_assets_tests.simulation.choices import Choices
from lakegc_assets_tests.simulation.encoding import Files
from lakegc_assets_tests.simulation.interleaving import interleave
from lakegc_assets_tests.simulation.store import Bucket, Kept
from lakegc_assets_tests.simulation.world import BASE


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
