"""The witness says of a range what the slow reader says, or refuses it."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegc_assets.checks.witness import ENTRIES as COLUMNS
from lakegc_assets.checks.witness import paths_of, witness
from lakegc_assets.graveler import ident
from lakegc_assets.graveler.entry import AddressType, Entry, Timestamp
from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError
from lakegc_assets.graveler.ranges import range_record, read_range, write_range
from lakegc_assets.graveler.sstable import Record
from lakegc_assets.graveler.sstable_writer import write_sstable
from lakegc_assets.run import hashing as of_the_mark
from lakegc_assets_tests.graveler.samples import (
    PEBBLE,
    TWO_LEVEL,
    blocks,
    entry,
    reseal,
    smallest,
    store_plain,
    tables,
)

NAMESPACE = StorageNamespace.parse("s3://bucket/ns")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PARTS = st.sampled_from(["data", "gp0n1l7d77pn0cke1234", "a", "é", "", "..", ".", "%20", "a\\b"])
ADDRESSES = st.one_of(
    TEXT,
    st.lists(PARTS, max_size=5).map("/".join),
    st.builds(
        "{}://{}/{}".format,
        st.sampled_from(["s3", "s3a", "S3", "gs", "https", "no"]),
        st.sampled_from(["bucket", "Bucket", "other", ""]),
        st.lists(st.one_of(PARTS, st.just("ns")), max_size=4).map("/".join),
    ),
)
INT64 = st.integers(-(2**63), 2**63 - 1)
ENTRIES = st.builds(
    Entry,
    address=ADDRESSES,
    last_modified=st.builds(
        Timestamp, st.integers(-(10**12), 10**12), st.integers(-(2**31), 2**31 - 1)
    ),
    size=INT64,
    e_tag=st.one_of(TEXT, st.from_regex("[0-9a-f]{31,33}|[0-9a-fg]{32}", fullmatch=True)),
    metadata=st.dictionaries(TEXT, TEXT, max_size=3),
    address_type=st.sampled_from(AddressType),
    content_type=TEXT,
)

FILES = st.dictionaries(TEXT, ENTRIES, min_size=1, max_size=20)

Row = tuple[int, str | None, int, int, str | None]


def plain_meanings(entry: Entry) -> set[str | None]:
    try:
        return set(NAMESPACE.resolve(entry.address, entry.address_type)) or {None}
    except UnresolvableAddressError:
        return {None}


def plain_rows(data: bytes, name: str) -> list[Row]:
    """What the slow reader says, in no order."""
    return [
        (
            number,
            address,
            one.last_modified.seconds * 1_000_000 + one.last_modified.nanos // 1000,
            one.size,
            one.e_tag if address is not None and is_md5(one.e_tag) else None,
        )
        for number, (_, one) in enumerate(read_range(data, name))
        for address in plain_meanings(one)
    ]


def is_md5(etag: str) -> bool:
    return re.fullmatch("[0-9a-f]{32}", etag) is not None


def in_order(rows: list[Row]) -> list[str]:
    return sorted(map(repr, rows))


def witnessed_rows(data: bytes, name: str) -> list[Row]:
    rows = witness(data, name, NAMESPACE).rows
    assert rows.schema == COLUMNS.remove(0)
    assert rows["number"].to_pylist() == sorted(rows["number"].to_pylist())
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def plain_digest(data: bytes, name: str) -> str:
    addresses = [one.address for _, one in read_range(data, name)]
    return str(of_the_mark.key_digest(pa.array(addresses, pa.string())))


def test_of_every_recorded_range_both_say_the_same() -> None:
    for name, data in {**tables("ranges"), TWO_LEVEL: (PEBBLE / TWO_LEVEL).read_bytes()}.items():
        assert in_order(witnessed_rows(data, name)) == in_order(plain_rows(data, name))
        facts = witness(data, name, NAMESPACE).facts
        assert facts == {"entries": len(read_range(data, name)), "digest": plain_digest(data, name)}


def both_say_the_same(entries: dict[str, Entry]) -> None:
    info, data = write_range(sorted(entries.items(), key=lambda item: item[0].encode()))
    assert in_order(witnessed_rows(data, info.id)) == in_order(plain_rows(data, info.id))
    assert witness(data, info.id, NAMESPACE).facts["digest"] == plain_digest(data, info.id)


@given(FILES)
def test_of_any_entries_both_say_the_same(entries: dict[str, Entry]) -> None:
    both_say_the_same(entries)


@pytest.mark.conformance
@given(FILES)
@settings(max_examples=200)
def test_of_many_entries_both_say_the_same(entries: dict[str, Entry]) -> None:
    both_say_the_same(entries)


@given(FILES, st.data())
def test_paths_of_some_entries_are_those_of_the_slow_reader(
    entries: dict[str, Entry], data: st.DataObject
) -> None:
    paths = sorted(path.encode() for path in entries)
    numbers = sorted(data.draw(st.sets(st.integers(0, len(paths) - 1))))
    info, file = write_range(sorted(entries.items(), key=lambda item: item[0].encode()))
    assert paths_of(file, info.id, numbers) == [paths[number] for number in numbers]
    for beyond in (-1, len(paths)):
        with pytest.raises(FormatError, match="it has no entry"):
            paths_of(file, info.id, sorted([*numbers, beyond]))


def test_paths_are_found_in_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [f"{n:06}" * 20 for n in range(2_500)]
    store_plain(monkeypatch)
    info, file = write_range((path, entry(n)) for n, path in enumerate(paths))
    assert len(blocks(file)) > 100
    assert paths_of(file, info.id, range(3, 2_500, 7)) == [p.encode() for p in paths[3::7]]
    assert paths_of(file, info.id) == [p.encode() for p in paths]


def test_a_moment_that_is_beyond_any_calendar_stays_in_its_direction() -> None:
    moments = [Timestamp(2**63 - 1, 999_999_999), Timestamp(-(2**63), 0)]
    items = [(f"p{at}", Entry("data/a", moment)) for at, moment in enumerate(moments)]
    info, data = write_range(items)
    late, early = witness(data, info.id, NAMESPACE).rows["modified"].to_pylist()
    assert late > 8 * 10**18
    assert early < -8 * 10**18


def test_many_blocks_are_read_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    store_plain(monkeypatch)
    info, data = write_range((f"{number:06}", entry(number)) for number in range(2_500))
    assert len(blocks(data)) > 100
    assert in_order(witnessed_rows(data, info.id)) == in_order(plain_rows(data, info.id))


def test_keys_that_share_much_and_some_their_kind_too() -> None:
    """Behind each key stand a 1 and zeros, so a path that goes on with 1 shares those as well."""
    paths = ["a" * 1500 + "\x01" * number for number in range(200)]
    info, data = write_range((path, entry(number)) for number, path in enumerate(paths))
    assert in_order(witnessed_rows(data, info.id)) == in_order(plain_rows(data, info.id))


# Damage


def test_a_flip_of_any_byte_is_an_error() -> None:
    _, data = smallest("ranges")
    for at in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            changed = bytearray(data)
            changed[at] ^= mask
            with pytest.raises(FormatError):
                witness(bytes(changed), "some-file", NAMESPACE)


def test_a_file_cut_at_any_length_is_an_error() -> None:
    _, data = smallest("ranges")
    for length in range(len(data)):
        for cut in (data[:length], data[length + 1 :]):
            with pytest.raises(FormatError):
                witness(cut, "some-file", NAMESPACE)


@given(at=st.integers(0), mask=st.integers(1, 255))
@settings(max_examples=300)
def test_a_flip_in_a_file_with_a_two_level_index_is_an_error(at: int, mask: int) -> None:
    changed = bytearray((PEBBLE / TWO_LEVEL).read_bytes())
    changed[at % len(changed)] ^= mask
    with pytest.raises(FormatError):
        witness(bytes(changed), "some-file", NAMESPACE)


def test_damage_behind_a_valid_checksum_never_loses_an_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No checksum helps against a writer's fault; what is short or in disorder is refused."""
    store_plain(monkeypatch)
    _, data = write_range((f"path/{number:02}", entry(number)) for number in range(6))
    whole = witness(data, "some-file", NAMESPACE).facts["entries"]
    offset, length = next(iter(blocks(data).items()))
    refused = 0
    for at in range(offset, offset + length):
        for mask in (0x01, 0x02, 0x80):
            changed = bytearray(data)
            changed[at] ^= mask
            try:
                found = witness(reseal(changed, offset, length), "some-file", NAMESPACE)
            except FormatError:
                refused += 1
            else:
                assert found.facts["entries"] == whole
                assert found.rows.num_rows >= whole
    assert refused > length // 2


@pytest.mark.parametrize(
    ("name", "claimed", "why"),
    [
        ("count", b"1", "there are more entries"),
        ("count", b"3", "it holds 2 entries, and its properties say 3"),
        ("count", b"99999999999", "it cannot hold"),
        ("count", b"", "it cannot hold"),
        ("count", b"x", "it cannot hold"),
        ("max_key", b"c", "its last key is b'b'"),
        ("max_key", b"a", "its last key is b'b'"),
    ],
)
def test_other_entries_than_the_file_says_are_refused(
    name: str, claimed: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = witness.__globals__["read_blocks"]

    def lying(data: bytes, range_id: str) -> object:
        found = real(data, range_id)
        return found._replace(properties={**found.properties, name: claimed})

    info, data = write_range([("a", entry(1)), ("b", entry(2))])
    monkeypatch.setitem(witness.__globals__, "read_blocks", lying)
    with pytest.raises(FormatError, match=why):
        witness(data, info.id, NAMESPACE)


@pytest.mark.parametrize(
    "raw",
    [b"\x30\x03", b"\x0a\x05abc", b"\x08\x01", b"\x0b", b"\x18" + b"\xff" * 10, b"\x0a\x01\xff"],
)
def test_a_damaged_entry_is_refused(raw: bytes) -> None:
    good, bad = range_record("a", entry(1)), range_record("b", entry(2))
    name, data = write_sstable([good, bad._replace(value=bad.value + raw)], "ranges")
    with pytest.raises(FormatError):
        witness(data, name, NAMESPACE)


def test_other_kinds_of_files_are_refused() -> None:
    name, data = smallest("metaranges")
    with pytest.raises(FormatError, match="no entries"):
        witness(data, name, NAMESPACE)
    record = Record(b"b", ident.entry_identity(0, "", {}, ""), b"")
    name, data = write_sstable([record], "ranges", {"entity": "tags"})
    with pytest.raises(FormatError, match="no entries"):
        witness(data, name, NAMESPACE)
