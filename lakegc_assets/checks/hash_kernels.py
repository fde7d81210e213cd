"""The compiled loops of the witness's hashes."""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

_PRIME: Final = np.uint64(1099511628211)
#: Where the two hashes of a key begin, as ``hashing.BASES`` has it.
_BASE: Final = np.uint64(0xCBF29CE484222325)
_OTHER: Final = np.uint64(0x9AE16A3B2F90404F)


@numba.njit(cache=True, nogil=True)
def _finish(value: Any) -> Any:  # noqa: ANN401 - a number of numba's
    """Spread what is in a hash over all of its bits."""
    value ^= value >> np.uint64(30)
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(27)
    value *= np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@numba.njit(cache=True, nogil=True)
def finished(values: Any) -> Any:  # noqa: ANN401 - an array
    """``_finish`` of each."""
    spread = np.empty_like(values)
    for i in range(len(values)):
        spread[i] = _finish(values[i])
    return spread


@numba.njit(cache=True, nogil=True)
def sieve(members: Any, holes: Any) -> None:  # noqa: ANN401 - arrays
    """Open the hole of each member; there are as many as some power of two."""
    mask = np.uint64(len(holes) - 1)
    for i in range(len(members)):
        holes[_finish(members[i]) & mask] = True


@numba.njit(cache=True, nogil=True)
def sift(hashes: Any, holes: Any, passed: Any) -> None:  # noqa: ANN401 - arrays
    """Which of some hashes pass: all that are members, and a few others."""
    mask = np.uint64(len(holes) - 1)
    for i in range(len(hashes)):
        passed[i] = holes[_finish(hashes[i]) & mask]


@numba.njit(cache=True, nogil=True)
def meet(members: Any, hashes: Any, found: Any) -> None:  # noqa: ANN401 - arrays
    """Mark which of some sorted hashes are among others, sorted too; marks that are there stay."""
    at = 0
    for i in range(len(hashes)):
        while at < len(members) and members[at] < hashes[i]:
            at += 1
        if at < len(members) and members[at] == hashes[i]:
            found[i] = True


@numba.njit(cache=True, nogil=True)
def hash_spans(text: Any, begins: Any, ends: Any, base: Any, hashes: Any) -> None:  # noqa: ANN401
    """Hash what is between each two positions of a text, from a base on."""
    for i in range(len(hashes)):
        value = base
        for byte in text[begins[i] : ends[i]]:
            value = (value ^ np.uint64(byte)) * _PRIME
        hashes[i] = _finish(value)


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
                    folder = _finish(one)
        first[i], second[i], folders[i], marks[i] = _finish(one), _finish(other), folder, mark
