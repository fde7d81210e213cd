"""What candidates and entries look like: a size and an etag, where one that is no MD5 is any.

The etag of an entry is that of what was uploaded or copied, and the listed one that of the object.
Only if both are MD5s does it tell anything that they differ.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.checks.hash_kernels import finished
from lakegc_assets.checks.hashing import Bools, Hashes, Members, hash_strings

_MD5: Final = "^[0-9a-f]{32}$"
_PRIME: Final = np.uint64(1099511628211)
#: In place of an etag: of a candidate that looks like each entry of its size, and of an entry that
#: looks like each candidate.
_ANY_ENTRY: Final = np.uint64(0)
_ANY_CANDIDATE: Final = np.uint64(1)


def etags_of(etags: pa.Array | pa.ChunkedArray) -> Hashes:
    """The hash of each etag, 0 of one that is no MD5."""
    known = pc.match_substring_regex(etags, _MD5).to_numpy(zero_copy_only=False)
    hashes: Hashes = np.where(known, hash_strings(etags), np.uint64(0))
    return hashes


def candidates_looks(sizes: npt.NDArray[np.int64], etags: Hashes) -> Hashes:
    """What candidates look like, in no order: with their etags, and to an entry without one."""
    return np.concatenate(
        [_looks(sizes, etags), _looks(sizes, np.full(len(sizes), _ANY_CANDIDATE))]
    )


def alike(looks: Members, sizes: npt.NDArray[np.int64], etags: Hashes) -> Bools:
    """Which entries look like a candidate.

    Args:
        looks: of the candidates.
        sizes: of the entries, in bytes.
        etags: of the entries; 0 of those that are no MD5, or another store's.
    """
    of_any = looks.among(_looks(sizes, np.full(len(sizes), _ANY_ENTRY)))
    return of_any | looks.among(_looks(sizes, np.where(etags == 0, _ANY_CANDIDATE, etags)))


def _looks(sizes: npt.NDArray[np.int64], etags: Hashes) -> Hashes:
    looks: Hashes = finished(sizes.astype(np.uint64) * _PRIME + etags)
    return looks


@numba.njit(cache=True, nogil=True)
def forget_unclear(text: Any, begins: Any, ends: Any, hashes: Any) -> None:  # noqa: ANN401 - arrays
    """Set the hash of each etag that is no MD5 to 0.

    Args:
        text: bytes.
        begins: of each etag in it.
        ends: of each.
        hashes: of each.
    """
    for i in range(len(hashes)):
        sound = ends[i] - begins[i] == 32  # noqa: PLR2004 - the digits of an MD5
        for byte in text[begins[i] : ends[i]]:
            digit = 48 <= byte <= 57 or 97 <= byte <= 102  # noqa: PLR2004 - 0 to 9, a to f
            sound = sound and digit
        if not sound:
            hashes[i] = 0
