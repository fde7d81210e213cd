"""The compiled loop of the witness: positions of the fields of each entry in a range's blocks.

It copies no field, it only finds positions, and reads the fields one after another. Every byte of a
block belongs to an entry or to the restart points; otherwise the block is refused.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lakegc_assets.graveler.compilation import compiled, inlined

_Longs = npt.NDArray[np.int64]

FINE: Final = 0
REASONS: Final = (
    "",
    "a block is shorter than its restart points",
    "an entry reaches beyond its block",
    "a record is not a plain value",
    "the keys do not increase",
    "a value is not an identity and an entry",
    "an entry cannot be read",
    "there are more entries than the file says",
)
_SHORT, _BEYOND, _KIND, _ORDER, _VALUE, _ENTRY, _MORE = range(1, 8)


class Fields(NamedTuple):
    """Offsets of the address and etag, and numeric fields; arrays with a row for each entry."""

    address_at: _Longs
    address_end: _Longs
    address_type: _Longs
    size: _Longs
    etag_at: _Longs
    etag_end: _Longs
    seconds: _Longs
    nanos: _Longs


@inlined
def _copy(source: Any, start: Any, target: Any, place: Any, length: Any) -> None:  # noqa: ANN401
    """Copy bytes. Unsigned positions let the compiler copy several bytes at a time."""
    begin, to = np.uint64(start), np.uint64(place)
    for i in range(np.uint64(length)):
        target[to + i] = source[begin + i]


@inlined
def _number(data: Any, at: Any, end: Any) -> Any:  # noqa: ANN401 - an array and positions
    """Read a varint; return its value and its end, -1 if it is invalid."""
    value, shift = np.uint64(0), np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            # The tenth byte has room for one bit.
            sound = shift < np.uint64(63) or byte < np.uint64(2)
            return np.int64(value), np.int64(at if sound else -1)
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@compiled
def _moment(data: Any, at: Any, end: Any, row: Any, fields: Any) -> Any:  # noqa: ANN401 - arrays
    """Read a Timestamp into a row; return False if it is invalid."""
    while at < end:
        tag, at = _number(data, at, end)
        if at < 0 or tag not in (8, 16):
            # lakeFS writes seconds and nanos, and nothing else.
            return False
        value, at = _number(data, at, end)
        if at < 0:
            return False
        if tag == 8:  # noqa: PLR2004 - seconds
            fields.seconds[row] = value
        else:
            fields.nanos[row] = np.int64(np.int32(value))
    return True


@inlined
def _field(data: Any, at: Any, end: Any) -> Any:  # noqa: ANN401 - an array and positions
    """Read a field's number, value or length, the end of that, and whether bytes follow.

    The number is 0 if lakeFS does not write such a field: fields 3 and 6 are numbers, the others
    are bytes.
    """
    tag, at = _number(data, at, end)
    value = np.int64(0)
    if at >= 0:
        value, at = _number(data, at, end)
    number, has_bytes = tag >> 3, tag & 7 == 2  # noqa: PLR2004 - the wire type of bytes
    sound = at >= 0 and 8 <= tag < 1 << 32 and tag & 7 in (0, 2)  # noqa: PLR2004 - the first field's
    if sound and number <= 7:  # noqa: PLR2004 - the last field that is known
        sound = has_bytes != (number in (3, 6))
    if sound and has_bytes:
        sound = 0 <= value <= end - at
    return number if sound else np.int64(0), value, at, has_bytes


@compiled
def _entry(data: Any, at: Any, end: Any, row: Any, fields: Any) -> Any:  # noqa: ANN401 - arrays
    """Read an Entry into a row; False if it is invalid. Of a repeated field the last one counts."""
    for column in fields:
        column[row] = 0
    while at < end:
        number, value, at, has_bytes = _field(data, at, end)
        if number == 0:
            return False
        if number == 1:
            fields.address_at[row], fields.address_end[row] = at, at + value
        elif number == 2 and not _moment(data, at, at + value, row, fields):  # noqa: PLR2004
            return False
        elif number == 3:  # noqa: PLR2004 - size
            fields.size[row] = value
        elif number == 4:  # noqa: PLR2004 - e_tag
            fields.etag_at[row], fields.etag_end[row] = at, at + value
        elif number == 6:  # noqa: PLR2004 - address_type
            fields.address_type[row] = value
        if has_bytes:
            at += value
    return 0 <= fields.address_type[row] <= 2  # noqa: PLR2004 - AddressType


@compiled
def _value(data: Any, at: Any, end: Any, row: Any, fields: Any) -> Any:  # noqa: ANN401 - arrays
    """Read a value, an identity and an entry, each after twice its length; return a code."""
    for part in range(2):
        length, at = _number(data, at, end)
        if at < 0 or length < 0 or length % 2 or length // 2 > end - at:
            return _VALUE
        if part == 0:
            at += length // 2
        elif length // 2 != end - at:
            return _VALUE
    return FINE if _entry(data, at, end, row, fields) else _ENTRY


@compiled
def _key(data: Any, at: Any, shared: Any, rest: Any, key: Any, old: Any) -> Any:  # noqa: ANN401
    """Append the rest of a key to the bytes that it shares with the last key; return a code.

    Args:
        data: the blocks.
        at: position of the rest in the blocks.
        shared: number of bytes that the key shares with the last key.
        rest: number of bytes that follow.
        key: the last key, replaced by this key; each ends with the 8 bytes of its kind.
        old: length of the last key; 0 if this is the first key.
    """
    length = shared + rest
    if length < 8:  # noqa: PLR2004 - the kind
        return _KIND
    rises = old == 0
    if not rises:
        same, most = shared, min(old, length) - 8
        while same < most and data[at + same - shared] == key[same]:
            same += 1
        rises = old < length if same >= most else key[same] < data[at + same - shared]
    _copy(data, at, key, shared, rest)
    if key[length - 8] != 1:
        return _KIND
    for place in range(length - 7, length):
        if key[place]:
            return _KIND
    return FINE if rises else _ORDER


@compiled
def _limit(data: Any, at: Any, end: Any) -> Any:  # noqa: ANN401 - an array and positions
    """Return the end of the entries of a block, where its restart points begin; -1 if invalid."""
    if end - at < 8:  # noqa: PLR2004 - one restart point and their number
        return np.int64(-1)
    restarts = np.int64(0)
    for i in range(4):
        restarts = restarts * 256 + np.int64(data[end - 1 - i])
    limit = end - 4 - 4 * restarts
    return limit if restarts >= 1 and limit >= at else np.int64(-1)


@inlined
def _lengths(data: Any, at: Any, limit: Any) -> Any:  # noqa: ANN401 - an array and positions
    """Read the lengths of an entry's shared key, rest and value, and their end; -1 if invalid."""
    rest, length = np.int64(-1), np.int64(-1)
    shared, at = _number(data, at, limit)
    if at >= 0:
        rest, at = _number(data, at, limit)
    if at >= 0:
        length, at = _number(data, at, limit)
    sound = at >= 0 and shared >= 0 and 0 <= rest <= limit - at
    sound = sound and 0 <= length <= limit - at - rest
    return shared, rest, length, at if sound else np.int64(-1)


@compiled
def copy_keys(data: Any, starts: Any, wanted: Any, key: Any, copied: Any, ends: Any) -> Any:  # noqa: ANN401
    """Copy the keys of some entries of blocks that ``walk`` has accepted.

    Args:
        data: the blocks, joined.
        starts: start of each block, and the end of the last block.
        wanted: for each entry, True to copy its key.
        key: buffer for the longest key.
        copied: buffer for the keys, joined; empty to find only their ends.
        ends: filled with the end of each wanted key.
    """
    row, found, used = np.int64(0), np.int64(0), np.int64(0)
    for block in range(len(starts) - 1):
        at, limit = starts[block], _limit(data, starts[block], starts[block + 1])
        while at < limit:
            shared, rest, length, at = _lengths(data, at, limit)
            _copy(data, at, key, shared, rest)
            if wanted[row]:
                size = shared + rest - 8
                if len(copied):
                    _copy(key, 0, copied, used, size)
                used += size
                ends[found] = used
                found += 1
            at += rest + length
            row += 1


@compiled
def walk(data: Any, starts: Any, key: Any, fields: Any) -> Any:  # noqa: ANN401 - arrays
    """Find the fields of every entry.

    Args:
        data: the blocks, joined.
        starts: start of each block, and the end of the last block.
        key: buffer for the longest key; holds the last key afterwards.
        fields: filled; arrays as long as the number of entries.

    Returns:
        A code, the block that was read last, the number of entries, and the length of the last key
        including its kind.
    """
    row, last = np.int64(0), np.int64(0)
    for block in range(len(starts) - 1):
        at, limit, known = (
            starts[block],
            _limit(data, starts[block], starts[block + 1]),
            np.int64(0),
        )
        code = FINE if limit >= 0 else _SHORT
        while code == FINE and at < limit:
            shared, rest, length, at = _lengths(data, at, limit)
            if at < 0 or shared > known:
                code = _BEYOND
            elif row == len(fields.size):
                code = _MORE
            else:
                code = _key(data, at, shared, rest, key, last)
            if code == FINE:
                code = _value(data, at + rest, at + rest + length, row, fields)
                known = last = shared + rest
                at += rest + length
                row += 1
        if code != FINE:
            return code, block, row, last
    return FINE, 0, row, last


@compiled
def copy_spans(text: Any, begins: Any, ends: Any, copied: Any) -> None:  # noqa: ANN401 - arrays
    """Copy the spans between pairs of positions of a text, joined."""
    used = np.int64(0)
    for i in range(len(begins)):
        size = ends[i] - begins[i]
        _copy(text, begins[i], copied, used, size)
        used += size


@inlined
def _spread(value: Any) -> Any:  # noqa: ANN401 - a number
    """Mix the bits of a number, as SplitMix64 does."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@compiled
def digest(text: Any, begins: Any, ends: Any) -> Any:  # noqa: ANN401 - arrays
    """Return the sums of two hashes (FNV-1a, mixed) of the spans between pairs of positions."""
    prime = np.uint64(0x100000001B3)
    first, second = np.uint64(0), np.uint64(0)
    for i in range(len(begins)):
        one, other = np.uint64(0xCBF29CE484222325), np.uint64(0x9AE16A3B2F90404F)
        for at in range(begins[i], ends[i]):
            byte = np.uint64(text[at])
            one, other = (one ^ byte) * prime, (other ^ byte) * prime
        first += _spread(one)
        second += _spread(other)
    return first, second
