"""Dagster's interface for the configured lakeFS, or else for an embedded lakeFS, for a trial.

Run with ``make ui``. It runs until it is interrupted, and so does the lakeFS of the trial.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from shlex import quote

import click

from examples import trial
from examples.team import Calendar, variables
from lakegc_assets.cli.jobs import dagster_home
from lakegc_assets.cli.output import exit_status
from lakegc_assets.embedded.server import EmbeddedLakeFS
from lakegc_assets.errors import RefusedError
from lakegc_assets.lakefs.config import is_configured

_PLACES = ("DAGSTER_HOME", "LAKEGC_ARTIFACT_ROOT", "LAKEGC_BACKUP_URL")
_WORKSPACE = "workspace.yaml"


@click.command()
@click.option("--port", default=3000, show_default=True, help="Port of the interface.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path(".demo"),
    show_default=True,
    help="Folder of the files of the demo and the trial.",
)
@exit_status()
def main(port: int, folder: Path) -> None:
    """Start Dagster's webserver and daemon on 127.0.0.1."""
    folder = folder.resolve()
    if is_trial(folder):
        _run_trial(port, folder)
    else:
        dagster_home()
        _run(port, Path(_WORKSPACE))


def is_trial(folder: Path) -> bool:
    """Return whether neither a lakeFS nor a place with marks is configured."""
    own = {"DAGSTER_HOME": folder / "dagster", "LAKEGC_ARTIFACT_ROOT": folder / "artifacts"}
    elsewhere = [
        name
        for name in _PLACES
        if os.environ.get(name) and Path(os.environ[name]).resolve() != own.get(name)
    ]
    return not is_configured() and not elsewhere


def _run_trial(port: int, folder: Path) -> None:
    (folder / "lakefs").mkdir(parents=True, exist_ok=True)
    interrupted: list[int] = []
    # A repository must be written completely, even if a user interrupts the start.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: interrupted.append(number))
    calendar = Calendar(0)
    with alone(folder), EmbeddedLakeFS(folder / "lakefs", clock=calendar) as server:
        values = variables(folder, server)
        os.environ.update(values)
        trial.tell(calendar, folder)
        if interrupted:
            return
        dagster_home()
        workspace = trial.prepare(folder, datetime.now(timezone.utc))
        click.echo(_banner(port, values), err=True)
        _run(port, workspace)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Prevent a second trial in the folder: two daemons on one instance start everything twice.

    Raises:
        RefusedError: another trial runs.
    """
    with (folder / "trial.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedError(
                f"another trial runs on {folder}: use that one, or end it first"
            ) from None
        yield


def _banner(port: int, values: dict[str, str]) -> str:
    exports = (f"  export {name}={quote(value)}" for name, value in values.items())
    return "\n".join(
        (
            "No lakeFS is configured, so this is a trial on an embedded lakeFS: three repositories",
            f"that are collected in about two minutes, at http://127.0.0.1:{port}",
            "The steps: docs/first-run.md. To use lakegc, paste this into another shell:",
            *exports,
        )
    )


def _run(port: int, workspace: Path) -> None:
    """Run the webserver and the daemon until they end.

    Raises:
        SystemExit: with their status, unless it is 0.
    """
    program = Path(sys.executable).with_name("dg")
    command = [str(program), "dev", "-w", str(workspace), "-h", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command) as running:  # noqa: S603 - a program of this environment
        # The terminal interrupts both processes. A signal to this process alone also ends the other
        # one.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: running.terminate())
        status = running.wait()
    if status not in (0, -signal.SIGTERM, -signal.SIGINT):
        sys.exit(abs(status))


if __name__ == "__main__":
    main()
