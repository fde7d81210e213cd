"""An S3 server whose listings are pages that are ready before they are asked for.

It holds no objects: 10,000 keys ``ns/data/<slice>/<id>`` in each slice, named as lakeFS names them.
Their XML is made once, with a gap for the slice's name, so that a page costs little more than the
bytes that are sent. It runs in a process of its own.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from bench._run import BUCKET, use_s3
from lakegc_assets.graveler.namespace import Xid, encode_xid, new_slice_name

KEYS_EACH = 10_000
PAGE = 1000
NAMESPACE = "ns"
_DATA = f"{NAMESPACE}/data/"
_MACHINE, _PID = b"lgc", 7
_MADE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
_GAP = b"@" * 20
#: The etag's first 20 digits are the slice's number, the others that of the object in it.
_TAG = b"#" * 20
SIZE = 4096
_OBJECT = (
    f"<Contents><Key>{_DATA}{_GAP.decode()}/%s</Key>"
    "<LastModified>2026-01-02T03:04:05.000Z</LastModified>"
    f"<ETag>&quot;{_TAG.decode()}%012x&quot;</ETag>"
    "<ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType>"
    f"<Size>{SIZE}</Size><StorageClass>STANDARD</StorageClass></Contents>"
)


class Pages:
    """The answers to listings of a bucket with so many slices."""

    def __init__(self, slices: int) -> None:
        self.slices = sorted(
            new_slice_name(_MADE - timedelta(hours=n), _MACHINE, _PID, 0) for n in range(slices)
        )
        moment = int(_MADE.timestamp())
        self.ids = [encode_xid(Xid(moment, _MACHINE, _PID, n)) for n in range(KEYS_EACH)]
        self.objects = "".join(_OBJECT % (name, n) for n, name in enumerate(self.ids)).encode()
        self.width = len(self.objects) // KEYS_EACH
        self.count = slices * KEYS_EACH

    def named(self) -> Iterator[tuple[str, str]]:
        """Address and etag of each object, in their order."""
        for number, name in enumerate(self.slices):
            for row, of_object in enumerate(self.ids):
                yield f"data/{name}/{of_object}", f"{number:020x}{row:012x}"

    def answer(self, target: str) -> bytes:
        """The body that answers a request for a page, or for a page of folders."""
        query = {name: found[0] for name, found in parse_qs(urlsplit(target).query).items()}
        most = int(query.get("max-keys", PAGE))
        token = query.get("continuation-token")
        if "delimiter" in query:
            first = int(token or 0)
            folders = self.slices[first : first + most]
            rows = "".join(
                f"<CommonPrefixes><Prefix>{_DATA}{name}/</Prefix></CommonPrefixes>"
                for name in folders
            ).encode()
            return _listing(rows, first, len(folders), len(self.slices))
        first = self._behind(query.get("start-after", "")) if token is None else int(token)
        last = min(first + most, self.count)
        rows = b"".join(self._rows(first, last))
        return _listing(rows, first, last - first, self.count)

    def _rows(self, first: int, last: int) -> Iterator[bytes]:
        while first < last:
            number, row = divmod(first, KEYS_EACH)
            end = min(KEYS_EACH, row + last - first)
            rows = self.objects[row * self.width : end * self.width]
            yield rows.replace(_GAP, self.slices[number].encode()).replace(_TAG, b"%020x" % number)
            first += end - row

    def _behind(self, key: str) -> int:
        """The number of the first key after one that need not be there."""
        if key < _DATA:
            return 0
        if not key.startswith(_DATA):
            return self.count
        name, slash, rest = key.removeprefix(_DATA).partition("/")
        number = bisect_left(self.slices, name)
        if slash and number < len(self.slices) and self.slices[number] == name:
            return number * KEYS_EACH + bisect_right(self.ids, rest)
        return number * KEYS_EACH


def _listing(rows: bytes, first: int, count: int, of: int) -> bytes:
    more = first + count < of
    token = b"<NextContinuationToken>%d</NextContinuationToken>" % (first + count) if more else b""
    return (
        b'<?xml version="1.0" encoding="UTF-8"?>\n'
        b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        b"<Name>bench</Name><KeyCount>%d</KeyCount><EncodingType>url</EncodingType>"
        b"<IsTruncated>%s</IsTruncated>%s%s</ListBucketResult>"
    ) % (count, b"true" if more else b"false", token, rows)


class _Protocol(asyncio.Protocol):
    """One connection, on which one request follows another."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._asked = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._asked += data
        while b"\r\n\r\n" in self._asked:
            request, _, self._asked = self._asked.partition(b"\r\n\r\n")
            body = self._pages.answer(request.split(b" ", 2)[1].decode())
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n"
            self._transport.writelines([head % len(body), body])


def _serve(slices: int, ready: Connection) -> None:
    pages = Pages(slices)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Protocol(pages), "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        port: on 127.0.0.1.
        pid: of its process.
        keys: how many it lists.
    """

    port: int
    pid: int
    keys: int

    @property
    def cpu_seconds(self) -> float:
        """What its process has used of a core."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        used = stat.rpartition(")")[2].split()[11:13]
        return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")

    def limit(self, pages: int) -> float:
        """Keys in a second that a bare loop over some pages reads on one connection."""
        begun = time.monotonic()
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            answers = connection.makefile("rb", buffering=1 << 20)
            for number in range(pages):
                token = number * PAGE % self.keys
                target = f"/{BUCKET}?list-type=2&max-keys={PAGE}&continuation-token={token}"
                connection.sendall(f"GET {target} HTTP/1.1\r\n\r\n".encode())
                while (line := answers.readline()) != b"\r\n":
                    length = line.rpartition(b" ")[2]
                answers.read(int(length))
        return pages * PAGE / (time.monotonic() - begun)


@contextmanager
def pages_server(keys: int) -> Iterator[Server]:
    """Run a server with about so many keys; the AWS variables lead to it."""
    slices = max(1, keys // KEYS_EACH)
    theirs, ready = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(slices, ready), daemon=True
    )
    process.start()
    port = theirs.recv()
    use_s3(f"http://127.0.0.1:{port}")
    try:
        yield Server(port, process.pid or 0, slices * KEYS_EACH)
    finally:
        process.terminate()
