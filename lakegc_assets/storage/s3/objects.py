"""One object of S3: its metadata, reads from any offset on, writes that are sent once."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from lakegc_assets.storage.codes import error_class, explained
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import PreconditionFailedError, StoreThrottledError
from lakegc_assets.storage.http import HttpFailure, etag_in, repeated
from lakegc_assets.storage.s3.client import Clients, clients, failing, translated
from lakegc_assets.storage.streams import PIECE, Opened

_Told = TypeVar("_Told")

# Two conditional puts met: S3 carried out neither or the other one.
_CONFLICTS: Final = frozenset({"409", "ConditionalRequestConflict"})
_OK: Final = 200
_PARTIAL: Final = 206
_MD5: Final = re.compile(r"[0-9a-f]{32}")
_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(\d+)")
_NAMED: Final = {
    "sha256": "ChecksumSHA256", "crc64nvme": "ChecksumCRC64NVME", "crc32c": "ChecksumCRC32C",
}  # fmt: skip


@dataclass(frozen=True)
class S3Object:
    """One object of a bucket.

    Attributes:
        config: how its server is reached.
        bucket: its name.
        key: whole, checked.
        where: names the URL and the key, for messages.
    """

    config: StoreConfig
    bucket: str
    key: str
    where: str

    @property
    def clients(self) -> Clients:
        """Of its server."""
        return clients(self.config)

    @property
    def named(self) -> dict[str, Any]:
        """The parameters that name it in a request."""
        return {"Bucket": self.bucket, "Key": self.key}

    def look(self) -> Mapping[str, Any]:
        """The answer to HEAD, with checksums. Raises StorageError."""
        with translated(self.where):
            return self.clients.usual.head_object(**self.named, ChecksumMode="ENABLED")

    def opened(self, offset: int, etag: str | None) -> Opened:
        """Begin to read from an offset on. Raises HttpFailure."""
        asked = dict(self.named)
        if etag is not None:
            asked["IfMatch"] = f'"{etag}"'
        if offset:
            asked["Range"] = f"bytes={offset}-"
        with failing():
            answer: Mapping[str, Any] = self.clients.usual.get_object(**asked)
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        size = answer.get("ContentLength")
        if offset:
            found = _RANGE.fullmatch(answer.get("ContentRange", ""))
            begun = found is not None and int(found[1]) == offset
            size = int(found[2]) if found else None
        else:
            begun = True
        if status != (_PARTIAL if offset else _OK) or not begun:
            answer["Body"].close()
            raise HttpFailure("NoAnswer", f"a read was answered with {status}", status)
        body, found_etag = answer["Body"], etag_in(answer.get("ETag"))
        named = named_by(answer, self.bucket)
        return Opened(_pieces(body), size, found_etag, body.close, named)

    def once(self, send: Callable[[], _Told]) -> _Told:
        """Send a conditional write, again only after an answer that says it was not carried out.

        A repeated one would meet its own first try, and report that as somebody else's.
        """

        def again(failure: HttpFailure) -> bool:
            conflict = failure.code in _CONFLICTS
            return conflict or error_class(failure.code) is StoreThrottledError

        try:
            return repeated(failing()(send), self.config.max_attempts, again)
        except HttpFailure as failure:
            error = explained(failure.code, failure.message, self.where)
            if failure.code in _CONFLICTS:
                raise PreconditionFailedError(str(error)) from failure
            raise error from failure


def _pieces(body: Any) -> Iterator[bytes]:  # noqa: ANN401 - botocore's StreamingBody, or as it
    try:
        with failing():
            yield from body.iter_chunks(PIECE)
    except OSError as error:
        raise HttpFailure("ConnectionFailed", f"it broke off: {type(error).__name__}") from error


def is_md5(etag: str) -> bool:
    """True if an etag has the form of the MD5 of a content that was written at once."""
    return _MD5.fullmatch(etag) is not None


def tells_md5(answer: Mapping[str, Any], bucket: str) -> bool:
    """True if the etags in an answer are made of MD5s of the content.

    They are not where it is encrypted with keys of KMS or of the client, nor in directory buckets.
    """
    kms = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms")
    return not kms and "SSECustomerAlgorithm" not in answer and not bucket.endswith("--x-s3")


def named_by(answer: Mapping[str, Any], bucket: str) -> dict[str, str]:
    """The checksums of a whole content that an answer to HEAD or GET names, in lower hex."""
    named = {}
    etag = str(answer.get("ETag", "")).strip('"')
    if is_md5(etag) and tells_md5(answer, bucket):
        named["md5"] = etag
    # Of an upload in parts they may be checksums of the parts' checksums.
    if answer.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT":
        for name, member in _NAMED.items():
            try:
                value = base64.b64decode(answer.get(member, ""), validate=True)
            except binascii.Error:
                continue
            if value:
                named[name] = value.hex()
    return named
