"""The witness says of a range what the slow reader says, or refuses it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegc_assets.checks import hash_kernels, hashing
from lakegc_assets.checks.looks import candidates_looks, etags_of
from lakegc_assets.checks.witness import LOOKS, PLACES, alike_paths, witness
from lakegc_assets.graveler import ident
from lakegc_assets.graveler.entry import AddressType, Entry, Timestamp
from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError
from lakegc_assets.graveler.ranges import range_record, read_range, write_range
from lakegc_assets.graveler.sstable import Record
from lakegc_assets.graveler.sstable_writer import write_sstable
from lakegc_assets.run import hashing as of_the_mark
from lakegc_assets.run import sets
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

Row = tuple[bool, int, int, int, int, int]


def plain_meanings(entry: Entry) -> set[str | None]:
    try:
        return set(NAMESPACE.resolve(entry.address, entry.address_type)) or {None}
    except UnresolvableAddressError:
        return {None}


def plain_hash(text: str) -> int:
    return int(of_the_mark.address_hashes(pa.array([text], pa.string()))[0])


def plain_rows(data: bytes, name: str) -> list[Row]:
    """What the slow reader says, in no order."""
    rows: list[Row] = []
    for _, one in read_range(data, name):
        known = re.fullmatch("[0-9a-f]{32}", one.e_tag)
        moment = one.last_modified.seconds * 1_000_000 + one.last_modified.nanos // 1000
        for address in plain_meanings(one):
            parts = (address or "").split("/", 2)
            sliced = len(parts) == 3 and parts[0] == "data"
            rows.append(
                (
                    address is not None,
                    plain_hash(address) if address is not None else 0,
                    moment,
                    plain_hash(f"data/{parts[1]}/") if sliced else 0,
                    one.size,
                    plain_hash(one.e_tag) if known and address is not None else 0,
                )
            )
    return sorted(rows)


def witnessed_rows(data: bytes, name: str) -> list[Row]:
    columns = witness(data, name, NAMESPACE).rows.select([*PLACES, *LOOKS]).columns
    rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
    return sorted((row[0], row[1] if row[0] else 0, *row[2:]) for row in rows)


def plain_digest(data: bytes, name: str) -> str:
    addresses = [one.address for _, one in read_range(data, name)]
    return str(of_the_mark.key_digest(pa.array(addresses, pa.string())))


def test_of_every_recorded_range_both_say_the_same() -> None:
    for name, data in {**tables("ranges"), TWO_LEVEL: (PEBBLE / TWO_LEVEL).read_bytes()}.items():
        assert witnessed_rows(data, name) == plain_rows(data, name)
        facts = witness(data, name, NAMESPACE).facts
        assert facts == {"entries": len(read_range(data, name)), "digest": plain_digest(data, name)}


def both_say_the_same(entries: dict[str, Entry]) -> None:
    info, data = write_range(sorted(entries.items(), key=lambda item: item[0].encode()))
    assert witnessed_rows(data, info.id) == plain_rows(data, info.id)
    assert witness(data, info.id, NAMESPACE).facts["digest"] == plain_digest(data, info.id)


@given(FILES)
def test_of_any_entries_both_say_the_same(entries: dict[str, Entry]) -> None:
    both_say_the_same(entries)


@pytest.mark.conformance
@given(FILES)
@settings(max_examples=3000)
def test_of_many_entries_both_say_the_same(entries: dict[str, Entry]) -> None:
    both_say_the_same(entries)


def plain_alike(entries: dict[str, Entry], size: int, e_tag: str) -> list[bytes]:
    """Of one candidate: entries of its size, whose etag is its own, or says nothing."""

    def tells(one: Entry) -> bool:
        placed = one.address_type == AddressType.RELATIVE or None not in plain_meanings(one)
        return placed and re.fullmatch("[0-9a-f]{32}", one.e_tag) is not None

    known = re.fullmatch("[0-9a-f]{32}", e_tag) is not None
    return sorted(
        path.encode()
        for path, one in entries.items()
        if one.size == size and (not known or not tells(one) or one.e_tag == e_tag)
    )


def both_find_the_same_paths(entries: dict[str, Entry], data: st.DataObject) -> None:
    sizes = st.sampled_from([one.size for one in entries.values()])
    etags = st.sampled_from([*(one.e_tag for one in entries.values()), "no checksum", "0" * 32])
    entries = {
        path: replace(one, size=data.draw(sizes), e_tag=data.draw(etags))
        for path, one in entries.items()
    }
    size, e_tag = data.draw(sizes), data.draw(etags)
    info, file = write_range(sorted(entries.items(), key=lambda item: item[0].encode()))
    looks = candidates_looks(np.array([size], np.int64), etags_of(pa.array([e_tag], pa.string())))
    found = alike_paths(file, info.id, NAMESPACE, hashing.Members([np.unique(looks)]))
    assert found == plain_alike(entries, size, e_tag)


@given(FILES, st.data())
def test_paths_of_entries_like_a_candidate_are_those_of_the_slow_reader(
    entries: dict[str, Entry], data: st.DataObject
) -> None:
    both_find_the_same_paths(entries, data)


@pytest.mark.conformance
@given(FILES, st.data())
@settings(max_examples=3000)
def test_paths_of_entries_like_many_candidates_are_those_of_the_slow_reader(
    entries: dict[str, Entry], data: st.DataObject
) -> None:
    both_find_the_same_paths(entries, data)


def test_paths_are_found_in_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {f"{n:06}" * 20: replace(entry(n), size=n % 7) for n in range(20_000)}
    store_plain(monkeypatch)
    info, file = write_range(entries.items())
    looks = candidates_looks(np.array([3], np.int64), np.zeros(1, np.uint64))
    found = alike_paths(file, info.id, NAMESPACE, hashing.Members([np.unique(looks)]))
    assert found == [path.encode() for path, one in entries.items() if one.size == 3]


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
    assert witnessed_rows(data, info.id) == plain_rows(data, info.id)


def test_keys_that_share_much_and_some_their_kind_too() -> None:
    """Behind each key stand a 1 and zeros, so a path that goes on with 1 shares those as well."""
    paths = ["a" * 1500 + "\x01" * number for number in range(200)]
    info, data = write_range((path, entry(number)) for number, path in enumerate(paths))
    assert witnessed_rows(data, info.id) == plain_rows(data, info.id)


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
    _, data = write_range((f"path/{number:02}", entry(number)) for number in range(12))
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


@pytest.mark.parametrize("claimed", [b"1", b"3", b"99999999999", b"", b"x"])
def test_another_number_of_entries_than_the_file_says_is_refused(
    claimed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = witness.__globals__["read_blocks"]

    def lying(data: bytes, name: str) -> object:
        found = real(data, name)
        return found._replace(properties={**found.properties, "count": claimed})

    info, data = write_range([("a", entry(1)), ("b", entry(2))])
    monkeypatch.setitem(witness.__globals__, "read_blocks", lying)
    with pytest.raises(FormatError):
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


# Hashes


@given(st.lists(TEXT, max_size=20), st.integers(0, 20))
def test_hashes_and_digests_are_the_same_as_those_of_the_mark(texts: list[str], at: int) -> None:
    strings = pa.array(texts, pa.string()).slice(at)
    assert (hashing.hash_strings(strings) == of_the_mark.address_hashes(strings)).all()
    chunks = pa.chunked_array([strings, pa.array(texts, pa.string())])
    assert (hashing.hash_strings(chunks) == of_the_mark.address_hashes(chunks)).all()
    for text in texts:
        assert hashing.hash_text(text) == plain_hash(text)


@given(st.sets(st.integers(0, 2**64 - 1)), st.lists(st.integers(0, 2**64 - 1)))
def test_members_are_found(members: set[int], others: list[int]) -> None:
    asked = [*others, *sorted(members)[::2]]
    for large in (1, 1 << 16):
        with mock.patch.object(hashing, "_LARGE", large):
            found = hashing.is_in(hashing.as_hashes(sorted(members)), hashing.as_hashes(asked))
        assert found.tolist() == [one in members for one in asked]


@given(
    st.sets(st.integers(0, 2**64 - 1) | st.integers(0, 20)),
    st.sets(st.integers(0, 2**64 - 1) | st.integers(0, 20)),
    st.randoms(),
)
def test_what_two_sorted_arrays_share_is_marked(
    members: set[int], asked: set[int], rng: Random
) -> None:
    asked |= set(sorted(members)[::2])
    before = [rng.random() < 0.2 for _ in asked]
    found = np.array(before, np.bool_)
    some, others = (hashing.as_hashes(sorted(array)) for array in (members, asked))
    hash_kernels.meet(some, others, found)
    expected = zip(before, sorted(asked), strict=True)
    assert found.tolist() == [was or one in members for was, one in expected]


@pytest.mark.parametrize("most", [1, 1 << 24])
@given(
    st.lists(st.sets(st.integers(0, 2**64 - 1) | st.integers(0, 20)), max_size=3),
    st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 20)),
)
def test_members_of_several_arrays_are_found(
    most: int, arrays: list[set[int]], others: list[int]
) -> None:
    """With a single hole everything falls through, and is compared as it is."""
    members = set().union(*arrays)
    asked = [*others, *sorted(members)[::2]]
    with mock.patch.object(hashing, "_MOST_HOLES", most):
        sieve = hashing.Members([hashing.as_hashes(sorted(array)) for array in arrays])
    assert sieve.among(hashing.as_hashes(asked)).tolist() == [one in members for one in asked]


@pytest.mark.parametrize("distinct", [hashing.distinct, sets.distinct])
@given(numbers=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3)))
def test_each_number_is_kept_once_in_order(
    distinct: Callable[[Any], Any], numbers: list[int]
) -> None:
    array = np.array(numbers, np.uint64)
    assert distinct(array).tolist() == sorted(set(numbers))
    assert array.tolist() == numbers


def test_what_is_null_has_no_hash() -> None:
    with pytest.raises(ValueError, match="null"):
        hashing.hash_strings(pa.array(["a", None]))
