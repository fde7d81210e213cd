"""Measures copies per second within an S3 server, compared with a bare loop and with rclone.

Many small objects and a few large ones, on a real S3 server on this machine, which needs Go:
versitygw, or MinIO. All sides use the same number of threads. Copies that may replace objects are
made like those of a backup, copies that may not like those of a restore. The bare loops of boto3
use the same conditions, and compare nothing. rclone sets no conditions; it is measured if it can be
installed.

    python -m bench.copies --objects 50000 --large 2048
"""

from __future__ import annotations

import hashlib
import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import click
from botocore.config import Config

from bench._floors import beside
from bench._run import BUCKET, remove_objects, s3_server, settle
from bench.rclone import rclone_copy
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.storage.servers import ServerUnavailableError, minio, rclone, versitygw

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_SERVERS = {"minio": minio, "versitygw": versitygw}
_MIB = 2**20
_SMALL = 1024
_EACH = 256 * _MIB
_PLANTED = "planted"
_ROUNDS = 3
#: Bytes copied before the measurement, so that connections exist and code is loaded.
_WARM = 100 * _SMALL


@dataclass(frozen=True)
class _Job:
    """Objects to copy.

    Attributes:
        store: the whole bucket.
        client: of the bare loops.
        endpoint: of the server.
        threads: number of parallel copies.
        what: kind of objects, for people.
        names: of the objects, below the prefixes of source and target.
        size: of each object, in bytes.
        etag: of each object.
        rounds: number of measurements of all sides in turn, of which the fastest counts: a disk is
            slower when it writes to a place for the first time.
    """

    store: ObjectStore
    client: S3Client
    endpoint: str
    threads: int
    what: str
    names: Sequence[str]
    size: int
    etag: str
    rounds: int

    def measure(self) -> None:
        """Print the times of both ways to copy, of their bare loops, and of rclone."""
        self._compare("backup", _PLANTED, self._copy(if_absent=False), self._bare_copy)
        bare = self._bare_put if self.size == _SMALL else self._bare_part
        self._compare("restore", "backup/ours", self._copy(if_absent=True), bare)

    def _compare(
        self, what: str, source: str, ours: Callable[[str, str], object],
        bare: Callable[[str, str], object],
    ) -> None:  # fmt: skip
        ways: dict[str, Callable[[str], float]] = {
            "bare": partial(self._timed, bare, source),
            "ours": partial(self._timed, ours, source),
        }
        try:
            rclone()
            ways["rclone"] = partial(self._by_rclone, source)
        except ServerUnavailableError as error:
            print(f"rclone is not measured, since it cannot be had: {error}")
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for warmed in (bare, ours):
            for name in self.names[: -(-_WARM // self.size)]:
                warmed(f"{source}/{name}", f"warm/{what}/{warmed.__name__}/{name}")
        for _ in range(self.rounds):
            for way, copy in ways.items():
                remove_objects(f"{what}/{way}/")
                settle()
                taken[way].append(copy(f"{what}/{way}"))
        seconds, floor = min(taken["ours"]), min(taken["bare"])
        each = f"{len(self.names) / seconds:,.0f} objects/s, {self._rate(seconds):,.0f} MB/s"
        beside(f"{what} of {self.what} ({each})", seconds, floor)
        if "rclone" in taken:
            print(f"rclone, the same {what:<13} {min(taken['rclone']):8.1f} s", flush=True)

    def _timed(self, copy: Callable[[str, str], object], source: str, target: str) -> float:
        begun = time.monotonic()
        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(lambda name: copy(f"{source}/{name}", f"{target}/{name}"), self.names))
        return time.monotonic() - begun

    def _by_rclone(self, source: str, target: str) -> float:
        return rclone_copy(self.endpoint, source, target, self.names, self.threads)

    def _rate(self, seconds: float) -> float:
        return len(self.names) * self.size / seconds / 1e6

    def _copy(self, *, if_absent: bool) -> Callable[[str, str], object]:
        def copy(key: str, target: str) -> object:
            return copy_object(
                self.store, key, self.store, target,
                size=self.size, etag=self.etag, if_absent=if_absent,
            )  # fmt: skip

        return copy

    def _bare_copy(self, key: str, target: str) -> object:
        return self.client.copy_object(
            Bucket=BUCKET, Key=target, CopySource={"Bucket": BUCKET, "Key": key}
        )

    def _bare_part(self, key: str, target: str) -> object:
        """Copy in one part, which is completed only if the target does not exist."""
        upload = self.client.create_multipart_upload(Bucket=BUCKET, Key=target)["UploadId"]
        made = self.client.upload_part_copy(
            Bucket=BUCKET, Key=target, UploadId=upload, PartNumber=1,
            CopySource={"Bucket": BUCKET, "Key": key},
        )["CopyPartResult"]  # fmt: skip
        return self.client.complete_multipart_upload(
            Bucket=BUCKET, Key=target, UploadId=upload, IfNoneMatch="*",
            MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": made.get("ETag", "")}]},
        )  # fmt: skip

    def _bare_put(self, key: str, target: str) -> object:
        data = self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return self.client.put_object(Bucket=BUCKET, Key=target, Body=data, IfNoneMatch="*")


def _plant(store: ObjectStore, threads: int, count: int, size: int) -> tuple[list[str], str]:
    """Write objects of zeros; their names, and their common etag."""
    data = bytes(size)
    names = [f"{number // 1000:04}/{number:07}" for number in range(count)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda name: store.put(f"{_PLANTED}/{name}", data), names))
    return names, hashlib.md5(data).hexdigest()


@click.command(help=__doc__)
@click.option("--objects", default=50_000, help="Small objects, of 1 KiB each.")
@click.option("--large", default=2048, help="MiB in objects of 256 MiB.")
@click.option("--threads", default=8)
@click.option("--server", type=click.Choice(sorted(_SERVERS)), default="versitygw")
def main(objects: int, large: int, threads: int, server: str) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        s3_server(_SERVERS[server], Path(folder) / "s3") as s3,
    ):
        config = StoreConfig(endpoint_url=s3.endpoint, read_timeout_s=300)
        store = open_store(f"s3://{BUCKET}", config)
        settings = Config(max_pool_connections=threads, read_timeout=300)
        client = boto3.client("s3", endpoint_url=s3.endpoint, config=settings)
        many = max(1, large * _MIB // _EACH)
        for name, count, size, rounds in (
            (f"{objects:,} objects of 1 KiB", objects, _SMALL, 1),
            (f"{large:,} MiB in {many} objects", many, large * _MIB // many, _ROUNDS),
        ):
            names, etag = _plant(store, threads, count, size)
            job = _Job(store, client, s3.endpoint, threads, name, names, size, etag, rounds)
            job.measure()
            remove_objects("")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"peak memory of this process: {peak:,.0f} MiB, of {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
