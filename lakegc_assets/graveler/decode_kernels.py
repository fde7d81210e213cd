"""The compiled inner loops of the fast decoder: blocks of records to columns and a hash stream.

numba compiles them at the first call and caches them. No allocation here depends on a number in the
file, and every index is checked before use: damage becomes an error code, never a wrong row.

The loops for entries and for metaranges share one file. numba looks for changes only in the file of
a loop itself, so a loop that called a function of another file would keep its old version.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lakegc_assets.graveler.compilation import compiled, inlined

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

OK = 0
STREAM_FULL = 1
BAD_RESTARTS = 2
BAD_ENTRY = 3
BAD_TRAILER = 4
BAD_ORDER = 5
BAD_VALUE = 6
BAD_PROTOBUF = 7
BAD_ADDRESS_TYPE = 8
BAD_RANGE_ID = 9
BAD_RANGE = 10
BAD_OVERLAP = 11

REASONS = {
    BAD_RESTARTS: "the restart points of the block are not those of its entries",
    BAD_ENTRY: "an entry of the block is out of bounds",
    BAD_TRAILER: "a record of the block is not a plain value",
    BAD_ORDER: "the keys do not increase",
    BAD_VALUE: "a value does not consist of an identity and an entry",
    BAD_PROTOBUF: "an entry is not a protobuf that lakeFS writes",
    BAD_ADDRESS_TYPE: "an entry has an unknown address type",
    BAD_RANGE_ID: "a range has an id that is no content id",
    BAD_RANGE: "the data of a range are not those that lakeFS writes",
    BAD_OVERLAP: "a range overlaps the one before it",
}

#: Kinds of records: entries, or the ranges of a metarange.
ENTRIES, RANGES = range(2)

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ADDRESS, _LAST_MODIFIED, _SIZE, _E_TAG, _METADATA, _ADDRESS_TYPE, _CONTENT_TYPE = range(1, 8)
_MIN_KEY, _MAX_KEY, _ESTIMATED_SIZE, _COUNT = range(1, 5)
_ID_LENGTH = 64
# Bytes of the stream for two lengths in decimal and two separators.
_STREAM_SLACK = 48
_BAR = ord("|")


class Columns(NamedTuple):
    """The columns of a chunk, long enough for every record that the chunk can hold.

    Keys are given by their positions in the stream. For a metarange, addresses are the ids of
    ranges, and sizes are the numbers of their entries.
    """

    addresses: Bytes
    address_ends: npt.NDArray[np.int32]
    address_types: npt.NDArray[np.int8]
    sizes: Longs
    e_tag_hashes: Longs
    last_modified: Longs
    key_starts: Longs
    key_lengths: Longs


class Key(NamedTuple):
    """The position of a user key in the stream; its length is -1 if there is no key."""

    at: int
    length: int


class Progress(NamedTuple):
    """The progress of decoding one chunk."""

    #: ``OK``, or the code of the error.
    code: int
    #: The index of the last block that was begun.
    block: int
    #: Rows so far.
    entries: int
    #: Bytes of addresses so far.
    addresses: int
    #: The end of the hash stream.
    stream_end: int
    #: First key of the chunk.
    first: Key
    #: Last key so far.
    last: Key


class _Record(NamedTuple):
    code: int
    key: Key
    stream_end: int
    value_at: int
    value_end: int


class _Range(NamedTuple):
    code: int
    entries: int


class _Fields(NamedTuple):
    code: int
    address_at: int
    address_length: int
    address_type: int
    size: int
    e_tag_hash: int
    seconds: int


@inlined
def _varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number of at most 64 bits and the position after it; -1 if it is invalid."""
    value = np.int64(0)
    for shift in range(0, 64, 7):
        if at >= end:
            return value, -1
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:  # noqa: PLR2004 - the bit that says that more follows
            return value, at if shift < 63 or byte < 2 else -1  # noqa: PLR2004 - 9 groups and a bit
    return value, -1


@compiled
def hash_etag(data: Bytes, at: int, end: int) -> int:
    """64-bit FNV-1a of 32 lower-case hex digits, as a signed number; 0 for any other text."""
    if end - at != 32:  # noqa: PLR2004 - the digits of an MD5
        return 0
    value = np.uint64(0xCBF29CE484222325)
    for place in range(at, end):
        byte = data[place]
        if not (48 <= byte <= 57 or 97 <= byte <= 102):  # noqa: PLR2004 - 0 to 9, a to f
            return 0
        value = (value ^ np.uint64(byte)) * np.uint64(0x100000001B3)
    return np.int64(value)  # type: ignore[no-any-return]  # of numba's integers


@compiled
def hash_etags(data: Bytes, offsets: Longs, hashes: Longs) -> None:
    """``hash_etag`` of each string between two offsets."""
    for i in range(len(hashes)):
        hashes[i] = hash_etag(data, offsets[i], offsets[i + 1])


@compiled
def folder_runs(
    stream: Bytes,
    starts: Longs,
    lengths: Longs,
    depth: int,
    runs: npt.NDArray[np.int32],
    run_starts: Longs,
    run_lengths: Longs,
) -> int:
    """Count the runs of keys in a stream that share the outer folders of the key before them.

    At most ``depth`` folders of a key count. ``runs`` receives the number of the run of each key,
    ``run_starts`` and ``run_lengths`` the place of the folders of each run in the stream.
    """
    count = 0
    for i in range(len(starts)):
        at, cut, left = starts[i], starts[i], depth
        for place in range(at, at + lengths[i]):
            if stream[place] == 47:  # noqa: PLR2004 - a slash
                cut = place + 1
                left -= 1
                if left == 0:
                    break
        length = cut - at
        same = count > 0 and run_lengths[count - 1] == length
        if same:
            before = run_starts[count - 1]
            for offset in range(length):
                if stream[before + offset] != stream[at + offset]:
                    same = False
                    break
        if not same:
            run_starts[count] = at
            run_lengths[count] = length
            count += 1
        runs[i] = count - 1
    return count


@compiled
def copy_pieces(stream: Bytes, starts: Longs, ends: npt.NDArray[np.int32], content: Bytes) -> None:
    """Copy pieces of a stream, from their starts, one after the other to ``content``.

    ``ends``: of the pieces in ``content``, after a 0 for the start of the first piece.
    """
    for i in range(len(starts)):
        at = starts[i] - ends[i]
        for place in range(ends[i], ends[i + 1]):
            content[place] = stream[at + place]


@compiled
def _field(data: Bytes, at: int, end: int) -> tuple[int, int, int, int, int]:
    """A protobuf field: number, wire type, its number or length, and the two ends of its content.

    The wire type is -1 if the field is invalid.
    """
    tag, at = _varint(data, at, end)
    number, wire, value, start = tag >> 3, tag & 7, np.int64(0), at
    if at < 0 or not 8 <= tag < 1 << 32:  # noqa: PLR2004 - the first field's tag
        return 0, -1, 0, 0, end
    if wire in (_VARINT, _BYTES):
        value, start = _varint(data, at, end)
        at = start
        if at < 0 or (wire == _BYTES and not 0 <= value <= end - at):
            return 0, -1, 0, 0, end
        if wire == _BYTES:
            at += value
    elif wire in (_FIXED64, _FIXED32):
        at += 8 if wire == _FIXED64 else 4
    else:
        return 0, -1, 0, 0, end
    return number, wire if at <= end else -1, value, start, at


@compiled
def _seconds(data: Bytes, at: int, end: int, seconds: int) -> tuple[int, bool]:
    """Return the seconds of a Timestamp, and whether the Timestamp is well-formed."""
    while at < end:
        number, wire, value, _, at = _field(data, at, end)
        if wire < 0 or (number <= 2 and wire != _VARINT):  # noqa: PLR2004 - seconds and nanos
            return 0, False
        if number == 1:
            seconds = value
    return seconds, True


@compiled
def _entry(data: Bytes, at: int, end: int) -> _Fields:
    """Return the fields of an entry's protobuf; the last one of a repeated field counts."""
    address_at = address_length = address_type = size = seconds = np.int64(0)
    tag_at = tag_end = at
    well_formed = True
    while at < end:
        number, wire, value, start, at = _field(data, at, end)
        is_number = number in (_SIZE, _ADDRESS_TYPE)
        if number <= _CONTENT_TYPE and wire != (_VARINT if is_number else _BYTES):
            well_formed = False
        if wire < 0 or not well_formed:
            return _Fields(BAD_PROTOBUF, 0, 0, 0, 0, 0, 0)
        if number == _ADDRESS:
            address_at, address_length = start, value
        elif number == _LAST_MODIFIED:
            seconds, well_formed = _seconds(data, start, at, seconds)
        elif number == _SIZE:
            size = value
        elif number == _E_TAG:
            tag_at, tag_end = start, at
        elif number == _ADDRESS_TYPE:
            address_type = value
    code = OK if 0 <= address_type <= 2 else BAD_ADDRESS_TYPE  # noqa: PLR2004 - AddressType.FULL
    code = code if well_formed else BAD_PROTOBUF
    e_tag_hash = hash_etag(data, tag_at, tag_end)
    return _Fields(code, address_at, address_length, address_type, size, e_tag_hash, seconds)


@compiled
def _restarts(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return the offset and number of the restart points of a block; -1 if they are invalid."""
    if end - at < 8:  # noqa: PLR2004 - one restart point and their number
        return -1, 0
    count = _fixed32(data, end - 4)
    start = end - 4 - 4 * count
    if count < 1 or start < at or _fixed32(data, start) != 0:
        return -1, 0
    return start, count


@compiled
def _fixed32(data: Bytes, at: int) -> int:
    value = 0
    for i in range(4):
        value |= int(data[at + i]) << (8 * i)
    return value


@compiled
def _header(data: Bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """The shared, rest and value lengths of an entry and the position after; -1 if invalid."""
    shared, at = _varint(data, at, end)
    unshared, length = np.int64(-1), np.int64(-1)
    if at >= 0:
        unshared, at = _varint(data, at, end)
    if at >= 0:
        length, at = _varint(data, at, end)
    if shared < 0 or unshared < 0 or length < 0:
        return 0, 0, 0, -1
    if unshared > end - at or length > end - at - unshared:
        return 0, 0, 0, -1
    return shared, unshared, length, at


@compiled
def _write_decimal(stream: Bytes, at: int, number: int) -> int:
    digits, rest = 1, number // 10
    while rest:
        digits += 1
        rest //= 10
    for i in range(at + digits - 1, at - 1, -1):
        stream[i] = 48 + number % 10
        number //= 10
    return at + digits


@inlined
def _copy(source: Bytes, start: int, target: Bytes, place: int, length: int) -> None:
    """Copy bytes; none if the length is negative. Unsigned positions copy several at a time."""
    begin, to = np.uint64(start), np.uint64(place)
    for i in range(np.uint64(max(length, 0))):
        target[to + i] = source[begin + i]


@compiled
def _write_key(data: Bytes, at: int, shared: int, stream: Bytes, old: Key, new: Key) -> int:
    """Write a user key into the stream; return ``OK``, or the error in its trailer or its order.

    The shared bytes come from the key before, which is in the stream without its own trailer (a 1
    and seven zeros).
    """
    plain = min(shared, max(old.length, 0), new.length)
    _copy(stream, old.at, stream, new.at, plain)
    for i in range(plain, min(shared, new.length)):
        # The trailer follows the previous key.
        stream[new.at + i] = 1 if i == old.length else 0
    _copy(data, at, stream, new.at + shared, new.length - shared)
    for i in range(8):
        place = new.length + i
        if place >= shared:
            byte = data[at + place - shared]
        elif place < old.length:
            byte = stream[old.at + place]
        else:
            byte = np.uint8(1 if place == old.length else 0)
        if byte != (1 if i == 0 else 0):
            return BAD_TRAILER
    return OK if old.length < 0 or _follows(stream, old, new, plain) else BAD_ORDER


@compiled
def _follows(stream: Bytes, old: Key, new: Key, same: int) -> bool:
    """Return whether the second of two keys with the same start comes after the first."""
    for i in range(same, min(old.length, new.length)):
        if stream[old.at + i] != stream[new.at + i]:
            return bool(stream[old.at + i] < stream[new.at + i])
    return old.length < new.length


@compiled
def _record(data: Bytes, at: int, end: int, stream: Bytes, position: int, old: Key) -> _Record:
    """Write the record at ``at`` into the stream, at ``position``."""
    shared, unshared, length, at = _header(data, at, end)
    key_length = shared + unshared - 8
    if at < 0 or key_length < 0 or shared > max(old.length, 0) + 8:
        return _Record(BAD_ENTRY, old, 0, 0, 0)
    if position + key_length + length + _STREAM_SLACK > len(stream):
        return _Record(STREAM_FULL, old, 0, 0, 0)
    key = Key(_write_decimal(stream, position, key_length), key_length)
    code = _write_key(data, at, shared, stream, old, key)
    if code:
        return _Record(code, old, 0, 0, 0)
    stream[key.at + key_length] = _BAR
    position = _write_decimal(stream, key.at + key_length + 1, length)
    at += unshared
    _copy(data, at, stream, position, length)
    stream[position + length] = _BAR
    return _Record(OK, key, position + length + 1, at, at + length)


@compiled
def _protobuf(data: Bytes, at: int, end: int) -> int:
    """Return the offset of the protobuf of a value, or -1; both lengths are zigzag numbers."""
    length, at = _varint(data, at, end)
    if at < 0 or length < 0 or length & 1 or length >> 1 > end - at:
        return -1
    length, at = _varint(data, at + (length >> 1), end)
    return int(at) if at >= 0 and length & 1 == 0 and length >> 1 == end - at else -1


@compiled
def _row(data: Bytes, at: int, end: int, columns: Columns, progress: Progress) -> tuple[int, int]:
    """Fill the next row from a value; return a code and the new end of the addresses."""
    proto, addresses = _protobuf(data, at, end), progress.addresses
    if proto < 0:
        return BAD_VALUE, addresses
    fields = _entry(data, proto, end)
    if fields.code:
        return fields.code, addresses
    _copy(data, fields.address_at, columns.addresses, addresses, fields.address_length)
    addresses += fields.address_length
    row = progress.entries
    columns.address_ends[row] = addresses
    columns.address_types[row] = fields.address_type
    columns.sizes[row] = fields.size
    columns.e_tag_hashes[row] = fields.e_tag_hash
    columns.last_modified[row] = fields.seconds
    return OK, addresses


@compiled
def _order(left: Bytes, at: int, length: int, stream: Bytes, key: Key) -> int:
    """Compare some bytes with a key in the stream: -1 before, 0 equal, 1 after."""
    for i in range(min(length, key.length)):
        if left[at + i] != stream[key.at + i]:
            return -1 if left[at + i] < stream[key.at + i] else 1
    return 0 if length == key.length else (-1 if length < key.length else 1)


@compiled
def _range_data(data: Bytes, at: int, end: int, stream: Bytes, old: Key, new: Key) -> _Range:
    """The number of entries in a range's protobuf; the last one of a repeated field counts."""
    low_at = low_length = high_at = high_length = count = np.int64(0)
    while at < end:
        number, wire, value, start, at = _field(data, at, end)
        is_number = number in (_ESTIMATED_SIZE, _COUNT)
        if wire < 0 or (number <= _COUNT and wire != (_VARINT if is_number else _BYTES)):
            return _Range(BAD_RANGE, 0)
        if number == _MIN_KEY:
            low_at, low_length = start, value
        elif number == _MAX_KEY:
            high_at, high_length = start, value
        elif number == _COUNT:
            count = value
    if count < 1 or _order(data, high_at, high_length, stream, new) != 0:
        return _Range(BAD_RANGE, 0)
    if _order(data, low_at, low_length, stream, new) > 0:
        return _Range(BAD_RANGE, 0)
    # The key of a record is the last path of its range.
    if old.length >= 0 and _order(data, low_at, low_length, stream, old) <= 0:
        return _Range(BAD_OVERLAP, 0)
    return _Range(OK, count)


@compiled
def _range_row(
    data: Bytes, record: _Record, stream: Bytes, columns: Columns, progress: Progress
) -> tuple[int, int]:
    """Fill the next row from the record of a range; return a code and the new end of the ids."""
    ids = progress.addresses
    at, end = record.value_at, record.value_end
    proto = _protobuf(data, at, end)
    if proto < 0:
        return BAD_VALUE, ids
    length, at = _varint(data, at, end)
    if length != 2 * _ID_LENGTH:
        return BAD_RANGE_ID, ids
    for i in range(_ID_LENGTH):
        byte = data[at + i]
        if not (48 <= byte <= 57 or 97 <= byte <= 102):  # noqa: PLR2004 - 0 to 9, a to f
            return BAD_RANGE_ID, ids
        columns.addresses[ids + i] = byte
    found = _range_data(data, proto, end, stream, progress.last, record.key)
    row = progress.entries
    columns.address_ends[row] = ids + _ID_LENGTH
    columns.sizes[row] = found.entries
    return found.code, ids + _ID_LENGTH


@compiled
def _block(
    data: Bytes, start: int, end: int, stream: Bytes, columns: Columns, done: Progress, kind: int
) -> Progress:
    """Decode the records of one block and continue from the progress ``done``."""
    restarts_at, restarts = _restarts(data, start, end)
    code, seen, at = OK if restarts_at >= 0 else BAD_RESTARTS, 0, start
    while code == OK and at < restarts_at:
        if seen < restarts and at - start == _fixed32(data, restarts_at + 4 * seen):
            seen += 1
            code = BAD_RESTARTS if data[at] else OK
        record = _record(data, at, restarts_at, stream, done.stream_end, done.last)
        code = code or record.code
        addresses = done.addresses
        if code == OK:
            if kind == RANGES:
                code, addresses = _range_row(data, record, stream, columns, done)
            else:
                code, addresses = _row(data, record.value_at, record.value_end, columns, done)
            columns.key_starts[done.entries] = record.key.at
            columns.key_lengths[done.entries] = record.key.length
        at = record.value_end
        first = record.key if done.entries == 0 else done.first
        rows = done.entries + 1
        done = Progress(code, done.block, rows, addresses, record.stream_end, first, record.key)
    if code == OK and seen != restarts and restarts_at != start:
        code = BAD_RESTARTS
    entries, addresses = done.entries, done.addresses
    return Progress(code, done.block, entries, addresses, done.stream_end, done.first, done.last)


@compiled
def decode_blocks(
    data: Bytes, starts: Longs, stream: Bytes, key_length: int, columns: Columns, kind: int
) -> Progress:
    """Decode the records of a chunk of blocks.

    Args:
        data: the decompressed blocks, one after the other.
        starts: start of each block, and the end of the last one.
        stream: begins with the last key of the chunk before. For each record follow the length of
            the key in decimal, key, ``|``, length of the value, value, ``|``.
        key_length: length of that last key; -1 if there is none.
        columns: receive the rows.
        kind: ``ENTRIES`` or ``RANGES``.
    """
    key = Key(0, key_length)
    done = Progress(OK, 0, 0, 0, max(key_length, 0), key, key)
    for block in range(len(starts) - 1):
        begun = Progress(
            OK, block, done.entries, done.addresses, done.stream_end, done.first, done.last
        )
        done = _block(data, starts[block], starts[block + 1], stream, columns, begun, kind)
        if done.code:
            break
    return done
