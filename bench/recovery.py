"""Measures backup, restore, and undo by versions, compared with bare loops.

The repository is that of ``bench.big`` on versitygw, which needs Go: 64 bytes per object, and
nearly half are garbage. Backup and restore are compared with a bare loop of boto3 with as many
threads, and with ``rclone copy`` of the same objects if rclone can be installed. The undo is
compared with a loop that lists versions and removes delete markers. ``bench.copies`` has large
objects.

    python -m bench.recovery --scale 1
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import boto3
import click
from botocore.config import Config

from bench._collector import Collector
from bench._floors import beside
from bench._lake import REPOSITORY, Place, planted
from bench._memory import watched
from bench._pages import NAMESPACE
from bench._run import BUCKET, CORES, RealS3, measured, real_s3, settle
from bench.big import History
from bench.rclone import beside_rclone
from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice

_BACKUP = "backup"
_THREADS = 8 * CORES
_BATCH = 1000


@contextmanager
def _marked(
    folder: Path, history: History, s3: RealS3, backup_url: str | None = None
) -> Iterator[tuple[Collector, list[str]]]:
    """A marked repository, and the candidates of the mark."""
    place = Place(folder / "lakefs", s3.server.address, s3.files)
    with planted(place, history) as found:
        collector, _ = Collector.new(folder, REPOSITORY, backup_url=backup_url).mark("mark")
        collector.candidates(found.garbage)
        attempt = collector.ctx.root.attempt(REPOSITORY, "mark")
        yield collector, attempt.read("deletion_candidates")["address"].to_pylist()
        collector.session.stop()


def _restore(collector: Collector, wanted: int) -> float:
    """Restore all objects; seconds."""
    everything = Choice(everything=True)
    seconds = measured(collector.session, "restore", lambda: restore(collector.ctx, everything))
    attempt = collector.ctx.root.attempt(REPOSITORY, "mark")
    (name,) = {key.split("/")[1] for key in attempt.files("restored_set")}
    outcomes = attempt.manifest(f"restored_set/{name}").facts["outcomes"]
    if outcomes.get("restored", {}).get("objects") != wanted:
        raise SystemExit(f"of {wanted:,} objects came back: {outcomes}")
    return seconds


def _each(keys: Sequence[str], work: Callable[[str], object]) -> float:
    settle()
    begun = time.monotonic()
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(work, keys))
    return time.monotonic() - begun


def _backup(folder: Path, history: History) -> None:
    folder.mkdir()
    url = f"s3://{BUCKET}/{_BACKUP}"
    with (
        real_s3(folder / "s3") as s3,
        _marked(folder, history, s3, url) as (collector, addresses),
    ):
        server = s3.server.endpoint
        client = boto3.client("s3", config=Config(max_pool_connections=_THREADS))
        settle()
        with watched() as memory:
            backup = measured(collector.session, "backup", lambda: make_backup(collector.ctx))
        memory.show()

        def copy(address: str) -> object:
            return client.copy_object(
                Bucket=BUCKET,
                Key=f"bare/{address}",
                CopySource={"Bucket": BUCKET, "Key": f"{NAMESPACE}/{address}"},
            )

        beside("backup", backup, _each(addresses, copy))
        beside_rclone(server, "backup", NAMESPACE, "by-rclone", addresses, _THREADS)
        collector.sweep()
        settle()
        with watched() as memory:
            seconds = _restore(collector, len(addresses))
        memory.show()

        def put(address: str) -> object:
            data = client.get_object(Bucket=BUCKET, Key=f"bare/{address}")["Body"].read()
            return client.put_object(
                Bucket=BUCKET, Key=f"again/{address}", Body=data, IfNoneMatch="*"
            )

        beside("restore", seconds, _each(addresses, put))
        beside_rclone(server, "restore", "by-rclone", "by-rclone-again", addresses, _THREADS)


def _undo(folder: Path, history: History) -> None:
    folder.mkdir()
    with (
        real_s3(folder / "s3", versioning=True) as s3,
        _marked(folder, history, s3) as (collector, addresses),
    ):
        collector.sweep()
        settle()
        with watched() as memory:
            seconds = _restore(collector, len(addresses))
        memory.show()
        keys = [f"{NAMESPACE}/{address}" for address in addresses]
        client = boto3.client("s3")
        for at in range(0, len(keys), _BATCH):
            objects = [{"Key": key} for key in keys[at : at + _BATCH]]
            client.delete_objects(Bucket=BUCKET, Delete={"Objects": objects})  # type: ignore[typeddict-item]
        beside("undo by versions", seconds, _bare_undo(len(addresses)))


def _bare_undo(wanted: int) -> float:
    """List all versions, and remove their delete markers; seconds, scaled to all wanted objects.

    If a page ends between a marker and its version, versitygw omits the marker. So one pass over
    all pages finds only a part of them.
    """
    client = boto3.client("s3")
    begun, removed = time.monotonic(), 0
    pages = client.get_paginator("list_object_versions")
    for page in pages.paginate(Bucket=BUCKET, Prefix=f"{NAMESPACE}/data/"):
        markers = [
            {"Key": marker["Key"], "VersionId": marker["VersionId"]}
            for marker in page.get("DeleteMarkers", ())
            if marker["IsLatest"]
        ]
        if markers:
            client.delete_objects(Bucket=BUCKET, Delete={"Objects": markers})  # type: ignore[typeddict-item]
        removed += len(markers)
    if not removed:
        raise SystemExit(f"of {wanted:,} markers, none is listed")
    click.echo(f"the bare loop finds {removed:,} of {wanted:,} markers")
    return (time.monotonic() - begun) * wanted / removed


@click.command()
@click.option("--scale", default=0.05, show_default=True, help="1 for the whole repository.")
def main(*, scale: float) -> None:
    """Back up, sweep and restore; then sweep and undo."""
    history = History(
        uploads=int(100_000 * scale),
        staged=int(25_000 * scale),
        commits=max(10, int(250 * scale)),
        branches=max(4, int(100 * scale)),
        deleted=max(1, int(40 * scale)),
    )
    with TemporaryDirectory() as folder:
        # Spark's workers keep the environment of their start, and with it the first server.
        for name, phase in (("backup", _backup), ("undo", _undo)):
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                pool.submit(phase, Path(folder, name), history).result()


if __name__ == "__main__":
    main()
