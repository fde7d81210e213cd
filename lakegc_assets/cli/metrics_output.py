"""Output of the command ``metrics``: printed, written or served."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event
from types import FrameType

import click
from prometheus_client import start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from lakegc_assets.cli.output import say
from lakegc_assets.cli.site import Site, names_on
from lakegc_assets.definitions import component
from lakegc_assets.defs.metrics import collector_of, metrics_file
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.estate.exposition import registry_of, text_of
from lakegc_assets.lakefs.client import utc_now
from lakegc_assets.storage.files import write_file


class LastLook(Collector):
    """The metrics of the last look at the artifacts: a scrape waits for no store."""

    def __init__(self) -> None:
        """Look for the first time, by the definitions that Dagster loads."""
        site, asked_of = Site.defined(), component()
        # It names repositories that have left no artifacts yet; asked once at a time.
        self._lakefs = replace(site.lakefs, max_attempts=1)
        self._root = site.root
        self._policies, self._names = asked_of.policies(), asked_of.names()
        self._reported: list[str] = []
        self.renew()

    def collect(self) -> Iterator[Metric]:
        """As the last look has them."""
        return self._found.collect()

    def renew(self) -> None:
        """Look again; a problem that is new is reported."""
        names, problems = names_on(self._lakefs)
        self._found, more = collector_of(self._root, names, self._policies, self._names, utc_now())
        problems += more
        for problem in problems:
            if problem not in self._reported:
                say(f"warning: {problem}", err=True)
        self._reported = problems


def text() -> str:
    """Prometheus's text format."""
    return text_of(LastLook()).decode()


def write(path: Path) -> None:
    """Write a file for the textfile collector, in place of the last one."""
    write_file(metrics_file(path), text_of(LastLook()))


def serve(address: str, port: int, every: timedelta) -> None:
    """Serve the metrics until somebody ends it."""
    over = Event()
    last = LastLook()

    def end(_number: int, _frame: FrameType | None) -> None:
        over.set()

    # Only now: what Dagster loads takes both signals for itself.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    try:
        server, thread = start_http_server(port, address, registry_of(last))
    except OSError as error:
        raise ConfigurationError(f"nothing can listen at {address}:{port}: {error}") from error
    try:
        click.echo(f"metrics at http://{address}:{server.server_port}/metrics", err=True)
        while not over.wait(every.total_seconds()):
            last.renew()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
