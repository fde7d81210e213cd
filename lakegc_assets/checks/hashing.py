"""The witness's own hashes, digests and sets; their values are those of ``run.hashing``.

So what both readers found can be compared, although they share no code. A string's hash is FNV-1a
of its UTF-8 bytes (64 bits) behind the finalizer of SplitMix64.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

#: Where the two hashes of a key begin.
BASES: Final = (0xCBF29CE484222325, 0x9AE16A3B2F90404F)
_PRIME: Final = np.uint64(1099511628211)
_BASE, _OTHER = (np.uint64(base) for base in BASES)


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
        hash_spans(text, bounds[:-1], bounds[1:], np.uint64(base), room)
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
    if len(members):
        at = np.searchsorted(members, hashes)
        np.equal(members[np.minimum(at, len(members) - 1)], hashes, out=found)
    return found


@numba.njit(cache=True, nogil=True)
def finish(value: Any) -> Any:  # noqa: ANN401 - a number of numba's
    """Spread what is in a hash over all of its bits."""
    value ^= value >> np.uint64(30)
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(27)
    value *= np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@numba.njit(cache=True, nogil=True)
def finished(values: Any) -> Any:  # noqa: ANN401 - an array
    """``finish`` of each."""
    spread = np.empty_like(values)
    for i in range(len(values)):
        spread[i] = finish(values[i])
    return spread


@numba.njit(cache=True, nogil=True)
def hash_spans(text: Any, begins: Any, ends: Any, base: Any, hashes: Any) -> None:  # noqa: ANN401
    """Hash what is between each two positions of a text, from a base on."""
    for i in range(len(hashes)):
        value = base
        for byte in text[begins[i] : ends[i]]:
            value = (value ^ np.uint64(byte)) * _PRIME
        hashes[i] = finish(value)


@numba.njit(cache=True, nogil=True)
def hash_addresses(text: Any, begins: Any, ends: Any, found: Any) -> None:  # noqa: ANN401 - arrays
    """Hash addresses in both ways, and the folder of the slice that each is in.

    Args:
        text: bytes.
        begins: of each address in it.
        ends: of each.
        found: four arrays: the two hashes, that of ``data/<slice>/`` (0 where there is none), and
            marks: 1 for a colon, 2 for what is not ASCII.
    """
    first, second, folders, marks = found
    for i in range(len(begins)):
        one, other, folder, mark, slashes = _BASE, _OTHER, np.uint64(0), np.uint8(0), 0
        in_data = ends[i] - begins[i] > 5  # noqa: PLR2004 - of data/
        for at in range(begins[i], ends[i]):
            byte = np.uint64(text[at])
            one = (one ^ byte) * _PRIME
            other = (other ^ byte) * _PRIME
            if byte == 58:  # noqa: PLR2004 - a colon
                mark |= np.uint8(1)
            elif byte > 127:  # noqa: PLR2004 - the last of ASCII
                mark |= np.uint8(2)
            elif byte == 47:  # noqa: PLR2004 - a slash
                slashes += 1
                if slashes == 1:
                    in_data = at == begins[i] + 4 and (
                        text[at - 4] == 100  # noqa: PLR2004 - d
                        and text[at - 3] == 97  # noqa: PLR2004 - a
                        and text[at - 2] == 116  # noqa: PLR2004 - t
                        and text[at - 1] == 97  # noqa: PLR2004 - a
                    )
                elif slashes == 2 and in_data:  # noqa: PLR2004 - the one behind the slice
                    folder = finish(one)
        first[i], second[i], folders[i], marks[i] = finish(one), finish(other), folder, mark
