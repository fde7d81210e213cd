"""The command ``metrics``: the state of all repositories for Prometheus, by the artifacts."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import click

from lakegc_assets.cli.options import duration

_LOCAL = "127.0.0.1"
_HIGHEST_PORT = 65_535


@click.command()
@click.option(
    "--port", type=click.IntRange(0, _HIGHEST_PORT), help="Serve them at this port; 0: a free one."
)
@click.option("--address", default=_LOCAL, show_default=True, help="With --port: where to listen.")
@click.option(
    "--every",
    type=duration,
    default="1m",
    show_default=True,
    help="With --port: how often the artifacts are read.",
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

    They are read from the artifacts, so that no process has to stay alive, and counters go on after
    runs were pruned. What cannot be read is reported on standard error, and is left out.
    """
    if port is not None and textfile is not None:
        raise click.UsageError("--port and --textfile exclude each other")
    if every <= timedelta(0):
        raise click.UsageError("--every is no time to wait")
    from lakegc_assets.cli import metrics_output

    if port is not None:
        metrics_output.serve(address, port, every)
    elif textfile is not None:
        metrics_output.write(textfile)
    else:
        click.echo(metrics_output.text(), nl=False)
