"""The writer of SSTables: byte for byte what lakeFS writes for the same records.

Block sizes, restart points, separators and properties follow pebble's defaults as lakeFS uses them
(github.com/cockroachdb/pebble at 65ff304d3d7a, sstable/writer.go), because the estimated size,
which is hashed into metaranges, depends on each of them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from itertools import takewhile
from operator import eq
from typing import Final, Literal

import cramjam

from lakegc_assets.graveler import ident, sstable
from lakegc_assets.graveler.sstable import Handle, Record

Kind = Literal["ranges", "metaranges"]

_BLOCK_SIZE: Final = 4096
# Block size in bytes from which a block is closed rather than overfilled: 90 %, rounded up.
_BLOCK_THRESHOLD: Final = (_BLOCK_SIZE * 90 + 99) // 100
_RESTART_INTERVAL: Final = 16
_HANDLE_ESTIMATE: Final = 20
# End of index keys that belong to no record: the highest sequence number and kind "separator".
_SEPARATOR_TRAILER: Final = b"\x11" + b"\xff" * 7
_INVALID_KEY: Final = b"\xff" + bytes(7)
_FIXED_PROPERTIES: Final = {
    "rocksdb.block.based.table.prefix.filtering": b"0",
    "rocksdb.block.based.table.whole.key.filtering": b"0",
    "rocksdb.column.family.id": b"\xff\xff\xff\xff\x07",
    "rocksdb.comparator": b"leveldb.BytewiseComparator",
    "rocksdb.compression": b"Snappy",
    "rocksdb.compression_options": (
        b"window_bits=-14; level=32767; strategy=0; max_dict_bytes=0; "
        b"zstd_max_train_bytes=0; enabled=0; "
    ),
    "rocksdb.creation.time": b"\0",
    "rocksdb.deleted.keys": b"\0",
    "rocksdb.external_sst_file.global_seqno": bytes(8),
    "rocksdb.external_sst_file.version": b"\x02\0\0\0",
    "rocksdb.filter.size": b"\0",
    "rocksdb.fixed.key.length": b"\0",
    "rocksdb.format.version": b"\0",
    "rocksdb.index.key.is.user.key": b"\0",
    "rocksdb.index.value.is.delta.encoded": b"\0",
    "rocksdb.merge.operands": b"\0",
    "rocksdb.merge.operator": b"pebble.concatenate",
    "rocksdb.num.range-deletions": b"\0",
    "rocksdb.oldest.key.time": b"\0",
    "rocksdb.prefix.extractor.name": b"nullptr",
    "rocksdb.property.collectors": b"[static]",
}


def write_sstable(
    records: Iterable[Record], kind: Kind, metadata: Mapping[str, str] | None = None
) -> tuple[str, bytes]:
    """Write a whole table with an ``SSTableWriter``; return the content id and the file.

    Raises:
        ValueError: the keys' bytes do not strictly increase.
    """
    writer = SSTableWriter(kind, metadata)
    for record in records:
        writer.add(record)
    return writer.finish()


class SSTableWriter:
    """A writer that takes records one by one and knows the estimated size of the file.

    Args:
        kind: value of the property ``type``.
        metadata: more user properties, hashed into the id.

    Attributes:
        count: of the records so far.
        first: key of the first record.
        last: key of the last record so far.
    """

    def __init__(self, kind: Kind, metadata: Mapping[str, str] | None = None) -> None:
        self._metadata = {**(metadata or {}), "type": kind}
        self.count = 0
        self.first = b""
        self.last = b""
        self._key_bytes = self._value_bytes = 0
        self._hash = hashlib.sha256()
        self._file = bytearray()
        self._data = _Block(_RESTART_INTERVAL)
        self._data_blocks = 0
        self._index = _Block(1)
        self._partitions: list[tuple[bytes, bytes]] = []

    @property
    def estimated_size(self) -> int:
        """The estimated size by which lakeFS breaks ranges: about the bytes written so far."""
        return len(self._file) + self._data.size + self._index.size

    def add(self, record: Record) -> None:
        """Append a record; ValueError if its key does not follow the previous key."""
        key = record.key
        if self.count and key <= self.last:
            raise ValueError(f"{key!r} does not follow {self.last!r}")
        value = b"".join(_zigzag(len(part)) + part for part in (record.identity, record.value))
        if self._data.is_full(len(key) + 8, len(value)):
            self._finish_data_block(_separator(self.last, key))
        self._data.add(key + sstable.KEY_TRAILER, value, len(key))
        self._hash.update(b"%d%b|%d%b|" % (len(key), key, len(value), value))
        self._key_bytes += len(key) + 8
        self._value_bytes += len(value)
        self.first = key if not self.count else self.first
        self.last = key
        self.count += 1

    def finish(self) -> tuple[str, bytes]:
        """Return the content id and the file; the writer cannot be used afterwards."""
        self._hash.update(ident.encode_string_map(self._metadata))
        properties = {
            **{name: value.encode() for name, value in self._metadata.items()},
            "count": b"%d" % self.count,
            "min_key": self.first,
            "max_key": self.last,
            "estimated_size_bytes": b"%d" % self.estimated_size,
        }
        if self._data.entries or not self._data_blocks:
            self._finish_data_block(_successor(self.last) if self.count else _INVALID_KEY)
        properties["rocksdb.data.size"] = _varint(len(self._file))
        index = self._write_index(properties)
        metaindex = self._write_properties(properties)
        footer = bytes([sstable.CRC32C]) + _encode(metaindex) + _encode(index)
        version = struct.pack("<I", sstable.FORMAT_VERSION)
        self._file += footer.ljust(sstable.FOOTER_LENGTH - 12, b"\0") + version + sstable.MAGIC
        return self._hash.hexdigest(), bytes(self._file)

    def _finish_data_block(self, separator: bytes) -> None:
        handle = _encode(self._write_block(self._data.finish()))
        self._data = _Block(_RESTART_INTERVAL)
        self._data_blocks += 1
        if self._index.is_full(len(separator), _HANDLE_ESTIMATE):
            self._partitions.append((self._index.last, self._index.finish()))
            self._index = _Block(1)
        self._index.add(separator, handle, len(separator) - 8)

    def _write_index(self, properties: dict[str, bytes]) -> Handle:
        partitions = [*self._partitions, (self._index.last, self._index.finish())]
        top, size, kind = partitions[0][1], 0, sstable.SINGLE_LEVEL_INDEX
        if len(partitions) > 1:
            kind = sstable.TWO_LEVEL_INDEX
            upper = _Block(1)
            for last, block in partitions:
                upper.add(last, _encode(self._write_block(block)), len(last) - 8)
                size += len(block)
            top = upper.finish()
            properties["rocksdb.index.partitions"] = _varint(len(partitions))
            properties["rocksdb.top-level.index.size"] = _varint(len(top))
        properties[sstable.INDEX_TYPE] = struct.pack("<I", kind)
        properties["rocksdb.index.size"] = _varint(size + len(top) + sstable.TRAILER_LENGTH)
        return self._write_block(top)

    def _write_properties(self, properties: dict[str, bytes]) -> Handle:
        """Write the blocks of properties and metaindex; return the handle of the metaindex."""
        properties |= _FIXED_PROPERTIES
        properties["rocksdb.num.data.blocks"] = _varint(self._data_blocks)
        properties["rocksdb.num.entries"] = _varint(self.count)
        properties["rocksdb.raw.key.size"] = _varint(self._key_bytes)
        properties["rocksdb.raw.value.size"] = _varint(self._value_bytes)
        block = _Block(len(properties))
        for name, value in sorted((name.encode(), value) for name, value in properties.items()):
            block.add(name, value, len(name))
        handle = self._write_block(block.finish(), compress=False)
        metaindex = _Block(1)
        metaindex.add(sstable.PROPERTIES_BLOCK, _encode(handle), 0)
        return self._write_block(metaindex.finish(), compress=False)

    def _write_block(self, payload: bytes, *, compress: bool = True) -> Handle:
        kind = sstable.NO_COMPRESSION
        if compress:
            compressed = bytes(cramjam.snappy.compress_raw(payload))
            # A block that compression shrinks by less than an eighth is stored uncompressed.
            if len(compressed) < len(payload) - len(payload) // 8:
                kind, payload = sstable.SNAPPY, compressed
        handle = Handle(len(self._file), len(payload))
        self._file += payload
        self._file += struct.pack("<BI", kind, sstable.masked_crc32c(payload, kind))
        return handle


class _Block:
    """A block under construction: keys omit the start that they share with the previous key."""

    def __init__(self, restart_interval: int) -> None:
        self._restart_interval = restart_interval
        self._buffer = bytearray()
        self._restarts: list[int] = []
        self.entries = 0
        self.last = b""

    @property
    def size(self) -> int:
        return len(self._buffer) + 4 * len(self._restarts) + 4

    def is_full(self, key_length: int, value_length: int) -> bool:
        """Return whether an entry of these lengths belongs in the next block."""
        if not self.entries or self.size <= _BLOCK_THRESHOLD:
            return self.entries > 0 and self.size >= _BLOCK_SIZE
        restart = 4 if self.entries % self._restart_interval == 0 else 0
        lengths = 4 + len(_varint(key_length)) + len(_varint(value_length))
        return self.size + key_length + value_length + restart + lengths > _BLOCK_SIZE

    def add(self, key: bytes, value: bytes, shareable: int) -> None:
        """Append an entry, whose key shares at most ``shareable`` bytes with the previous key."""
        shared = 0
        if self.entries % self._restart_interval == 0:
            self._restarts.append(len(self._buffer))
        else:
            shared = _common(key[:shareable], self.last)
        self._buffer += _varint(shared) + _varint(len(key) - shared) + _varint(len(value))
        self._buffer += key[shared:]
        self._buffer += value
        self.last = key
        self.entries += 1

    def finish(self) -> bytes:
        restarts = self._restarts or [0]
        return bytes(self._buffer) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def _common(left: bytes, right: bytes) -> int:
    return sum(takewhile(bool, map(eq, left, right)))


def _separator(left: bytes, right: bytes) -> bytes:
    """A short index key from ``left`` on and before ``right``, by pebble's rule."""
    at = _common(left, right)
    if at < len(left):
        if at < len(right) - 1 or left[at] + 1 < right[at]:
            short = left[:at] + bytes([left[at] + 1])
        else:
            short = left[: at + 1] + _next_shorter(left[at + 1 :])
        if short > left:
            return short + _SEPARATOR_TRAILER
    return left + sstable.KEY_TRAILER


def _successor(key: bytes) -> bytes:
    """A short index key from the last key on, by pebble's rule."""
    short = _next_shorter(key)
    return short + _SEPARATOR_TRAILER if short > key else key + sstable.KEY_TRAILER


def _next_shorter(key: bytes) -> bytes:
    """Return ``key`` up to its first byte that can grow, with that byte plus one; else ``key``."""
    for at, byte in enumerate(key):
        if byte != 0xFF:  # noqa: PLR2004 - the highest byte
            return key[:at] + bytes([byte + 1])
    return key


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:  # noqa: PLR2004 - seven bits to a byte
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _zigzag(length: int) -> bytes:
    return _varint(length << 1)


def _encode(handle: Handle) -> bytes:
    return _varint(handle.offset) + _varint(handle.length)
