"""Writes objects of S3 from pieces: at once, or in parts of which nothing stays after an error."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from lakegc_assets.storage.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from lakegc_assets.storage.http import HttpFailure, etag_in, explaining, writing_once
from lakegc_assets.storage.s3.client import failing, translated
from lakegc_assets.storage.s3.objects import S3Object, is_md5, tells_md5
from lakegc_assets.storage.streams import PART, counted, in_parts, md5_of, part_size, whole
from lakegc_assets.storage.values import Copied

_MOST_PARTS: Final = 10_000


@dataclass(frozen=True)
class Sizes:
    """From which sizes on something is done in parts, in bytes.

    Attributes:
        part: of an upload; what is no larger is sent at once. Parts are larger where there would
            be more than 10,000: S3 takes no more.
        whole: the most that the store copies at once.
        copied_part: of a copy in parts.
    """

    part: int = PART
    whole: int = 5 * 2**30
    copied_part: int = 5 * 2**30


@dataclass
class Upload:
    """An upload in parts.

    Attributes:
        target: what it will be.
        id: by which the server knows it.
        etags: of the parts so far.
        compared: whether all parts that were sent have the MD5 that their etags name.
    """

    target: S3Object
    id: str
    etags: list[str] = field(default_factory=list)
    compared: bool = True

    @property
    def part(self) -> dict[str, Any]:
        """The parameters that name the next part in a request."""
        return {**self.target.named, "UploadId": self.id, "PartNumber": len(self.etags) + 1}

    def put(self, data: bytes) -> None:
        """Send the next part."""
        digest = md5_of(data)
        with translated(self.target.where):
            answer = self.target.clients.usual.upload_part(
                **self.part, Body=data, ContentMD5=base64.b64encode(digest).decode()
            )
            etag = etag_in(answer.get("ETag"))
        told = is_md5(etag) and tells_md5(answer, self.target.bucket)
        if told and etag != digest.hex():
            raise StorageError(f"{self.target.where}: the store got a part as other bytes")
        self.compared = self.compared and told
        self.etags.append(etag)

    def complete(self, *, if_absent: bool) -> tuple[str, bool]:
        """Give the object its name.

        Returns:
            Its etag, and whether that proves that it is made of these parts.
        """
        parts = [{"ETag": f'"{e}"', "PartNumber": n} for n, e in enumerate(self.etags, 1)]
        asked: dict[str, Any] = {
            **self.target.named, "UploadId": self.id, "MultipartUpload": {"Parts": parts}
        }  # fmt: skip
        answer: Mapping[str, Any]
        if if_absent:
            answer = self._complete_once(asked)
        else:
            with translated(self.target.where):
                answer = self.target.clients.usual.complete_multipart_upload(**asked)
        with explaining(self.target.where):
            etag = etag_in(answer.get("ETag"))
        return etag, etag == etag_of_parts(self.etags)

    @writing_once()
    def _complete_once(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        # Many servers ignore the condition without a word.
        require_absent(self.target)
        client = self.target.clients.once
        return self.target.once(lambda: client.complete_multipart_upload(**asked, IfNoneMatch="*"))


@contextmanager
def uploading(target: S3Object) -> Iterator[Upload]:
    """An upload in parts; after any error the server forgets them."""
    with translated(target.where):
        answer = target.clients.usual.create_multipart_upload(**target.named)
    upload = Upload(target, answer["UploadId"])
    try:
        yield upload
    except BaseException:
        with suppress(HttpFailure), failing():
            target.clients.usual.abort_multipart_upload(**target.named, UploadId=upload.id)
        raise


def write(
    target: S3Object, pieces: Iterable[bytes], size: int, *, if_absent: bool, sizes: Sizes
) -> Copied:
    """See ``ObjectStore.receive``."""
    if size <= sizes.part:
        return _write_whole(target, whole(pieces, size, target.where), if_absent=if_absent)
    part = part_size(size, sizes.part, _MOST_PARTS)
    with uploading(target) as upload:
        for data in in_parts(counted(pieces, size, target.where), part):
            upload.put(data)
            # No part is held while the next one is made.
            del data
        etag, proven = upload.complete(if_absent=if_absent)
    if proven and upload.compared:
        return Copied(etag, "md5 of parts")
    require(target, target.look(), size, etag)
    return Copied(etag, "size")


def _write_whole(target: S3Object, data: bytes, *, if_absent: bool) -> Copied:
    digest = md5_of(data)
    answer: Mapping[str, Any]
    if if_absent:
        answer = put_once(target, data, {"IfNoneMatch": "*"})
    else:
        with translated(target.where):
            answer = target.clients.usual.put_object(
                **target.named, Body=data, ContentMD5=content_md5(data)
            )
    with explaining(target.where):
        etag = etag_in(answer.get("ETag"))
    if etag == digest.hex():
        return Copied(etag, "md5")
    if is_md5(etag) and tells_md5(answer, target.bucket):
        raise StorageError(f"{target.where}: the store got other bytes: it answers with {etag}")
    require(target, target.look(), len(data), etag)
    return Copied(etag, "size")


@writing_once()
def put_once(target: S3Object, data: bytes, more: Mapping[str, Any]) -> Mapping[str, Any]:
    """A conditional put of an object."""
    client, digest = target.clients.once, content_md5(data)
    return target.once(
        lambda: client.put_object(**target.named, Body=data, ContentMD5=digest, **more)
    )


def content_md5(data: bytes) -> str:
    """The header without which S3 refuses to write into a bucket with a default lock."""
    return base64.b64encode(md5_of(data)).decode()


def require_absent(target: S3Object) -> None:
    """Raises PreconditionFailedError: there is an object."""
    with suppress(ObjectNotFoundError):
        target.look()
        raise PreconditionFailedError(f"{target.where} exists already")


def require(target: S3Object, answer: Mapping[str, Any], size: int, etag: str) -> None:
    """Raises StorageError: the answer to HEAD is not about what was written."""
    with explaining(target.where):
        found = answer.get("ContentLength"), etag_in(answer.get("ETag"))
    if found != (size, etag):
        raise StorageError(
            f"{target.where}: size and etag are {found}, {(size, etag)} were written: the store "
            "cut it short, or somebody else writes there"
        )


def etag_of_parts(etags: Sequence[str]) -> str | None:
    """The etag that S3 gives to what is made of parts with such etags; None for other etags."""
    if not all(map(is_md5, etags)):
        return None
    digests = b"".join(map(bytes.fromhex, etags))
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(etags)}"
