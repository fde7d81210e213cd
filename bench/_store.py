"""An S3 server in memory: its listings are prepared pages, and it answers every delete as done.

Objects outside of ``data/`` are stored, or read from files. The server does not check signatures
and expiry.
"""

from __future__ import annotations

import hashlib
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from bench._http import Asked, Served, Service, Told, running
from bench._pages import DATA, KEYS_EACH, MADE, NAMESPACE, PAGE, Pages, listing
from bench._run import BUCKET, use_s3

_XML = ("Content-Type", "application/xml")
_KEY = re.compile(rb"<Key>([^<]*)</Key>")
_SPACE = b'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


class _Held(NamedTuple):
    """An object: its bytes, or the file with them."""

    content: bytes | Path
    etag: str
    modified: datetime

    def read(self) -> bytes:
        """Its bytes."""
        return self.content if isinstance(self.content, bytes) else self.content.read_bytes()


class Store:
    """Answers the requests of a bucket.

    Args:
        pages: listings below ``data/``; may be replaced while it runs.
        folder: with the files below ``_lakefs/``.

    Attributes:
        asked: number of requests of each kind.
    """

    def __init__(self, pages: Pages, folder: Path | None = None) -> None:
        self.pages = pages
        self.asked: Counter[str] = Counter()
        self._held: dict[str, _Held] = {}
        self._folder = folder

    def put(self, key: str, content: bytes | Path) -> str:
        """Store an object under its whole key; its etag."""
        told = content if isinstance(content, bytes) else str(content).encode()
        etag = hashlib.md5(told, usedforsecurity=False).hexdigest()
        self._held[key] = _Held(content, etag, datetime.now(timezone.utc))
        return etag

    def answer(self, asked: Asked) -> Told:
        """Answer a request."""
        key = asked.path.removeprefix(f"/{BUCKET}").removeprefix("/")
        self.asked[f"store {asked.method}" if key else f"store {asked.method} of the bucket"] += 1
        if asked.method == "POST":
            return self._delete_many(asked)
        if asked.method == "PUT":
            return self._put(key, asked)
        if asked.method == "DELETE":
            self._gone(key)
            return Told(204)
        if key:
            return self._get(key)
        if "list-type" in asked.query:
            return Told(200, self._list(asked), [_XML])
        return Told(200, b"<VersioningConfiguration %s/>" % _SPACE, [_XML])

    def _list(self, asked: Asked) -> bytes:
        query = asked.query
        prefix, after = query.get("prefix", ""), query.get("start-after", "")
        token = query.get("continuation-token", "")
        inside = prefix.startswith(DATA) or ("delimiter" not in query and after >= DATA)
        if inside or token.isdigit():
            return self.pages.page(query)
        after = max(after, token)
        most = int(query.get("max-keys", PAGE))
        keys = sorted(k for k in self._held if k.startswith(prefix) and k > after)
        folders: list[str] = []
        if "delimiter" in query:
            rests = [k.removeprefix(prefix) for k in keys]
            keys = [k for k, rest in zip(keys, rests, strict=True) if "/" not in rest]
            folders = sorted({prefix + rest.split("/")[0] + "/" for rest in rests if "/" in rest})
            folders += [DATA] if prefix == f"{NAMESPACE}/" else []
        some = keys[:most]
        rows = "".join(self._row(key) for key in some)
        rows += "".join(
            f"<CommonPrefixes><Prefix>{quote(f)}</Prefix></CommonPrefixes>" for f in folders
        )
        more = some[-1] if len(keys) > most else None
        if not more and "delimiter" not in query and DATA.startswith(prefix) and self.pages.count:
            # Keys below data/ sort after those below _lakefs/, and before no other key.
            if not keys:
                return self.pages.page({**query, "continuation-token": "0"})
            more = DATA
        return listing(rows.encode(), len(some) + len(folders), more)

    def _row(self, key: str) -> str:
        held = self._held[key]
        size = len(held.content) if isinstance(held.content, bytes) else held.content.stat().st_size
        return (
            f"<Contents><Key>{quote(key)}</Key>"
            f"<LastModified>{held.modified:%Y-%m-%dT%H:%M:%S}.000Z</LastModified>"
            f"<ETag>&quot;{held.etag}&quot;</ETag><Size>{size}</Size></Contents>"
        )

    def _get(self, key: str) -> Told:
        if key.startswith(DATA):
            found = self.pages.find(key.removeprefix(f"{NAMESPACE}/"))
            return _missing(key) if found is None else _found(bytes(found[0]), found[1], MADE)
        held = self._held.get(key)
        if held is None and self._folder is not None:
            file = self._folder / key.rpartition("/")[2]
            if key == f"{NAMESPACE}/_lakefs/{file.name}" and file.exists():
                held = _Held(file, file.name, MADE)
        if held is None:
            return _missing(key)
        return _found(held.read(), held.etag, held.modified)

    def _put(self, key: str, asked: Asked) -> Told:
        held = self._held.get(key)
        wanted = asked.headers.get("if-match", "").strip('"')
        if (held and "if-none-match" in asked.headers) or (
            wanted and (held is None or held.etag != wanted)
        ):
            return _failed(412, "PreconditionFailed", key)
        source = asked.headers.get("x-amz-copy-source")
        if source is None:
            return Told(200, b"", [("ETag", f'"{self.put(key, asked.body)}"')])
        etag = self.put(key, self._held[unquote(source).removeprefix(f"{BUCKET}/")].content)
        body = b"<CopyObjectResult %s><ETag>&quot;%s&quot;</ETag></CopyObjectResult>"
        return Told(200, body % (_SPACE, etag.encode()), [_XML])

    def _delete_many(self, asked: Asked) -> Told:
        keys = _KEY.findall(asked.body)
        for key in keys:
            self._gone(key.decode())
        told = b"".join(b"<Deleted><Key>%s</Key></Deleted>" % key for key in keys)
        return Told(200, b"<DeleteResult %s>%s</DeleteResult>" % (_SPACE, told), [_XML])

    def _gone(self, key: str) -> None:
        self._held.pop(key, None)


def _found(body: bytes, etag: str, modified: datetime) -> Told:
    headers = [
        ("ETag", f'"{etag}"'),
        ("Last-Modified", format_datetime(modified, usegmt=True)),
        ("Content-Type", "application/octet-stream"),
    ]
    return Told(200, body, headers)


def _missing(key: str) -> Told:
    return _failed(404, "NoSuchKey", key)


def _failed(status: int, code: str, key: str) -> Told:
    body = f"<Error><Code>{code}</Code><Key>{escape(key)}</Key></Error>"
    return Told(status, body.encode(), [_XML])


@dataclass(frozen=True)
class Server:
    """A server of pages only.

    Attributes:
        served: its process.
        keys: number of listed keys.
    """

    served: Served
    keys: int

    def limit(self, pages: int) -> float:
        """Keys per second that a bare loop reads from pages on one connection."""
        begun = time.monotonic()
        with socket.create_connection(("127.0.0.1", self.served.ports[0])) as connection:
            answers = connection.makefile("rb", buffering=1 << 20)
            for number in range(pages):
                token = number * PAGE % self.keys
                target = f"/{BUCKET}?list-type=2&max-keys={PAGE}&continuation-token={token}"
                connection.sendall(f"GET {target} HTTP/1.1\r\n\r\n".encode())
                while (line := answers.readline()) != b"\r\n":
                    length = line.rpartition(b" ")[2]
                answers.read(int(length))
        return pages * PAGE / (time.monotonic() - begun)


def _only_pages(slices: int) -> Service:
    return Service([Store(Pages.alike(slices)).answer])


@contextmanager
def pages_server(keys: int) -> Iterator[Server]:
    """Run a server with about this many keys; the AWS variables lead to it."""
    slices = max(1, keys // KEYS_EACH)
    with running(partial(_only_pages, slices)) as served:
        use_s3(f"http://127.0.0.1:{served.ports[0]}")
        yield Server(served, slices * KEYS_EACH)
