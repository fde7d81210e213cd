"""``lakegc run`` on small repositories, as a user runs it, compared with a stock PySpark session.

The figures are for whole processes, from start to end: a mark and a sweep of a repository with some
objects on an embedded lakeFS with local storage; and F, a stock session that runs a dozen tiny
queries.

    python -m bench.small --engine spark
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

import click

from bench._floors import beside, stock_session
from bench._lake import REPOSITORY, Place, planted
from bench._memory import watched
from bench.collection import Overwritten
from lakegc_assets.engine.choice import ENGINE_SETTINGS


def _run(folder: Path, engine: str) -> float:
    """Seconds of one whole run."""
    command = [sys.executable, "-m", "lakegc_assets.cli", "run", REPOSITORY, "--json"]
    # The server has no hooks, and nobody commits.
    command += ["--engine", engine, "--set", "longest_commit_seconds=0"]
    homes = {
        "DAGSTER_HOME": str(folder / "dagster"),
        "LAKEGC_ARTIFACT_ROOT": str(folder / "artifacts"),
    }
    begun = time.monotonic()
    # A pipe would stay open until the run's JVM has ended, too. F does not wait for its JVM either.
    with TemporaryFile("w+") as told, subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=told, cwd=folder, env=os.environ | homes
    ) as process, watched(process.pid) as memory:  # fmt: skip
        process.wait()
        seconds = time.monotonic() - begun
        if process.returncode:
            told.seek(0)
            raise SystemExit(f"lakegc run ended with {process.returncode}: {told.read()}")
    memory.show()
    return seconds


def _measure(objects: int, engine: str, stock: float) -> None:
    """Collect a repository with this number of objects, of which a quarter is garbage."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        plant = Overwritten(objects, objects // 4, None)
        with planted(Place(folder / "lakefs"), plant):
            beside(f"lakegc run, {objects:,} objects", _run(folder, engine), stock)


@click.command()
@click.option("--objects", multiple=True, default=(10, 500), show_default=True)
@click.option("--engine", type=click.Choice(ENGINE_SETTINGS), default="auto", show_default=True)
def main(objects: tuple[int, ...], engine: str) -> None:
    """Measure F, and then runs."""
    stock = stock_session()
    print(f"F, a stock session and a dozen tiny queries: {stock:.1f} s", flush=True)
    for count in objects:
        _measure(count, engine, stock)


if __name__ == "__main__":
    main()
