"""Proves that a copy is the verified one, if its etag is not the recorded one.

The etag of a local file identifies the file, so all etags of a backup change when it moves to
another disk. Also, a process that was suspended during a backup may replace a copy that another
process has verified since, even in a backup that is finished.
"""

from __future__ import annotations

import hashlib
import re
from functools import cached_property, lru_cache, partial
from typing import Final

import pyarrow.compute as pc

from lakegc_assets.recovery import journal
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.files import may_be_moved
from lakegc_assets.storage.values import Lost

#: Files of the journal in memory.
_FILES: Final = 8
#: Etags that may be an MD5 in hex.
MD5: Final = re.compile(r"[0-9a-f]{32}")


class CopyVerifier:
    """Evidence on the copies in a backup."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        # Objects come in order, so the objects of one journal file come together.
        self._read = lru_cache(_FILES)(partial(journal.read_file, store))

    def etag(self, lost: Lost, recorded: str) -> str | None:
        """Return the etag of a copy now; None if nothing proves that it is a copy of the object.

        ``recorded``: the etag of the copy when it was verified.

        Raises:
            ObjectNotFoundError: there is no such copy.
        """
        now = self.store.head(lost.key)
        if now.size != lost.size:
            return None
        proven = (
            may_be_moved(recorded, now.etag)
            or self._was_verified(lost, now.etag)
            or self._has_md5(lost, now.etag)
        )
        return now.etag if proven else None

    def _was_verified(self, lost: Lost, etag: str) -> bool:
        """Return True if the journal has a copy of this object with this etag, by any process."""
        wanted = (
            (pc.field("address") == lost.key)
            & (pc.field("size") == lost.size)
            & (pc.field("etag") == lost.etag)
            & (pc.field("copy_etag") == etag)
            & (pc.field("outcome") == "copied")
        )
        return any(
            self._read(file).filter(wanted).num_rows
            for file, first, last in self._files
            if first <= lost.key <= last
        )

    @cached_property
    def _files(self) -> list[tuple[str, str, str]]:
        return journal.spans(self.store)

    def _has_md5(self, lost: Lost, etag: str) -> bool:
        """Return True if the object's etag is the MD5 of the copy, from the store or computed."""
        if not MD5.fullmatch(lost.etag):
            return False
        named = self.store.checksums(lost.key).get("md5")
        return (named or self.computed_md5(lost.key, etag)) == lost.etag

    def computed_md5(self, key: str, etag: str) -> str:
        """Return the MD5, in hex, of the content of a copy, which is read.

        Raises:
            ObjectNotFoundError: there is no such copy.
            ChangedError: it has another etag.
        """
        digest = hashlib.md5(usedforsecurity=False)
        with self.store.stream(key, etag) as pieces:
            for piece in pieces:
                digest.update(piece)
        return digest.hexdigest()
