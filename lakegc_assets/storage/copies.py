"""Copies one object from a store to the same or another one, and verifies what arrived."""

from __future__ import annotations

from dataclasses import dataclass

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import StorageError


@dataclass(frozen=True)
class Copied:
    """A copy that was verified.

    Attributes:
        etag: of the copy.
        verified_by: what was the same on both sides: a checksum by its name, or ``size`` where the
            two sides can name no checksum in common.
    """

    etag: str
    verified_by: str


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
        StorageError: the copy is not what the object is, or could not be made.
    """
    with source.stream(source_key, etag) as pieces:
        made = target.put_stream(target_key, pieces, size, if_absent=if_absent)
    found = target.head(target_key)
    if (found.size, found.etag) != (size, made):
        raise StorageError(f"{target.url}: the copy {target_key!r} is {found}")
    return Copied(made, "size")
