"""Counts distinct states without keeping them: a bitmap of their hashes, and how full it is."""

from __future__ import annotations

import math
import zlib
from typing import Final

_BITS: Final = 1 << 23


class States:
    """The states of some interleavings; those of others can be added."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, ...]] = set()

    def note(self, *state: str) -> None:
        """Count a state, by all that tells it from others, if it is new."""
        self.seen.add(state)


class Counted:
    """How many distinct states there were in many interleavings, about."""

    def __init__(self, bitmap: bytes = b"") -> None:
        self._bytes = bytearray(bitmap or bytes(_BITS // 8))

    def add(self, states: States) -> int:
        """Take the states of an interleaving; how many of them were new."""
        new = 0
        for state in states.seen:
            place, bit = divmod(zlib.crc32("|".join(state).encode()) % _BITS, 8)
            if not self._bytes[place] >> bit & 1:
                self._bytes[place] |= 1 << bit
                new += 1
        return new

    def merge(self, other: bytes) -> None:
        """Take those of another process."""
        both = int.from_bytes(self._bytes, "little") | int.from_bytes(other, "little")
        self._bytes = bytearray(both.to_bytes(_BITS // 8, "little"))

    def to_bytes(self) -> bytes:
        """To be merged elsewhere."""
        return bytes(self._bytes)

    def estimate(self) -> int:
        """The number of distinct states."""
        free = _BITS - int.from_bytes(self._bytes, "little").bit_count()
        return round(-_BITS * math.log(max(free, 1) / _BITS))
