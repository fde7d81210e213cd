"""How many keys a second the listing of a mark gives, on Spark, with 10,000 keys in each slice.

A server on this machine answers with ready-made pages, in a process of its own on the same cores;
what it could answer is measured beside it. 20 M keys in 2,000 slices:

    python -m bench.listing_prefixes --keys 20000000
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from bench._memory import Memory
from bench._pages import KEYS_EACH, NAMESPACE, Server, pages_server
from bench._run import BUCKET, session
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.mark.listing import listed_objects, plan_listing
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import Connections, RunContext
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.config import StoreConfig

#: Pages that the bare loop reads.
_PAGES = 500


def _busy() -> float:
    """Seconds for which this machine's cores have worked, all together."""
    fields = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK")


def _list(server: Server, folder: str, cores: int) -> None:
    memory = Memory()
    spark = session(**{"spark.master": f"local[{cores}]"})
    memory.start()
    root = ArtifactRoot(folder, StoreConfig())
    ctx = RunContext("bench", "run", Settings(), LakeFSConfig(), root, spark)
    url = f"s3://{BUCKET}/{NAMESPACE}"
    connections = Connections(LakeFSConfig(), StoreConfig(), url, f"{folder}/cache")
    attempt = root.new_attempt("bench", "run")

    begun, busy, served = time.monotonic(), _busy(), server.cpu_seconds
    plan = plan_listing(connections)
    planned = time.monotonic()
    attempt.write(listed_objects(ctx, connections, plan), "store_listing")
    written = time.monotonic()
    busy, served = _busy() - busy, server.cpu_seconds - served
    found = attempt.read(spark, "store_listing").count()
    if found != server.keys:
        raise SystemExit(f"{found:,} keys were listed of {server.keys:,}")

    seconds = written - begun
    print(f"plan      {planned - begun:8.1f} s, {len(plan.ranges):,} key ranges")
    print(f"list      {written - planned:8.1f} s, into parquet on {cores} cores")
    print(f"all       {seconds:8.1f} s, {server.keys / seconds:12,.0f} keys/s")
    print(f"of this the server used {served:.1f} CPU seconds")
    print(f"all cores of the machine were busy for {busy / seconds / (os.cpu_count() or 1):.0%}")
    memory.show()
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--keys", type=int, default=1_000_000, help=f"in steps of {KEYS_EACH:,} (%(default)s)"
    )
    parser.add_argument("--cores", type=int, default=2, help="for Spark (%(default)s)")
    arguments = parser.parse_args()
    with pages_server(arguments.keys) as server, tempfile.TemporaryDirectory() as folder:
        print(f"{server.keys:,} keys in {server.keys // KEYS_EACH:,} slices")
        print(f"a bare loop reads {server.limit(_PAGES):,.0f} keys/s from the server")
        _list(server, folder, arguments.cores)


if __name__ == "__main__":
    main()
