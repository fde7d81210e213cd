"""Gives memory that nothing uses any more back to the system, which allocators do late or never."""

from __future__ import annotations

import ctypes
from typing import Final

import pyarrow as pa

#: Of the C library, where it has it: GNU's alone.
_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_memory_back() -> None:
    """Give back what Arrow and NumPy have kept of tables and arrays that are gone.

    It takes some milliseconds. A process that has decoded ranges keeps some 200 MB otherwise.
    """
    pa.default_memory_pool().release_unused()
    if _trim is not None:
        _trim(0)
