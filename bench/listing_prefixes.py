"""Measures the keys per second of the listing of a mark, with 10,000 keys in each slice.

A server on this machine, in a process of its own on the same cores, answers with prepared pages.
Its limit is measured too. 20 M keys in 2,000 slices:

    python -m bench.listing_prefixes --keys 20000000
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from bench._collector import Collector
from bench._floors import beside
from bench._http import Service, running
from bench._memory import watched
from bench._pages import KEYS_EACH, Pages
from bench._rest import Refs, Rest
from bench._run import measured, use_simulated
from bench._store import Server, Store
from lakegc_assets.embedded.lake.catalog import Commit
from lakegc_assets.mark.listing import list_store
from lakegc_assets.retention.rules import Rules

_REPOSITORY = "bench"
#: Number of pages that the bare loop reads.
_PAGES = 500


def _simulated(slices: int) -> Service:
    """A store of pages only, and the lakeFS of a repository without commits."""
    store = Store(Pages.alike(slices))
    rest = Rest(_REPOSITORY, store, [], 0, lambda *_: [])
    first = Commit.new(
        committer="", message="first", metarange_id="", creation_date=0, metadata={}, parents=()
    )
    rest.show(Refs({first.id: first}, {"main": first.id}, Rules(30)))
    return Service([store.answer, rest.answer])


def _busy() -> float:
    """CPU seconds of all cores of this machine together."""
    fields = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK")


def _list(server: Server, folder: Path, limit: float) -> None:
    collector = Collector.new(folder, _REPOSITORY)
    busy, served = _busy(), server.served.cpu_seconds
    with watched() as memory:
        seconds = measured(collector.session, "list", lambda: list_store(collector.ctx))
    busy, served = _busy() - busy, server.served.cpu_seconds - served
    attempt = collector.ctx.root.attempt(_REPOSITORY, collector.ctx.run)
    found = attempt.manifest("store_listing").rows
    if found != server.keys:
        raise SystemExit(f"{found:,} keys were listed of {server.keys:,}")
    print(f"{server.keys / seconds:,.0f} keys/s")
    print(f"of this the server used {served:.1f} CPU seconds")
    print(f"all cores of the machine were busy for {busy / seconds / (os.cpu_count() or 1):.0%}")
    beside("listing", seconds, server.keys / limit)
    memory.show()
    collector.session.stop()


@click.command()
@click.option("--keys", default=1_000_000, show_default=True, help=f"In steps of {KEYS_EACH:,}.")
def main(keys: int) -> None:
    """Measure the listing."""
    slices = max(1, keys // KEYS_EACH)
    with running(partial(_simulated, slices)) as served, TemporaryDirectory() as folder:
        server = Server(served, slices * KEYS_EACH)
        use_simulated(served.ports)
        limit = server.limit(_PAGES)
        print(f"{server.keys:,} keys in {slices:,} slices")
        print(f"a bare loop that reads nothing of them gets {limit:,.0f} keys/s", flush=True)
        _list(server, Path(folder), limit)


if __name__ == "__main__":
    main()
