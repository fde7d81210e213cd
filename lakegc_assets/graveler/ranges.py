"""Ranges and metaranges: SSTables whose records are entries, or the ranges of a commit."""

from __future__ import annotations

from dataclasses import dataclass

from lakegc_assets.graveler import entry as codec
from lakegc_assets.graveler.entry import Entry
from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.graveler.sstable import SSTable, read_sstable

_ID_LENGTH = 64


@dataclass(frozen=True)
class RangeInfo:
    """What a metarange says of one range.

    Attributes:
        id: 64 hex digits; the range is at ``_lakefs/<id>``.
        min_key: first path.
        max_key: last path.
        count: of entries.
        estimated_size: bytes.
    """

    id: str
    min_key: bytes
    max_key: bytes
    count: int
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
            of = codec.decode_range_data(record.value)
            range_id = record.identity.decode("ascii")
        except ValueError as error:
            raise FormatError(name, offset, f"the range up to {record.key!r}: {error}") from None
        if len(range_id) != _ID_LENGTH or set(range_id) - set("0123456789abcdef"):
            raise FormatError(
                name, offset, f"the range up to {record.key!r} has the id {range_id!r}"
            )
        if of.max_key != record.key or of.min_key > of.max_key or of.count < 1:
            raise FormatError(name, offset, f"the range up to {record.key!r} says that it is {of}")
        if found and of.min_key <= found[-1].max_key:
            raise FormatError(
                name, offset, f"the range up to {record.key!r} overlaps the one before it"
            )
        found.append(RangeInfo(range_id, of.min_key, of.max_key, of.count, of.estimated_size))
    return found


def _read(data: bytes, name: str, kind: bytes) -> SSTable:
    table = read_sstable(data, name)
    found = table.properties["type"]
    if found != kind:
        raise FormatError(name, 0, f"it holds {found.decode()}, not {kind.decode()}")
    return table
