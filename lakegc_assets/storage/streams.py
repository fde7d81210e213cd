"""Contents in pieces: counted, cut into parts, and continued if an answer breaks off."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from lakegc_assets.errors import LakegcError
from lakegc_assets.storage.errors import (
    ChangedError,
    PreconditionFailedError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
)
from lakegc_assets.storage.http import HttpFailure

#: Bytes per read.
PIECE: Final = 2**20
#: Bytes of one request that sends a part of an object, the minimum that S3 accepts for a part.
#: Memory holds only a few such parts of an object.
PART: Final = 5 * 2**20


class Pieces(Iterator[bytes]):
    """A content in pieces, with the checksums that the store named (``ObjectStore.checksums``)."""

    def __init__(self, pieces: Iterable[bytes], checksums: Mapping[str, str] | None = None) -> None:
        self._pieces = iter(pieces)
        self.checksums = checksums or {}

    def __next__(self) -> bytes:
        """The next piece."""
        return next(self._pieces)


@dataclass
class Opened:
    """A store's answer to a read from some offset on; ``close`` returns the connection.

    Pieces raise HttpFailure if they break off. The other fields describe the whole object.
    """

    pieces: Iterator[bytes]
    size: int | None
    etag: str
    close: Callable[[], object]
    checksums: Mapping[str, str] = field(default_factory=dict)


#: Open an object at an offset if it has an etag; raises HttpFailure.
Open = Callable[[int, str | None], Opened]


@contextmanager
def reading(opened_at: Open, etag: str | None, tries: int, where: str) -> Iterator[Pieces]:
    """Read a whole object; if an answer breaks off, request the missing rest.

    The object must keep the given etag, or its first one; otherwise ChangedError is raised. The
    read fails after ``tries`` attempts in a row without a piece.
    """

    def opened(offset: int, etag: str | None) -> Opened:
        try:
            answer = opened_at(offset, etag)
        except HttpFailure as failure:
            raise _explained(failure, where) from failure
        stack.callback(answer.close)
        if etag is not None and answer.etag != etag:
            raise ChangedError(f"{where} has the etag {answer.etag}, {etag} was expected")
        return answer

    with ExitStack() as stack:
        first = opened(0, etag)
        yield Pieces(_pieces(first, opened, tries, where), first.checksums)


def _pieces(answer: Opened, opened: Open, tries: int, where: str) -> Iterator[bytes]:
    """The pieces of an answer, and of the next answers if it breaks off; see ``reading``."""
    size, etag, done, failed = answer.size, answer.etag, 0, 0
    if size is None:
        raise StorageError(f"{where}: the answer has no length: check the endpoint and the proxies")
    while True:
        failure = HttpFailure("ConnectionFailed", "the answer broke off")
        try:
            for piece in answer.pieces:
                done += len(piece)
                failed = 0
                if done > size:
                    raise StorageError(f"{where}: more than its {size} bytes were read: run again")
                yield piece
            if done == size:
                return
        except HttpFailure as error:
            failure = error
        failed += 1
        again = failure.kind in {StoreThrottledError, StoreUnavailableError}
        if not again or failed >= tries:
            raise _explained(failure, where) from failure
        answer.close()
        answer = opened(done, etag)


def _explained(failure: HttpFailure, where: str) -> LakegcError:
    error = failure.explained(where)
    return ChangedError(str(error)) if isinstance(error, PreconditionFailedError) else error


def counted(
    pieces: Iterable[bytes], size: int, where: str, other_size: type[StorageError] = StorageError
) -> Iterator[bytes]:
    """Pass pieces on, and raise as soon as their size differs from the expected size."""
    done = 0
    for piece in pieces:
        done += len(piece)
        if done > size:
            break
        yield piece
    if done != size:
        came = "more" if done > size else f"only {done}"
        raise other_size(
            f"{where}: {size} bytes were expected, {came} came: nothing was written, run again"
        )


def whole(pieces: Iterable[bytes], size: int, where: str) -> bytes:
    """Join all pieces. Raises StorageError: they have another size."""
    return b"".join(counted(pieces, size, where))


def in_parts(pieces: Iterable[bytes], part: int) -> Iterator[bytes]:
    """Cut a content into parts of one size; the last one may be shorter."""
    held = bytearray()
    for piece in pieces:
        held += piece
        while len(held) >= part:
            with memoryview(held) as rest:
                full = bytes(rest[:part])
            del held[:part]
            yield full
            del full
    if held:
        yield bytes(held)


def part_size(size: int, least: int, most_parts: int) -> int:
    """Bytes of each part of an upload, in whole MiB if larger: at most as many parts as allowed."""
    if least * most_parts >= size:
        return least
    return -(-size // most_parts // 2**20) * 2**20


def md5_of(data: bytes) -> bytes:
    """The MD5 that stores use; it protects from accidents only."""
    return hashlib.md5(data, usedforsecurity=False).digest()


def base64_of(digest: bytes) -> str:
    """A digest in base64, as stores read and write it."""
    return base64.b64encode(digest).decode()


def checksums_in(encoded: Mapping[str, object]) -> dict[str, str]:
    """Convert the base64 checksums in an answer, by name, to lower hex."""
    named = {}
    for name, text in encoded.items():
        with suppress(binascii.Error):
            digest = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
            if digest:
                named[name] = digest.hex()
    return named
