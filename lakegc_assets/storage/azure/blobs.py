"""One blob of Azure: properties, reads from any offset, writes at once or in blocks, copies."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Final

import requests

from lakegc_assets.storage.azure.auth import signature
from lakegc_assets.storage.azure.service import AzureService
from lakegc_assets.storage.bucket_store import BucketObject, ObjectState, Sizes
from lakegc_assets.storage.errors import ChangedError, StorageError
from lakegc_assets.storage.http import (
    HttpFailure,
    etag_in,
    explaining,
    pieces_of,
    time_in,
    writing_once,
)
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

_MOST_BLOCKS: Final = 50_000
#: Time in which a copy may begin to read its source.
_READABLE: Final = timedelta(hours=1)
_PRECONDITION_FAILED: Final = 412
_CONTENT: Final = "application/octet-stream"
_IF_ABSENT: Final = {"If-None-Match": "*"}


@dataclass(frozen=True)
class Blob(BucketObject):
    """One blob of a container; ``name`` is its full name."""

    service: AzureService
    container: str
    name: str
    where: str

    def url(self, **query: str) -> str:
        """Percent-encoded."""
        return self.service.target(self.container, self.name, query)

    def state(self) -> ObjectState:
        with explaining(self.where):
            answer = self.service.send("HEAD", self.url())
            _require_blob(answer)
            headers = answer.headers
            etag = etag_in(headers.get("ETag"))
        modified = time_in(headers.get("Last-Modified"), self.where)
        size = headers.get("Content-Length", "")
        if not size.isdecimal():
            raise StorageError(f"{self.where}: the answer has no size: {size!r}")
        return ObjectState(int(size), modified, etag, named_by(headers))

    def opened(self, offset: int, etag: str | None) -> Opened:
        condition = {} if etag is None else {"If-Match": f'"{etag}"'}
        try:
            answer, size = self.service.opened(self.url(), condition, offset)
        except HttpFailure as failure:
            if failure.status == _PRECONDITION_FAILED:
                # A missing blob has no etag, so the condition fails.
                self.service.send("HEAD", self.url())
            raise
        _require_blob(answer)
        found = etag_in(answer.headers.get("ETag"))
        named = named_by(answer.headers)
        return Opened(pieces_of(answer, PIECE), size, found, answer.close, named)

    def put(self, data: bytes, *, etag: str | None = None, if_absent: bool = False) -> str:
        condition = {} if etag is None else {"If-Match": f'"{etag}"'}
        headers = {"x-ms-blob-type": "BlockBlob", "Content-Type": _CONTENT, **_md5_header(data)}
        with explaining(self.where):
            answer = self._send(headers, data, _IF_ABSENT if if_absent else condition)
            # Without versioning a written blob gets no version.
            self.service.versioned = "x-ms-version-id" in answer.headers
            self._compare_md5(answer, data)
            return etag_in(answer.headers.get("ETag"))

    def write(self, pieces: Iterable[bytes], size: int, *, if_absent: bool, sizes: Sizes) -> Copied:
        """See ``BucketObject``. The service drops blocks without a blob after a week."""
        if size <= sizes.part:
            put = writing_once()(self.put) if if_absent else self.put
            return Copied(put(whole(pieces, size, self.where), if_absent=if_absent), "md5")
        digest = hashlib.md5(usedforsecurity=False)
        ids = []
        part = part_size(size, sizes.part, _MOST_BLOCKS)
        parts = in_parts(counted(pieces, size, self.where), part)
        for block, data in zip(_block_ids(), parts, strict=False):
            digest.update(data)
            query = {"comp": "block", "blockid": block}
            with explaining(self.where):
                answer = self._send(_md5_header(data), data, query=query)
            self._compare_md5(answer, data)
            ids.append(block)
            # No part stays in memory while the next one is made.
            del data
        etag = self._put_blocks(ids, digest.digest(), if_absent=if_absent)
        self.require_written(size, etag)
        return Copied(etag, "md5 of parts")

    def _put_blocks(self, ids: Sequence[str], md5: bytes | None, *, if_absent: bool) -> str:
        """Make a blob of its blocks. Returns the etag."""
        listed = "".join(f"<Latest>{name}</Latest>" for name in ids)
        body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{listed}</BlockList>'.encode()
        headers = {
            "Content-Type": "application/xml",
            "x-ms-blob-content-type": _CONTENT,
            **_md5_header(body),
        }
        if md5 is not None:
            headers["x-ms-blob-content-md5"] = base64_of(md5)
        with self.writing(once=if_absent):
            condition = _IF_ABSENT if if_absent else {}
            answer = self._send(headers, body, condition, {"comp": "blocklist"})
            return etag_in(answer.headers.get("ETag"))

    def _send(
        self,
        headers: Mapping[str, str],
        body: bytes = b"",
        condition: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Write; a conditional write is sent once. Raises HttpFailure."""
        headers = {**headers, **(condition or {})}
        return self.service.send(
            "PUT", self.url(**query or {}), headers, body, repeatable=not condition
        )

    def copy(self, source: Blob, asked: CopyRequest, sizes: Sizes) -> Copied:
        """See ``ObjectStore.copy_from``. The service compares the source's MD5, if it has one."""
        md5 = source.require_original(asked).checksums.get("md5")
        at_once = asked.size <= sizes.whole
        try:
            if at_once:
                made = self._copy_whole(source, asked, md5)
            else:
                made = self._copy_blocks(source, asked, md5, sizes.whole)
        except ChangedError as error:
            raise ChangedError(
                f"{source.where} has changed since its properties were read: {error}"
            ) from error
        copied = self.require_written(asked.size, made).checksums
        verified_by = self.compare({} if md5 is None else {"md5": md5}, copied)
        # A copy in blocks passes the MD5 on without a check.
        return Copied(made, verified_by if at_once else "size")

    def _copy_whole(self, source: Blob, asked: CopyRequest, md5: str | None) -> str:
        headers = {"x-ms-requires-sync": "true", **source.as_source(asked.etag)}
        if md5:
            headers["x-ms-source-content-md5"] = base64_of(bytes.fromhex(md5))
        with self.writing(once=asked.if_absent):
            answer = self._send(headers, condition=_IF_ABSENT if asked.if_absent else {})
            if (status := answer.headers.get("x-ms-copy-status")) != "success":
                raise StorageError(f"{self.where}: the copy ended as {status!r}: run again")
            return etag_in(answer.headers.get("ETag"))

    def _copy_blocks(self, source: Blob, asked: CopyRequest, md5: str | None, least: int) -> str:
        part, ids = part_size(asked.size, least, _MOST_BLOCKS), []
        for first, block in zip(range(0, asked.size, part), _block_ids(), strict=False):
            last = min(first + part, asked.size) - 1
            span = {"x-ms-source-range": f"bytes={first}-{last}"}
            with explaining(self.where):
                query = {"comp": "block", "blockid": block}
                self._send({**source.as_source(asked.etag), **span}, query=query)
            ids.append(block)
        digest = bytes.fromhex(md5) if md5 else None
        return self._put_blocks(ids, digest, if_absent=asked.if_absent)

    def as_source(self, etag: str) -> dict[str, str]:
        """Headers with which the service itself reads the blob, if it still has this etag."""
        url, key = self.url(), self.service.signer.key
        if key is not None:
            resource = f"/blob/{self.service.account}/{self.container}/{self.name}"
            ends = datetime.now(timezone.utc) + _READABLE
            url = f"{url}?{signature(key, resource, ends, allowed='r')}"
        headers = {"x-ms-copy-source": url, "x-ms-source-if-match": f'"{etag}"'}
        if self.service.signer.delegated:
            # The signer puts its token there, too.
            headers["x-ms-copy-source-authorization"] = ""
        return headers

    def _compare_md5(self, answer: requests.Response, data: bytes) -> None:
        named = named_by(answer.headers).get("md5")
        if named is not None and named != md5_of(data).hex():
            raise self.damaged(named)


def _block_ids() -> Iterator[str]:
    """Names of the blocks of one upload, different from those of any other upload to the blob."""
    upload = secrets.token_hex(8)
    for number in range(_MOST_BLOCKS):
        yield base64_of(f"{upload}-{number:06}".encode())


def _md5_header(data: bytes) -> dict[str, str]:
    """The header by which the service refuses a body with other bytes."""
    return {"Content-MD5": base64_of(md5_of(data))}


def named_by(headers: Mapping[str, str]) -> dict[str, str]:
    """The checksums of a whole blob in an answer, in lower hex."""
    return checksums_in({"md5": headers.get("Content-MD5")})


def _require_blob(answer: requests.Response) -> None:
    if answer.headers.get("x-ms-meta-hdi_isfolder", "").lower() == "true":
        answer.close()
        raise HttpFailure("BlobNotFound", "it is a directory, and no object")
