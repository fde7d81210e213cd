"""Copies that S3 makes itself, within what one pair of keys reaches.

That nothing is overwritten, and that the source is what was asked for, are conditions that many
compatible servers ignore without a word, least often on plain puts. So small objects that must not
be overwritten are read and put; and whatever was copied is compared with what was asked for. Tiny
objects always are, where nothing is yet: that takes less time than to ask for a copy.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import Any, Final

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.bucket_store import Sizes
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    ChangedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    error_class,
    explained,
)
from lakegc_assets.storage.http import HttpFailure, etag_in
from lakegc_assets.storage.s3.client import failing
from lakegc_assets.storage.s3.objects import MOST_PARTS, S3Object, is_md5, tells_md5
from lakegc_assets.storage.s3.small_objects import PAUSE_S, AlreadyThereError, SmallObjects
from lakegc_assets.storage.streams import md5_of, part_size
from lakegc_assets.storage.values import Copied

_NOT_FOUND: Final = 404
#: Larger ones are streamed where they must not overwrite, and else copied by the store.
_SMALL: Final = 1 << 20
_TINY: Final = 32 << 10
_TOO_SHORT: Final = frozenset({"InvalidRange", "416"})


def copy(
    source: S3Object, target: S3Object, *, size: int, etag: str, if_absent: bool, sizes: Sizes
) -> Copied | None:
    """See ``ObjectStore.copy_from``."""
    if not if_absent and size <= sizes.whole:
        made = _tiny(source, target, size, etag) if size <= _TINY else None
        return made or _whole(source, target, size, etag)
    if size <= sizes.part:
        return _by_value(source, target, size, etag) if size <= _SMALL else None
    return _in_parts(source, target, size, etag, if_absent=if_absent, sizes=sizes)


def _whole(source: S3Object, target: S3Object, size: int, etag: str) -> Copied:
    """One request, whose answer proves the copy if etags are MD5s."""
    try:
        with failing():
            answer = target.clients.usual.copy_object(**target.named, **_from(source, etag))
        made = etag_in(answer.get("CopyObjectResult", {}).get("ETag"))
    except HttpFailure as failure:
        raise _explained(failure, source, target) from failure
    if made == etag and is_md5(etag) and tells_md5(answer, target.bucket):
        return Copied(made, "md5")
    return _compared(source, target, size, etag, made)


def _tiny(source: S3Object, target: S3Object, size: int, etag: str) -> Copied | None:
    """As ``_by_value``, where MD5s prove it; what is there may be replaced, in the usual way."""
    if not target.clients.small.usable(source.bucket, target.bucket):
        return None
    with suppress(PreconditionFailedError):
        made = _by_value(source, target, size, etag)
        # The store may know a checksum that says more.
        return made if made is not None and made.verified_by == "md5" else None
    return None


def _by_value(source: S3Object, target: S3Object, size: int, etag: str) -> Copied | None:
    """A small object read and put where nothing is; None where it is to be done in the usual way.

    Only what the MD5 in its etag proves is put, and only the store's word that something is there
    already is believed. Whatever else goes wrong is done once more: the usual put finds what this
    one may have left.
    """
    small = target.clients.small
    data = _read(small, source, size, etag)
    if data is None:
        return None
    try:
        made = small.put(target.bucket, target.key, data)
    except AlreadyThereError:
        # Two writers at a time may both get this answer, and neither have written.
        with suppress(ObjectNotFoundError):
            target.look()
            raise PreconditionFailedError(f"{target.where}: something is there already") from None
        return None
    if made is None:
        # One request that has failed says nothing about those of the next minutes.
        small.pause(target.bucket, PAUSE_S)
        return None
    if made == etag:
        return Copied(made, "md5")
    small.pause(target.bucket, inf)
    if "md5" in target.require_written(size, made).checksums:
        raise StorageError(f"{target.where}: the store got other bytes: it answers with {made}")
    return Copied(made, "size")


def _read(small: SmallObjects, source: S3Object, size: int, etag: str) -> bytes | None:
    """The content of an object whose etag is the MD5 of it; None if not, or in another way."""
    if not is_md5(etag):
        return None
    data = small.get(source.bucket, source.key, etag, size)
    if data is not None and md5_of(data).hex() != etag:
        small.pause(source.bucket, inf)
        return None
    return data


def _in_parts(
    source: S3Object, target: S3Object, size: int, etag: str, *, if_absent: bool, sizes: Sizes
) -> Copied:
    """As few parts as possible: the etag of a single one is the MD5 of the whole."""
    part = part_size(size, sizes.copied_part, MOST_PARTS)
    proven = False
    with target.uploading() as upload:
        for first in range(0, size, part):
            last = min(first + part, size) - 1
            asked = {**_from(source, etag), "CopySourceRange": f"bytes={first}-{last}"}
            try:
                with failing():
                    answer = target.clients.usual.upload_part_copy(**upload.part, **asked)
                upload.etags.append(etag_in(answer.get("CopyPartResult", {}).get("ETag")))
            except HttpFailure as failure:
                raise _explained(failure, source, target) from failure
            proven = upload.etags == [etag] and is_md5(etag) and tells_md5(answer, target.bucket)
        if not proven:
            source.require_original(size, etag)
        made, of_parts = upload.complete(if_absent=if_absent)
    if proven and of_parts:
        return Copied(made, "md5")
    return _compared(source, target, size, etag, made)


def _compared(source: S3Object, target: S3Object, size: int, etag: str, made: str) -> Copied:
    """Compare what the store says of both objects."""
    asked = source.require_original(size, etag)
    copied = target.require_written(size, made)
    return Copied(made, target.compare(asked.checksums, copied.checksums))


def _from(source: S3Object, etag: str) -> dict[str, Any]:
    return {"CopySource": source.named, "CopySourceIfMatch": f'"{etag}"'}


def _explained(failure: HttpFailure, source: S3Object, target: S3Object) -> Exception:
    """The error for a copy that was refused: stores do not say for the sake of which object."""
    kind = error_class(failure.code)
    if failure.code in _TOO_SHORT:
        return ChangedError(f"{source.where} is shorter than was expected")
    if kind in {PreconditionFailedError, ObjectNotFoundError}:
        error = explained(failure.code, failure.message, source.where)
        return error if kind is ObjectNotFoundError else ChangedError(str(error))
    if kind is ConfigurationError:
        where = f"{target.where}, copied from {source.where}"
        return explained(failure.code, failure.message, where)
    if kind is AccessDeniedError or failure.status == _NOT_FOUND:
        try:
            source.look()
        except StorageError as error:
            return error
    return explained(failure.code, failure.message, target.where)
