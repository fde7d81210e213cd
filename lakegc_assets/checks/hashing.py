"""The witness's own hashes, digests and sets; their values are those of ``run.hashing``.

So what both readers found can be compared, although they share no code. A string's hash is FNV-1a
of its UTF-8 bytes (64 bits) behind the finalizer of SplitMix64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakegc_assets.checks import hash_kernels

Hashes = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

#: Where the two hashes of a key begin.
BASES: Final = (0xCBF29CE484222325, 0x9AE16A3B2F90404F)
_PRIME: Final = np.uint64(1099511628211)
#: So many members are more than the caches near a core hold.
_LARGE: Final = 1 << 16
#: Holes for each member of a sieve, and for all: a byte each.
_HOLES_EACH: Final = 8
_FEWEST_HOLES: Final = 1 << 12
_MOST_HOLES: Final = 1 << 24


def hash_strings(strings: pa.Array | pa.ChunkedArray, base: int = BASES[0]) -> Hashes:
    """The hash of each of an array of strings; ValueError where one is null."""
    if strings.null_count:
        raise ValueError("what is null has no hash")
    chunks = strings.chunks if isinstance(strings, pa.ChunkedArray) else [strings]
    hashes = np.empty(len(strings), np.uint64)
    filled = 0
    for chunk in chunks:
        wide = chunk.cast(pa.large_binary())
        _, offsets, content = wide.buffers()
        if len(wide) and content is not None:
            bounds = np.frombuffer(offsets, np.int64)[wide.offset : wide.offset + len(wide) + 1]
            text = np.frombuffer(content, np.uint8)
        else:
            bounds, text = np.zeros(len(wide) + 1, np.int64), np.empty(0, np.uint8)
        room = hashes[filled : filled + len(wide)]
        hash_kernels.hash_spans(text, bounds[:-1], bounds[1:], np.uint64(base), room)
        filled += len(wide)
    return hashes


def hash_text(text: str) -> int:
    """The hash of one string."""
    return int(hash_strings(pa.array([text], pa.string()))[0])


def as_hashes(values: Iterable[int]) -> Hashes:
    """Numbers as an array of hashes."""
    return np.fromiter(values, np.uint64)


def digest_of(strings: pa.Array | pa.ChunkedArray) -> str:
    """The digest of keys."""
    return digest_text(*(hash_strings(strings, base) for base in BASES))


def digest_text(first: Hashes, second: Hashes) -> str:
    """The digest of keys by their two hashes, as manifests show it: ``count-hex``."""
    sums = (int(np.add.reduce(hashes, dtype=np.uint64)) for hashes in (first, second))
    return f"{len(first)}-" + "".join(f"{total:016x}" for total in sums)


def is_in(members: Hashes, hashes: Hashes) -> Bools:
    """Which of some hashes are among others, which are sorted."""
    found = np.zeros(len(hashes), np.bool_)
    if not len(members):
        return found
    if len(members) < _LARGE:
        at = np.searchsorted(members, hashes)
        np.equal(members[np.minimum(at, len(members) - 1)], hashes, out=found)
        return found
    # In order, each search begins where memory is warm.
    order = np.argsort(hashes, kind="stable")
    wanted = hashes[order]
    at = np.searchsorted(members, wanted)
    found[order] = members[np.minimum(at, len(members) - 1)] == wanted
    return found


class Members:
    """Hashes, to be looked for among many that are mostly others.

    Each has a hole that it would fall through, and what falls through none is no member.
    """

    def __init__(self, arrays: Sequence[Hashes]) -> None:
        """Open the holes of what is in some sorted arrays."""
        self._arrays = arrays
        wanted = max(_FEWEST_HOLES, _HOLES_EACH * sum(map(len, arrays)))
        self._holes = np.zeros(min(1 << wanted.bit_length(), _MOST_HOLES), np.bool_)
        for members in arrays:
            hash_kernels.sieve(members, self._holes)

    def among(self, hashes: Hashes) -> Bools:
        """Which of some hashes are in one of the arrays."""
        found = np.empty(len(hashes), np.bool_)
        hash_kernels.sift(hashes, self._holes, found)
        passed = np.flatnonzero(found)
        likely = hashes[passed]
        sure = np.zeros(len(likely), np.bool_)
        for members in self._arrays:
            sure |= is_in(members, likely)
        found[passed] = sure
        return found


def distinct(hashes: Hashes) -> Hashes:
    """Some hashes sorted, each once; ``numpy.unique`` makes a hash table, which takes longer."""
    found = np.sort(hashes)
    return found[np.append(True, found[1:] != found[:-1])] if len(found) else found
