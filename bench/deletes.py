"""How many keys a second the tasks of a sweep delete, beside a bare loop of boto3.

Both delete from versitygw, a real S3 server on this machine, which needs Go; and from one that says
at once that all keys are deleted, so that the rest is what the client takes. The tasks compare
each batch with the store, look at the lease, HEADs and rules before it, and record it after; the
bare loop does nothing else.

    python -m bench.deletes --keys 250000
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pyarrow as pa
import pyarrow.compute as pc

from bench._run import BUCKET, RealS3, Session, real_s3
from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.parts import write_part
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.sweep.conditions import Condition
from lakegc_assets.sweep.lease import Lease, owner_of, repository_lease
from lakegc_assets.sweep.look import fingerprint
from lakegc_assets.sweep.moment import Moment
from lakegc_assets.sweep.orders import Orders, Portion
from lakegc_assets.sweep.pace import Limits
from lakegc_assets.sweep.rounds import delete
from lakegc_assets_tests.reliability.places import S3Dialect
from lakegc_assets_tests.reliability.proxy import Answer, Ask, Asked, proxied

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import ObjectIdentifierTypeDef

_NAMESPACE = "ns"
_REPOSITORY = "bench"
_BATCH = 1000
_KEYS_EACH = 10_000
_ETAG = "d41d8cd98f00b204e9800998ecf8427e"
_KEY = re.compile(rb"<Key>[^<]*</Key>")
#: Keys that are deleted before, so that the workers run.
_FEW = 10


def _at_once(asked: Asked, ask: Ask) -> Answer:
    """Say that all keys are deleted; whatever else is asked goes to the real server."""
    if not S3Dialect.deletes(asked):
        return ask()
    told = b"".join(b"<Deleted>%s</Deleted>" % key for key in _KEY.findall(asked.body))
    space = b'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    return Answer(200, b"<DeleteResult %s>%s</DeleteResult>" % (space, told))


def _bare(endpoint: str, keys: Sequence[str], tasks: int) -> None:
    """Delete in as many threads as there are tasks, and look at nothing."""
    client = boto3.client("s3", endpoint_url=endpoint)

    def send(first: int) -> None:
        batch = keys[first : first + _BATCH]
        objects: list[ObjectIdentifierTypeDef] = [{"Key": f"{_NAMESPACE}/{key}"} for key in batch]
        answer = client.delete_objects(Bucket=BUCKET, Delete={"Objects": objects})
        if len(answer["Deleted"]) != len(objects):
            raise SystemExit(f"the bare loop deleted {len(answer['Deleted'])} keys of a batch")

    with ThreadPoolExecutor(tasks) as pool:
        list(pool.map(send, range(0, len(keys), _BATCH)))


@dataclass(frozen=True)
class _Job:
    """What is deleted, and how.

    Attributes:
        ctx: a run without limits but those of the server.
        keys: relative to the namespace.
        tasks: how many delete at the same time.
        condition: which calls carry an etag.
        folder: for files.
    """

    ctx: RunContext
    keys: Sequence[str]
    tasks: int
    condition: Condition
    folder: str

    def compare(self, name: str, endpoint: str, plant: Callable[[Sequence[str]], None]) -> None:
        """Delete all keys from a server twice, and print how long it took."""
        plant(self.keys)
        bare = f"{name}: bare loop, {self.tasks} threads"
        _show(bare, self.keys, lambda: _bare(endpoint, self.keys, self.tasks))
        few = [f"data/few/{n}" for n in range(_FEW)]
        plant([*self.keys, *few])
        stores = StoreConfig(endpoint_url=endpoint)
        url = f"s3://{BUCKET}/{_NAMESPACE}"
        connections = Connections(self.ctx.lakefs, stores, url, f"{self.folder}/cache")
        duration = self.ctx.settings.lease_duration
        self.ctx.root.new_attempt(_REPOSITORY, self.ctx.run)
        with repository_lease(connections.store(), owner_of(), duration=duration) as lease:
            self._round(connections, lease, 1, few)
            swept = f"{name}: {self.tasks} tasks of a sweep, conditions: {self.condition}"
            _show(swept, self.keys, lambda: self._round(connections, lease, 2, self.keys))

    def _round(
        self, connections: Connections, lease: Lease, number: int, keys: Sequence[str]
    ) -> None:
        """One round of a sweep, from the delta mark's end on."""
        lease.begin_round(number)
        artifacts = self.ctx.root.attempt(_REPOSITORY, self.ctx.run)
        settings = self.ctx.settings
        orders = Orders(
            connections=connections,
            repository=_REPOSITORY,
            artifacts_url=artifacts.url,
            delta=fingerprint(connections.client(), _REPOSITORY, protect_tags=False),
            taken=Moment.now(connections.store()),
            protect_tags=False,
            lease=lease.token,
            number=number,
            condition=self.condition,
            batch=_BATCH,
            limits=Limits(settings.sweep_keys_per_second, settings.sweep_requests_per_second),
        )
        progress = delete(self.ctx, orders, self._portions(artifacts, connections, keys))
        if progress.deleted != len(keys) or progress.ended_early:
            raise SystemExit(f"the tasks deleted {progress.deleted} of {len(keys)}: {progress}")

    def _portions(
        self, artifacts: AttemptArtifacts, connections: Connections, keys: Sequence[str]
    ) -> list[Portion]:
        """Keys as a round finds them, in the order of a listing, for each task as many."""
        pages = list(connections.store().list("data/"))
        listed = pa.Table.from_batches(pages).rename_columns(
            ["address", "size", "last_modified", "etag"]
        )
        rows = listed.filter(pc.is_in(listed["address"], pa.array(keys)))
        each = -(-rows.num_rows // self.tasks)
        return [
            Portion(task, write_part(artifacts.store(), "marked/", rows.slice(at, each)))
            for task, at in enumerate(range(0, rows.num_rows, each))
        ]


def _show(what: str, keys: Sequence[str], work: Callable[[], None]) -> None:
    begun = time.monotonic()
    work()
    seconds = time.monotonic() - begun
    print(f"{what:<56} {seconds:8.1f} s {len(keys) / seconds:10,.0f} keys/s", flush=True)


def _compare(s3: RealS3, folder: str, arguments: argparse.Namespace, lakefs: LakeFSConfig) -> None:
    session = Session(**{"spark.master": f"local[{arguments.tasks}]"})
    settings = Settings(
        sweep_num_partitions=arguments.tasks,
        sweep_keys_per_second=1e9,
        sweep_requests_per_second=1e9,
    )
    root = ArtifactRoot(f"{folder}/artifacts", StoreConfig())
    ctx = RunContext(_REPOSITORY, "run", settings, lakefs, root, session)
    keys = [f"data/{n // _KEYS_EACH:06}/{n:09}" for n in range(arguments.keys)]
    job = _Job(ctx, keys, arguments.tasks, arguments.condition, folder)

    def plant(wanted: Sequence[str]) -> None:
        for key in wanted:
            s3.files.write(f"{_NAMESPACE}/{key}", 1, time.time(), _ETAG)

    job.compare("versitygw", s3.server.endpoint, plant)
    if arguments.condition == "none":
        with proxied(s3.server.address) as proxy:
            proxy.meddle = _at_once
            job.compare("answers at once", proxy.endpoint, plant)
    session.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=20_000, help="to delete (%(default)s)")
    parser.add_argument("--tasks", type=int, default=2, help="at the same time (%(default)s)")
    parser.add_argument(
        "--condition", choices=("none", "single"), default="none",
        help="single: one request for each key, on the condition of its etag (%(default)s)",
    )  # fmt: skip
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        s3 = stack.enter_context(real_s3(folder / "versitygw"))
        server = stack.enter_context(EmbeddedLakeFS(folder / "lakefs"))
        os.environ.update(
            LAKECTL_SERVER_ENDPOINT_URL=server.endpoint,
            LAKECTL_CREDENTIALS_ACCESS_KEY_ID=server.access_key,
            LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY=server.secret_key,
        )
        lakefs = LakeFSConfig().settled()
        lakefs.connect_writer().create_repository(_REPOSITORY, f"local://{_REPOSITORY}")
        _compare(s3, str(folder), arguments, lakefs)


if __name__ == "__main__":
    main()
