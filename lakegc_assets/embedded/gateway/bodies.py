"""Bodies of requests: read up to a limit; a short rest is read, or else the connection closes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from lakegc_assets.embedded.gateway import errors
from lakegc_assets.embedded.gateway.payload import is_stream
from lakegc_assets.embedded.gateway.signature import Signed

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
        allowed = 2 * limit + _CHUNKS_OVERHEAD if is_stream(signed.payload) else limit
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
