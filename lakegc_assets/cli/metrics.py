"""The command ``metrics``: the state of all repositories for Prometheus, from the artifacts."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event

import click
from prometheus_client import start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from lakegc_assets.cli.options import duration
from lakegc_assets.cli.output import say
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.lakefs.client import utc_now

_LOCAL = "127.0.0.1"
_HIGHEST_PORT = 65_535


@click.command()
@click.option(
    "--port", type=click.IntRange(0, _HIGHEST_PORT), help="Serve them at this port; 0: a free one."
)
@click.option(
    "--address", default=_LOCAL, show_default=True, help="With --port: address to listen at."
)
@click.option(
    "--every",
    type=duration,
    default="1m",
    show_default=True,
    help="With --port: time between two reads of the artifacts.",
)
@click.option(
    "--textfile",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write them once to a file of node_exporter's textfile collector: its name must end in "
    ".prom. Default: print them.",
)
def metrics(port: int | None, address: str, every: timedelta, textfile: Path | None) -> None:
    """Report the state of all repositories to Prometheus.

    The metrics are read from the artifacts. So no process has to stay alive, and counters continue
    after runs are pruned. Unreadable artifacts are reported on standard error, and omitted.
    """
    if port is not None and textfile is not None:
        raise click.UsageError("--port and --textfile exclude each other")
    if every <= timedelta(0):
        raise click.UsageError("--every must be longer than 0s: give 30s or 1m, for example")
    from lakegc_assets.defs.metrics import metrics_file
    from lakegc_assets.estate.metrics import text_of
    from lakegc_assets.storage.files import write_file

    if port is not None:
        _serve(address, port, every)
    elif textfile is not None:
        write_file(metrics_file(textfile), text_of(LastLook()))
    else:
        click.echo(text_of(LastLook()).decode(), nl=False)


class LastLook(Collector):
    """The metrics of the last read of the artifacts: a scrape does not wait for a store."""

    def __init__(self) -> None:
        """Read the artifacts for the first time, with the definitions that Dagster loads."""
        from lakegc_assets.cli.site import Site
        from lakegc_assets.definitions import component
        from lakegc_assets.estate.repository_state import OldRuns

        site, asked_of = Site.defined(), component()
        # lakeFS only adds repositories without artifacts, so each call is tried once.
        self._lakefs = replace(site.lakefs, max_attempts=1)
        self._root = site.root
        self._policies, self._names = asked_of.policies(), asked_of.names()
        self._reported: list[str] = []
        self._known = OldRuns()
        self.renew()

    def collect(self) -> Iterator[Metric]:
        """The metrics of the last read."""
        return self._found.collect()

    def renew(self) -> None:
        """Read the artifacts again, and report new problems."""
        from lakegc_assets.cli.site import names_on
        from lakegc_assets.defs.metrics import metrics_of

        names, problems = names_on(self._lakefs)
        self._found = metrics_of(
            self._root, names, self._policies, self._names, utc_now(), self._known
        )
        problems += self._found.problems
        for problem in problems:
            if problem not in self._reported:
                say(f"warning: {problem}", err=True)
        self._reported = problems


def _serve(address: str, port: int, every: timedelta) -> None:
    """Serve the metrics until the process is ended."""
    from lakegc_assets.estate.metrics import registry_of

    over, last = Event(), LastLook()
    # Only now: Dagster sets handlers of its own for both signals while it is loaded.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    try:
        server, thread = start_http_server(port, address, registry_of(last))
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen at {address}:{port}: {error}. Give another --port or --address"
        ) from error
    try:
        click.echo(f"metrics at http://{address}:{server.server_port}/metrics", err=True)
        while not over.wait(every.total_seconds()):
            last.renew()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
