"""One object of S3: its metadata, reads from any offset, writes at once or in parts, copies.

S3 makes a copy itself if one pair of access keys reaches both objects. Two conditions protect a
copy: nothing is overwritten, and the source is the requested one. Many compatible servers ignore
these conditions silently, least often on plain puts. So a small object that must not overwrite is
read and put, and every copy is compared with the requested object. Tiny objects always are read and
put, at free keys: that takes less time than a copy by the store.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timezone
from functools import partial
from math import inf
from typing import Any, Final, TypeVar

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.bucket_store import BucketObject, ObjectState, Sizes
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    ChangedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
)
from lakegc_assets.storage.http import (
    HttpFailure,
    etag_in,
    explaining,
    repeated,
    size_behind,
    writing_once,
)
from lakegc_assets.storage.s3.client import Clients, clients, failing, translated
from lakegc_assets.storage.s3.small_objects import PAUSE_S, AlreadyThereError, SmallObjects
from lakegc_assets.storage.streams import (
    PIECE,
    Opened,
    base64_of,
    checksums_in,
    counted,
    in_parts,
    md5_of,
    part_size,
    whole,
)
from lakegc_assets.storage.values import Copied, CopyRequest

_Answer = TypeVar("_Answer")

MOST_PARTS: Final = 10_000
# Two conditional puts collided: S3 carried out neither or the other one.
_CONFLICTS: Final = frozenset({"409", "ConditionalRequestConflict"})
_OK: Final = 200
_PARTIAL: Final = 206
_MD5: Final = re.compile(r"[0-9a-f]{32}")
_NAMED: Final = {
    "sha256": "ChecksumSHA256", "crc64nvme": "ChecksumCRC64NVME", "crc32c": "ChecksumCRC32C",
}  # fmt: skip
_NOT_FOUND: Final = 404
#: Bytes above which an object is streamed if it must not overwrite, and else copied by the store.
_SMALL: Final = 1 << 20
_TINY: Final = 32 << 10
_TOO_SHORT: Final = frozenset({"InvalidRange", "416"})


@dataclass(frozen=True)
class S3Object(BucketObject):
    """One object of a bucket; ``key`` is its full key."""

    config: StoreConfig
    bucket: str
    key: str
    where: str

    @property
    def clients(self) -> Clients:
        """The clients of its server."""
        return clients(self.config)

    @property
    def named(self) -> dict[str, Any]:
        """The parameters that name the object in a request."""
        return {"Bucket": self.bucket, "Key": self.key}

    def state(self, *, checksums: bool = True) -> ObjectState:
        """See ``BucketObject``. Checksums may require the permission to decrypt."""
        asked: Any = {"ChecksumMode": "ENABLED"} if checksums else {}
        with translated(self.where):
            answer = self.clients.usual.head_object(**self.named, **asked)
            etag = etag_in(answer.get("ETag"))
        try:
            modified = answer["LastModified"].astimezone(timezone.utc)
            named = named_by(answer, self.bucket)
            return ObjectState(answer["ContentLength"], modified, etag, named)
        except KeyError as error:
            raise StorageError(
                f"{self.where}: the answer has no {error}: check the endpoint and the proxies"
            ) from error

    def opened(self, offset: int, etag: str | None) -> Opened:
        asked = dict(self.named)
        if etag is not None:
            asked["IfMatch"] = f'"{etag}"'
        if offset:
            asked["Range"] = f"bytes={offset}-"
        with failing():
            answer: Mapping[str, Any] = self.clients.usual.get_object(**asked)
        status, size = answer["ResponseMetadata"]["HTTPStatusCode"], answer.get("ContentLength")
        if offset:
            size = size_behind(offset, answer.get("ContentRange"))
        if status != (_PARTIAL if offset else _OK) or (offset and size is None):
            answer["Body"].close()
            raise HttpFailure("NoAnswer", f"a read was answered with {status}", status)
        body, found_etag = answer["Body"], etag_in(answer.get("ETag"))
        named = named_by(answer, self.bucket)
        return Opened(_pieces(body), size, found_etag, body.close, named)

    def put(self, data: bytes, *, etag: str | None = None, if_absent: bool = False) -> str:
        return self._put(data, etag=etag, if_absent=if_absent)[0]

    def _put(
        self, data: bytes, *, etag: str | None = None, if_absent: bool
    ) -> tuple[str, Mapping[str, Any]]:
        """Write the object at once. Returns its etag, and the answer."""
        # Without the digest S3 refuses to write into a bucket with a default lock.
        asked = {**self.named, "Body": data, "ContentMD5": base64_of(md5_of(data))}
        if if_absent or etag is not None:
            condition: Any = {"IfNoneMatch": "*"} if if_absent else {"IfMatch": f'"{etag}"'}
            answer = self.once(lambda: self.clients.once.put_object(**asked, **condition))
        else:
            with translated(self.where):
                answer = self.clients.usual.put_object(**asked)
        with explaining(self.where):
            return etag_in(answer.get("ETag")), answer

    def once(self, send: Callable[[], _Answer]) -> _Answer:
        """Send a conditional write, and again only after an answer that it was not carried out.

        Otherwise a retry would meet the object of its own first attempt, and report it as a
        conflict.
        """

        def again(failure: HttpFailure) -> bool:
            conflict = failure.code in _CONFLICTS
            return conflict or failure.kind is StoreThrottledError

        try:
            return repeated(failing()(send), self.config.max_attempts, again)
        except HttpFailure as failure:
            error = failure.explained(self.where)
            if failure.code in _CONFLICTS:
                # This answer tells only that this write was not carried out.
                raise StoreUnavailableError(str(error)) from failure
            raise error from failure

    def write(self, pieces: Iterable[bytes], size: int, *, if_absent: bool, sizes: Sizes) -> Copied:
        if size <= sizes.part:
            return self._write_whole(whole(pieces, size, self.where), if_absent=if_absent)
        part = part_size(size, sizes.part, MOST_PARTS)
        with self.uploading() as upload:
            for data in in_parts(counted(pieces, size, self.where), part):
                upload.put(data)
                # No part stays in memory while the next one is made.
                del data
            etag, proven = upload.complete(if_absent=if_absent)
        if proven and upload.compared:
            return Copied(etag, "md5 of parts")
        self.require_written(size, etag)
        return Copied(etag, "size")

    def _write_whole(self, data: bytes, *, if_absent: bool) -> Copied:
        put = writing_once()(self._put) if if_absent else self._put
        etag, answer = put(data, if_absent=if_absent)
        if etag == md5_of(data).hex():
            return Copied(etag, "md5")
        if is_md5(etag) and tells_md5(answer, self.bucket):
            raise self.damaged(etag)
        self.require_written(len(data), etag)
        return Copied(etag, "size")

    @contextmanager
    def uploading(self) -> Iterator[Upload]:
        """Begin an upload in parts; after any error the server drops the parts."""
        with translated(self.where):
            answer = self.clients.usual.create_multipart_upload(**self.named)
        upload = Upload(self, answer["UploadId"])
        try:
            yield upload
        except BaseException:
            with suppress(HttpFailure), failing():
                self.clients.usual.abort_multipart_upload(**self.named, UploadId=upload.id)
            raise


@dataclass
class Upload:
    """An upload in parts, with its id and the etags of its parts so far.

    ``compared`` is True if all sent parts have the MD5 in their etags.
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
                **self.part, Body=data, ContentMD5=base64_of(digest)
            )
            etag = etag_in(answer.get("ETag"))
        named = is_md5(etag) and tells_md5(answer, self.target.bucket)
        if named and etag != digest.hex():
            raise self.target.damaged(etag)
        self.compared = self.compared and named
        self.etags.append(etag)

    def complete(self, *, if_absent: bool) -> tuple[str, bool]:
        """Complete the upload. Returns its etag, and True if the etag proves its parts."""
        parts = [{"ETag": f'"{e}"', "PartNumber": n} for n, e in enumerate(self.etags, 1)]
        asked: dict[str, Any] = {
            **self.target.named, "UploadId": self.id, "MultipartUpload": {"Parts": parts}
        }  # fmt: skip
        clients, answer = self.target.clients, dict[str, Any]()
        if if_absent:
            with writing_once():
                # Many servers ignore the condition silently.
                self.target.require_absent()
                send = partial(clients.once.complete_multipart_upload, **asked, IfNoneMatch="*")
                answer |= self.target.once(send)
        else:
            with translated(self.target.where):
                answer |= clients.usual.complete_multipart_upload(**asked)
        with explaining(self.target.where):
            etag = etag_in(answer.get("ETag"))
        return etag, etag == etag_of_parts(self.etags)


def _pieces(body: Any) -> Iterator[bytes]:  # noqa: ANN401 - botocore's StreamingBody, or as it
    try:
        with failing():
            yield from body.iter_chunks(PIECE)
    except OSError as error:
        raise HttpFailure(
            "ConnectionFailed", f"the answer broke off: {type(error).__name__}"
        ) from error


def is_md5(etag: str) -> bool:
    """True if an etag has the form of an MD5, as of a content that was written at once."""
    return _MD5.fullmatch(etag) is not None


def tells_md5(answer: Mapping[str, Any], bucket: str) -> bool:
    """True if the etags in an answer are made of MD5s of the content.

    They are not for encryption with keys of KMS or of the client, nor in directory buckets.
    """
    kms = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms")
    return not kms and "SSECustomerAlgorithm" not in answer and not bucket.endswith("--x-s3")


def named_by(answer: Mapping[str, Any], bucket: str) -> dict[str, str]:
    """The checksums of a whole content in an answer to HEAD or GET, in lower hex."""
    named = {}
    etag = str(answer.get("ETag", "")).strip('"')
    if is_md5(etag) and tells_md5(answer, bucket):
        named["md5"] = etag
    # For an upload in parts they may be checksums of the parts' checksums.
    if answer.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT":
        named |= checksums_in({name: answer.get(member) for name, member in _NAMED.items()})
    return named


def etag_of_parts(etags: Sequence[str]) -> str | None:
    """The etag that S3 gives to an upload of parts with such etags; None for other etags."""
    if not all(map(is_md5, etags)):
        return None
    digests = b"".join(map(bytes.fromhex, etags))
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(etags)}"


def copy(source: S3Object, target: S3Object, asked: CopyRequest, sizes: Sizes) -> Copied | None:
    """See ``ObjectStore.copy_from``."""
    if not asked.if_absent and asked.size <= sizes.whole:
        made = _tiny(source, target, asked) if asked.size <= _TINY else None
        return made or _whole(source, target, asked)
    if asked.size <= sizes.part:
        return _by_value(source, target, asked) if asked.size <= _SMALL else None
    return _in_parts(source, target, asked, sizes)


def _whole(source: S3Object, target: S3Object, asked: CopyRequest) -> Copied:
    """Copy in one request, whose answer proves the copy if etags are MD5s."""
    try:
        with failing():
            answer = target.clients.usual.copy_object(**target.named, **_from(source, asked))
        made = etag_in(answer.get("CopyObjectResult", {}).get("ETag"))
    except HttpFailure as failure:
        raise _explained(failure, source, target) from failure
    if made == asked.etag and is_md5(made) and tells_md5(answer, target.bucket):
        return Copied(made, "md5")
    return _compared(source, target, asked, made)


def _tiny(source: S3Object, target: S3Object, asked: CopyRequest) -> Copied | None:
    """Copy as ``_by_value`` if MD5s prove the copy; replace existing objects in the usual way."""
    if not target.clients.small.usable(source.bucket, target.bucket):
        return None
    with suppress(PreconditionFailedError):
        made = _by_value(source, target, asked)
        # The store may know a stronger checksum.
        return made if made is not None and made.verified_by == "md5" else None
    return None


def _by_value(source: S3Object, target: S3Object, asked: CopyRequest) -> Copied | None:
    """Read and put a small object at a free key; None to copy it in the usual way.

    An object is put only if the MD5 in its etag proves it. Only the store's answer that an object
    is there is believed. After any other failure the usual put follows, which finds a copy that
    this put has left.
    """
    small = target.clients.small
    data = _read(small, source, asked)
    if data is None:
        return None
    try:
        made = small.put(target.bucket, target.key, data)
    except AlreadyThereError:
        # Two concurrent writers may both get this answer without a write by either.
        with suppress(ObjectNotFoundError):
            target.state()
            raise PreconditionFailedError(f"{target.where}: something is there already") from None
        return None
    if made is None:
        # A single failed request proves nothing about the requests of the next minutes.
        small.pause(target.bucket, PAUSE_S)
        return None
    if made == asked.etag:
        return Copied(made, "md5")
    small.pause(target.bucket, inf)
    if "md5" in target.require_written(asked.size, made).checksums:
        raise target.damaged(made)
    return Copied(made, "size")


def _read(small: SmallObjects, source: S3Object, asked: CopyRequest) -> bytes | None:
    """The content of an object if its etag is its MD5; None if not, or to read it otherwise."""
    if not is_md5(asked.etag):
        return None
    data = small.get(source.bucket, source.key, asked.etag, asked.size)
    if data is not None and md5_of(data).hex() != asked.etag:
        small.pause(source.bucket, inf)
        return None
    return data


def _in_parts(source: S3Object, target: S3Object, asked: CopyRequest, sizes: Sizes) -> Copied:
    """Copy in as few parts as possible: the etag of a single part is the MD5 of the whole."""
    part = part_size(asked.size, sizes.copied_part, MOST_PARTS)
    proven = False
    with target.uploading() as upload:
        for first in range(0, asked.size, part):
            last = min(first + part, asked.size) - 1
            ranged = {**_from(source, asked), "CopySourceRange": f"bytes={first}-{last}"}
            try:
                with failing():
                    answer = target.clients.usual.upload_part_copy(**upload.part, **ranged)
                upload.etags.append(etag_in(answer.get("CopyPartResult", {}).get("ETag")))
            except HttpFailure as failure:
                raise _explained(failure, source, target) from failure
            proven = (
                upload.etags == [asked.etag]
                and is_md5(asked.etag)
                and tells_md5(answer, target.bucket)
            )
        if not proven:
            source.require_original(asked)
        made, of_parts = upload.complete(if_absent=asked.if_absent)
    if proven and of_parts:
        return Copied(made, "md5")
    return _compared(source, target, asked, made)


def _compared(source: S3Object, target: S3Object, asked: CopyRequest, made: str) -> Copied:
    """Compare the store's checksums of both objects."""
    original = source.require_original(asked)
    copied = target.require_written(asked.size, made)
    return Copied(made, target.compare(original.checksums, copied.checksums))


def _from(source: S3Object, asked: CopyRequest) -> dict[str, Any]:
    return {"CopySource": source.named, "CopySourceIfMatch": f'"{asked.etag}"'}


def _explained(failure: HttpFailure, source: S3Object, target: S3Object) -> Exception:
    """The error for a refused copy: stores do not tell which of the two objects is the cause."""
    kind = failure.kind
    if failure.code in _TOO_SHORT:
        return ChangedError(f"{source.where} is shorter than was expected")
    if kind in {PreconditionFailedError, ObjectNotFoundError}:
        error = failure.explained(source.where)
        return error if kind is ObjectNotFoundError else ChangedError(str(error))
    if kind is ConfigurationError:
        where = f"{target.where}, copied from {source.where}"
        return failure.explained(where)
    if kind is AccessDeniedError or failure.status == _NOT_FOUND:
        try:
            source.state()
        except StorageError as error:
            return error
    return failure.explained(target.where)
