"""The format of SSTables and its slow, plain reader, the reference for the fast decoder.

The format is RocksDB's block-based table, format version 2, as lakeFS writes it through Go's
pebble: data blocks of prefix-compressed entries, an index of one or two levels over them, a block
of properties, a metaindex that names that block, and a footer of 53 bytes. Every block ends in its
compression type and a masked crc32c. No byte of a file is unused, so every damage is found.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import cramjam
import google_crc32c

from lakegc_assets.graveler import ident
from lakegc_assets.graveler.errors import FormatError, NoTableError

MAGIC: Final = bytes.fromhex("f7cff485b741e288")
#: Magics of other table formats: RocksDB's plain, cuckoo and old ones, LevelDB's, and pebble's own.
OTHER_MAGICS: Final = frozenset(
    bytes.fromhex(magic)
    for magic in (
        "57fb808b247547db", "6495bf6396224282", "b8138f7aeb18344f", "7378f1c5d0896792",
        "f09faab3f09faab3",
    )
)  # fmt: skip
FORMAT_VERSION: Final = 2
FOOTER_LENGTH: Final = 53
TRAILER_LENGTH: Final = 5
CRC32C: Final = 1
NO_COMPRESSION: Final = 0
SNAPPY: Final = 1
SINGLE_LEVEL_INDEX: Final = 0
TWO_LEVEL_INDEX: Final = 2
INDEX_TYPE: Final = "rocksdb.block.based.table.index.type"
PROPERTIES_BLOCK: Final = b"rocksdb.properties"
# The end of each key: sequence number 0 and the kind "set", in one little-endian number.
KEY_TRAILER: Final = b"\x01" + bytes(7)
# User properties that lakeFS adds after it has computed the id.
COMPUTED: Final = frozenset({"count", "min_key", "max_key", "estimated_size_bytes"})

# Snappy makes at most 64 bytes of three bytes. A block that claims more gets no memory.
_MOST_EXPANSION: Final = 32
_CONTENT_ID: Final = re.compile(r"(?s:.*/)?([0-9a-f]{64})")


class Record(NamedTuple):
    """One record of a table: path or max key, identity, protobuf."""

    key: bytes
    identity: bytes
    value: bytes


class Handle(NamedTuple):
    """A block handle: offset and length in bytes, without the trailer."""

    offset: int
    length: int


class Blocks(NamedTuple):
    """The data blocks of a table."""

    #: All properties, RocksDB's own included.
    properties: dict[str, bytes]
    #: Position of each block in the file.
    offsets: list[int]
    #: Decompressed content of each block.
    payloads: list[bytes]


@dataclass(frozen=True)
class SSTable:
    """A whole table, checked."""

    #: All properties, RocksDB's own included.
    properties: dict[str, bytes]
    #: In the order of their keys.
    records: list[Record]
    #: For each record, the position of its block in the file.
    offsets: list[int]

    @property
    def metadata(self) -> dict[str, str]:
        """The user properties that the writer received; they are part of the id."""
        return {
            name: value.decode("utf-8", "surrogateescape")
            for name, value in self.properties.items()
            if not name.startswith("rocksdb.") and name not in COMPUTED
        }


def read_sstable(data: bytes, name: str) -> SSTable:
    """Read and check a whole table.

    Args:
        data: the file.
        name: its name, for errors. When its last component is 64 hex digits it is the content id
            that the records must have.

    Raises:
        FormatError: the file is damaged, truncated, or no range or metarange.
    """
    return _read(SSTableFile(data, name), name, refs=None)


def read_dump(data: bytes, name: str, entity: str) -> SSTable:
    """Read and check a table of a dump of refs, as ``read_sstable``; its records are no entries.

    ``entity``: the expected kind of record, ``commit``, ``branch`` or ``tag``.

    Raises:
        FormatError: the file is damaged, truncated, or no such dump.
    """
    return _read(SSTableFile(data, name), name, refs=entity)


def _read(file: SSTableFile, name: str, refs: str | None) -> SSTable:
    metaindex, index = file.footer()
    properties = file.properties(metaindex)
    entity = properties["entity"].decode("utf-8", "replace") if "entity" in properties else None
    if entity != refs:
        if entity is not None and refs is None:
            said = f"it is a dump of refs ({entity}), not of entries"
        else:
            said = f"it is no dump of refs ({refs})"
        raise file.error(metaindex.offset, said)
    pairs = list(file.pairs(file.data_blocks(index, properties)))
    table = SSTable(properties, [file.record(*p) for p in pairs], [p[0] for p in pairs])
    _check_totals(file, metaindex.offset, table)
    named = _CONTENT_ID.fullmatch(name)
    found = ident.content_id(((key, value) for _, key, value in pairs), table.metadata)
    if named and found != named[1]:
        raise file.error(0, f"the content has the id {found}")
    return table


def read_blocks(data: bytes, name: str) -> Blocks:
    """Return the properties and data blocks of a range, without a check of the records.

    Raises:
        FormatError: a checksum does not match, a block is not in the file, or it is no range.
    """
    file = SSTableFile(data, name)
    metaindex, index = file.footer()
    properties = file.properties(metaindex)
    if "entity" in properties or properties.get("type") != b"ranges":
        raise file.error(metaindex.offset, "it holds no entries")
    handles = [handle for _, handle in file.data_blocks(index, properties)]
    return Blocks(properties, [h.offset for h in handles], [file.block(h) for h in handles])


def table_kind(data: bytes, name: str) -> str:
    """The kind of a table below ``_lakefs/``: ``ranges`` (entries), ``metaranges``, or ``refs``.

    Only the footer and the properties are read and checked.

    Raises:
        NoTableError: the file cannot be a table.
        FormatError: footer or properties are damaged, or it is a table of another kind.
    """
    file = SSTableFile(data, name)
    metaindex, _ = file.footer()
    properties = file.properties(metaindex)
    if "entity" in properties:
        return "refs"
    kind = properties.get("type", b"").decode("utf-8", "replace")
    if kind not in {"ranges", "metaranges"}:
        raise file.error(metaindex.offset, f"its type is {kind!r}, neither ranges nor metaranges")
    return kind


def masked_crc32c(payload: bytes, block_type: int) -> int:
    """The checksum in a block's trailer: crc32c of payload and type, rotated, plus a constant."""
    crc = google_crc32c.extend(google_crc32c.value(payload), bytes([block_type]))
    return int((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _check_totals(file: SSTableFile, offset: int, table: SSTable) -> None:
    keys = [record.key for record in table.records]
    expected = {
        "count": b"%d" % len(keys),
        "min_key": keys[0] if keys else b"",
        "max_key": keys[-1] if keys else b"",
    }
    for name, found in expected.items():
        if table.properties.get(name) != found:
            claimed = table.properties.get(name)
            raise file.error(
                offset, f"the property {name} is {claimed!r}, the records have {found!r}"
            )
    if table.properties.get("type") not in {b"ranges", b"metaranges"}:
        raise file.error(offset, f"it is of type {table.properties.get('type')!r}")


class SSTableFile:
    """The bytes of one file and its name; each method reads one layer of the format."""

    def __init__(self, data: bytes, name: str) -> None:
        self.data = data
        self.name = name

    def error(self, offset: int, reason: str) -> FormatError:
        """The error for damage of the file at an offset."""
        return FormatError(self.name, offset, reason)

    def footer(self) -> tuple[Handle, Handle]:
        """Return the handles of the metaindex and of the index."""
        start = len(self.data) - FOOTER_LENGTH
        if start < 0:
            raise NoTableError(self.name, len(self.data), "the file is shorter than a footer")
        footer = self.data[start:]
        if footer[-8:] != MAGIC:
            reason = f"the magic {footer[-8:].hex()} is not RocksDB's"
            # A server that is newer than this reader may write such a table.
            kind = FormatError if footer[-8:] in OTHER_MAGICS else NoTableError
            raise kind(self.name, start + 45, reason)
        version = int.from_bytes(footer[41:45], "little")
        if version != FORMAT_VERSION:
            raise self.error(
                start + 41, f"format version {version}, lakeFS writes {FORMAT_VERSION}"
            )
        if footer[0] != CRC32C:
            raise self.error(start, f"checksum type {footer[0]}, lakeFS writes crc32c")
        metaindex, at = self.handle(footer[:41], 1, start)
        index, at = self.handle(footer[:41], at, start)
        if any(footer[at:41]):
            raise self.error(start + at, "the padding of the footer is not zero")
        return metaindex, index

    def handle(self, data: bytes, at: int, offset: int) -> tuple[Handle, int]:
        """Return the handle at ``at`` in ``data``, which is at ``offset`` of the file."""
        start, at = self.varint(data, at, offset)
        length, at = self.varint(data, at, offset)
        if start + length + TRAILER_LENGTH > len(self.data) - FOOTER_LENGTH:
            raise self.error(offset, f"a block at {start} of {length} bytes is not in the file")
        return Handle(start, length), at

    def only_handle(self, data: bytes, offset: int) -> Handle:
        """Return the handle that fills all of ``data``, which is at ``offset`` of the file."""
        handle, at = self.handle(data, 0, offset)
        if at != len(data):
            raise self.error(offset, "a block handle has bytes left over")
        return handle

    def varint(self, data: bytes, at: int, offset: int) -> tuple[int, int]:
        """Return the number at ``at`` in ``data``, and the position after it."""
        value = 0
        for shift in range(0, 64, 7):
            if at >= len(data):
                raise self.error(offset, "a number ends beyond its block")
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:  # noqa: PLR2004 - the bit that says that more follows
                if shift and not byte:
                    raise self.error(offset, "a number is not in its shortest form")
                return value, at
        raise self.error(offset, "a number has more than 64 bits")

    def block(self, handle: Handle) -> bytes:
        """Return the payload of a block, decompressed."""
        end = handle.offset + handle.length
        payload = self.data[handle.offset : end]
        kind, crc = struct.unpack_from("<BI", self.data, end)
        if masked_crc32c(payload, kind) != crc:
            raise self.error(handle.offset, "the block's checksum does not match")
        if kind == NO_COMPRESSION:
            return payload
        if kind != SNAPPY:
            raise self.error(end, f"compression type {kind} is neither none nor snappy")
        claimed, _ = self.varint(payload, 0, handle.offset)
        if claimed > _MOST_EXPANSION * len(payload):
            raise self.error(handle.offset, f"the block cannot decompress to {claimed} bytes")
        try:
            return bytes(cramjam.snappy.decompress_raw(payload))
        except cramjam.DecompressionError as error:
            raise self.error(handle.offset, f"the block does not decompress: {error}") from None

    def entries(self, handle: Handle) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values of a block, and check its restart points."""
        block, offset = self.block(handle), handle.offset
        restarts = self.restarts(block, offset)
        end = len(block) - 4 * len(restarts) - 4
        unseen = set(restarts)
        body, at, key = block[:end], 0, b""
        while at < end:
            entry_at = at
            shared, at = self.varint(body, at, offset)
            unshared, at = self.varint(body, at, offset)
            length, at = self.varint(body, at, offset)
            if shared > len(key) or at + unshared + length > end:
                raise self.error(offset, f"the entry at {entry_at} of the block is out of bounds")
            if entry_at in unseen:
                unseen.remove(entry_at)
                if shared:
                    raise self.error(offset, f"the restart at {entry_at} of the block shares a key")
            key = key[:shared] + body[at : at + unshared]
            at += unshared
            yield key, body[at : at + length]
            at += length
        if unseen and block[:end]:
            raise self.error(offset, "a restart point is not at an entry")

    def restarts(self, block: bytes, offset: int) -> tuple[int, ...]:
        """Return the restart points of a block, which is at ``offset`` of the file."""
        count = int.from_bytes(block[-4:], "little")
        if len(block) < 8 or not 1 <= count <= (len(block) - 4) // 4:  # noqa: PLR2004 - two numbers
            raise self.error(offset, "the block is too short for its restart points")
        found = struct.unpack_from(f"<{count}I", block, len(block) - 4 - 4 * count)
        if found[0] or any(a >= b for a, b in itertools.pairwise(found)):
            raise self.error(offset, "the restart points do not increase from 0")
        return found

    def properties(self, metaindex: Handle) -> dict[str, bytes]:
        """Return the properties of the table by name."""
        blocks = dict(self.entries(metaindex))
        if blocks.keys() != {PROPERTIES_BLOCK}:
            raise self.error(metaindex.offset, f"the meta blocks are {sorted(blocks)}")
        handle = self.only_handle(blocks[PROPERTIES_BLOCK], metaindex.offset)
        found: dict[str, bytes] = {}
        for key, value in self.entries(handle):
            name = key.decode("utf-8", "surrogateescape")
            if name in found:
                raise self.error(handle.offset, f"the property {name} is there twice")
            found[name] = value
        return found

    def data_blocks(
        self, index: Handle, properties: dict[str, bytes]
    ) -> list[tuple[bytes, Handle]]:
        """Return the data blocks, each with its index key, an upper bound of the block's keys."""
        kind = int.from_bytes(properties.get(INDEX_TYPE, b"\xff"), "little")
        if kind not in {SINGLE_LEVEL_INDEX, TWO_LEVEL_INDEX}:
            raise self.error(index.offset, f"index type {kind} is neither single nor two-level")
        partitions = [index]
        if kind == TWO_LEVEL_INDEX:
            partitions = [self.only_handle(v, index.offset) for _, v in self.entries(index)]
        return [
            (key, self.only_handle(value, partition.offset))
            for partition in partitions
            for key, value in self.entries(partition)
        ]

    def pairs(self, blocks: list[tuple[bytes, Handle]]) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield block offset, user key and value of each record, after a check of the order."""
        previous: bytes | None = None
        for limit, handle in blocks:
            for key, value in self.entries(handle):
                if key[-8:] != KEY_TRAILER:
                    raise self.error(handle.offset, f"the record {key!r} is not a plain value")
                user_key = key[:-8]
                if previous is not None and user_key <= previous:
                    raise self.error(handle.offset, f"{user_key!r} does not follow {previous!r}")
                if user_key > limit[:-8]:
                    raise self.error(handle.offset, f"{user_key!r} is beyond its index entry")
                previous = user_key
                yield handle.offset, user_key, value

    def record(self, offset: int, key: bytes, value: bytes) -> Record:
        """Split a value into its two byte strings, each after its length as a zigzag varint."""
        parts, at = [], 0
        for _ in range(2):
            length, at = self.varint(value, at, offset)
            length = length >> 1 ^ -(length & 1)
            if not 0 <= length <= len(value) - at:
                raise self.error(offset, f"the value of {key!r} is shorter than it claims")
            parts.append(value[at : at + length])
            at += length
        if at != len(value):
            raise self.error(offset, f"the value of {key!r} has bytes left over")
        return Record(key, *parts)
