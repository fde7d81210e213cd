"""Proves that a copy is the one that was verified, where it has not the etag that was recorded.

The etag of a file tells which file it is, so that all copies have others in a backup that was moved
to another disk. And whoever was suspended while he made a backup may replace a copy that another
process has verified, and even finished the backup with.
"""

from __future__ import annotations

import hashlib
import re
from functools import cached_property
from typing import Final

import pyarrow.compute as pc

from lakegc_assets.recovery import journal
from lakegc_assets.run import strings
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.files import may_be_moved
from lakegc_assets.storage.values import Lost

#: Etags that may be what they look like.
MD5: Final = re.compile(r"[0-9a-f]{32}")


class Proof:
    """Evidence about the copies in one backup.

    Args:
        store: rooted at the backup.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def etag(self, one: Lost, recorded: str) -> str | None:
        """The etag that a copy has now; None where nothing proves that it is that of the object.

        Args:
            one: the object, as it was marked.
            recorded: the etag of the copy, as it was verified.

        Raises:
            ObjectNotFoundError: there is no such copy.
            StorageError: the store does not tell.
        """
        now = self.store.head(one.key)
        if now.size != one.size:
            return None
        proven = (
            may_be_moved(recorded, now.etag)
            or (one.key, one.size, one.etag, now.etag) in self._verified_again
            or self._has_md5(one, now.etag)
        )
        return now.etag if proven else None

    @cached_property
    def _verified_again(self) -> frozenset[tuple[str, int, str, str]]:
        """Copies of what was copied more than once: address, size, etag, and etag of the copy."""
        rows = journal.read(self.store)
        rows = rows.filter(pc.equal(rows["outcome"], "copied"))
        counts = rows.group_by("address").aggregate([("size", "count")])
        often = counts.filter(pc.greater(counts["size_count"], 1))["address"]
        rows = rows.filter(strings.among(rows["address"], often))
        columns = (rows[name].to_pylist() for name in ("address", "size", "etag", "copy_etag"))
        return frozenset(zip(*columns, strict=True))

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
