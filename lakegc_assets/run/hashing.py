"""The 64-bit hash of addresses in live sets, and the digest of a set of keys.

A live set is a set of hashes. If two addresses share a hash, a dead object looks alive, never the
other way round. So hashes only decide to keep objects, or find rows for an exact comparison. The
hash is FNV-1a (64 bits, over the UTF-8 bytes), followed by the finalizer of SplitMix64; without the
finalizer, similar addresses have similar upper bits. Caches and artifacts hold it, so it never
changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]
#: Schema of hashes in datasets: their bits as signed numbers, since Spark has no unsigned ones.
HASHES: Final = pa.schema([pa.field("hash", pa.int64(), nullable=False)])

_FNV_OFFSET: Final = np.uint64(0xCBF29CE484222325)
_FNV_PRIME: Final = np.uint64(0x100000001B3)
#: Start value of the second half of a digest.
_SECOND_OFFSET: Final = np.uint64(0x9AE16A3B2F90404F)


@dataclass(frozen=True)
class KeyDigest:
    """Digest of a set of keys, independent of their order; digests of parts can be added.

    ``count`` keys, and the sums modulo 2^64 of two 64-bit hashes of each key: 128 bits in all.
    """

    count: int = 0
    first: int = 0
    second: int = 0

    def __add__(self, other: KeyDigest) -> KeyDigest:
        """Return the digest of the union of two disjoint sets of keys."""
        return KeyDigest(
            self.count + other.count,
            (self.first + other.first) % 2**64,
            (self.second + other.second) % 2**64,
        )

    @classmethod
    def parse(cls, text: str) -> KeyDigest:
        """Parse the text of a digest; ValueError if it is not one."""
        count, _, sums = text.partition("-")
        return cls(int(count), int(sums[:16], 16), int(sums[16:], 16))

    def __str__(self) -> str:
        """Return ``count-hex``, the form in manifests and messages."""
        return f"{self.count}-{self.first:016x}{self.second:016x}"


def address_hashes(addresses: pa.Array | pa.ChunkedArray) -> Hashes:
    """Return the hash of each string of an array without nulls."""
    hashes: Hashes = np.empty(len(addresses), np.uint64)
    begin = 0
    for chunk in _chunks(addresses):
        end = begin + len(chunk)
        hash_all(*_content(chunk), _FNV_OFFSET, hashes[begin:end])
        begin = end
    return hashes


def signed(hashes: Hashes) -> pa.Array:
    """Return hashes as a column of ``HASHES``."""
    return pa.array(hashes.view(np.int64))


def unsigned(column: pa.Array | pa.ChunkedArray) -> Hashes:
    """Return the hashes of a column of ``HASHES``."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    hashes: Hashes = column.to_numpy(zero_copy_only=False).view(np.uint64)
    return hashes


def hash_table(hashes: Hashes) -> pa.Table:
    """Return hashes as rows of ``HASHES``."""
    return pa.table([signed(hashes)], schema=HASHES)


def key_digest(keys: pa.Array | pa.ChunkedArray) -> KeyDigest:
    """Return the digest of an array of strings without nulls."""
    first = second = 0
    for chunk in _chunks(keys):
        sums = sum_all(*_content(chunk), _FNV_OFFSET, _SECOND_OFFSET)
        first, second = first + int(sums[0]), second + int(sums[1])
    return KeyDigest(len(keys), first % 2**64, second % 2**64)


def digest_of_hashes(hashes: Hashes) -> KeyDigest:
    """Return the digest of a set of which only the hashes are known."""
    return KeyDigest(
        len(hashes),
        int(hashes.sum(dtype=np.uint64)),
        int((hashes * _FNV_PRIME ^ (hashes >> np.uint64(29))).sum(dtype=np.uint64)),
    )


def pair_hashes(first: Hashes, second: Hashes) -> Hashes:
    """Return one hash for each pair of two 64-bit values."""
    mixed: Hashes = mix(first * _FNV_PRIME + (second ^ _SECOND_OFFSET))
    return mixed


@numba.njit(cache=True, nogil=True)
def mix(values: Any) -> Any:  # noqa: ANN401 - a number, or an array of them
    """Apply the finalizer of SplitMix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@numba.njit(cache=True, nogil=True)
def hash_all(raw: Any, ends: Any, offset: Any, hashes: Any) -> None:  # noqa: ANN401 - numpy arrays
    """Fill ``hashes`` with the hash of each text in ``raw``, from the start value ``offset``."""
    for i in range(len(hashes)):
        value = offset
        for at in range(ends[i], ends[i + 1]):
            value = (value ^ np.uint64(raw[at])) * _FNV_PRIME
        hashes[i] = mix(value)


@numba.njit(cache=True, nogil=True)
def sum_all(raw: Any, ends: Any, first: Any, second: Any) -> Any:  # noqa: ANN401 - numpy arrays
    """Return the sums, modulo 2^64, of two hashes of each text in ``raw``, by two start values."""
    sums = np.uint64(0), np.uint64(0)
    for i in range(len(ends) - 1):
        one, other = first, second
        for at in range(ends[i], ends[i + 1]):
            one = (one ^ np.uint64(raw[at])) * _FNV_PRIME
            other = (other ^ np.uint64(raw[at])) * _FNV_PRIME
        sums = sums[0] + mix(one), sums[1] + mix(other)
    return sums


def _chunks(strings: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return strings.chunks if isinstance(strings, pa.ChunkedArray) else [strings]


def _content(strings: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the bytes of an array of strings, the begin of each string, and the last end."""
    if strings.null_count:
        raise ValueError("a key that is null has no hash")
    if not len(strings):
        return _NO_BYTES, _NO_ENDS
    plain = strings if strings.type == pa.string() else strings.cast(pa.large_string())
    width = np.int32 if plain.type == pa.string() else np.int64
    _, offsets, content = plain.buffers()
    begin = plain.offset * np.dtype(width).itemsize
    ends = np.frombuffer(offsets, width, len(plain) + 1, begin).astype(np.int64, copy=False)
    return np.frombuffer(content, np.uint8) if content else _NO_BYTES, ends


_NO_BYTES: Final = np.empty(0, np.uint8)
# Read-only like every Arrow buffer: numba compiles another loop for writable arrays.
_NO_BYTES.flags.writeable = False
_NO_ENDS: Final = np.zeros(1, np.int64)
