"""An embedded lakeFS with a synthetic repository, in a process of its own.

So that what it does and takes counts as little as possible for the collector that is measured.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from multiprocessing.connection import Connection
from pathlib import Path

from bench._pages import NAMESPACE, SIZE, Pages
from bench._run import BUCKET, ObjectFiles, timed
from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.embedded.lake import catalog
from lakegc_assets.embedded.refs import history, staging
from lakegc_assets.graveler.entry import Entry, Timestamp, encode_entry, entry_identity
from lakegc_assets.graveler.sstable import Record
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets_tests.reliability.proxy import Answer, Ask, Asked, Meddle, proxied

REPOSITORY = "bench"
_DAY = 86_400
_BATCH = 50_000


@dataclass(frozen=True)
class Plan:
    """What lies where.

    Attributes:
        data: folder of the server.
        s3: ``host:port`` of the S3 server that keeps the repository; None for local files.
        files: of the bucket there.
        pages: slices that only its listings have; None for objects that are there.
        objects: how many.
        expired: how many of them no rule keeps.
    """

    data: Path
    s3: str | None
    files: ObjectFiles | None
    pages: int | None
    objects: int
    expired: int


@contextmanager
def planted(plan: Plan) -> Iterator[Path]:
    """Start the server with its repository, and let this process, and what it starts, reach it.

    Yields:
        Where ``local://`` namespaces live.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, plan), daemon=True)
    process.start()
    there.close()
    variables, objects = here.recv()
    os.environ.update(variables)
    yield objects
    here.close()
    process.join()


def _serve(pipe: Connection, plan: Plan) -> None:
    with ExitStack() as stack:
        store = f"s3://{BUCKET}" if plan.s3 else None
        server = stack.enter_context(EmbeddedLakeFS(plan.data, store))
        variables = {
            "LAKECTL_SERVER_ENDPOINT_URL": server.endpoint,
            "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": server.access_key,
            "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": server.secret_key,
        }
        os.environ.update(variables)
        client = LakeFSConfig().connect_writer()
        client.create_repository(REPOSITORY, f"{store or 'local:/'}/{NAMESPACE}")
        client.set_gc_rules(REPOSITORY, 30)
        timed(f"plant {plan.objects:,} objects", lambda: _plant(server, plan))
        if plan.s3 and plan.pages:
            proxy = stack.enter_context(proxied(plan.s3))
            proxy.meddle = _listing(Pages(plan.pages))
            variables["AWS_ENDPOINT_URL"] = proxy.endpoint
        pipe.send((variables, server.objects_dir))
        with suppress(EOFError):
            pipe.recv()


def _listing(pages: Pages) -> Meddle:
    """Answer listings of the objects with ready-made pages; all else goes to the real server."""

    def meddle(asked: Asked, ask: Ask) -> Answer:
        wanted = asked.query
        if "list-type" in wanted and not wanted["prefix"].startswith(f"{NAMESPACE}/_lakefs"):
            return Answer(200, pages.answer(asked.target), [("Date", formatdate(usegmt=True))])
        return ask()

    return meddle


def _objects(server: EmbeddedLakeFS, plan: Plan) -> Callable[[float], Entry]:
    """What makes an object of a time (epoch seconds), or takes the next one of the pages."""
    if plan.pages:
        named = Pages(plan.pages).named()

        def of_pages(moment: float) -> Entry:
            address, etag = next(named)
            return Entry(address, Timestamp(int(moment)), SIZE, etag)

        return of_pages

    files = plan.files or ObjectFiles(server.objects_dir, etags=False)
    rng = random.Random(1)

    def written(moment: float) -> Entry:
        address = server.lake.slices.new_address(REPOSITORY, moment, backdated=True)
        size, etag = rng.randrange(1, 10_000_000), f"{rng.getrandbits(128):032x}"
        files.write(f"{NAMESPACE}/{address}", size, moment, etag)
        return Entry(address, Timestamp(int(moment)), size, etag)

    return written


def _plant(server: EmbeddedLakeFS, plan: Plan) -> None:
    """Commit objects 100 days ago, and 90 days ago some at the same paths, so that those expire."""
    lake, made = server.lake, _objects(server, plan)
    live = plan.objects - plan.expired
    for days, paths in ((100, range(live)), (90, range(plan.expired))):
        moment = time.time() - days * _DAY
        for first in range(0, len(paths), _BATCH):
            entries = [
                (f"table/part={number // 1000:05d}/{number:09d}.parquet", made(moment))
                for number in paths[first : first + _BATCH]
            ]
            with lake.state.write() as db:
                repo = catalog.writable_repository(db, REPOSITORY)
                main = catalog.branch(db, repo, "main")
                for path, entry in entries:
                    record = Record(path.encode(), entry_identity(entry), encode_entry(entry))
                    staging.stage(db, main, (record.key, record))
        history.commit(
            lake, REPOSITORY, "main", message=f"{days} days ago", metadata={},
            date=int(moment), allow_empty=False,
        )  # fmt: skip
