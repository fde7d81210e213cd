"""Live sets as files of hashes (``HASHES``), which tasks write in bounded memory.

Several files may hold the same hash: live sets are only joined, and never counted.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lakegc_assets.engine.datasets import Part, write_part
from lakegc_assets.run.hashing import Hashes, KeyDigest, digest_of_hashes, hash_table
from lakegc_assets.storage.base import ObjectStore

#: Hashes in one file: 32 MB.
HASHES_PER_FILE: Final = 4_000_000


class HashWriter:
    """Collects hashes, and writes a file to a folder whenever enough hashes are collected.

    Attributes:
        parts: the files so far; a hash is in each file at most once.
        digest: digest of all their rows.
    """

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self.parts: list[Part] = []
        self.digest = KeyDigest()
        self._store, self._folder = store, folder
        self._waiting: list[Hashes] = []
        self._count = 0

    def add(self, hashes: Hashes) -> None:
        """Add hashes, in any order; duplicates are allowed."""
        self._waiting.append(hashes)
        self._count += len(hashes)
        # Ranges share most of their addresses, so the hashes of many fit into one file.
        if self._count > 2 * HASHES_PER_FILE:
            self._waiting = [self._distinct()]
            self._count = len(self._waiting[0])
            if self._count > HASHES_PER_FILE:
                self._flush()

    def finish(self) -> list[Part]:
        """Write the remaining hashes, and return all files; none if no hash was added."""
        self._flush()
        return self.parts

    def _distinct(self) -> Hashes:
        """The collected hashes, each once; ``numpy.unique`` takes ten times as long."""
        found = np.sort(np.concatenate([np.empty(0, np.uint64), *self._waiting]))
        distinct: Hashes = found[np.diff(found, prepend=~found[:1]) != 0]
        return distinct

    def _flush(self) -> None:
        hashes = self._distinct()
        self.digest += digest_of_hashes(hashes)
        for at in range(0, len(hashes), HASHES_PER_FILE):
            rows = hash_table(hashes[at : at + HASHES_PER_FILE])
            self.parts.append(write_part(self._store, self._folder, rows, plain=True))
        self._waiting, self._count = [], 0
