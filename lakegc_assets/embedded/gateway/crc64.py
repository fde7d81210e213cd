"""CRC-64/NVME, which newer AWS SDKs send by default; numba compiles it on first use."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x9A6C9329AC4BC9B5
_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)


def crc64_nvme(data: bytes) -> int:
    """The checksum of some bytes."""
    return int(_crc(np.frombuffer(data, np.uint8), _TABLE))


def _table() -> NDArray[np.uint64]:
    table = np.zeros(256, np.uint64)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table[byte] = value
    return table


_TABLE = _table()


@numba.njit(cache=True, nogil=True)
def _crc(data: NDArray[np.uint8], table: NDArray[np.uint64]) -> int:
    crc = _ONES
    for byte in data:
        crc = table[(crc ^ np.uint64(byte)) & np.uint64(255)] ^ (crc >> np.uint64(8))
    return crc ^ _ONES  # type: ignore[no-any-return]  # numba's integer
