from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.graveler import ident
from lakegc_assets.graveler.decode import (
    RANGES,
    SCHEMA,
    decode_metarange,
    decode_paths,
    decode_range,
    etag_hash,
    etag_hashes,
)
from lakegc_assets.graveler.entry import (
    AddressType,
    Entry,
    Timestamp,
    encode_range_data,
)
from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.graveler.ranges import RangeInfo, range_record, write_metarange, write_range
from lakegc_assets.graveler.sstable import Record
from lakegc_assets.graveler.sstable_writer import write_sstable
from lakegc_assets_tests.graveler.samples import (
    EMPTY,
    PEBBLE,
    TWO_LEVEL,
    entry,
    fast_ranges,
    fast_rows,
    rows_or_error,
    slow_ranges,
    slow_rows,
    smallest,
    store_plain,
    tables,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
E_TAGS = st.one_of(TEXT, st.from_regex("[0-9a-f]{31,33}|[0-9a-fg]{32}", fullmatch=True))
INT64 = st.integers(-(2**63), 2**63 - 1)
ENTRIES = st.builds(
    Entry,
    address=TEXT,
    last_modified=st.builds(Timestamp, INT64, st.integers(0, 999_999_999)),
    size=INT64,
    e_tag=E_TAGS,
    metadata=st.dictionaries(TEXT, TEXT, max_size=3),
    address_type=st.sampled_from(AddressType),
    content_type=TEXT,
)


def field(number: int, wire: int, content: bytes) -> bytes:
    return bytes([number << 3 | wire]) + content


SHORT = st.binary(max_size=6)
FIELDS = st.one_of(
    st.builds(field, st.integers(1, 9), st.just(0), st.integers(0, 127).map(lambda n: bytes([n]))),
    st.builds(field, st.integers(1, 9), st.just(2), SHORT.map(lambda raw: bytes([len(raw)]) + raw)),
    st.builds(field, st.integers(1, 15), st.integers(0, 7), SHORT),
)


def paths_of(data: bytes, name: str, every: int = 1) -> list[bytes]:
    batch, paths = decode_paths(data, name)
    assert batch.equals(decode_range(data, name))
    return paths.take(np.arange(0, batch.num_rows, every))


def test_every_recorded_range_is_the_same_to_both_readers() -> None:
    for name, data in tables("ranges").items():
        assert fast_rows(data, name) == slow_rows(data, name)


def test_a_two_level_index_is_followed() -> None:
    data = (PEBBLE / TWO_LEVEL).read_bytes()
    assert decode_range(data, TWO_LEVEL).num_rows == 14
    assert fast_rows(data, TWO_LEVEL) == slow_rows(data, TWO_LEVEL)


@given(st.dictionaries(TEXT, ENTRIES, min_size=1, max_size=20))
def test_any_entries_are_the_same_to_both_readers(entries: dict[str, Entry]) -> None:
    items = sorted(entries.items(), key=lambda item: item[0].encode())
    info, data = write_range(items)
    expected = [
        (e.address, int(e.address_type), e.size, etag_hash(e.e_tag), e.last_modified.seconds)
        for _, e in items
    ]
    assert fast_rows(data, info.id) == expected
    assert slow_rows(data, info.id) == expected
    assert paths_of(data, info.id) == [path.encode() for path, _ in items]


@given(st.lists(FIELDS, max_size=6).map(b"".join))
def test_of_any_protobuf_both_readers_say_the_same_or_one_refuses(raw: bytes) -> None:
    record = Record(b"path", ident.entry_identity(0, "", {}, ""), raw)
    name, data = write_sstable([record], "ranges")
    fast, slow = rows_or_error(fast_rows, data, name), rows_or_error(slow_rows, data, name)
    assert fast == slow or isinstance(fast, FormatError) or isinstance(slow, FormatError)


def test_a_range_of_many_chunks_is_decoded_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [(f"{number:06}", entry(number)) for number in range(20_000)]
    store_plain(monkeypatch)
    info, data = write_range(items)
    assert len(data) > 3 << 20
    batch = decode_range(data, info.id)
    assert batch.schema == SCHEMA
    assert batch["address"].to_pylist() == [e.address for _, e in items]
    assert batch["size"].to_pylist() == list(range(20_000))
    for every in (1, 3, 7000):
        assert paths_of(data, info.id, every) == [path.encode() for path, _ in items[::every]]


def test_keys_that_share_much_and_some_the_trailer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind each key stand a 1 and zeros, so a path that goes on with 1 shares those as well."""
    paths = ["a" * 1500 + "\x01" * number for number in range(200)]
    store_plain(monkeypatch)
    info, data = write_range((path, entry(number)) for number, path in enumerate(paths))
    assert fast_rows(data, info.id) == slow_rows(data, info.id)
    assert paths_of(data, info.id, 9) == [path.encode() for path in paths[::9]]
    assert sum(map(len, paths)) > 2 * len(data), "the first guess of the stream's length is enough"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\x30\x03", "unknown address type"),
        (b"\x0a\x05abc", "not a protobuf"),
        (b"\x08\x01", "not a protobuf"),
        (b"\x0b", "not a protobuf"),
        (b"\x18" + b"\xff" * 10, "not a protobuf"),
        (b"\x12\x02\x0a\x00", "not a protobuf"),
        (b"\x0a\x01\xff", "not UTF-8"),
    ],
)
def test_a_damaged_entry_is_refused(raw: bytes, reason: str) -> None:
    good, bad = range_record("a", entry(1)), range_record("b", entry(2))
    name, data = write_sstable([good, bad._replace(value=bad.value + raw)], "ranges")
    with pytest.raises(FormatError, match=reason):
        decode_range(data, name)


def test_other_kinds_of_files_are_named_as_such() -> None:
    name, data = smallest("metaranges")
    with pytest.raises(FormatError, match="type is b'metaranges', not ranges"):
        decode_range(data, name)
    name, data = write_sstable([Record(b"b", b"i", b"v")], "ranges", {"entity": "tags"})
    with pytest.raises(FormatError, match=r"dump of refs \(tags\)"):
        decode_range(data, name)
    with pytest.raises(FormatError, match="the content has the id"):
        decode_range(smallest("ranges")[1], "f" * 64)


@given(st.lists(E_TAGS, max_size=20), st.integers(0, 20))
def test_hashes_of_many_etags_are_those_of_each(e_tags: list[str], start: int) -> None:
    hashes = etag_hashes(pa.array(e_tags, pa.string()).slice(start))
    assert hashes.to_pylist() == [etag_hash(e_tag) for e_tag in e_tags[start:]]


def fnv_1a(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value - 2**64 if value >> 63 else value


@given(E_TAGS)
def test_the_etag_hash_is_fnv_1a_of_what_could_be_an_md5(e_tag: str) -> None:
    assert fnv_1a("foobar") == 0x85944171F73967E8 - 2**64
    could_be = re.fullmatch("[0-9a-f]{32}", e_tag)
    assert etag_hash(e_tag) == (fnv_1a(e_tag) if could_be else 0)


@pytest.mark.parametrize(
    "e_tag",
    ["", "a" * 31, "a" * 33, "A" * 32, "g" * 32, "`" * 32, "/" * 32, ":" * 32, "0" * 32 + "-2",
     "é" * 16, f"{'a' * 31}\n"],
)  # fmt: skip
def test_what_is_no_md5_has_no_hash(e_tag: str) -> None:
    assert etag_hash(e_tag) == 0
    assert etag_hash("0123456789abcdef" * 2) != 0
    info, data = write_range([("a", replace(entry(1), e_tag=e_tag))])
    assert decode_range(data, info.id)["etag_hash"].to_pylist() == [0]


def test_an_etag_that_is_missing_is_an_error() -> None:
    with pytest.raises(ValueError, match="without an ETag"):
        etag_hashes(pa.array(["a", None]))


def test_the_slow_reader_imports_nothing_of_the_fast_one() -> None:
    for module, other in (("ranges", "decode"), ("decode", "ranges")):
        script = f"""
import sys
import lakegc_assets.graveler.{module}
ours = {{m.rsplit(".", 1)[1] for m in sys.modules if m.startswith("lakegc_assets.graveler.")}}
slow = {{"ranges", "sstable", "sstable_writer", "entry", "ident"}}
fast = {{"decode", "decode_kernels"}}
assert "lakegc_assets.graveler.{other}" not in sys.modules
assert not (ours & slow and ours & fast), ours
assert "errors" in ours
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()


# Metaranges


def test_every_recorded_metarange_is_the_same_to_both_readers() -> None:
    for name, data in [*tables("metaranges").items(), (EMPTY, (PEBBLE / EMPTY).read_bytes())]:
        assert fast_ranges(data, name) == slow_ranges(data, name)
    assert decode_metarange((PEBBLE / EMPTY).read_bytes(), EMPTY).schema == RANGES


def said(low: bytes, high: bytes, count: int = 1, size: int = 7) -> bytes:
    return encode_range_data(low, high, size, count)


ID = st.text("0123456789abcdef", min_size=64, max_size=64)
KEYS = st.lists(st.binary(max_size=5), min_size=2, max_size=20, unique=True).map(sorted)


@given(KEYS, st.lists(st.tuples(ID, st.integers(1, 2**63 - 1)), min_size=10, max_size=10))
def test_any_ranges_are_the_same_to_both_readers(
    keys: list[bytes], told: list[tuple[str, int]]
) -> None:
    pairs = zip(keys[::2], keys[1::2], told, strict=False)
    infos = [RangeInfo(name, low, high, count, 5) for low, high, (name, count) in pairs]
    name, data = write_metarange(infos, {"some": "metadata"})
    expected = [(info.id, info.count) for info in infos]
    assert fast_ranges(data, name) == slow_ranges(data, name) == expected


def test_a_metarange_of_many_chunks_is_decoded_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [f"{'deep/' * 20}{number:06}".encode() for number in range(8_000)]
    infos = [RangeInfo(f"{n:064x}", path, path + b"z", n + 1, 0) for n, path in enumerate(paths)]
    store_plain(monkeypatch)
    name, data = write_metarange(infos)
    assert len(data) > 1 << 20
    assert fast_ranges(data, name) == slow_ranges(data, name) == [(i.id, i.count) for i in infos]


@given(st.lists(FIELDS, max_size=6).map(b"".join))
def test_of_any_range_data_both_readers_say_the_same_or_one_refuses(raw: bytes) -> None:
    record = Record(b"path", b"a" * 64, said(b"a", b"path") + raw)
    name, data = write_sstable([record], "metaranges")
    fast, slow = rows_or_error(fast_ranges, data, name), rows_or_error(slow_ranges, data, name)
    assert fast == slow or isinstance(fast, FormatError) or isinstance(slow, FormatError)


@pytest.mark.parametrize(
    "records",
    [
        [(b"b", b"a" * 63, said(b"a", b"b"))],
        [(b"b", b"A" * 64, said(b"a", b"b"))],
        [(b"b", b"", said(b"a", b"b"))],
        [(b"b", b"a" * 64, said(b"a", b"c"))],
        [(b"b", b"a" * 64, said(b"a", b""))],
        [(b"b", b"a" * 64, said(b"c", b"b"))],
        [(b"b", b"a" * 64, said(b"a", b"b", 0))],
        [(b"b", b"a" * 64, said(b"a", b"b", -1))],
        [(b"b", b"a" * 64, b"")],
        [(b"b", b"a" * 64, said(b"a", b"b") + b"\x20")],
        [(b"b", b"a" * 64, said(b"a", b"b")), (b"c", b"b" * 64, said(b"b", b"c"))],
        [(b"b", b"a" * 64, said(b"a", b"b")), (b"c", b"b" * 64, said(b"a", b"c"))],
        [(b"b", b"a" * 64, said(b"a", b"b")), (b"c", b"b" * 64, said(b"", b"c"))],
    ],
)
def test_what_no_metarange_says_is_refused_by_both_readers(
    records: list[tuple[bytes, bytes, bytes]],
) -> None:
    name, data = write_sstable([Record(*record) for record in records], "metaranges")
    for reader in (fast_ranges, slow_ranges):
        assert isinstance(rows_or_error(reader, data, name), FormatError)


def test_a_range_is_no_metarange() -> None:
    name, data = smallest("ranges")
    with pytest.raises(FormatError, match="its type is b'ranges', not metaranges"):
        decode_metarange(data, name)
    name, data = smallest("metaranges")
    with pytest.raises(FormatError, match="the content has the id"):
        decode_metarange(data, "f" * 64)
