"""Ranges and metaranges: SSTables whose records are entries, or the ranges of a commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lakegc_assets.graveler import entry as codec
from lakegc_assets.graveler.entry import Entry
from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.graveler.sstable import Record, SSTable, read_sstable
from lakegc_assets.graveler.sstable_writer import SSTableWriter, write_sstable

_ID_LENGTH = 64


@dataclass(frozen=True)
class RangeInfo:
    """A range, as its metarange describes it."""

    #: 64 hex digits; the range is at ``_lakefs/<id>``.
    id: str
    #: First path.
    min_key: bytes
    #: Last path.
    max_key: bytes
    #: Number of entries.
    count: int
    #: Bytes.
    estimated_size: int


def read_range(data: bytes, name: str) -> list[tuple[str, Entry]]:
    """Paths and entries of a range, in the order of the paths' bytes.

    A path that is not UTF-8 keeps its bytes as surrogates (``surrogateescape``).

    Raises:
        FormatError: the file is damaged, truncated, or no range.
    """
    table = _read(data, name, b"ranges")
    found = []
    for record, offset in zip(table.records, table.offsets, strict=True):
        try:
            entry = codec.decode_entry(record.value)
        except ValueError as error:
            raise FormatError(name, offset, f"the entry of {record.key!r}: {error}") from None
        if codec.entry_identity(entry) != record.identity:
            raise FormatError(
                name, offset, f"the entry of {record.key!r} does not have its identity"
            )
        found.append((record.key.decode("utf-8", "surrogateescape"), entry))
    return found


def read_metarange(data: bytes, name: str) -> list[RangeInfo]:
    """The ranges of a metarange, in order; none for a commit without objects.

    Raises:
        FormatError: the file is damaged, truncated, no metarange, or its ranges overlap.
    """
    found: list[RangeInfo] = []
    table = _read(data, name, b"metaranges")
    for record, offset in zip(table.records, table.offsets, strict=True):
        try:
            low, high, size, count = codec.decode_range_data(record.value)
            range_id = record.identity.decode("ascii")
        except ValueError as error:
            raise FormatError(name, offset, f"the range up to {record.key!r}: {error}") from None
        if len(range_id) != _ID_LENGTH or set(range_id) - set("0123456789abcdef"):
            raise FormatError(
                name, offset, f"the range up to {record.key!r} has the id {range_id!r}"
            )
        if high != record.key or low > high or count < 1:
            claims = f"claims {count} entries from {low!r} to {high!r}"
            raise FormatError(name, offset, f"the range up to {record.key!r} {claims}")
        if found and low <= found[-1].max_key:
            raise FormatError(
                name, offset, f"the range up to {record.key!r} overlaps the one before it"
            )
        found.append(RangeInfo(range_id, low, high, count, size))
    return found


def _read(data: bytes, name: str, kind: bytes) -> SSTable:
    table = read_sstable(data, name)
    found = table.properties["type"]
    if found != kind:
        raise FormatError(name, 0, f"it holds {found.decode()}, not {kind.decode()}")
    return table


def range_record(path: str, entry: Entry) -> Record:
    """The record of one entry."""
    key = path.encode("utf-8", "surrogateescape")
    return Record(key, codec.entry_identity(entry), codec.encode_entry(entry))


def write_range(items: Iterable[tuple[str, Entry]]) -> tuple[RangeInfo, bytes]:
    """Write a range.

    Args:
        items: paths and entries, at least one, in strictly increasing order of the paths' bytes.

    Returns:
        The record of the range for a metarange, and the file.

    Raises:
        ValueError: no items, or not in order.
    """
    writer = SSTableWriter("ranges")
    for path, entry in items:
        writer.add(range_record(path, entry))
    return finish_range(writer)


def finish_range(writer: SSTableWriter) -> tuple[RangeInfo, bytes]:
    """Finish the range of a writer of the kind ``ranges``; ValueError if it is empty."""
    if not writer.count:
        raise ValueError("lakeFS has no empty ranges")
    first, last, count, size = writer.first, writer.last, writer.count, writer.estimated_size
    range_id, data = writer.finish()
    return RangeInfo(range_id, first, last, count, size), data


def write_metarange(
    ranges: Iterable[RangeInfo], metadata: Mapping[str, str] | None = None
) -> tuple[str, bytes]:
    """Write a metarange; return its id and the file. ValueError if the ranges are not in order.

    ``ranges``: none for a commit without objects. ``metadata``: more user properties, hashed into
    the id.
    """
    return write_sstable(
        (
            Record(
                each.max_key,
                each.id.encode(),
                codec.encode_range_data(
                    each.min_key, each.max_key, each.estimated_size, each.count
                ),
            )
            for each in ranges
        ),
        "metaranges",
        metadata,
    )


def is_range_break(key: bytes, raggedness: int) -> bool:
    """Return whether lakeFS ends a range after this path, at any size between its two limits.

    ``raggedness``: the mean number of entries of a range (lakeFS's default: 50,000).
    """
    value = 0xCBF29CE484222325
    for byte in key:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value % raggedness == 0
