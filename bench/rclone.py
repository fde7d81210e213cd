"""Measures ``rclone copy`` of small objects, there and back, in one bucket of versitygw.

This is the comparison for this project's copies: the commands of docs/rclone.md, within one store,
so that rclone uses copies on the server.

    python -m bench.rclone --objects 50000
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import boto3
import click

from bench._pages import KEYS_EACH
from bench._run import BUCKET, CORES, RealS3, real_s3, settle
from lakegc_assets_tests.storage.servers import (
    S3_ACCESS_KEY,
    S3_SECRET_KEY,
    ServerUnavailableError,
    rclone,
)

_DAY = 86_400
#: Etag that rclone compares with the copy's.
_ETAG = hashlib.md5(b"\0", usedforsecurity=False).hexdigest()
_LAKE, _BACKUP = "lake", "backup"


def rclone_copy(
    endpoint: str, source: str, target: str, addresses: Iterable[str], transfers: int
) -> float:
    """Copy objects from one prefix of the bucket to another with rclone; seconds.

    Args:
        endpoint: of the S3 server.
        source: a prefix, without a slash at its end.
        target: another prefix.
        addresses: of the objects, relative to both.
        transfers: number of parallel copies, and of parallel checks.
    """
    program = rclone()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as names:
        names.writelines(f"{address}\n" for address in addresses)
        names.flush()
        options = [f"--transfers={transfers}", f"--checkers={transfers}", "--no-traverse", "-q"]
        places = [f"store:{BUCKET}/{source}", f"store:{BUCKET}/{target}"]
        settle()
        begun = time.monotonic()
        done = subprocess.run(
            [program, *options, "--files-from-raw", names.name, "copy", *places],
            env=_remote(endpoint), capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"rclone failed: {done.stderr[-500:]}")
        return time.monotonic() - begun


def beside_rclone(
    endpoint: str,
    what: str,
    source: str,
    target: str,
    addresses: Sequence[str],
    transfers: int,
) -> None:
    """Print the time of rclone for the same copies, or the reason why it is not measured.

    Args:
        endpoint: of the S3 server.
        what: kind of objects, in a word.
        source: a prefix, without a slash at its end.
        target: another prefix.
        addresses: of the objects, relative to both.
        transfers: number of parallel copies.
    """
    try:
        seconds = rclone_copy(endpoint, source, target, addresses, transfers)
    except ServerUnavailableError as error:
        print(f"rclone was not measured, since it cannot be had: {error}")
        return
    _require(target, len(addresses))
    print(f"rclone, the same {what:<13} {seconds:8.1f} s", flush=True)


def _remote(endpoint: str) -> dict[str, str]:
    store = {
        "TYPE": "s3",
        "PROVIDER": "Other",
        "ACCESS_KEY_ID": S3_ACCESS_KEY,
        "SECRET_ACCESS_KEY": S3_SECRET_KEY,
        "REGION": "us-east-1",
        "ENDPOINT": endpoint,
        "NO_CHECK_BUCKET": "true",
        "ENCODING": "Slash,Ctl,Del,Dot",
    }
    settings = {f"RCLONE_CONFIG_STORE_{name}": value for name, value in store.items()}
    return {"RCLONE_CONFIG": "/dev/null", "RCLONE_NO_UNICODE_NORMALIZATION": "true", **settings}


def _plant(s3: RealS3, addresses: Iterable[str]) -> None:
    moment = time.time() - _DAY
    for address in addresses:
        s3.files.write(f"{_LAKE}/{address}", 1, moment, _ETAG)


def _require(prefix: str, count: int) -> None:
    pages = boto3.client("s3").get_paginator("list_objects_v2")
    found = sum(p["KeyCount"] for p in pages.paginate(Bucket=BUCKET, Prefix=f"{prefix}/"))
    if found != count:
        raise SystemExit(f"there are {found} objects in {prefix}/, not {count}")


@click.command()
@click.option("--objects", default=5_000, show_default=True, help="To copy, of one byte each.")
@click.option("--transfers", default=16 * CORES, show_default=True, help="At the same time.")
def main(objects: int, transfers: int) -> None:
    """Back up small objects with rclone, delete them, and restore them."""
    try:
        rclone()
    except ServerUnavailableError as error:
        print(f"not measured, since rclone cannot be had: {error}")
        return
    with tempfile.TemporaryDirectory() as folder, real_s3(Path(folder)) as s3:
        addresses = [f"data/{n // KEYS_EACH:06}/{n:09}" for n in range(objects)]
        _plant(s3, addresses)
        for name, source, target in (("backup", _LAKE, _BACKUP), ("restore", _BACKUP, _LAKE)):
            shutil.rmtree(s3.files.folder / target, ignore_errors=True)
            seconds = rclone_copy(s3.server.endpoint, source, target, addresses, transfers)
            _require(target, objects)
            print(f"rclone {name}: {seconds:.1f} s, {objects / seconds:,.0f} objects/s")


if __name__ == "__main__":
    main()
