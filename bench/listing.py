"""How many keys a second an S3 listing gives, through this project and boto3.

A server on this machine answers with ready-made pages, in a process of its own, so that the figures
are those of the client.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from urllib.parse import parse_qs, urlsplit

import boto3

from lakegc_assets.storage.config import StoreConfig

_PAGE = 1000
_NUMBER = b"@@@@@@@"
_TOKEN = b"<NextContinuationToken>%s</NextContinuationToken>" % _NUMBER
_OBJECT = (
    "<Contents><Key>ns/data/g4n6qh1u3t2s73dhq0g0/{number}0000000000{row:03d}</Key>"
    "<LastModified>2026-01-02T03:04:05.000Z</LastModified>"
    "<ETag>&quot;d41d8cd98f00b204e9800998ecf8427e&quot;</ETag>"
    "<Size>4096</Size><StorageClass>STANDARD</StorageClass></Contents>"
)


def _page() -> bytes:
    rows = "".join(_OBJECT.format(number=_NUMBER.decode(), row=row) for row in range(_PAGE))
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>bench</Name><Prefix>ns/</Prefix><KeyCount>{_PAGE}</KeyCount><MaxKeys>1000</MaxKeys>"
        "<EncodingType>url</EncodingType>"
        f"<IsTruncated>true</IsTruncated>{_TOKEN.decode()}{rows}</ListBucketResult>"
    ).encode()


def _serve(pages: int, ready: Connection) -> None:
    template = _page()
    last = template.replace(b"<IsTruncated>true", b"<IsTruncated>false").replace(_TOKEN, b"")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 20

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            number = int(query.get("continuation-token", ["0"])[0]) + 1
            body = template if number < pages else last
            body = body.replace(_NUMBER, b"%07d" % number)
            self.send_response(200)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        def log_message(self, *_: object) -> None:
            """A line for each page would cost more than the page."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ready.send(server.server_address[1])
    server.serve_forever()


def _ours(endpoint: str) -> Iterator[int]:
    for batch in StoreConfig(endpoint_url=endpoint).open("s3://bench/ns").list():
        yield batch.num_rows


def _boto3(endpoint: str) -> Iterator[int]:
    client = boto3.client("s3", endpoint_url=endpoint)
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="bench", Prefix="ns/"):
        yield len(page["Contents"])


def _measure(name: str, listing: Callable[[str], Iterator[int]], endpoint: str, keys: int) -> None:
    start, cpu = time.perf_counter(), time.process_time()
    found = sum(listing(endpoint))
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    if found != keys:
        raise SystemExit(f"{name} listed {found} keys of {keys}")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{name:8} {keys:>10,} keys {seconds:7.2f} s {keys / seconds:>10,.0f} keys/s "
        f"{keys / cpu:>10,.0f} keys per CPU second, peak {memory:,.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000, help="default: 1,000,000")
    parser.add_argument("--only", choices=["ours", "boto3"], help="measure one of them")
    arguments = parser.parse_args()
    pages = max(1, arguments.keys // _PAGE)
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    os.environ |= {"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}
    theirs, ready = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(pages, ready), daemon=True
    )
    server.start()
    endpoint = f"http://127.0.0.1:{theirs.recv()}"
    try:
        for name, listing in (("ours", _ours), ("boto3", _boto3)):
            if arguments.only in {None, name}:
                _measure(name, listing, endpoint, pages * _PAGE)
    finally:
        server.terminate()


if __name__ == "__main__":
    main()
