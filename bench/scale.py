"""Measures the time and memory of a mark by the size of the repository, on each engine.

Objects exist only in prepared pages of a listing. Half of them are dead. Each live object is at
five paths, so active commits have 2.5 entries per listed object. Each mark runs in its own process,
with empty caches. The figures are seconds, microseconds per object, and peak memory.

    python -m bench.scale --objects 1000000 --objects 10000000 --engine embedded
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

from bench._collector import Collector
from bench._lake import REPOSITORY, Place, planted
from bench._memory import watched
from bench._pages import KEYS_EACH
from bench._run import real_s3
from bench.collection import Overwritten

_COPIES = 5


def _mark(objects: int, engine: str) -> None:
    """Mark a repository with this number of objects."""
    pages = max(1, objects // KEYS_EACH)
    objects = pages * KEYS_EACH
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        s3 = stack.enter_context(real_s3(folder / "versitygw"))
        place = Place(folder / "lakefs", s3.server.address, s3.files, pages)
        plant = Overwritten(objects, objects // 2, pages, _COPIES)
        found = stack.enter_context(planted(place, plant))
        # The benchmark compares engines, so it sets the engine explicitly.
        collector = Collector.new(
            folder, REPOSITORY, local_root=found.local_root, engine=engine, max_candidate_share=0.9
        )
        with watched() as memory:
            marked, seconds = collector.mark("scale")
        marked.candidates(found.garbage)
        each = seconds / objects * 1e6
        print(f"{engine}, {objects:,} objects: {seconds:.1f} s, {each:.2f} us for an object")
        memory.show()
        collector.session.stop()


@click.command()
@click.option("--objects", multiple=True, default=(1_000_000, 10_000_000), show_default=True)
@click.option("--engine", multiple=True, default=("embedded", "spark"), show_default=True)
@click.option("--here", is_flag=True, help="in this process, as each of several is")
def main(objects: tuple[int, ...], engine: tuple[str, ...], *, here: bool) -> None:
    """Mark repositories of the given sizes with the given engines."""
    for name in engine:
        for count in objects:
            if here:
                _mark(count, name)
                continue
            given = ["--here", "--engine", name, "--objects", str(count)]
            subprocess.run([sys.executable, "-m", "bench.scale", *given], check=True)


if __name__ == "__main__":
    main()
