"""Measures the keys per second that the tasks of a sweep delete, compared with a loop of boto3.

Both delete from versitygw, a real S3 server on this machine, which needs Go. They also delete from
a server that answers at once that all keys are deleted, which leaves the client's own time. Before
each batch the tasks compare its objects with the store and read the lease, HEADs and rules; after
it they record it. The bare loop only deletes.

    python -m bench.deletes --keys 250000
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from bench._floors import bare_deletes, beside
from bench._http import Service, running
from bench._pages import KEYS_EACH, MADE, NAMESPACE, SIZE, Pages
from bench._run import BUCKET, CORES, RealS3, Session, measured, real_s3
from bench._store import Store
from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.engine.datasets import write_part
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.mark.listing_pages import listing_rows
from lakegc_assets.mark.marked_objects import stretches
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.clocks import Moment
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.probes import Condition
from lakegc_assets.sweep.batch_guard import seen_now
from lakegc_assets.sweep.lease import Lease, repository_lease
from lakegc_assets.sweep.lease_record import owner_of
from lakegc_assets.sweep.rate_limit import Limits
from lakegc_assets.sweep.rounds import delete
from lakegc_assets.sweep.task_orders import Orders, Portion

_REPOSITORY = "bench"
_BATCH = 1000
_ETAG = "d41d8cd98f00b204e9800998ecf8427e"
_NO_LIMITS = Limits(1e9, 1e9)


@dataclass(frozen=True)
class _Job:
    """The work of a benchmark of deletes.

    Attributes:
        ctx: a run.
        session: its Spark session.
        endpoint: of the store.
        tasks: number of parallel tasks that delete.
        condition: calls that carry an etag.
    """

    ctx: RunContext
    session: Session
    endpoint: str
    tasks: int
    condition: Condition

    def sweep(self, name: str, rows: pa.Table) -> float:
        """Delete objects with the tasks of a sweep; seconds."""
        connections = Connections(
            self.ctx.lakefs,
            StoreConfig(endpoint_url=self.endpoint),
            f"s3://{BUCKET}/{NAMESPACE}",
            f"{self.ctx.root.url}/cache",
        )
        store, owner = connections.store(), owner_of()
        duration = self.ctx.settings.lease_duration
        with repository_lease(store, owner, duration=duration) as lease:
            lease.begin_round(1)
            orders = self._orders(connections, lease)
            portions = self._portions(rows)
            what = f"{name}: {self.tasks} tasks, conditions: {self.condition}"
            return measured(self.session, what, lambda: self._delete(orders, portions))

    def _orders(self, connections: Connections, lease: Lease) -> Orders:
        """The orders of a round, after its delta mark."""
        seen = seen_now(connections.client(), _REPOSITORY, protect_tags=False)[1]
        return Orders(
            connections=connections,
            repository=_REPOSITORY,
            artifacts_url=self.ctx.root.new_attempt(_REPOSITORY, self.ctx.run).url,
            delta=seen,
            taken=Moment.now(connections.store()),
            protect_tags=False,
            lease=lease.token,
            number=1,
            condition=self.condition,
            batch=_BATCH,
            limits=_NO_LIMITS,
        )

    def _portions(self, rows: pa.Table) -> list[Portion]:
        artifacts = self.ctx.root.attempt(_REPOSITORY, self.ctx.run).store()
        each = -(-rows.num_rows // self.tasks)
        parts = [
            write_part(artifacts, "survivors/", rows.slice(task * each, each))
            for task in range(self.tasks)
        ]
        return [Portion(task, piece) for task, piece in enumerate(stretches(parts, each))]

    def _delete(self, orders: Orders, portions: list[Portion]) -> None:
        told = delete(self.ctx, orders, portions)
        objects = sum(portion.rows for portion in portions)
        if [(one.outcome, one.objects) for one in told] != [("deleted", objects)]:
            raise SystemExit(f"of {objects} objects the tasks say: {told}")


def _rows(addresses: Sequence[str], etags: Sequence[str], size: int, moment: datetime) -> pa.Table:
    """Objects in the form of a listing."""
    columns: dict[str, Any] = {
        "address": addresses,
        "size": [size] * len(addresses),
        "last_modified": [moment] * len(addresses),
        "etag": etags,
    }
    return pa.Table.from_batches([listing_rows(pa.table(columns))]).sort_by("address")


def _keys(rows: pa.Table) -> list[str]:
    return [f"{NAMESPACE}/{address}" for address in rows["address"].to_pylist()]


def _at_once(slices: int) -> Service:
    return Service([Store(Pages.alike(slices)).answer])


def _from_versitygw(s3: RealS3, job: _Job, count: int) -> None:
    moment = datetime.fromtimestamp(int(time.time()) - 86_400, timezone.utc)
    addresses = [f"data/{n // KEYS_EACH:06}/{n:09}" for n in range(count)]
    rows = _rows(addresses, [_ETAG] * count, 1, moment)

    def plant() -> list[str]:
        keys = _keys(rows)
        for key in keys:
            s3.files.write(key, 1, moment.timestamp(), _ETAG)
        return keys

    floor = bare_deletes(s3.server.endpoint, plant(), job.tasks)
    plant()
    _compare("versitygw", floor, job.sweep("versitygw", rows), count)


def _from_memory(job: _Job, pages: Pages, count: int) -> None:
    addresses, etags = zip(*islice(pages.named(), count), strict=True)
    rows = _rows(addresses, etags, SIZE, MADE)
    floor = bare_deletes(job.endpoint, _keys(rows), job.tasks)
    _compare("answers at once", floor, job.sweep("answers at once", rows), count)


def _compare(name: str, floor: float, seconds: float, count: int) -> None:
    print(f"{name}: bare loop {count / floor:,.0f} keys/s, tasks {count / seconds:,.0f} keys/s")
    beside(name, seconds, floor)


@click.command()
@click.option("--keys", default=20_000, show_default=True, help="To delete.")
@click.option("--tasks", default=CORES, show_default=True, help="At the same time.")
@click.option(
    "--condition", type=click.Choice(["none", "single"]), default="none", show_default=True,
    help="single: one request for each key, on the condition of its etag.",
)  # fmt: skip
def main(keys: int, tasks: int, condition: Condition) -> None:
    """Delete from both stores."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        s3 = stack.enter_context(real_s3(folder / "versitygw"))
        server = stack.enter_context(EmbeddedLakeFS(folder / "lakefs"))
        os.environ.update(server.environment)
        lakefs = LakeFSConfig().settled()
        lakefs.connect_writer().create_repository(_REPOSITORY, f"local://{_REPOSITORY}")
        session = Session(**{"spark.master": f"local[{tasks}]"})
        root = ArtifactRoot(f"{folder}/artifacts", StoreConfig())

        def job(run: str, endpoint: str) -> _Job:
            ctx = RunContext(_REPOSITORY, run, Settings(), lakefs, root, session)
            return _Job(ctx, session, endpoint, tasks, condition)

        _from_versitygw(s3, job("versitygw", s3.server.endpoint), keys)
        if condition == "none":
            slices = -(-keys // KEYS_EACH)
            served = stack.enter_context(running(partial(_at_once, slices)))
            endpoint = f"http://127.0.0.1:{served.ports[0]}"
            _from_memory(job("memory", endpoint), Pages.alike(slices), keys)
        session.stop()


if __name__ == "__main__":
    main()
