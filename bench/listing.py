"""Measures the keys per second of an S3 listing in one process, of this project and of boto3.

A server on this machine, in a process of its own, answers with prepared pages, so that the figures
are those of the client.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Iterator

import boto3

from bench._pages import KEYS_EACH, NAMESPACE
from bench._run import BUCKET
from bench._store import pages_server
from lakegc_assets.storage.opening import open_store


def _ours() -> Iterator[int]:
    for batch in open_store(f"s3://{BUCKET}/{NAMESPACE}").list():
        yield batch.num_rows


def _boto3() -> Iterator[int]:
    pages = boto3.client("s3").get_paginator("list_objects_v2")
    for page in pages.paginate(Bucket=BUCKET, Prefix=f"{NAMESPACE}/"):
        yield len(page["Contents"])


def _measure(name: str, listing: Callable[[], Iterator[int]], keys: int) -> None:
    start, cpu = time.perf_counter(), time.process_time()
    found = sum(listing())
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
    parser.add_argument(
        "--keys", type=int, default=200_000, help=f"in steps of {KEYS_EACH:,} (%(default)s)"
    )
    parser.add_argument("--only", choices=["ours", "boto3"], help="measure one of them")
    arguments = parser.parse_args()
    with pages_server(arguments.keys) as server:
        for name, listing in (("ours", _ours), ("boto3", _boto3)):
            if arguments.only in {None, name}:
                _measure(name, listing, server.keys)


if __name__ == "__main__":
    main()
