"""The body of a request: read up to a limit, unpacked, and compared with its checksums."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import google_crc32c
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from lakegc_assets.embedded.gateway import errors
from lakegc_assets.embedded.gateway.errors import S3Error
from lakegc_assets.embedded.gateway.signature import UNSIGNED, Signed

CHECKSUM = "x-amz-checksum-"
_NO_CHECKSUMS = {CHECKSUM + "algorithm", CHECKSUM + "type", CHECKSUM + "mode"}
_EMPTY = hashlib.sha256(b"").hexdigest()
_SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
_STREAMS = {_SIGNED_CHUNKS, f"{_SIGNED_CHUNKS}-TRAILER", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"}
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,16})(?:;chunk-signature=([0-9a-f]{64}))?\r\n")
_TRAILER_SIGNATURE = "x-amz-trailer-signature"
_MOST_DOCUMENT_BYTES = 8 << 20
_CHUNKS_OVERHEAD = 1 << 20
# Up to this many bytes of an unwanted body are read, so that the client then reads the answer.
_MOST_UNWANTED_BYTES = 1 << 20


class Body:
    """One request's body."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ended = False

    async def read(self, kind: str, signed: Signed, headers: Mapping[str, str], most: int) -> bytes:
        """Read the body as the client sent it.

        ``most`` is the limit in bytes of an unpacked ``content``; other kinds have a short limit.

        Raises:
            S3Error: the body is too large; if its announced length is, nothing is read.
        """
        limit = most if kind == "content" else _MOST_DOCUMENT_BYTES
        too_large = errors.entity_too_large(most) if kind == "content" else errors.malformed_xml()
        length = headers.get("x-amz-decoded-content-length") or headers.get("content-length", "0")
        if not re.fullmatch(r"[0-9]{1,18}", length) or int(length) > limit:
            raise too_large
        # No real client sends chunks of a few bytes, so their overhead is limited.
        allowed = 2 * limit + _CHUNKS_OVERHEAD if _is_stream(signed.payload) else limit
        found = bytearray()
        while not self._ended:
            found += await self._next()
            if len(found) > allowed:
                raise too_large
        return bytes(found)

    async def finish(self, *, waited_for: bool) -> bool:
        """Read the rest of the body if it is short; return whether the body has ended.

        ``waited_for``: the client waits for ``100 Continue``, and gets the answer instead.
        """
        unwanted = 0
        while not (self._ended or waited_for) and unwanted <= _MOST_UNWANTED_BYTES:
            try:
                unwanted += len(await self._next())
            except ClientDisconnect:
                break
        return self._ended

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        self._ended = not message.get("more_body", False)
        return bytes(message.get("body", b""))


class Payload(NamedTuple):
    """The content of a request.

    Attributes:
        data: the content.
        checksums: headers ``x-amz-checksum-...`` that match the content.
    """

    data: bytes
    checksums: Mapping[str, str]


def _is_stream(declared: str) -> bool:
    """Return whether a payload with this declared hash comes in chunks."""
    return declared.startswith("STREAMING-")


def unpack(
    raw: bytes, signed: Signed, headers: Mapping[str, str], *, names_parts: bool = False
) -> Payload:
    """The content of a request, from its body and its headers, whose names are in lower case.

    ``names_parts``: the checksums in the headers are not of the body but of the object to assemble.

    Raises:
        S3Error: the content does not match its signature, length or checksums.
    """
    trailers: Mapping[str, str] = {}
    data = raw
    if signed.payload in _STREAMS:
        data, trailers = _unchunk(raw, signed, headers.get("x-amz-trailer", ""))
        announced = headers.get("x-amz-decoded-content-length")
        if announced is not None and announced != str(len(data)):
            raise errors.incomplete_body()
    elif _is_stream(signed.payload):
        raise errors.not_implemented(f"payloads of the kind {signed.payload}")
    elif signed.payload != UNSIGNED:
        _check_sha256(data, signed.payload)
    _check_md5(data, headers.get("content-md5"))
    declared = trailers if names_parts else {**headers, **trailers}
    return Payload(data, check_checksums(data, declared))


def check_checksums(data: bytes, headers: Mapping[str, str]) -> dict[str, str]:
    """Compare content with the checksums in headers, and return these.

    Raises:
        S3Error: a checksum is wrong, or of an unknown kind.
    """
    found = object_checksums(headers)
    for name, value in found.items():
        if _base64(_function(name)(data)) != value:
            raise _wrong(name)
    return found


def check_parts(parts: Sequence[bytes], headers: Mapping[str, str]) -> None:
    """Compare an object with checksums of the whole, or of the checksums of its parts.

    Raises:
        S3Error: a checksum matches neither, or is of an unknown kind.
    """
    for name, value in object_checksums(headers).items():
        function = _function(name)
        composite = _base64(function(b"".join(function(part) for part in parts)))
        whole = _base64(function(b"".join(parts)))
        if value not in {whole, composite, f"{composite}-{len(parts)}"}:
            raise _wrong(name)


def object_checksums(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that are checksums."""
    return {
        name: value
        for name, value in headers.items()
        if name.startswith(CHECKSUM) and name not in _NO_CHECKSUMS
    }


def _function(name: str) -> Callable[[bytes], bytes]:
    kind = name.removeprefix(CHECKSUM)
    if kind not in _CHECKSUMS:
        raise errors.not_implemented(f"the checksum {kind!r}")
    return _CHECKSUMS[kind]


def _wrong(name: str) -> S3Error:
    return errors.bad_digest(name.removeprefix(CHECKSUM).upper())


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _crc64(data: bytes) -> bytes:
    # Loading numba takes longer than most requests.
    from lakegc_assets.embedded.gateway.crc64 import crc64_nvme  # noqa: PLC0415

    return crc64_nvme(data).to_bytes(8, "big")


_CHECKSUMS: Mapping[str, Callable[[bytes], bytes]] = {
    "crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "crc32c": lambda data: int(google_crc32c.value(data)).to_bytes(4, "big"),
    "crc64nvme": _crc64,
    "sha1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest(),
}


def _unchunk(raw: bytes, signed: Signed, announced: str) -> tuple[bytes, dict[str, str]]:
    """The content of chunks and the trailing headers, after a check of every signature."""
    is_signed = signed.payload.startswith(_SIGNED_CHUNKS)
    previous, position, size = signed.signature, 0, -1
    chunks: list[bytes] = []
    while size:
        head = _CHUNK.match(raw, position)
        if not head or bool(head[2]) != is_signed:
            raise errors.incomplete_body()
        size, start = int(head[1], 16), head.end()
        chunk = raw[start : start + size]
        position = start + size
        if len(chunk) != size:
            raise errors.incomplete_body()
        if is_signed:
            digest = hashlib.sha256(chunk).hexdigest()
            previous = _same(signed.of("PAYLOAD", previous, _EMPTY, digest), head[2].decode())
        if size:
            if raw[position : position + 2] != b"\r\n":
                raise errors.incomplete_body()
            position += 2
        chunks.append(chunk)
    trailers = _trailers(raw[position:])
    if is_signed and _TRAILER_SIGNATURE in trailers:
        given = trailers.pop(_TRAILER_SIGNATURE)
        lines = "".join(f"{name}:{value}\n" for name, value in trailers.items())
        digest = hashlib.sha256(lines.encode("latin-1")).hexdigest()
        _same(signed.of("TRAILER", previous, digest), given)
    elif is_signed and trailers:
        raise _bad_trailer("it is not signed")
    expected = {name.strip().lower() for name in announced.split(",") if name.strip()}
    if expected != set(trailers):
        raise _bad_trailer(f"x-amz-trailer announces {announced!r}")
    return b"".join(chunks), trailers


def _trailers(raw: bytes) -> dict[str, str]:
    trailers: dict[str, str] = {}
    for line in raw.replace(b"\r\n", b"\n").split(b"\n"):
        name, colon, value = line.strip(b"\r ").decode("latin-1").partition(":")
        if colon:
            trailers[name.strip().lower()] = value.strip()
        elif name:
            raise _bad_trailer(f"{name!r} is no header")
    return trailers


def _same(expected: str, given: str) -> str:
    if not hmac.compare_digest(expected.encode(), given.encode("latin-1")):
        raise S3Error(
            403,
            "SignatureDoesNotMatch",
            "The signature of a chunk that we calculated does not match the one you provided.",
        )
    return expected


def _bad_trailer(why: str) -> S3Error:
    return S3Error(400, "MalformedTrailerError", f"The trailer is not as it should be: {why}.")


def _check_sha256(data: bytes, declared: str) -> None:
    if not re.fullmatch(r"[0-9a-f]{64}", declared):
        raise errors.invalid_argument(
            f"x-amz-content-sha256 must be a SHA-256, {UNSIGNED} or STREAMING-..., "
            f"not {declared!r}."
        )
    if hashlib.sha256(data).hexdigest() != declared:
        raise S3Error(
            400,
            "XAmzContentSHA256Mismatch",
            "The provided 'x-amz-content-sha256' header does not match what was computed.",
        )


def _check_md5(data: bytes, declared: str | None) -> None:
    if declared is None:
        return
    actual = hashlib.md5(data, usedforsecurity=False).digest()
    try:
        wanted = base64.b64decode(declared, validate=True)
    except binascii.Error:
        wanted = b""
    if len(wanted) != len(actual):
        raise S3Error(400, "InvalidDigest", "The Content-Md5 you specified is not valid.")
    if wanted != actual:
        raise errors.bad_digest("Content-Md5")
