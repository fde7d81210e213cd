"""An embedded lakeFS with a repository that a benchmark plants, in a process of its own.

So its time and memory affect the figures of the collector as little as possible.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from multiprocessing.connection import Connection
from pathlib import Path

from bench._pages import NAMESPACE, Pages
from bench._run import BUCKET, ObjectFiles
from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets_tests.http_server import Answer, Asked
from lakegc_assets_tests.reliability.proxy import Ask, Meddle, proxied

REPOSITORY = "bench"
DAY = 86_400
#: Writes a repository with rules of 30 days, through the server's parts and the store's files;
#: returns the number of garbage objects.
Plant = Callable[[EmbeddedLakeFS, ObjectFiles], int]


@dataclass(frozen=True)
class Place:
    """The place of a repository.

    Attributes:
        data: folder of the server.
        s3: ``host:port`` of the S3 server with the repository; None for local files.
        files: of the bucket there.
        pages: slices that exist only in its listings; None if the objects exist.
    """

    data: Path
    s3: str | None = None
    files: ObjectFiles | None = None
    pages: int | None = None


@dataclass(frozen=True)
class Planted:
    """A repository on a running server.

    Attributes:
        local_root: directory of ``local://`` namespaces.
        garbage: number of objects that nothing needs.
    """

    local_root: Path
    garbage: int


@contextmanager
def planted(place: Place, plant: Plant) -> Iterator[Planted]:
    """Start the server with its repository, and set the variables that lead processes to it.

    Args:
        place: of the server and the repository.
        plant: picklable, because the server's process calls it.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, place, plant), daemon=True)
    process.start()
    there.close()
    variables, found = here.recv()
    os.environ.update(variables)
    try:
        yield found
    finally:
        here.close()
        process.join()


def _serve(pipe: Connection, place: Place, plant: Plant) -> None:
    with ExitStack() as stack:
        store = f"s3://{BUCKET}" if place.s3 else None
        server = stack.enter_context(EmbeddedLakeFS(place.data, store))
        variables = server.environment
        os.environ.update(variables)
        client = LakeFSConfig().connect_writer()
        client.create_repository(REPOSITORY, f"{store or 'local:/'}/{NAMESPACE}")
        client.set_gc_rules(REPOSITORY, 30)
        files = place.files or ObjectFiles(server.objects_dir, etags=False)
        garbage = plant(server, files)
        if place.s3 and place.pages:
            proxy = stack.enter_context(proxied(place.s3))
            proxy.meddle = _listing(Pages.alike(place.pages))
            variables = {**variables, "AWS_ENDPOINT_URL": proxy.endpoint}
        pipe.send((variables, Planted(server.objects_dir, garbage)))
        with suppress(EOFError):
            pipe.recv()


def _listing(pages: Pages) -> Meddle:
    """Answer listings of the objects with prepared pages, others with the real server."""

    def meddle(asked: Asked, ask: Ask) -> Answer:
        wanted = asked.query
        if "list-type" in wanted and not wanted["prefix"].startswith(f"{NAMESPACE}/_lakefs"):
            return Answer(200, pages.answer(asked.target), [("Date", formatdate(usegmt=True))])
        return ask()

    return meddle
