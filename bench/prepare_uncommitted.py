"""Measures both ways to read all staged entries: the list, and one diff per branch.

The first is lakeFS's own list with all pages, in a process of its own, to measure its memory. The
second is the diff of every branch, as a task of a mark reads it from an embedded lakeFS in another
process. The objects are written directly into the state, which takes longer.

    python -m bench.prepare_uncommitted --objects 5000000 --branches 1000
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import pyarrow as pa
import pyarrow.parquet as pq

from lakegc_assets.embedded.gc import prepare_uncommitted
from lakegc_assets.embedded.lake import Lake, catalog
from lakegc_assets.embedded.lake.catalog import Repository
from lakegc_assets.embedded.lake.layouts import Xids
from lakegc_assets.embedded.lake.settings import ServerSettings
from lakegc_assets.embedded.refs import history
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.graveler.entry import Entry, Timestamp, encode_entry, entry_identity
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.mark.branch_diffs import staged_paths

REPOSITORY = "bench"
NOW = 1_795_236_036
SIZE = 123_456


def staged(xids: Xids, uid: int, first: int, count: int) -> Iterator[tuple[object, ...]]:
    """Rows of ``staged`` for one branch, equal except for their paths and addresses."""
    folder = f"data/{xids.new_slice(NOW)}/"
    sample = folder + xids.new(NOW)
    entry = Entry(
        sample,
        Timestamp(NOW, 123_456_789),
        size=SIZE,
        e_tag="d41d8cd98f00b204e9800998ecf8427e",
        content_type="application/octet-stream",
    )
    value, identity = encode_entry(entry), entry_identity(entry)
    for number in range(first, first + count):
        address = folder + xids.new(NOW + number // 1000)
        key = f"table/date={number % 365:03}/part-{number:010}.parquet".encode()
        yield uid, key, identity, value.replace(sample.encode(), address.encode()), number


def plant(data: Path, objects: int, branches: int) -> None:
    """Write a repository with this number of staged objects and branches."""
    lake = Lake(ServerSettings(data))
    repo = Repository(REPOSITORY, f"local://{REPOSITORY}", "main", NOW, read_only=False, rules=None)
    history.create_repository(lake, repo)
    xids = Xids()
    each = objects // branches
    with lake.state.write() as db:
        head = catalog.branch(db, repo, "main").commit_id
        for number in range(branches - 1):
            catalog.insert_branch(db, repo, f"branch-{number:06}", head, hidden=False)
        for index, branch in enumerate(catalog.branches(db, repo)):
            db.executemany(
                "INSERT INTO staged VALUES (?, ?, ?, ?, ?)",
                staged(xids, branch.uid, index * each, each),
            )
    lake.close()


def measure(data: Path, page_seconds: float) -> dict[str, float]:
    """Make all pages; seconds, pages, rows and bytes, and the process's peak memory."""
    lake = Lake(ServerSettings(data, uncommitted_page_seconds=page_seconds))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    answer = prepare_uncommitted(lake, REPOSITORY, "")
    while token := answer.get("continuation_token"):
        answer = prepare_uncommitted(lake, REPOSITORY, token)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    folder = lake.settings.objects_dir / answer["gc_uncommitted_location"].removeprefix("local://")
    files = list(folder.iterdir())
    lake.close()
    return {
        "seconds": seconds,
        "files": len(files),
        "rows": sum(pq.read_metadata(file).num_rows for file in files),
        "mb": sum(file.stat().st_size for file in files) / 2**20,
        "mb_before": before / 2**10,
        "mb_peak": after / 2**10,
    }


def diff(data: Path, threads: int) -> tuple[int, float]:
    """Read the diff of every branch, as a mark does; the number of paths, and seconds."""
    with embedded(data) as lakefs:
        client = lakefs.connect()
        names = [branch.id for branch in client.branches(REPOSITORY)]
        # All staged objects have this size, so the diff returns every path.
        sizes = pa.array([SIZE], pa.int64())
        began = time.perf_counter()
        found = thread_map(partial(staged_paths, client, REPOSITORY, sizes=sizes), names, threads)
        seconds = time.perf_counter() - began
    return sum(map(len, found)), seconds


@contextmanager
def embedded(data: Path) -> Iterator[LakeFSConfig]:
    """Run the server of a data directory in a process of its own; its connection data."""
    command = [sys.executable, "-m", "lakegc_assets.embedded", "--data", str(data), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        said = dict(word.split("=", 1) for word in server.stdout.readline().split() if "=" in word)
        os.environ.update(
            LAKECTL_CREDENTIALS_ACCESS_KEY_ID=said["access_key"],
            LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY=said["secret_key"],
        )
        try:
            yield LakeFSConfig(endpoint=said["endpoint"])
        finally:
            server.terminate()


@click.command()
@click.option("--objects", default=500_000, show_default=True)
@click.option("--branches", default=100, show_default=True)
@click.option("--page-seconds", default=60.0)
@click.option("--threads", default=8, help="They take diffs.")
@click.option("--data", type=click.Path(path_type=Path), help="What was planted before.")
def main(objects: int, branches: int, page_seconds: float, threads: int, data: Path | None) -> None:
    """Plant, list, read diffs, and print the costs."""
    if data is not None:
        print(json.dumps(measure(data, page_seconds)))
        return
    with TemporaryDirectory() as made:
        began = time.perf_counter()
        plant(Path(made), objects, branches)
        print(f"planted in {time.perf_counter() - began:.0f} s")
        command = [sys.executable, "-m", "bench.prepare_uncommitted", "--data", made]
        done = subprocess.run(
            [*command, "--page-seconds", str(page_seconds)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        found = json.loads(done.stdout)
        print(
            f"{found['rows']:,} staged objects on {branches:,} branches: {found['seconds']:.1f} s, "
            f"{found['files']} files, {found['mb']:.0f} MB; "
            f"memory {found['mb_before']:.0f} MB before, {found['mb_peak']:.0f} MB at most"
        )
        paths, seconds = diff(Path(made), threads)
        if paths != found["rows"]:
            raise SystemExit(f"the diffs name {paths:,} paths of {found['rows']:,}")
        print(
            f"their diffs, in {threads} threads: {seconds:.1f} s, {paths / seconds:,.0f} paths/s, "
            f"{1000 * seconds / branches:,.0f} ms a branch"
        )


if __name__ == "__main__":
    main()
