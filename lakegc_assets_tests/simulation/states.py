"""Counts distinct states without keeping them: a bitmap of their hashes, and how full it is."""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from typing import Final

import numpy as np

_BITS: Final = 1 << 23
#: Calls whose hashes a process keeps.
_MOST: Final = 100_000


class States:
    """The states of some interleavings; those of others can be added.

    Attributes:
        calls: what tells each state from others in the same mood, by mood.
    """

    def __init__(self) -> None:
        self.calls: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)

    def note(self, *state: str) -> None:
        """Count a state, by all that tells it from others, if it is new."""
        self.calls[""].add(state)

    @property
    def seen(self) -> set[tuple[str, ...]]:
        """All of them, each with its mood first."""
        return {(mood, *call) for mood, calls in self.calls.items() for call in calls}


class _Hashes(dict[tuple[str, ...], int]):
    """Of calls, which are the same in many interleavings."""

    def __missing__(self, call: tuple[str, ...]) -> int:
        if len(self) > _MOST:
            self.clear()
        found = self[call] = zlib.crc32("|".join(call).encode()) % _BITS
        return found


_hashes: Final = _Hashes()


class Counted:
    """How many distinct states there were in many interleavings, about."""

    def __init__(self) -> None:
        # A byte for each, which is quicker to set than a bit; others get bits.
        self._met = np.zeros(_BITS, np.bool_)

    def add(self, states: States) -> int:
        """Take the states of an interleaving; how many of them were new."""
        found: set[int] = set()
        for mood, calls in states.calls.items():
            # Multiplied: else moods that differ in one digit move calls that do to each other.
            of_mood = (zlib.crc32(mood.encode()) * 0x9E3779B1 & 0xFFFFFFFF) >> 9
            found.update([_hashes[call] ^ of_mood for call in calls])
        places = list(found)
        new = len(places) - int(np.count_nonzero(self._met[places]))
        self._met[places] = True
        return new

    def merge(self, other: bytes) -> None:
        """Take those of another process."""
        self._met |= np.unpackbits(np.frombuffer(other, np.uint8)).astype(bool)

    def to_bytes(self) -> bytes:
        """To be merged elsewhere."""
        return np.packbits(self._met).tobytes()

    def estimate(self) -> int:
        """The number of distinct states."""
        free = _BITS - int(np.count_nonzero(self._met))
        return round(-_BITS * math.log(max(free, 1) / _BITS))
