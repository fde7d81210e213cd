"""One blob of Azure: its properties, reads from any offset on, writes at once or in blocks."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Final

import requests

from lakegc_assets.storage.azure.sas import signature
from lakegc_assets.storage.azure.service import VERSION, AzureService
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.http import HttpFailure, etag_in, explaining, pieces_of, writing_once
from lakegc_assets.storage.streams import (
    PART,
    PIECE,
    Opened,
    counted,
    in_parts,
    md5_of,
    part_size,
    whole,
)
from lakegc_assets.storage.values import Copied

_MOST_BLOCKS: Final = 50_000
#: For how long a copy may take to begin to read its source.
_READABLE: Final = timedelta(hours=1)
_PRECONDITION_FAILED: Final = 412
_CONTENT: Final = "application/octet-stream"
#: The condition that there is no blob.
IF_ABSENT: Final = {"If-None-Match": "*"}


@dataclass(frozen=True)
class Sizes:
    """From which sizes on something is done in blocks, in bytes.

    Attributes:
        part: of an upload; what is no larger is sent at once. Blocks are larger where there would
            be more than 50,000: Azure takes no more.
        whole: the most that the service copies at once; and each block of a larger copy.
    """

    part: int = PART
    whole: int = 256 * 2**20


@dataclass(frozen=True)
class Blob:
    """One blob of a container.

    Attributes:
        service: of the account.
        container: its name.
        name: whole, checked.
        where: names the URL and the key, for messages.
        tries: in a row of a read that breaks off.
    """

    service: AzureService
    container: str
    name: str
    where: str
    tries: int

    def url(self, **query: str) -> str:
        """Percent-encoded."""
        return self.service.target(self.container, self.name, query)

    def look(self) -> Mapping[str, str]:
        """The headers of the answer to HEAD. Raises StorageError."""
        return self._read("HEAD").headers

    def get(self) -> bytes:
        """The content. Raises StorageError."""
        return self._read("GET").content

    def _read(self, method: str) -> requests.Response:
        with explaining(self.where):
            answer = self.service.send(method, self.url())
            _require_blob(answer)
        return answer

    def opened(self, offset: int, etag: str | None) -> Opened:
        """Begin to read from an offset on. Raises HttpFailure."""
        condition = {} if etag is None else {"If-Match": f'"{etag}"'}
        headers = {"x-ms-version": VERSION, **condition}
        try:
            answer, size = self.service.client.opened(self.url(), headers, offset)
        except HttpFailure as failure:
            if failure.status == _PRECONDITION_FAILED:
                # What is missing has no etag, either.
                self.service.send("HEAD", self.url())
            raise
        _require_blob(answer)
        found = etag_in(answer.headers.get("ETag"))
        named = named_by(answer.headers)
        return Opened(pieces_of(answer, PIECE), size, found, answer.close, named)

    def write(
        self,
        headers: Mapping[str, str],
        body: bytes = b"",
        condition: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Write; under a condition, it is sent once. Raises StorageError."""
        if not condition:
            with explaining(self.where):
                return self.service.send("PUT", self.url(**query or {}), headers, body)
        return self._write_once({**headers, **condition}, body, query or {})

    @writing_once()
    def _write_once(
        self, headers: Mapping[str, str], body: bytes, query: Mapping[str, str]
    ) -> requests.Response:
        with explaining(self.where):
            return self.service.send("PUT", self.url(**query), headers, body, repeatable=False)

    def as_source(self, etag: str) -> dict[str, str]:
        """Headers that let the service itself read it, if it has an etag."""
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

    def put_blocks(self, ids: Sequence[str], md5: bytes | None, *, if_absent: bool) -> str:
        """Give blocks the blob's name. Returns the etag."""
        listed = "".join(f"<Latest>{name}</Latest>" for name in ids)
        body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{listed}</BlockList>'.encode()
        headers = {
            "Content-Type": "application/xml",
            "Content-MD5": base64.b64encode(md5_of(body)).decode(),
            "x-ms-blob-content-type": _CONTENT,
        }
        if md5 is not None:
            headers["x-ms-blob-content-md5"] = base64.b64encode(md5).decode()
        condition = IF_ABSENT if if_absent else None
        answer = self.write(headers, body, condition, {"comp": "blocklist"})
        with explaining(self.where):
            return etag_in(answer.headers.get("ETag"))


def block_ids() -> Iterator[str]:
    """Names of the blocks of one upload: no other upload to the blob has the same ones."""
    upload = secrets.token_hex(8)
    for number in range(_MOST_BLOCKS):
        yield base64.b64encode(f"{upload}-{number:06}".encode()).decode()


def write(
    target: Blob, pieces: Iterable[bytes], size: int, *, if_absent: bool, sizes: Sizes
) -> Copied:
    """See ``ObjectStore.receive``. The service forgets blocks without a blob after a week."""
    if size <= sizes.part:
        data = whole(pieces, size, target.where)
        return Copied(put(target, data, IF_ABSENT if if_absent else None), "md5")
    digest = hashlib.md5(usedforsecurity=False)
    ids = []
    part = part_size(size, sizes.part, _MOST_BLOCKS)
    parts = in_parts(counted(pieces, size, target.where), part)
    for block, data in zip(block_ids(), parts, strict=False):
        digest.update(data)
        query = {"comp": "block", "blockid": block}
        _compare(target, target.write(_md5_header(data), data, query=query), data)
        ids.append(block)
        del data
    etag = target.put_blocks(ids, digest.digest(), if_absent=if_absent)
    require(target, target.look(), size, etag)
    return Copied(etag, "md5 of parts")


def put(target: Blob, data: bytes, condition: Mapping[str, str] | None = None) -> str:
    """Write a blob at once. Returns its etag. Raises StorageError."""
    headers = {"x-ms-blob-type": "BlockBlob", "Content-Type": _CONTENT, **_md5_header(data)}
    answer = target.write(headers, data, condition)
    _compare(target, answer, data)
    with explaining(target.where):
        return etag_in(answer.headers.get("ETag"))


def _md5_header(data: bytes) -> dict[str, str]:
    """The header by which the service refuses other bytes than these."""
    return {"Content-MD5": base64.b64encode(md5_of(data)).decode()}


def _compare(target: Blob, answer: requests.Response, data: bytes) -> None:
    named = named_by(answer.headers).get("md5")
    if named is not None and named != md5_of(data).hex():
        raise StorageError(f"{target.where}: the store got other bytes: it names the MD5 {named}")


def require(target: Blob, headers: Mapping[str, str], size: int, etag: str) -> None:
    """Raises StorageError: the answer to HEAD is not about what was written."""
    with explaining(target.where):
        found = headers.get("Content-Length"), etag_in(headers.get("ETag"))
    if found != (str(size), etag):
        raise StorageError(
            f"{target.where}: size and etag are {found}, {(size, etag)} were written: the store "
            "cut it short, or somebody else writes there"
        )


def named_by(headers: Mapping[str, str]) -> dict[str, str]:
    """The checksums of a whole blob that an answer names, in lower hex."""
    try:
        md5 = base64.b64decode(headers.get("Content-MD5", ""), validate=True)
    except binascii.Error:
        return {}
    return {"md5": md5.hex()} if md5 else {}


def _require_blob(answer: requests.Response) -> None:
    if answer.headers.get("x-ms-meta-hdi_isfolder", "").lower() == "true":
        answer.close()
        raise HttpFailure("BlobNotFound", "it is a directory, and no object")
