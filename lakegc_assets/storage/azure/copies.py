"""Copies that Azure makes itself, within an account, under conditions for both blobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lakegc_assets.storage.azure.blobs import IF_ABSENT, Blob, Sizes, block_ids, named_by, require
from lakegc_assets.storage.errors import ChangedError, StorageError
from lakegc_assets.storage.http import etag_in, explaining
from lakegc_assets.storage.streams import part_size
from lakegc_assets.storage.values import Copied

_MOST_BLOCKS: Final = 50_000


def copy(
    source: Blob, target: Blob, *, size: int, etag: str, if_absent: bool, sizes: Sizes
) -> Copied:
    """See ``ObjectStore.copy_from``. Where the source has an MD5, the service compares with it."""
    original = source.look()
    with explaining(source.where):
        found = original.get("Content-Length"), etag_in(original.get("ETag"))
    if found != (str(size), etag):
        raise ChangedError(
            f"{source.where}: size and etag are {found}, {(size, etag)} were expected"
        )
    md5 = named_by(original).get("md5")
    try:
        if size <= sizes.whole:
            made = _whole(source, target, etag, original, if_absent=if_absent)
        else:
            made = _in_blocks(source, target, size, etag, md5, sizes, if_absent=if_absent)
    except ChangedError as error:
        raise ChangedError(
            f"{source.where} has changed since its properties were read: {error}"
        ) from error
    copied = target.look()
    require(target, copied, size, made)
    here = named_by(copied).get("md5")
    if md5 is not None and here is not None and md5 != here:
        raise StorageError(f"{target.where}: the copy has the MD5 {here}, the object has {md5}")
    # In blocks it is only handed on.
    return Copied(made, "md5" if md5 == here is not None and size <= sizes.whole else "size")


def _whole(
    source: Blob, target: Blob, etag: str, original: Mapping[str, str], *, if_absent: bool
) -> str:
    headers = {"x-ms-requires-sync": "true", **source.as_source(etag)}
    if md5 := original.get("Content-MD5"):
        headers["x-ms-source-content-md5"] = md5
    answer = target.write(headers, condition=IF_ABSENT if if_absent else None)
    if (status := answer.headers.get("x-ms-copy-status")) != "success":
        raise StorageError(f"{target.where}: the copy ended as {status!r}")
    with explaining(target.where):
        return etag_in(answer.headers.get("ETag"))


def _in_blocks(
    source: Blob,
    target: Blob,
    size: int,
    etag: str,
    md5: str | None,
    sizes: Sizes,
    *,
    if_absent: bool,
) -> str:
    part, ids = part_size(size, sizes.whole, _MOST_BLOCKS), []
    for first, block in zip(range(0, size, part), block_ids(), strict=False):
        last = min(first + part, size) - 1
        headers = {**source.as_source(etag), "x-ms-source-range": f"bytes={first}-{last}"}
        target.write(headers, query={"comp": "block", "blockid": block})
        ids.append(block)
    return target.put_blocks(ids, bytes.fromhex(md5) if md5 else None, if_absent=if_absent)
