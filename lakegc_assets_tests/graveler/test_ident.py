from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest

from lakegc_assets.graveler import ident
from lakegc_assets.graveler.entry import (
    Timestamp,
    decode_entry,
    decode_range_data,
    encode_entry,
    encode_range_data,
    entry_identity,
)
from lakegc_assets.graveler.ranges import is_range_break
from lakegc_assets.graveler.sstable import read_sstable
from lakegc_assets_tests.graveler.samples import GOLDEN, entry, tables


def test_every_recorded_commit_has_its_id() -> None:
    seen = set()
    for file in GOLDEN.glob("*/api/commit.*.json"):
        commit = json.loads(file.read_text())["body"]
        found = ident.commit_id(
            commit["committer"],
            commit["message"],
            commit["meta_range_id"],
            commit["creation_date"],
            commit["metadata"] or {},
            commit["parents"],
        )
        assert found == commit["id"]
        seen.add(len(commit["parents"]))
    assert seen == {0, 1, 2}


def test_every_recorded_entry_has_its_identity_and_is_encoded_again() -> None:
    entries = 0
    for name, data in tables("ranges").items():
        for record in read_sstable(data, name).records:
            decoded = decode_entry(record.value)
            assert entry_identity(decoded) == record.identity
            assert encode_entry(decoded) == record.value
            entries += 1
    assert entries > 800


def test_maps_are_hashed_by_the_bytes_of_their_keys() -> None:
    encoded = ident.encode_string_map({"\U0001f600": "2", "\uffff": "1"})
    assert encoded == ident.encode_string_map({"\uffff": "1", "\U0001f600": "2"})
    assert encoded.index(b"\xef\xbf\xbf") < encoded.index(b"\xf0\x9f")


def test_the_address_and_the_time_are_no_part_of_the_identity() -> None:
    one, other = entry(1), entry(2)
    assert entry_identity(one) != entry_identity(other)
    like = ident.entry_identity(one.size, one.e_tag, one.metadata, one.content_type)
    assert entry_identity(one) == like
    assert ident.entry_identity(1, "x", {}, "") != ident.entry_identity(1, "x", {}, "text/plain")


def test_range_data_is_read_as_it_was_written() -> None:
    data = b"\xff", b"\xff\x00", 2**63, 7
    assert decode_range_data(encode_range_data(*data)) == data
    for decode in (decode_range_data, decode_entry):
        with pytest.raises(ValueError, match="pars"):
            decode(b"\x0a\x05abc")


def test_timestamps_are_exact() -> None:
    moment = datetime(2026, 11, 21, 4, 40, 35, 123456, tzinfo=timezone.utc)
    assert Timestamp.of(moment) == (1_795_236_035, 123_456_000)
    before = datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=timezone(timedelta(hours=2)))
    assert Timestamp.of(before) == (-7201, 1000)


def test_ranges_break_by_fnv_1a() -> None:
    assert is_range_break(b"foobar", 0x85944171F73967E8)
    assert not is_range_break(b"foobar", 0x85944171F73967E9)
    breaks = sum(is_range_break(b"path/%d" % number, 50) for number in range(10_000))
    assert 150 < breaks < 250
