"""One object of GCS: metadata, reads from any offset, writes at once or in chunks, copies."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

import requests

from lakegc_assets.storage.bucket_store import BucketObject, ObjectState, Sizes
from lakegc_assets.storage.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
)
from lakegc_assets.storage.gcs.service import GcsService, read_object
from lakegc_assets.storage.http import HttpFailure, explaining, pieces_of
from lakegc_assets.storage.streams import (
    PIECE,
    Opened,
    checksums_in,
    counted,
    in_parts,
    md5_of,
    whole,
)
from lakegc_assets.storage.values import Copied, CopyRequest

_FIELDS: Final = "name,size,updated,generation,md5Hash,crc32c"
_MIME: Final = "application/octet-stream"
_INCOMPLETE: Final = 308
_NOT_FOUND: Final = 404
_DONE: Final = (200, 201)
_IF_ABSENT: Final = {"ifGenerationMatch": "0"}
_SO_FAR: Final = re.compile(r"bytes=0-(\d+)")


@dataclass(frozen=True)
class GcsObject(BucketObject):
    """One object of a bucket, whose generation is its etag here; ``name`` is its full name."""

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
        url = f"{self.service.url}/storage/v1{self.path}"
        return f"{url}?{urlencode(query)}" if query else url

    def state(self) -> ObjectState:
        with explaining(self.where):
            return self.fetch_state()

    def fetch_state(self) -> ObjectState:
        """Its metadata. Raises HttpFailure."""
        return self.read(self.service.send("GET", self.url(fields=_FIELDS)).content)

    def read(self, body: bytes) -> ObjectState:
        """Read its metadata in an answer. Raises StorageError: it is about another object."""
        info, found = read_object(body, self.where)
        if info.key != self.name:
            raise StorageError(f"{self.where}: the answer names {info.key!r}: check the endpoint")
        hashes = checksums_in({"md5": found.get("md5Hash"), "crc32c": found.get("crc32c")})
        return ObjectState(info.size, info.last_modified, info.etag, hashes)

    def opened(self, offset: int, etag: str | None) -> Opened:
        url = self.url(alt="media", **_if_match(etag))
        try:
            answer, size = self.service.opened(url, {}, offset)
        except HttpFailure as failure:
            unclear = failure.kind is not ObjectNotFoundError
            if failure.status == _NOT_FOUND and unclear:
                # Downloads are refused in plain text, as by a proxy; metadata give the service's
                # own answer.
                self.fetch_state()
            raise
        generation = answer.headers.get("X-Goog-Generation", "")
        if not generation:
            answer.close()
            raise HttpFailure("NoAnswer", "the answer has no generation")
        hashes = dict(
            part.strip().partition("=")[::2]
            for part in answer.headers.get("X-Goog-Hash", "").split(",")
        )
        named = checksums_in({name: hashes.get(name) for name in ("md5", "crc32c")})
        return Opened(pieces_of(answer, PIECE), size, generation, answer.close, named)

    def put(self, data: bytes, *, etag: str | None = None, if_absent: bool = False) -> str:
        with explaining(self.where):
            condition = _IF_ABSENT if if_absent else _if_match(etag)
            return self.read(self._upload(data, condition)).etag

    def _upload(self, data: bytes, condition: Mapping[str, str]) -> bytes:
        url = self._upload_url("media", condition)
        headers, repeatable = {"Content-Type": _MIME}, not condition
        return self.service.send("POST", url, headers, data, repeatable=repeatable).content

    def _upload_url(self, kind: str, condition: Mapping[str, str]) -> str:
        query = {"uploadType": kind, "name": self.name, "fields": _FIELDS, **condition}
        bucket = quote(self.bucket, safe="")
        return f"{self.service.url}/upload/storage/v1/b/{bucket}/o?{urlencode(query)}"

    def write(self, pieces: Iterable[bytes], size: int, *, if_absent: bool, sizes: Sizes) -> Copied:
        if size <= sizes.part:
            data = whole(pieces, size, self.where)
            with self.writing(once=if_absent):
                body = self._upload(data, _IF_ABSENT if if_absent else {})
            md5 = md5_of(data).hex()
        else:
            digest = hashlib.md5(usedforsecurity=False)
            with self._session(if_absent=if_absent) as session:
                first, body = 0, b""
                for data in in_parts(counted(pieces, size, self.where), sizes.part):
                    digest.update(data)
                    body = session.put(data, first, size, if_absent=if_absent)
                    first += len(data)
                    del data
            md5 = digest.hexdigest()
        written = self.read(body)
        if written.size != size:
            raise StorageError(
                f"{self.where}: the store has {written.size} of {size} bytes: run again"
            )
        named = written.checksums.get("md5")
        if named not in {None, md5}:
            raise self.damaged(named)
        return Copied(written.etag, "md5" if named else "size")

    @contextmanager
    def _session(self, *, if_absent: bool) -> Iterator[_Session]:
        url = self._upload_url("resumable", _IF_ABSENT if if_absent else {})
        with explaining(self.where):
            answer = self.service.send("POST", url, {"X-Upload-Content-Type": _MIME})
        session = _Session(self, answer.headers.get("Location", ""))
        # Requests to this URL carry credentials.
        if not session.url.startswith(f"{self.service.url}/"):
            raise StorageError(
                f"{self.where}: the store sends the upload to {session.url!r}, to which no "
                "credentials are sent: check the endpoint"
            )
        try:
            yield session
        except BaseException:
            session.end()
            raise


@dataclass(frozen=True)
class _Session:
    """An upload in chunks, whose URL proves the identity of the sender."""

    target: GcsObject
    url: str

    def put(self, data: bytes, first: int, size: int, *, if_absent: bool) -> bytes:
        """Send the bytes from ``first`` on, and resend those not kept. Returns the last answer."""
        end, at, failed = first + len(data), first, 0
        while True:
            span = f"bytes {at}-{end - 1}/{size}"
            with self.target.writing(once=if_absent and end == size):
                try:
                    answer = self._send(span, data[at - first :])
                except HttpFailure as failure:
                    failed += 1
                    lost = failure.kind in {StoreThrottledError, StoreUnavailableError}
                    if not lost or failed >= self.target.tries:
                        raise
                    answer = self._send(f"bytes */{size}", b"")
            if answer.status_code in _DONE:
                if end != size:
                    raise StorageError(
                        f"{self.target.where}: the store ended the upload early: run again"
                    )
                return answer.content
            kept = _SO_FAR.fullmatch(answer.headers.get("Range", ""))
            done = int(kept[1]) + 1 if kept else 0
            if not first <= done <= end or (done == end == size):
                raise StorageError(
                    f"{self.target.where}: the store kept {done} bytes of the upload, not all of "
                    f"{first} to {end}: run again"
                )
            if done == end:
                return b""
            failed = failed + 1 if done <= at else 0
            if failed >= self.target.tries:
                raise StorageError(
                    f"{self.target.where}: the store keeps nothing of the upload: run again"
                )
            at = done

    def _send(self, span: str, data: bytes) -> requests.Response:
        return self.target.service.send(
            "PUT",
            self.url,
            {"Content-Range": span},
            data,
            # A request for the kept size changes nothing.
            repeatable=not data,
            also_good=(*_DONE, _INCOMPLETE),
        )

    def end(self) -> None:
        """Make the service drop the upload."""
        with suppress(HttpFailure):
            self.target.service.send("DELETE", self.url, also_good=(499,))


def copy(source: GcsObject, target: GcsObject, asked: CopyRequest) -> Copied:
    """See ``ObjectStore.copy_from``."""
    original = source.require_original(asked)
    query = {"ifSourceGenerationMatch": asked.etag}
    if asked.if_absent:
        # Compatible servers ignore the condition silently.
        target.require_absent()
        query |= _IF_ABSENT
    try:
        resource = rewrite(source, target, query, repeatable=not asked.if_absent)
    except HttpFailure as failure:
        if failure.kind in {PreconditionFailedError, ObjectNotFoundError}:
            # The service does not say which condition failed.
            source.require_original(asked)
        raise failure.explained(target.where) from failure
    copied = target.read(resource)
    if copied.size != asked.size:
        raise StorageError(
            f"{target.where}: the copy has {copied.size} of {asked.size} bytes: run again"
        )
    try:
        verified_by = target.compare(original.checksums, copied.checksums)
    except StorageError:
        source.require_original(asked)
        raise
    if verified_by == "size":
        source.require_original(asked)
    return Copied(copied.etag, verified_by)


def rewrite(
    source: GcsObject, target: GcsObject, query: Mapping[str, str], *, repeatable: bool = True
) -> bytes:
    """Copy an object, in some requests. Returns JSON about the copy. Raises HttpFailure."""
    url = f"{source.service.url}/storage/v1{source.path}/rewriteTo{target.path}"
    query = {**query, "fields": f"done,rewriteToken,resource({_FIELDS})"}
    while True:
        answer = target.service.send("POST", f"{url}?{urlencode(query)}", repeatable=repeatable)
        try:
            found = json.loads(answer.content)
            done, token = found.get("done"), found.get("rewriteToken")
        except (ValueError, AttributeError) as error:
            raise HttpFailure("NoAnswer", "the answer to a copy is damaged") from error
        if done is True:
            return json.dumps(found.get("resource")).encode()
        if not isinstance(token, str) or not token:
            raise HttpFailure(
                "NoAnswer",
                "the answer to a copy is damaged: it is not the last one, and has no token",
            )
        query["rewriteToken"] = token


def _if_match(etag: str | None) -> dict[str, str]:
    """The condition that an object has an etag. Raises HttpFailure: no object can have this one."""
    if etag is not None and not is_generation(etag):
        message = f"no object can have the etag {etag!r}: generations are numbers"
        raise HttpFailure("conditionNotMet", message)
    return {} if etag is None else {"ifGenerationMatch": etag}


def is_generation(etag: str) -> bool:
    """True if a condition can name it: GCS may ignore other texts, and 0 means no object."""
    return etag.isascii() and etag.isdecimal() and etag != "0"
