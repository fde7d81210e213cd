"""The 64-bit hash by which live sets know addresses, and the digest of a set of keys.

A live set is a set of hashes: two addresses with one hash make a dead object look alive, never the
other way round. So the hash is only ever used to keep objects, or to find what is then compared
exactly. It is FNV-1a (64 bits, over the UTF-8 bytes) behind the finalizer of SplitMix64, without
which the upper bits of similar addresses would be similar, too. Caches and artifacts hold it, so it
never changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]
#: Hashes as datasets hold them: their bits as signed numbers, since Spark knows no others.
HASHES: Final = pa.schema([pa.field("hash", pa.int64(), nullable=False)])

_FNV_OFFSET: Final = np.uint64(0xCBF29CE484222325)
_FNV_PRIME: Final = np.uint64(0x100000001B3)
#: Another beginning, for the second half of a digest.
_SECOND_OFFSET: Final = np.uint64(0x9AE16A3B2F90404F)


@dataclass(frozen=True)
class KeyDigest:
    """Digest of a set of keys that does not depend on their order; digests of parts add up.

    ``count`` keys, and the sums modulo 2^64 of two 64-bit hashes of each key: 128 bits in all.
    """

    count: int = 0
    first: int = 0
    second: int = 0

    def __add__(self, other: KeyDigest) -> KeyDigest:
        """The digest of both sets of keys together."""
        return KeyDigest(
            self.count + other.count,
            (self.first + other.first) % 2**64,
            (self.second + other.second) % 2**64,
        )

    @classmethod
    def parse(cls, text: str) -> KeyDigest:
        """The digest that was written as this text; ValueError if none was."""
        count, _, sums = text.partition("-")
        return cls(int(count), int(sums[:16], 16), int(sums[16:], 16))

    def __str__(self) -> str:
        """``count-hex``, as manifests and messages show it."""
        return f"{self.count}-{self.first:016x}{self.second:016x}"


def address_hashes(addresses: pa.Array | pa.ChunkedArray) -> Hashes:
    """The hash of each of an array of strings without nulls."""
    return _hashes(addresses, _FNV_OFFSET)


def signed(hashes: Hashes) -> pa.Array:
    """Hashes as a column of ``HASHES``."""
    return pa.array(hashes.view(np.int64))


def unsigned(column: pa.Array | pa.ChunkedArray) -> Hashes:
    """The hashes of a column of ``HASHES``."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    hashes: Hashes = column.to_numpy(zero_copy_only=False).view(np.uint64)
    return hashes


def hash_table(hashes: Hashes) -> pa.Table:
    """Hashes as rows of ``HASHES``."""
    return pa.table([signed(hashes)], schema=HASHES)


def key_digest(keys: pa.Array | pa.ChunkedArray) -> KeyDigest:
    """The digest of an array of strings without nulls."""
    return KeyDigest(
        len(keys),
        int(_hashes(keys, _FNV_OFFSET).sum(dtype=np.uint64)),
        int(_hashes(keys, _SECOND_OFFSET).sum(dtype=np.uint64)),
    )


def digest_of_hashes(hashes: Hashes) -> KeyDigest:
    """The digest of a set that is known by its hashes only."""
    return KeyDigest(
        len(hashes),
        int(hashes.sum(dtype=np.uint64)),
        int((hashes * _FNV_PRIME ^ (hashes >> np.uint64(29))).sum(dtype=np.uint64)),
    )


def pair_hashes(first: Hashes, second: Hashes) -> Hashes:
    """One hash for each pair of two 64-bit values."""
    return _mixed(first * _FNV_PRIME + (second ^ _SECOND_OFFSET))


def _mixed(values: Hashes) -> Hashes:
    """The finalizer of SplitMix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed


@numba.njit(cache=True, nogil=True)
def fnv(raw: Any, ends: Any, offset: Any, hashes: Any) -> None:  # noqa: ANN401 - numpy arrays
    """Fill ``hashes`` with FNV-1a of each text in ``raw``, which begins at ``offset``."""
    for i in range(len(hashes)):
        value = offset
        for at in range(ends[i], ends[i + 1]):
            value = (value ^ np.uint64(raw[at])) * _FNV_PRIME
        hashes[i] = value


def _hashes(strings: pa.Array | pa.ChunkedArray, offset: np.uint64) -> Hashes:
    chunks = strings.chunks if isinstance(strings, pa.ChunkedArray) else [strings]
    parts = [_of_array(chunk, offset) for chunk in chunks]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _of_array(strings: pa.Array, offset: np.uint64) -> Hashes:
    if strings.null_count:
        raise ValueError("a key that is null has no hash")
    hashes: Hashes = np.empty(len(strings), np.uint64)
    if len(strings):
        plain = strings if strings.type == pa.string() else strings.cast(pa.large_string())
        width = np.int32 if plain.type == pa.string() else np.int64
        _, offsets, content = plain.buffers()
        begin = plain.offset * np.dtype(width).itemsize
        ends = np.frombuffer(offsets, width, len(plain) + 1, begin).astype(np.int64, copy=False)
        raw = np.frombuffer(content, np.uint8) if content else np.empty(0, np.uint8)
        fnv(raw, ends, offset, hashes)
    return _mixed(hashes)
