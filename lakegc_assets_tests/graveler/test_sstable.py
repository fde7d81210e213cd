from __future__ import annotations

from collections.abc import Callable

import pytest

from lakegc_assets.graveler.decode import decode_range
from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.graveler.ranges import read_metarange, read_range, write_metarange, write_range
from lakegc_assets.graveler.sstable import INDEX_TYPE, Record, read_sstable
from lakegc_assets.graveler.sstable_writer import SSTableWriter, write_sstable
from lakegc_assets_tests.conformance.recorder import RECORDED, conforms
from lakegc_assets_tests.graveler.samples import (
    EMPTY,
    PEBBLE,
    TWO_LEVEL,
    blocks,
    entry,
    reseal,
    smallest,
    store_plain,
    tables,
)


@conforms(
    RECORDED,
    "Ranges",
    client="recording",
    checked="each recorded range, written again from its records, byte for byte",
)
def test_every_recorded_range_is_written_again_byte_for_byte() -> None:
    ranges = tables("ranges")
    assert len(ranges) > 50
    for name, data in ranges.items():
        info, written = write_range(read_range(data, name))
        assert (info.id, written) == (name, data)


@conforms(
    RECORDED,
    "Metaranges",
    client="recording",
    checked="each recorded metarange, written again, byte for byte",
)
def test_every_recorded_metarange_is_written_again_byte_for_byte() -> None:
    metaranges = tables("metaranges")
    assert len(metaranges) > 50
    for name, data in metaranges.items():
        assert write_metarange(read_metarange(data, name)) == (name, data)


def test_a_metarange_says_of_its_ranges_what_their_writer_says() -> None:
    ranges = tables("ranges")
    infos = [
        info for name, data in tables("metaranges").items() for info in read_metarange(data, name)
    ]
    assert {info.id for info in infos} == ranges.keys()
    for info in infos:
        assert write_range(read_range(ranges[info.id], info.id))[0] == info


def test_a_two_level_index_is_written_as_pebble_writes_it() -> None:
    data = (PEBBLE / TWO_LEVEL).read_bytes()
    table = read_sstable(data, TWO_LEVEL)
    assert table.properties[INDEX_TYPE][0] == 2
    assert table.properties["rocksdb.index.partitions"] == b"\x05"
    assert write_range(read_range(data, TWO_LEVEL))[1] == data


def test_a_metarange_without_ranges_is_written_as_pebble_writes_it() -> None:
    data = (PEBBLE / EMPTY).read_bytes()
    assert read_metarange(data, EMPTY) == []
    assert write_metarange([]) == (EMPTY, data)


def test_a_long_range_has_a_two_level_index_and_reads_back() -> None:
    items = [(f"{'x' * 90}/{number:08}", entry(number)) for number in range(3000)]
    info, data = write_range(items)
    assert read_sstable(data, info.id).properties[INDEX_TYPE][0] == 2
    assert read_range(data, info.id) == items
    assert (info.count, info.min_key) == (3000, items[0][0].encode())
    assert info.max_key == items[-1][0].encode()


def test_blocks_without_compression_have_the_same_records_and_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    items = [(f"path/{number:05}", entry(number)) for number in range(100)]
    info, compressed = write_range(items)
    store_plain(monkeypatch)
    plain_info, plain = write_range(items)
    assert len(plain) > 2 * len(compressed)
    assert plain_info.id == info.id
    assert read_range(plain, info.id) == items


@pytest.mark.parametrize(
    "keys",
    [
        [b"", b"\x01", b"\x01\x00"],
        [b"a", b"a\x01", b"a\x01\x00\x00", b"a\x01\x00\x00\x00\x00\x00\x00\x00\x00"],
        [b"\xff", b"\xff\xff", b"\xff\xff\xff"],
        [b"a\xff\xff" + bytes([n]) * 3000 for n in range(5)],
    ],
)
def test_awkward_keys_read_back(keys: list[bytes]) -> None:
    records = [Record(key, b"identity", b"value" * 300) for key in keys]
    name, data = write_sstable(records, "ranges", {"made by": "a test"})
    table = read_sstable(data, name)
    assert table.records == records
    assert table.metadata == {"type": "ranges", "made by": "a test"}


def test_keys_out_of_order_are_refused() -> None:
    writer = SSTableWriter("ranges")
    writer.add(Record(b"b", b"", b""))
    for key in (b"b", b"a"):
        with pytest.raises(ValueError, match="does not follow"):
            writer.add(Record(key, b"", b""))
    with pytest.raises(ValueError, match="no empty ranges"):
        write_range([])


def test_a_file_of_the_other_kind_is_named_as_such() -> None:
    with pytest.raises(FormatError, match="holds metaranges, not ranges"):
        read_range(smallest("metaranges")[1], "x")
    with pytest.raises(FormatError, match="holds ranges, not metaranges"):
        read_metarange(smallest("ranges")[1], "x")
    _, other = write_sstable([], "ranges", {})
    changed = other.replace(b"ranges", b"tigers")
    offset, length = next((o, n) for o, n in blocks(other).items() if b"ranges" in other[o : o + n])
    with pytest.raises(FormatError, match="of type b'tigers'"):
        read_range(reseal(bytearray(changed), offset, length), "x")


def test_a_dump_of_refs_is_named_as_such() -> None:
    name, data = write_sstable([Record(b"b", b"i", b"v")], "ranges", {"entity": "branches"})
    with pytest.raises(FormatError, match=r"dump of refs \(branches\)"):
        read_range(data, name)


@pytest.mark.parametrize("folder", ["", "_lakefs/", "local://a\nnamespace/_lakefs/"])
@pytest.mark.parametrize("read", [read_range, decode_range])
def test_a_file_under_another_files_name_is_refused(
    read: Callable[[bytes, str], object], folder: str
) -> None:
    (first, data), (second, _) = list(tables("ranges").items())[:2]
    with pytest.raises(FormatError, match=f"the content has the id {first}"):
        read(data, f"{folder}{second}")
    assert read_range(data, f"s3://lab/small/_lakefs/{first}")
