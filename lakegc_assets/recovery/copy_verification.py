"""Proves that a copy is the one that was verified, where it has not the etag that was recorded.

The etag of a file identifies the file, so that all copies have others in a backup that was moved
to another disk. And whoever was suspended while he made a backup may replace a copy that another
process has verified, and even finished the backup with.
"""

from __future__ import annotations

import hashlib
import re
from functools import cached_property, lru_cache, partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.recovery import journal
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.files import may_be_moved
from lakegc_assets.storage.values import Lost

#: Files of the journal that are held at a time.
_FILES: Final = 8
#: Etags that may be what they look like.
MD5: Final = re.compile(r"[0-9a-f]{32}")


class CopyVerifier:
    """Evidence about the copies in one backup."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        # Objects come in order, and those of one file of the journal together.
        self._read = lru_cache(_FILES)(partial(journal.read_file, store))

    def etag(self, one: Lost, recorded: str) -> str | None:
        """The etag that a copy has now; None where nothing proves that it is that of the object.

        ``recorded``: the etag of the copy, as it was verified.

        Raises:
            ObjectNotFoundError: there is no such copy.
        """
        now = self.store.head(one.key)
        if now.size != one.size:
            return None
        proven = (
            may_be_moved(recorded, now.etag)
            or self._was_verified(one, now.etag)
            or self._has_md5(one, now.etag)
        )
        return now.etag if proven else None

    def _was_verified(self, one: Lost, etag: str) -> bool:
        """True if the journal has a copy of this very object with this etag, whoever made it."""
        wanted = (
            (pc.field("address") == one.key)
            & (pc.field("size") == one.size)
            & (pc.field("etag") == one.etag)
            & (pc.field("copy_etag") == etag)
            & (pc.field("outcome") == "copied")
        )
        return any(
            self._read(file).filter(wanted).num_rows
            for file, first, last in self._files
            if first <= one.key <= last
        )

    @cached_property
    def _files(self) -> list[tuple[str, str, str]]:
        """Each file of the journal that has rows, with its first and last address."""
        return [span for span in journal.for_each(self.store, _span) if span is not None]

    def _has_md5(self, one: Lost, etag: str) -> bool:
        """True if the etag of the object is the MD5 of the copy, named by the store or computed."""
        if not MD5.fullmatch(one.etag):
            return False
        named = self.store.checksums(one.key).get("md5")
        if named is None:
            digest = hashlib.md5(usedforsecurity=False)
            with self.store.stream(one.key, etag) as pieces:
                for piece in pieces:
                    digest.update(piece)
            named = digest.hexdigest()
        return named == one.etag


def _span(file: str, rows: pa.Table) -> tuple[str, str, str] | None:
    if not rows.num_rows:
        return None
    found = pc.min_max(rows["address"]).as_py()
    return file, found["min"], found["max"]
