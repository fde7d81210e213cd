"""One object of GCS: its metadata, reads from any offset on, writes at once or in chunks."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import requests

from lakegc_assets.storage.codes import error_class
from lakegc_assets.storage.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
)
from lakegc_assets.storage.gcs.service import GcsService
from lakegc_assets.storage.http import HttpFailure, explaining, pieces_of, writing_once
from lakegc_assets.storage.streams import PART, PIECE, Opened, counted, in_parts, md5_of, whole
from lakegc_assets.storage.values import Copied

FIELDS: Final = "name,size,generation,md5Hash,crc32c"
_MIME: Final = "application/octet-stream"
_INCOMPLETE: Final = 308
_NOT_FOUND: Final = 404
_DONE: Final = (200, 201)
_SO_FAR: Final = re.compile(r"bytes=0-(\d+)")


@dataclass(frozen=True)
class Sizes:
    """Bytes that are sent at once: a multiple of 256 KiB, of which GCS takes whole ones."""

    part: int = PART


class ObjectState(NamedTuple):
    """Metadata of an object.

    Attributes:
        size: in bytes.
        generation: our etag.
        checksums: by name, in lower hex.
    """

    size: int
    generation: str
    checksums: Mapping[str, str]


@dataclass(frozen=True)
class GcsObject:
    """One object of a bucket.

    Attributes:
        service: the endpoint.
        bucket: its name.
        name: whole, checked.
        where: names the URL and the key, for messages.
        tries: in a row of what breaks off.
    """

    service: GcsService
    bucket: str
    name: str
    where: str
    tries: int

    @property
    def path(self) -> str:
        """The path below ``/storage/v1``."""
        return f"/b/{quote(self.bucket, safe='')}/o/{quote(self.name, safe='')}"

    def url(self, **query: str) -> str:
        """Percent-encoded."""
        return f"{self.service.url}/storage/v1{self.path}?{urlencode(query)}"

    def upload_url(self, kind: str, *, if_absent: bool) -> str:
        """The URL to which it is written."""
        query = {"uploadType": kind, "name": self.name, "fields": FIELDS}
        if if_absent:
            query["ifGenerationMatch"] = "0"
        bucket = quote(self.bucket, safe="")
        return f"{self.service.url}/upload/storage/v1/b/{bucket}/o?{urlencode(query)}"

    def look(self) -> ObjectState:
        """Its metadata. Raises StorageError."""
        with explaining(self.where):
            return self.parse(self.service.client.send("GET", self.url(fields=FIELDS)).content)

    def parse(self, body: bytes) -> ObjectState:
        """Its metadata in an answer. Raises StorageError: the answer is about another object."""
        return self.read(_json(body, self.where))

    def read(self, found: Any) -> ObjectState:  # noqa: ANN401 - any JSON
        """Its metadata in an answer. Raises StorageError: the answer is about another object."""
        try:
            size, generation = int(found["size"]), str(int(found["generation"]))
            if found["name"] != self.name:
                raise StorageError(f"{self.where}: the answer names {found['name']!r}")
        except (LookupError, TypeError, ValueError) as error:
            raise StorageError(f"{self.where}: the store's answer is damaged: {error!r}") from error
        return ObjectState(size, generation, _hashes(found.get("md5Hash"), found.get("crc32c")))

    def opened(self, offset: int, etag: str | None) -> Opened:
        """Begin to read from an offset on. Raises HttpFailure."""
        condition = {} if etag is None else {"ifGenerationMatch": etag}
        url = self.url(alt="media", **condition)
        try:
            answer, size = self.service.client.opened(url, {}, offset)
        except HttpFailure as failure:
            if failure.status == _NOT_FOUND:
                # Downloads are refused in plain text, as a proxy refuses.
                self.service.client.send("GET", self.url(fields=FIELDS))
            raise
        generation = answer.headers.get("X-Goog-Generation", "")
        if not generation:
            answer.close()
            raise HttpFailure("NoAnswer", "the answer has no generation")
        hashes = dict(
            part.strip().partition("=")[::2]
            for part in answer.headers.get("X-Goog-Hash", "").split(",")
        )
        named = _hashes(hashes.get("md5"), hashes.get("crc32c"))
        return Opened(
            pieces_of(answer, PIECE),
            size,
            generation,
            answer.close,
            named,
        )


def write(
    target: GcsObject, pieces: Iterable[bytes], size: int, *, if_absent: bool, sizes: Sizes
) -> Copied:
    """See ``ObjectStore.receive``."""
    if size <= sizes.part:
        data = whole(pieces, size, target.where)
        body, md5 = _write_whole(target, data, if_absent=if_absent), md5_of(data).hex()
    else:
        digest = hashlib.md5(usedforsecurity=False)
        with _session(target, if_absent=if_absent) as session:
            first, body = 0, b""
            for data in in_parts(counted(pieces, size, target.where), sizes.part):
                digest.update(data)
                body = session.put(data, first, size, if_absent=if_absent)
                first += len(data)
                del data
        md5 = digest.hexdigest()
    written = target.parse(body)
    if written.size != size:
        raise StorageError(f"{target.where}: the store has {written.size} of {size} bytes")
    named = written.checksums.get("md5")
    if named not in {None, md5}:
        raise StorageError(f"{target.where}: the store got other bytes: it names the MD5 {named}")
    return Copied(written.generation, "md5" if named else "size")


def _write_whole(target: GcsObject, data: bytes, *, if_absent: bool) -> bytes:
    url = target.upload_url("media", if_absent=if_absent)
    with _writing(target, if_absent=if_absent):
        return target.service.client.send(
            "POST", url, {"Content-Type": _MIME}, data, repeatable=not if_absent
        ).content


@dataclass(frozen=True)
class _Session:
    """An upload in chunks.

    Attributes:
        target: what it will be.
        url: of the upload, which proves who sends to it.
    """

    target: GcsObject
    url: str

    def put(self, data: bytes, first: int, size: int, *, if_absent: bool) -> bytes:
        """Send the bytes from ``first`` on of an object of a size.

        What the service did not keep of them is sent again.

        Returns:
            The answer; about the object after its last byte.
        """
        end, at, failed = first + len(data), first, 0
        while True:
            span = f"bytes {at}-{end - 1}/{size}"
            with _writing(self.target, if_absent=if_absent and end == size):
                try:
                    answer = self._send(span, data[at - first :])
                except HttpFailure as failure:
                    failed += 1
                    kind = error_class(failure.code)
                    lost = kind in {StoreThrottledError, StoreUnavailableError}
                    if not lost or failed >= self.target.tries:
                        raise
                    answer = self._send(f"bytes */{size}", b"")
            if answer.status_code in _DONE:
                if end != size:
                    raise StorageError(f"{self.target.where}: the store ended the upload early")
                return answer.content
            kept = _SO_FAR.fullmatch(answer.headers.get("Range", ""))
            done = int(kept[1]) + 1 if kept else 0
            if not first <= done <= end or (done == end == size):
                raise StorageError(
                    f"{self.target.where}: the store kept {done} bytes of the upload"
                )
            if done == end:
                return b""
            failed = failed + 1 if done <= at else 0
            if failed >= self.target.tries:
                raise StorageError(f"{self.target.where}: the store keeps nothing of the upload")
            at = done

    def _send(self, span: str, data: bytes) -> requests.Response:
        return self.target.service.client.send(
            "PUT",
            self.url,
            {"Content-Range": span},
            data,
            repeatable=False,
            also_good=(*_DONE, _INCOMPLETE),
        )

    def end(self) -> None:
        """Let the service forget it."""
        with suppress(HttpFailure):
            self.target.service.client.send("DELETE", self.url, also_good=(499,))


@contextmanager
def _session(target: GcsObject, *, if_absent: bool) -> Iterator[_Session]:
    url = target.upload_url("resumable", if_absent=if_absent)
    with explaining(target.where):
        answer = target.service.client.send("POST", url, {"X-Upload-Content-Type": _MIME})
    session = _Session(target, answer.headers.get("Location", ""))
    # Requests to it carry credentials.
    if not session.url.startswith(f"{target.service.url}/"):
        raise StorageError(f"{target.where}: the store sends the upload to {session.url!r}")
    try:
        yield session
    except BaseException:
        session.end()
        raise


@contextmanager
def _writing(target: GcsObject, *, if_absent: bool) -> Iterator[None]:
    if not if_absent:
        with explaining(target.where):
            yield
        return
    with writing_once(), explaining(target.where):
        yield


def require_absent(target: GcsObject) -> None:
    """Raises PreconditionFailedError: there is an object."""
    with suppress(ObjectNotFoundError):
        target.look()
        raise PreconditionFailedError(f"{target.where} exists already")


def _json(body: bytes, where: str) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(body)
    except ValueError as error:
        raise StorageError(f"{where}: the store's answer is damaged: {error!r}") from error


def _hashes(md5: object, crc32c: object) -> dict[str, str]:
    named = {}
    for name, encoded in (("md5", md5), ("crc32c", crc32c)):
        with suppress(binascii.Error):
            value = base64.b64decode(encoded, validate=True) if isinstance(encoded, str) else b""
            if value:
                named[name] = value.hex()
    return named
