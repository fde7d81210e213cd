"""Copies one object from a store to the same or another one, and verifies what arrived."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

import google_crc32c

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ChangedError, StorageError
from lakegc_assets.storage.streams import Pieces
from lakegc_assets.storage.values import Copied, CopyRequest

__all__ = ["Copied", "copy_object"]


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class _Crc32c:
    """Google's, with the names of hashlib."""

    def __init__(self) -> None:
        self._sum: Any = google_crc32c.Checksum()  # type: ignore[no-untyped-call]

    def update(self, data: bytes, /) -> None:
        self._sum.update(data)

    def hexdigest(self) -> str:
        return str(self._sum.hexdigest().decode())


def copy_object(
    source: ObjectStore,
    source_key: str,
    target: ObjectStore,
    target_key: str,
    *,
    size: int,
    etag: str | None,
    if_absent: bool,
) -> Copied:
    """Copy an object: by the store's own copy where one store holds both, else as a stream.

    A stream is compared with what the source names of it before the copy gets its name. What can
    only be seen afterwards to be no good copy stays at ``target_key``: nothing is ever deleted
    here.

    Args:
        source: store of the object.
        source_key: of the object.
        target: store of the copy.
        target_key: of the copy.
        size: that the object must have, in bytes.
        etag: that the object must have; None for whatever is there.
        if_absent: nothing may be at ``target_key``; else it is replaced.

    Raises:
        ObjectNotFoundError: there is no such object.
        ChangedError: the object has another etag or size.
        PreconditionFailedError: something is at ``target_key``.
        AccessDeniedError: it names the store that refuses.
        StoreUnavailableError: it may not be known whether the copy was made.
        StorageError: the copy is not what the object is, or could not be made.
    """
    where = f"{source.url}: the object {source_key!r}"
    if etag is None:
        found = source.head(source_key)
        if found.size != size:
            raise ChangedError(f"{where} has {found.size} bytes, {size} were expected")
        etag = found.etag
    asked = CopyRequest(size, etag, if_absent)
    copied = target.copy_from(source, source_key, target_key, asked)
    if copied is not None:
        return copied
    with source.stream(source_key, etag) as pieces:
        passing = _Passing(pieces, size, where)
        copied = target.put_stream(target_key, iter(passing), size, if_absent=if_absent)
    if copied.verified_by == "size" and passing.compared is not None:
        return Copied(copied.etag, passing.compared)
    return copied


class _Passing:
    """A content that is compared with its size, and with what its store names of it.

    Attributes:
        compared: name of the checksum that it is compared by; None where the store names none.
    """

    def __init__(self, pieces: Pieces, size: int, where: str) -> None:
        self._pieces = pieces
        self._size = size
        self._where = where
        self.compared = _best(pieces.checksums)

    def __iter__(self) -> Iterator[bytes]:
        """Give the pieces. Raises ChangedError or StorageError before the last one has passed."""
        digest = None if self.compared is None else _DIGESTS[self.compared]()
        done = 0
        held = b""
        for piece in self._pieces:
            done += len(piece)
            if done > self._size:
                break
            if digest is not None:
                digest.update(piece)
            # The last one must not pass before all is compared.
            if held:
                yield held
            held = piece
        if done != self._size:
            what = "more" if done > self._size else f"{done}"
            raise ChangedError(f"{self._where} has {what} bytes, {self._size} were expected")
        if digest is not None and self.compared is not None:
            named = self._pieces.checksums[self.compared]
            if digest.hexdigest() != named:
                raise StorageError(
                    f"{self._where}: what was read has the {self.compared} {digest.hexdigest()}, "
                    f"and the store names {named}: it is damaged, or was on its way"
                )
        if held:
            yield held


def _best(named: Mapping[str, str]) -> str | None:
    """The checksum among those that a store names by which a stream is compared, if there is one.

    CRC-64/NVME is left to the stores: in Python it is too slow.
    """
    return next((name for name in _DIGESTS if name in named), None)


def _md5() -> _Digest:
    return hashlib.md5(usedforsecurity=False)


_DIGESTS: Final = {"md5": _md5, "sha256": hashlib.sha256, "crc32c": _Crc32c}
