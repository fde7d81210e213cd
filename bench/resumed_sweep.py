"""A sweep that continues the work of a killed sweep of a large mark.

Nearly all listed objects are dead; they exist only in prepared pages of a listing. The ledger of
the killed sweep has the objects that it deleted, so only the others are sent to the store. 50 M
dead objects have more than 2 GiB of addresses, more than one column of Arrow's strings holds.

    python -m bench.resumed_sweep --objects 50000000 --left 500000
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path

import click
import numpy as np
import pyarrow as pa

from bench._collector import Collector
from bench._lake import DAY, REPOSITORY, Place, planted
from bench._memory import watched
from bench._pages import KEYS_EACH, SIZE, Pages
from bench._ranges import entry_values, rows_of, write_rows
from bench._run import ObjectFiles, real_s3, timed
from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.embedded.lake import catalog
from lakegc_assets.embedded.refs import history
from lakegc_assets.engine.choice import ENGINE_SETTINGS
from lakegc_assets.engine.datasets import read_parts
from lakegc_assets.graveler.ranges import write_metarange
from lakegc_assets.run.records import write_rows as write_records
from lakegc_assets.sweep.ledger import SWEPT

#: Number of objects of one batch of the killed sweep.
_BATCH = 10_000


@dataclass(frozen=True)
class _Uncommitted:
    """Plants a repository with one commit, which holds the objects of the first of many pages.

    Attributes:
        pages: slices of prepared pages that name the objects.
    """

    pages: int

    def __call__(self, server: EmbeddedLakeFS, _files: ObjectFiles) -> int:
        """Write the repository; the number of garbage objects."""
        lake, moment = server.lake, time.time() - 100 * DAY
        with lake.state.read() as db:
            store = lake.stores.open(catalog.repository(db, REPOSITORY).namespace)
        addresses, etags = zip(*islice(Pages.alike(1).named(), KEYS_EACH), strict=True)
        paths = rows_of([f"{number:05}" for number in range(KEYS_EACH)])
        sizes = np.full(KEYS_EACH, SIZE, np.int64)
        info, data = write_rows(
            paths, entry_values(rows_of(addresses), rows_of(etags), sizes, int(moment))
        )
        store.put(f"_lakefs/{info.id}", data)
        metarange, data = write_metarange([info])
        store.put(f"_lakefs/{metarange}", data)
        history.commit_tree(
            lake, REPOSITORY, "main", metarange, message="one", metadata={}, date=int(moment)
        )
        return (self.pages - 1) * KEYS_EACH


def _record(collector: Collector, left: int) -> None:
    """Write the ledger of a sweep that deleted all but ``left`` of the marked objects."""
    attempt = collector.ctx.root.attempt(collector.ctx.repository, collector.ctx.run)
    manifest = attempt.manifest("deletion_candidates")
    store, rest, number = attempt.store(), manifest.rows - left, 0
    for table in read_parts(store, manifest.parts["data"], ["address", "size"]):
        for at in range(0, min(table.num_rows, rest), _BATCH):
            some = table.slice(at, min(_BATCH, rest - at))
            write_records(store, f"swept_set/ledger/killed-{number:06}.parquet", _deleted(some))
            number += 1
        rest = max(0, rest - table.num_rows)


def _deleted(marked: pa.Table) -> pa.Table:
    """The records of a sweep for deleted objects (``SWEPT``)."""
    count = marked.num_rows
    known = {
        "address": marked["address"],
        "size": marked["size"],
        "outcome": pa.repeat(pa.scalar("deleted"), count),
        "at": pa.repeat(pa.scalar(datetime.now(timezone.utc), SWEPT.field("at").type), count),
    }
    columns = {field.name: known.get(field.name, pa.nulls(count, field.type)) for field in SWEPT}
    return pa.table(columns, schema=SWEPT)


def _measure(objects: int, left: int, engine: str) -> None:
    pages = objects // KEYS_EACH + 1
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        s3 = stack.enter_context(real_s3(folder / "versitygw"))
        place = Place(folder / "lakefs", s3.server.address, s3.files, pages)
        found = stack.enter_context(planted(place, _Uncommitted(pages)))
        collector = Collector.new(
            folder,
            REPOSITORY,
            local_root=found.local_root,
            engine=engine,
            max_candidate_share=1.0,
            sweep_keys_per_second=1e9,
            sweep_requests_per_second=1e9,
        )
        with watched() as memory:
            marked, _ = collector.mark("killed", attributed=False)
            marked.candidates(found.garbage)
        memory.show()
        timed("write the ledger", lambda: _record(marked, left))
        with watched() as memory:
            marked.sweep()
        memory.show()
        collector.session.stop()


@click.command()
@click.option("--objects", default=100_000, show_default=True, help="dead ones")
@click.option("--left", default=20_000, show_default=True, help="of which so many are left")
@click.option("--engine", type=click.Choice(ENGINE_SETTINGS), default="auto", show_default=True)
def main(objects: int, left: int, engine: str) -> None:
    """Mark, write the ledger of a killed sweep, and resume the sweep."""
    _measure(objects, left, engine)


if __name__ == "__main__":
    main()
