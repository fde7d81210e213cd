"""Returns unused memory to the system, which allocators do late or never."""

from __future__ import annotations

import ctypes
from typing import Final

import pyarrow as pa

#: The function of the C library, which only GNU's has.
_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_memory_back() -> None:
    """Return the memory of deleted Arrow tables and NumPy arrays to the system.

    It takes some milliseconds. Otherwise a process that has decoded ranges keeps some 200 MB.
    """
    pa.default_memory_pool().release_unused()
    if _trim is not None:
        _trim(0)
