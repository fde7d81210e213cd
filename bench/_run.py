"""Shared code of the benchmarks: a Spark session, versitygw, and measurement of time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import boto3
from pyspark.sql import SparkSession

from lakegc_assets.engine.spark_session import prepare_environment, session_settings
from lakegc_assets_tests.storage.servers import (
    S3_ACCESS_KEY,
    S3_SECRET_KEY,
    Server,
    ServerUnavailableError,
    versitygw,
)

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import ObjectIdentifierTypeDef

BUCKET = "bench"
#: Number of processes of a floor, and of parallel Spark tasks.
CORES = 2


def timed(name: str, work: Callable[[], object]) -> float:
    """Run ``work`` and print its time; seconds."""
    begun = time.monotonic()
    work()
    seconds = time.monotonic() - begun
    print(f"{name:<28} {seconds:8.1f} s", flush=True)
    return seconds


class Session:
    """The session of a run on this machine, which starts on first use.

    Args:
        more: settings of Spark, in addition to those of a run.
    """

    def __init__(self, **more: str) -> None:
        self._more = more
        self._spark: SparkSession | None = None

    def __call__(self) -> SparkSession:
        """Return the session."""
        if self._spark is None:
            prepare_environment()
            builder = SparkSession.builder
            for name, value in {**session_settings(), **self._more}.items():
                builder = builder.config(name, value)
            self._spark = builder.getOrCreate()
        return self._spark

    def work(self) -> tuple[int, int]:
        """The number of Spark jobs and tasks until now, from all threads."""
        if self._spark is None:
            return 0, 0
        tracker = self._spark.sparkContext.statusTracker()
        # A stage that several jobs share runs once.
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup()]
        stages = {stage for job in jobs if job for stage in job.stageIds}
        found = [tracker.getStageInfo(stage) for stage in stages]
        return len(jobs), sum(stage.numCompletedTasks for stage in found if stage)

    def stop(self) -> None:
        """Stop the session, if it was started."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None


def measured(
    session: Session,
    name: str,
    work: Callable[[], object],
    cpu: Callable[[], float] | None = None,
) -> float:
    """Run ``work``, and print its time and its number of Spark jobs and tasks; seconds.

    ``cpu``: returns CPU seconds until now, to print those of ``work``, too.
    """
    jobs, tasks = session.work()
    used = cpu() if cpu else 0.0
    begun = time.monotonic()
    work()
    seconds = time.monotonic() - begun
    all_jobs, all_tasks = session.work()
    of_cpu = f" {cpu() - used:8.1f} s of CPU" if cpu else ""
    print(
        f"{name:<28} {seconds:8.1f} s{of_cpu} {all_jobs - jobs:5} jobs {all_tasks - tasks:6} tasks",
        flush=True,
    )
    return seconds


def settle() -> None:
    """Wait until written data are on the disk; otherwise the next measurement would wait for it."""
    os.sync()


def remove_objects(prefix: str) -> None:
    """Delete all objects of the bucket with a prefix."""
    client = boto3.client("s3")
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix):
        named: list[ObjectIdentifierTypeDef] = [{"Key": o["Key"]} for o in page.get("Contents", ())]
        if named:
            client.delete_objects(Bucket=BUCKET, Delete={"Objects": named, "Quiet": True})


def use_s3(endpoint: str) -> None:
    """Set the variables that lead this process and its children to an S3 server of this machine."""
    os.environ.update(
        AWS_ACCESS_KEY_ID=S3_ACCESS_KEY,
        AWS_SECRET_ACCESS_KEY=S3_SECRET_KEY,
        AWS_REGION="us-east-1",
        AWS_DEFAULT_REGION="us-east-1",
        AWS_EC2_METADATA_DISABLED="true",
        AWS_ENDPOINT_URL=endpoint,
    )


def use_simulated(ports: Sequence[int]) -> None:
    """Lead this process to a simulated store and a simulated lakeFS, which check no secrets."""
    store, lakefs = (f"http://127.0.0.1:{port}" for port in ports)
    use_s3(store)
    os.environ.update(
        LAKECTL_SERVER_ENDPOINT_URL=lakefs,
        LAKECTL_CREDENTIALS_ACCESS_KEY_ID="key",
        LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY="secret",
    )


class ObjectWriter(Protocol):
    """Puts objects into a bucket."""

    def write(self, key: str, size: int, moment: float, etag: str, begin: bytes = b"") -> None:
        """Write an object: size (bytes, zeros after ``begin``), time (epoch seconds), etag."""


@dataclass(frozen=True)
class ObjectFiles:
    """Objects as files, written without a request for each.

    Attributes:
        folder: of local storage, or of a bucket of versitygw.
        etags: store them where versitygw does.
    """

    folder: Path
    etags: bool

    def write(self, key: str, size: int, moment: float, etag: str, begin: bytes = b"") -> None:
        """Write an object: size (bytes, zeros after ``begin``), time (epoch seconds), etag."""
        path = self.folder / key
        # versitygw removes directories that become empty.
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(begin)
            file.flush()
            os.truncate(file.fileno(), size)
            if self.etags:
                os.setxattr(file.fileno(), "user.etag", f'"{etag}"'.encode())
        os.utime(path, (moment, moment))


@dataclass(frozen=True)
class RealS3:
    """versitygw, and the files of its bucket."""

    server: Server
    files: ObjectFiles


@contextmanager
def s3_server(
    start: Callable[[Path], AbstractContextManager[Server]], folder: Path
) -> Iterator[Server]:
    """Run an S3 server with an empty bucket, and lead this process to it.

    If the server cannot be installed, the process prints the reason and ends without an error, so
    that other benchmarks can run.
    """
    folder.mkdir(exist_ok=True)
    with ExitStack() as stack:
        try:
            server = stack.enter_context(start(folder))
        except ServerUnavailableError as error:
            print(f"not measured, since an S3 server cannot be had: {error}")
            sys.exit(0)
        use_s3(server.endpoint)
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield server


@contextmanager
def real_s3(folder: Path, *, versioning: bool = False) -> Iterator[RealS3]:
    """Run versitygw with an empty bucket, with versions if ``versioning`` is set."""
    with s3_server(partial(versitygw, versioning=versioning), folder) as server:
        if versioning:
            boto3.client("s3").put_bucket_versioning(
                Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"}
            )
        yield RealS3(server, ObjectFiles(server.log.parent / "objects" / BUCKET, etags=True))
