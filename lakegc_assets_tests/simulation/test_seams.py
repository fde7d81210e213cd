"""What the simulation puts in the place of slower things does the same."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.run import hashing
from lakegc_assets.sweep.lease import LeaseRecord
from lakegc_assets_tests.simulation import encoding, seams
from lakegc_assets_tests.simulation.choices import Choices
from lakegc_assets_tests.simulation.encoding import Files
from lakegc_assets_tests.simulation.interleaving import interleave
from lakegc_assets_tests.simulation.world import BASE


@given(st.lists(st.text()), st.integers(0, 2**64 - 1))
def test_hashes_are_those_of_the_kernel(strings: list[str], offset: int) -> None:
    array = pa.array([s.encode("utf-8", "replace").decode() for s in strings], pa.string())
    expected = hashing._of_array(array, np.uint64(offset))
    assert np.array_equal(seams._hashes_of(array, np.uint64(offset)), expected)


def test_a_key_that_is_null_has_no_hash_here_either() -> None:
    with pytest.raises(ValueError, match="null"):
        seams._hashes_of(pa.array(["one", None]), np.uint64(1))


def test_files_hold_what_was_written_and_cut_ones_nothing() -> None:
    files, rows = Files(), pa.table({"address": ["one", "two"], "size": [1, 2]})
    with encoding.among(files):
        data = encoding.encoded(rows)
        assert encoding.read_table(pa.BufferReader(data)).equals(rows)
        assert encoding.read_table(pa.BufferReader(data), ["size"]).column_names == ["size"]
        assert encoding.encoded(rows) != data
        with pytest.raises(pa.ArrowInvalid):
            encoding.read_table(pa.BufferReader(data[:-1]))


def test_files_in_arrow_s_own_form_are_read_without_a_world() -> None:
    rows = pa.table({"address": ["one", "two"], "size": [1, 2]})
    data = encoding.encoded(rows)
    assert encoding.read_table(pa.BufferReader(data)).equals(rows)
    assert encoding.rows_of(None, data).equals(rows)
    with pytest.raises(pa.ArrowInvalid):
        encoding.read_table(pa.BufferReader(data[:20]))


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
    assert seams._lease(lease.to_bytes(), "somewhere") == lease


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
