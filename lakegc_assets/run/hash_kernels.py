"""The compiled loops of ``hashing``."""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

_PRIME: Final = np.uint64(0x100000001B3)


@numba.njit(cache=True, nogil=True, inline="always")
def _mix(value: Any) -> Any:  # noqa: ANN401 - a numpy number
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@numba.njit(cache=True, nogil=True)
def mix_all(values: Any, mixed: Any) -> None:  # noqa: ANN401 - numpy arrays
    """Fill ``mixed`` with the finalizer of SplitMix64 of each of some numbers."""
    for i in range(len(values)):
        mixed[i] = _mix(values[i])


@numba.njit(cache=True, nogil=True)
def hash_all(raw: Any, ends: Any, offset: Any, hashes: Any) -> None:  # noqa: ANN401 - numpy arrays
    """Fill ``hashes`` with that of each text in ``raw``, which begins at ``offset``."""
    for i in range(len(hashes)):
        value = offset
        for at in range(ends[i], ends[i + 1]):
            value = (value ^ np.uint64(raw[at])) * _PRIME
        hashes[i] = _mix(value)
