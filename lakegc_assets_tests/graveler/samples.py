"""The recorded files, and ways to damage a copy of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

from lakegc_assets.graveler import sstable
from lakegc_assets.graveler.decode import decode_metarange, decode_range, etag_hash
from lakegc_assets.graveler.entry import AddressType, Entry, Timestamp
from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.graveler.ranges import read_metarange, read_range

GOLDEN = Path(__file__).parent.parent / "golden"
# Written by pebble itself: a range with an index of two levels, and a metarange without ranges.
PEBBLE = Path(__file__).parent / "data"
TWO_LEVEL = "3629ea0e48f496723cce25846055244dd40255d0468edb4bab856a65aab4eb7e"
EMPTY = "00fb7eff1a97c500eb3ca8d2ef5464131d6b6a5f9512e41eba97843522213b66"

Row = tuple[str, int, int, int, int]
T = TypeVar("T")
Reader = Callable[[bytes, str], list[Row]]


@cache
def tables(kind: str) -> dict[str, bytes]:
    """Every recorded file of a kind (``ranges`` or ``metaranges``), by its id."""
    files = (p for p in GOLDEN.glob("*/raw/_lakefs/*") if len(p.name) == 64)
    found = {path.name: path.read_bytes() for path in sorted(files)}
    # The properties are not compressed, so the type can be seen without a reader.
    return {n: data for n, data in found.items() if (b"metaranges" in data) == (kind != "ranges")}


def smallest(kind: str) -> tuple[str, bytes]:
    return min(tables(kind).items(), key=lambda table: len(table[1]))


def slow_rows(data: bytes, name: str) -> list[Row]:
    return [
        (e.address, int(e.address_type), e.size, etag_hash(e.e_tag), e.last_modified.seconds)
        for _, e in read_range(data, name)
    ]


def fast_rows(data: bytes, name: str) -> list[Row]:
    batch = decode_range(data, name)
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def slow_ranges(data: bytes, name: str) -> list[tuple[str, int]]:
    return [(info.id, info.count) for info in read_metarange(data, name)]


def fast_ranges(data: bytes, name: str) -> list[tuple[str, int]]:
    batch = decode_metarange(data, name)
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


READERS = [pytest.param(slow_rows, id="slow"), pytest.param(fast_rows, id="fast")]


def rows_or_error(
    reader: Callable[[bytes, str], list[T]], data: bytes, name: str
) -> list[T] | FormatError:
    """What a reader makes of a file; any exception but FormatError fails the test."""
    try:
        return reader(data, name)
    except FormatError as error:
        found = error
    assert found.name == name
    assert 0 <= found.offset <= len(data)
    assert str(found).startswith(f"{name}: at byte {found.offset}: ")
    return found


def entry(number: int) -> Entry:
    return Entry(
        address=f"data/ft6u4f9ksduedv02f91g/{number:020}",
        last_modified=Timestamp(1_795_236_036 + number, 7),
        size=number,
        e_tag=f"{number:032x}",
        metadata={"owner": "üñí"},
        address_type=AddressType.RELATIVE,
        content_type="text/plain",
    )


class _NoCompression:
    class snappy:  # noqa: N801 - stands for the module of that name
        @staticmethod
        def compress_raw(payload: bytes) -> bytes:
            return payload


def store_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the writer store every block as it is."""
    monkeypatch.setattr("lakegc_assets.graveler.sstable_writer.cramjam", _NoCompression)


def blocks(data: bytes) -> dict[int, int]:
    """Offset and length of every block: a file is nothing but blocks and a footer."""
    found, at = {}, 0
    for end in range(len(data) - sstable.FOOTER_LENGTH):
        length = end - at
        trailer = data[end : end + sstable.TRAILER_LENGTH]
        crc = sstable.masked_crc32c(data[at:end], trailer[0]) if length > 7 else -1
        if crc == int.from_bytes(trailer[1:], "little"):
            found[at] = length
            at = end + sstable.TRAILER_LENGTH
    return found


def reseal(data: bytearray, offset: int, length: int) -> bytes:
    """Give a changed block the checksum of its new content."""
    end = offset + length
    crc = sstable.masked_crc32c(bytes(data[offset:end]), data[end])
    data[end + 1 : end + 5] = crc.to_bytes(4, "little")
    return bytes(data)
