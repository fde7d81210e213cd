"""Copy one object within a store or to another one, and verify the copy."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import google_crc32c

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ChangedError, StorageError
from lakegc_assets.storage.streams import Pieces, counted
from lakegc_assets.storage.values import Copied, CopyRequest

#: Checksums for streams; the first one that the store names is used. CRC-64/NVME is left to the
#: stores: in Python it is too slow.
_DIGESTS: Final[Mapping[str, Callable[[], Any]]] = {
    "md5": partial(hashlib.md5, usedforsecurity=False),
    "sha256": hashlib.sha256,
    "crc32c": google_crc32c.Checksum,
}


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
    """Copy an object: by the store's own copy if one store holds both, else as a stream.

    A stream is compared with the checksums that the source names before the copy gets its name. A
    copy that proves bad only afterwards stays at ``target_key``: nothing is ever deleted here. The
    object must have ``size`` bytes and the etag, if one is given.

    Raises:
        ObjectNotFoundError, ChangedError: there is no such object, or another one.
        PreconditionFailedError: an object is at ``target_key``, with ``if_absent``.
        AccessDeniedError: it names the store that refuses.
        StoreUnavailableError: the copy may have been made.
        StorageError: the copy differs from the object, or could not be made.
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
        name = next((one for one in _DIGESTS if one in pieces.checksums), None)
        passing = _compared(pieces, size, name, where)
        copied = target.put_stream(target_key, passing, size, if_absent=if_absent)
    if copied.verified_by == "size" and name is not None:
        return Copied(copied.etag, name)
    return copied


def _compared(pieces: Pieces, size: int, name: str | None, where: str) -> Iterator[bytes]:
    """Pass pieces on, and the last one only if all pieces match the checksums of the source."""
    digest = None if name is None else _DIGESTS[name]()
    held = b""
    for piece in counted(pieces, size, where, ChangedError):
        if digest is not None:
            digest.update(piece)
        if held:
            yield held
        held = piece
    if digest is not None and name is not None:
        found, expected = digest.digest().hex(), pieces.checksums[name]
        if found != expected:
            raise StorageError(
                f"{where}: what was read has the {name} {found}, and the store names {expected}: "
                "it was damaged in the store or in transit: run again"
            )
    if held:
        yield held
