"""The fast decoder of ranges and metaranges: the columns of their records that are compared.

It makes the same checks as the slow reader and shares no code with it but the error. It checks
checksums, order, count, first and last key, and the content id. For the id it lays the records out
in the form that lakeFS hashes, and hashes a megabyte at a time.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import cramjam
import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakegc_assets.graveler import decode_kernels as kernels
from lakegc_assets.graveler.errors import FormatError

# Part of the key of every cached range: a new number makes the cache decode all ranges again.
DECODER_VERSION: Final = 6
SCHEMA: Final = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("address_type", pa.int8(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("etag_hash", pa.int64(), nullable=False),
        pa.field("last_modified", pa.int64(), nullable=False),
    ]
)

#: The columns of a metarange: the id of each range, and the number of its entries.
RANGES: Final = pa.schema([("range_id", pa.string()), ("entries", pa.int64())])

_FOOTER: Final = struct.Struct("<41sI8s")
#: Bytes of paths that are decoded at a time.
CHUNK: Final = 1 << 20
# Three bytes of snappy expand to at most 64 bytes, so no valid block claims a larger factor.
_MOST_EXPANSION: Final = 32
_SMALLEST_ENTRY: Final = 3
_LONGEST_ADDRESSES: Final = (1 << 31) - 1
_COMPUTED: Final = (b"count", b"min_key", b"max_key", b"estimated_size_bytes")
_NUMBERS: Final = np.empty(0, np.int64)
_HEX_NAME: Final = re.compile(r"(?s:.*/)?([0-9a-f]{64})")
#: The most folders of a path that are returned, the outermost first.
FOLDER_DEPTH: Final = 4


def etag_hash(e_tag: str) -> int:
    """64-bit FNV-1a, as a signed number, of an ETag without quotes that may be an MD5; else 0.

    An MD5 is 32 lower-case hex digits. Any other ETag says nothing about the content.
    """
    raw = np.frombuffer(e_tag.encode(), np.uint8)
    return int(kernels.hash_etag(raw, 0, len(raw)))


def etag_hashes(e_tags: pa.Array) -> pa.Array:
    """Return the ``etag_hash`` of each string of an array without nulls, as int64."""
    plain = pa.concat_arrays([e_tags.cast(pa.large_string())])
    if plain.null_count:
        raise ValueError("an object without an ETag has no hash")
    hashes = np.empty(len(plain), np.int64)
    if len(plain):
        _, offsets, content = plain.buffers()
        ends = np.frombuffer(offsets, np.int64, len(plain) + 1, plain.offset * 8)
        raw = np.frombuffer(content, np.uint8) if content else np.empty(0, np.uint8)
        kernels.hash_etags(raw, ends, hashes)
    return pa.array(hashes)


def decode_range(data: bytes, name: str) -> pa.RecordBatch:
    """Decode a range.

    Args:
        data: the file.
        name: its name, for errors. When its last component is 64 hex digits it is the content id
            that the records must have.

    Returns:
        ``SCHEMA``, one row for each entry in the order of the paths: address as the entry has it,
        its type (0 by prefix, 1 relative, 2 full), size in bytes, ``etag_hash``, and last_modified
        in seconds since 1970.

    Raises:
        FormatError: the file is damaged, truncated, or no range.
    """
    table = _Table(data, name, b"ranges")
    return _to_batch(table, [columns for _, columns in _decode(table, kernels.ENTRIES)])


def decode_metarange(data: bytes, name: str) -> pa.RecordBatch:
    """Decode a metarange; the arguments are those of ``decode_range``.

    Returns:
        ``RANGES``, one row for each range in the order of their paths; none for a commit without
        objects.

    Raises:
        FormatError: the file is damaged, truncated, no metarange, or its ranges overlap.
    """
    table = _Table(data, name, b"metaranges")
    parts = [columns for _, columns in _decode(table, kernels.RANGES)]
    columns = [_strings(table, parts), np.concatenate([_NUMBERS, *(p.sizes for p in parts)])]
    return pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=RANGES)


def decode_paths(data: bytes, name: str) -> tuple[pa.RecordBatch, Paths]:
    """Decode a range together with its paths; otherwise as ``decode_range``."""
    table = _Table(data, name, b"ranges")
    parts = list(_decode(table, kernels.ENTRIES))
    return _to_batch(table, [columns for _, columns in parts]), Paths(parts)


def _decode(table: _Table, kind: int) -> Iterator[tuple[Any, kernels.Columns]]:
    """Yield the stream and the columns of each chunk, and check the whole table at the end."""
    first = last = None
    count = 0
    for chunk in table.chunks():
        stream, columns, done = _decode_chunk(table, chunk, last, kind)
        table.digest.update(memoryview(stream)[len(last or b"") : done.stream_end])
        count += done.entries
        if done.entries:
            first = _key(stream, done.first) if first is None else first
            last = _key(stream, done.last)
        yield stream, columns
    table.check(count, first or b"", last or b"")


def _key(stream: Any, key: kernels.Key) -> bytes:  # noqa: ANN401 - a numpy array
    return bytes(stream[key.at : key.at + key.length])


class _Chunk(NamedTuple):
    data: Any
    starts: Any
    offsets: list[int]


def _decode_chunk(
    table: _Table, chunk: _Chunk, previous: bytes | None, kind: int
) -> tuple[Any, kernels.Columns, kernels.Progress]:
    most = len(chunk.data) // _SMALLEST_ENTRY + 1
    columns = kernels.Columns(
        np.empty(len(chunk.data), np.uint8),
        np.empty(most, np.int32),
        np.empty(most, np.int8),
        *(np.empty(most, np.int64) for _ in range(5)),
    )
    key_length = -1 if previous is None else len(previous)
    room = len(chunk.data) * 2 + max(key_length, 0) + 64
    while True:
        stream = np.empty(room, np.uint8)
        if previous:
            stream[:key_length] = np.frombuffer(previous, np.uint8)
        done = kernels.decode_blocks(chunk.data, chunk.starts, stream, key_length, columns, kind)
        if done.code != kernels.STREAM_FULL:
            break
        room *= 2
    if done.code != kernels.OK:
        raise table.error(chunk.offsets[done.block], kernels.REASONS[done.code])
    used = int(columns.address_ends[done.entries - 1]) if done.entries else 0
    kept = (column[: done.entries].copy() for column in columns[1:])
    return stream, kernels.Columns(columns.addresses[:used].copy(), *kept), done


def _strings(table: _Table, parts: list[kernels.Columns]) -> pa.Array:
    """Return the addresses of several chunks."""
    total = sum(len(part.addresses) for part in parts)
    if total > _LONGEST_ADDRESSES:
        raise table.error(0, f"{total} bytes of addresses are more than a range can have")
    offsets, base = [np.zeros(1, np.int32)], 0
    for part in parts:
        offsets.append(part.address_ends + np.int32(base))
        base += len(part.addresses)
    ends = np.concatenate(offsets)
    content = np.concatenate([np.empty(0, np.uint8), *(part.addresses for part in parts)])
    return pa.StringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(content))


def _to_batch(table: _Table, parts: list[kernels.Columns]) -> pa.RecordBatch:
    addresses = _strings(table, parts)
    columns = [np.concatenate([part[at] for part in parts]) for at in range(2, 6)]
    batch = pa.RecordBatch.from_arrays([addresses, *map(pa.array, columns)], schema=SCHEMA)
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise table.error(0, f"an address is not UTF-8: {error}") from None
    return batch


class _Table:
    """The frame around the data blocks: footer, properties and index."""

    def __init__(self, data: bytes, name: str, kind: bytes) -> None:
        self.data = data
        self.name = name
        self.kind = kind
        self.digest = hashlib.sha256()
        self.end = len(data) - _FOOTER.size
        if self.end < 0:
            raise self.error(len(data), "the file is shorter than a footer")
        handles, version, magic = _FOOTER.unpack(data[self.end :])
        if magic.hex() != "f7cff485b741e288":
            raise self.error(self.end + 45, f"it ends in {magic.hex()}, so it is no SSTable")
        if version != 2 or handles[0] != 1:  # noqa: PLR2004 - both are constants of the format
            raise self.error(
                self.end, f"format {version} with checksum {handles[0]} is not lakeFS's"
            )
        numbers, at = [0] * 4, 1
        for place in range(4):
            numbers[place], at = _number(handles, at)
        if at < 0 or any(handles[at:]):
            raise self.error(self.end, "the footer does not hold two block handles")
        self.metaindex, self.index = (numbers[0], numbers[1]), (numbers[2], numbers[3])
        self.properties = self._read_properties()

    def error(self, offset: int, reason: str) -> FormatError:
        return FormatError(self.name, offset, reason)

    def check(self, count: int, first: bytes, last: bytes) -> None:
        """Compare the decoded table with its properties and with its name."""
        claims = [self.properties.get(name) for name in _COMPUTED[:3]]
        if claims != [b"%d" % count, first, last]:
            raise self.error(
                self.metaindex[0], f"{count} records, {first!r} to {last!r}, but it claims {claims}"
            )
        given = sorted(
            (name, value)
            for name, value in self.properties.items()
            if name not in _COMPUTED and not name.startswith(b"rocksdb.")
        )
        integer = struct.Struct(">BBq").pack
        self.digest.update(b"\x04" + integer(2, 8, len(given)))
        for text in (part for pair in given for part in pair):
            self.digest.update(b"\x01" + integer(2, 8, len(text)) + text)
        wanted, found = _HEX_NAME.fullmatch(self.name), self.digest.hexdigest()
        if wanted and wanted[1] != found:
            raise self.error(0, f"the content has the id {found}")

    def chunks(self) -> Iterator[_Chunk]:
        """Yield the decompressed data blocks, about a megabyte at a time."""
        pending: list[tuple[int, bytes, int, int]] = []
        size = 0
        for offset, length in self._data_blocks():
            payload, kind, decoded = self._payload(offset, length)
            pending.append((offset, payload, kind, decoded))
            size += decoded
            if size >= CHUNK:
                yield self._decompress(pending, size)
                pending, size = [], 0
        if pending:
            yield self._decompress(pending, size)

    def _decompress(self, blocks: list[tuple[int, bytes, int, int]], size: int) -> _Chunk:
        flat, at, starts = np.empty(size, np.uint8), 0, [0]
        room = flat.data
        for offset, payload, kind, decoded in blocks:
            target = room[at : at + decoded]
            if kind:
                try:
                    written = cramjam.snappy.decompress_raw_into(payload, target)
                except cramjam.DecompressionError as error:
                    raise self.error(offset, f"the block does not decompress: {error}") from None
                if written != decoded:
                    raise self.error(offset, "the block is shorter than it claims")
            else:
                target[:] = payload
            at += decoded
            starts.append(at)
        return _Chunk(flat, np.array(starts, np.int64), [block[0] for block in blocks])

    def _payload(self, offset: int, length: int) -> tuple[bytes, int, int]:
        """Return a block as stored, its compression flag, and its decompressed length."""
        if offset + length + 5 > self.end:
            raise self.error(self.end, f"a block at {offset} of {length} bytes is not in the file")
        checked = google_crc32c.value(self.data[offset : offset + length + 1])
        masked = ((checked >> 15 | checked << 17) + 0xA282EAD8) & 0xFFFFFFFF
        if masked.to_bytes(4, "little") != self.data[offset + length + 1 : offset + length + 5]:
            raise self.error(offset, "the block's checksum does not match")
        payload, kind = self.data[offset : offset + length], self.data[offset + length]
        if kind == 0:
            return payload, kind, length
        if kind != 1:
            raise self.error(offset + length, f"compression type {kind} is not known")
        decoded, at = _number(payload[:5], 0)
        if at < 0 or decoded > _MOST_EXPANSION * (length + 1):
            raise self.error(offset, "the block claims an impossible length")
        return payload, kind, decoded

    def _entries(self, offset: int, length: int) -> list[tuple[bytes, bytes]]:
        """Keys and values of a block of the frame; plain Python is fast enough for so few."""
        block = self._payload(offset, length)
        plain = self._decompress([(offset, *block)], block[2]).data.tobytes()
        restarts = int.from_bytes(plain[-4:], "little")
        if not 1 <= restarts <= len(plain) // 4 - 1:
            raise self.error(offset, "the block is too short for its restart points")
        end, at, key = len(plain) - 4 - 4 * restarts, 0, b""
        found: list[tuple[bytes, bytes]] = []
        while at < end:
            shared, at = _number(plain, at)
            unshared, at = _number(plain, at)
            size, at = _number(plain, at)
            if at < 0 or shared > len(key) or at + unshared + size > end:
                raise self.error(offset, "an entry of the block is out of bounds")
            value = at + unshared
            key = key[:shared] + plain[at:value]
            at = value + size
            found.append((key, plain[value:at]))
        return found

    def _handle(self, value: bytes, offset: int) -> tuple[int, int]:
        start, at = _number(value, 0)
        length, at = _number(value, at)
        if at != len(value):
            raise self.error(offset, "a block handle is not two numbers")
        return start, length

    def _read_properties(self) -> dict[bytes, bytes]:
        blocks = self._entries(*self.metaindex)
        if [name for name, _ in blocks] != [b"rocksdb.properties"]:
            raise self.error(self.metaindex[0], f"it has other meta blocks: {blocks}")
        handle = self._handle(blocks[0][1], self.metaindex[0])
        entries = self._entries(*handle)
        properties = dict(entries)
        if len(properties) != len(entries):
            raise self.error(handle[0], "a property is there twice")
        if b"entity" in properties:
            entity = properties[b"entity"].decode("utf-8", "replace")
            raise self.error(handle[0], f"it is a dump of refs ({entity}), not of entries")
        if properties.get(b"type") != self.kind:
            found = properties.get(b"type")
            raise self.error(handle[0], f"its type is {found!r}, not {self.kind.decode()}")
        return properties

    def _data_blocks(self) -> Iterator[tuple[int, int]]:
        kind = self.properties.get(b"rocksdb.block.based.table.index.type")
        entries = self._entries(*self.index)
        if kind == bytes([2, 0, 0, 0]):
            parts = [self._handle(value, self.index[0]) for _, value in entries]
            entries = [entry for part in parts for entry in self._entries(*part)]
        elif kind != bytes(4):
            raise self.error(self.index[0], f"the index type {kind!r} is not known")
        for _, value in entries:
            yield self._handle(value, self.index[0])


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint and the position after it; -1 if the varint is cut, padded or absent."""
    value = shift = 0
    while 0 <= at < len(data) and shift <= 63:  # noqa: PLR2004 - bits
        byte = data[at]
        at += 1
        if byte < 128:  # noqa: PLR2004 - the bit that says that more follows
            return value | byte << shift, at if byte or not shift else -1
        value |= (byte & 127) << shift
        shift += 7
    return 0, -1


class Paths:
    """The paths of the entries of a range, of which callers need few.

    ``parts``: for each chunk, the stream that holds the keys, and their positions in it.
    """

    def __init__(self, parts: Sequence[tuple[Any, kernels.Columns]]) -> None:
        self._parts = parts
        self._ends = np.cumsum([0, *(len(columns.sizes) for _, columns in parts)])

    def take(self, rows: npt.NDArray[np.int64]) -> list[bytes]:
        """Return the paths of some rows, whose numbers are ascending."""
        found: list[bytes] = []
        cuts = np.searchsorted(rows, self._ends)
        for (stream, columns), base, low, high in zip(
            self._parts, self._ends, cuts, cuts[1:], strict=False
        ):
            mine = rows[low:high] - base
            starts, lengths = columns.key_starts[mine], columns.key_lengths[mine]
            places = zip(starts.tolist(), lengths.tolist(), strict=True)
            found += [bytes(stream[at : at + length]) for at, length in places]
        return found

    def folders(self, depth: int) -> pa.DictionaryArray:
        """Return at most ``depth`` folders at the start of each path, with slashes at their ends.

        Paths are in order, so the paths of a folder follow each other, and few strings are made.
        """
        texts = [pa.array([], pa.string())]
        numbers = [np.empty(0, np.int32)]
        known = 0
        for stream, columns in self._parts:
            count = len(columns.key_starts)
            runs, lengths = np.empty(count, np.int32), np.empty(count, np.int64)
            first = np.empty(count, np.int64)
            found = kernels.folder_runs(
                stream, columns.key_starts, columns.key_lengths, depth, runs, first, lengths
            )
            texts.append(_cut_out(stream, first[:found], lengths[:found]))
            numbers.append(runs + np.int32(known))
            known += found
        encoded = pa.concat_arrays(texts).dictionary_encode()
        rows = encoded.indices.take(pa.array(np.concatenate(numbers)))
        return pa.DictionaryArray.from_arrays(rows, encoded.dictionary)


def _cut_out(
    stream: Any,  # noqa: ANN401 - a numpy array
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> pa.StringArray:
    """Return pieces of a stream as strings; bytes that are not UTF-8 are replaced."""
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    content = np.empty(int(ends[-1]), np.uint8)
    kernels.copy_pieces(stream, starts, ends, content)
    texts = pa.StringArray.from_buffers(len(starts), pa.py_buffer(ends), pa.py_buffer(content))
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        pieces = (content[a:b].tobytes() for a, b in itertools.pairwise(ends))
        return pa.array([piece.decode("utf-8", "replace") for piece in pieces], pa.string())
    return texts
