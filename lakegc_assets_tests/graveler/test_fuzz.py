"""Damage to real files: an error, never a wrong or a short list.

No byte of a file that lakeFS writes is unused: blocks and the footer cover all of it, every block
has its checksum, and the padding of the footer must be zero. So any flipped byte must be an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.graveler.ranges import read_range, write_metarange, write_range
from lakegc_assets_tests.graveler.samples import (
    PEBBLE,
    READERS,
    TWO_LEVEL,
    Reader,
    blocks,
    entry,
    fast_ranges,
    fast_rows,
    reseal,
    rows_or_error,
    slow_ranges,
    slow_rows,
    smallest,
    store_plain,
)

#: Both kinds of files, with each of their readers.
BOTH_KINDS = [
    pytest.param("ranges", slow_rows, id="range, slow"),
    pytest.param("ranges", fast_rows, id="range, fast"),
    pytest.param("metaranges", slow_ranges, id="metarange, slow"),
    pytest.param("metaranges", fast_ranges, id="metarange, fast"),
]


@pytest.mark.parametrize(("kind", "reader"), BOTH_KINDS)
@pytest.mark.parametrize("named", [True, False])
def test_a_flip_of_any_byte_is_an_error(kind: str, reader: Reader, *, named: bool) -> None:
    name, data = smallest(kind)
    for at in range(len(data)):
        for mask in (0x01, 0x40, 0x80, 0xFF):
            changed = bytearray(data)
            changed[at] ^= mask
            found = rows_or_error(reader, bytes(changed), name if named else "some-file")
            assert isinstance(found, FormatError), f"byte {at} ^ {mask:#x}"


@pytest.mark.parametrize(("kind", "reader"), BOTH_KINDS)
def test_a_file_cut_at_any_length_is_an_error(kind: str, reader: Reader) -> None:
    _, data = smallest(kind)
    for length in range(len(data)):
        assert isinstance(rows_or_error(reader, data[:length], "some-file"), FormatError)
        assert isinstance(rows_or_error(reader, data[length + 1 :], "some-file"), FormatError)


@pytest.mark.parametrize("reader", READERS)
@given(st.binary(max_size=200))
def test_foreign_bytes_are_an_error(reader: Reader, data: bytes) -> None:
    assert isinstance(rows_or_error(reader, data, "some-file"), FormatError)


@pytest.mark.parametrize("reader", READERS)
@given(at=st.integers(0), mask=st.integers(1, 255))
@settings(max_examples=300)
def test_a_flip_in_a_file_with_a_two_level_index_is_an_error(
    reader: Reader, at: int, mask: int
) -> None:
    changed = bytearray((PEBBLE / TWO_LEVEL).read_bytes())
    changed[at % len(changed)] ^= mask
    assert isinstance(rows_or_error(reader, bytes(changed), TWO_LEVEL), FormatError)


def _range() -> tuple[str, bytes]:
    """The smallest range whose block has a second restart point."""
    info, data = write_range([(f"path/{number:03}", entry(number)) for number in range(17)])
    return info.id, data


def _metarange() -> tuple[str, bytes]:
    infos = [write_range([(f"p{n}", entry(n)), (f"p{n}z", entry(n))])[0] for n in range(5)]
    return write_metarange(infos)


@pytest.mark.parametrize(
    ("make", "readers"),
    [(_range, (slow_rows, fast_rows)), (_metarange, (slow_ranges, fast_ranges))],
)
@pytest.mark.parametrize("plain", [True, False])
def test_damage_behind_a_valid_checksum_never_gives_a_wrong_list(
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[], tuple[str, bytes]],
    readers: Sequence[Reader],
    *,
    plain: bool,
) -> None:
    """What is changed and sealed again is an error, or has no say in the records.

    Without compression the flips hit lengths, restart points and index entries one by one. The
    only ones that pass are in the properties that no reader needs, and in index keys that stay
    above their blocks.
    """
    if plain:
        store_plain(monkeypatch)
    name, data = make()
    expected, passed = readers[0](data, name), 0
    for offset, length in blocks(data).items():
        for at in range(offset, offset + length + 1):
            changed = bytearray(data)
            changed[at] ^= 0x01 if at % 2 else 0x80
            sealed = reseal(changed, offset, length)
            for reader in readers:
                found = rows_or_error(reader, sealed, name)
                assert found == expected or isinstance(found, FormatError), f"byte {at}"
                passed += found == expected
    assert 0 < passed < len(data)


def test_an_unknown_compression_is_an_error() -> None:
    _, data = smallest("ranges")
    offset, length = next(iter(blocks(data).items()))
    for kind in range(2, 256):
        changed = bytearray(data)
        changed[offset + length] = kind
        sealed = reseal(changed, offset, length)
        unknown = f"compression type {kind} is neither none nor snappy"
        with pytest.raises(FormatError, match=unknown):
            read_range(sealed, "x")
        with pytest.raises(FormatError, match=f"compression type {kind} is not known"):
            fast_rows(sealed, "x")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"path/0\x01", b"path/7\x01", "does not follow|do not increase"),
        (b"path/0\x01", b"path/0\x00", "is not a plain value"),
        (b"count3", b"count4", "property count|it claims"),
        (b"max_keypath/2", b"max_keypath/3", "property max_key|it claims"),
        (b"in_keypath/0", b"in_keypath/.", "property min_key|it claims"),
    ],
)
def test_a_file_not_named_by_its_id_is_checked_all_the_same(
    monkeypatch: pytest.MonkeyPatch, reader: Reader, old: bytes, new: bytes, reason: str
) -> None:
    store_plain(monkeypatch)
    _, data = write_range((f"path/{number}", entry(number)) for number in range(3))
    at = data.index(old)
    offset, length = next((o, n) for o, n in blocks(data).items() if o <= at < o + n)
    sealed = reseal(bytearray(data.replace(old, new, 1)), offset, length)
    with pytest.raises(FormatError, match=reason):
        reader(sealed, "some-file")
