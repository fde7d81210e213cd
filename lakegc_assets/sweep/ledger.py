"""The durable record of what became of each marked object.

Every batch of a sweep is one parquet file below ``swept_set/ledger/``, written atomically before
the next batch of its task starts. A killed sweep reads it and goes on where it was. What a task did
and could not record any more is asked of the store again by the next sweep. So an address may be
recorded more than once; what was done counts before what failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, PartWriter
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.clocks import SYSTEM_CLOCKS, Clocks
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.records import best_of_each, read_rows, write_rows, write_values
from lakegc_assets.storage.base import ObjectStore

ASSET: Final = "swept_set"
#: After these nothing is left to do.
DONE: Final = ("deleted", "already_missing", "spared", "locked", "put_back")
#: After these the object is not there.
GONE: Final = ("deleted", "already_missing")
#: It was deleted, is needed after all, and is back.
PUT_BACK: Final = "put_back"
SWEPT: Final = pa.schema(
    [
        ("address", pa.string()),
        ("size", pa.int64()),
        ("outcome", pa.string()),
        ("error_code", pa.string()),
        ("detail", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("version", pa.string()),
    ],
)
_NOTHING: Final = SWEPT.empty_table()
_DONE: Final = pa.array(DONE)
_LEDGER: Final = f"{ASSET}/ledger/"
#: Rows in one file of what was spared.
_ROWS: Final = 100_000
_THREADS: Final = 16
#: Files that one task puts together, tasks of one process, and work for a file, in seconds.
_TOGETHER: Final = 500
_TASKS: Final = 4
_FILE_S: Final = 0.005


@dataclass(frozen=True)
class Outcome:
    """The outcome of one marked object.

    Attributes:
        address: relative to the namespace.
        size: bytes, as listed.
        outcome: deleted, already_missing, spared, locked, put_back or failed.
        error_code: the store's, when locked or failed.
        detail: what became of the space of a deleted object (``DataProtection.space_of``), the
            store's message, why the object was spared, or why it is needed after all.
        version: names what the store kept of a deleted object, for ``undelete_many``; None where it
            told nothing.
    """

    address: str
    size: int
    outcome: str
    error_code: str | None = None
    detail: str | None = None
    version: str | None = None


def record(
    artifacts: ObjectStore, name: str, outcomes: Sequence[Outcome], clocks: Clocks = SYSTEM_CLOCKS
) -> None:
    """Make outcomes durable: they are all in the ledger when this returns, or none is.

    Args:
        artifacts: the store rooted at the attempt.
        name: of the batch, which no other has.
        outcomes: of that batch.
        clocks: of whoever records them.
    """
    now = clocks.now()
    rows = [
        (o.address, o.size, o.outcome, o.error_code, o.detail, now, o.version) for o in outcomes
    ]
    write_values(artifacts, f"{_LEDGER}{name}.parquet", rows, SWEPT)


def record_spared(
    artifacts: ObjectStore, name: str, spared: pa.Table, clocks: Clocks = SYSTEM_CLOCKS
) -> None:
    """Make it durable that objects are spared.

    Args:
        artifacts: the store rooted at the attempt.
        name: of the record, which no other has.
        spared: address, size and why.
        clocks: of whoever records them.
    """
    count = spared.num_rows
    now = pa.scalar(clocks.now(), SWEPT.field("at").type)
    columns = {
        "address": spared["address"],
        "size": spared["size"],
        "outcome": pa.repeat(pa.scalar("spared"), count),
        "error_code": pa.nulls(count, pa.string()),
        "detail": spared["why"],
        "at": pa.repeat(now, count),
        "version": pa.nulls(count, pa.string()),
    }
    table = pa.table(columns, schema=SWEPT)
    for number, at in enumerate(range(0, count, _ROWS)):
        key = f"{_LEDGER}{name}-{number:06d}.parquet"
        write_rows(artifacts, key, table.slice(at, _ROWS))


class Ledger:
    """A ledger as a dataset: its small files are put together in larger ones, each of them once.

    What was read once counts, whatever a listing lacks later.

    Args:
        ctx: the run.
        connections: how tasks reach the artifacts.
        attempt: the artifacts of the mark, and of its sweep.
        sweep: short name of the sweep that reads it.

    Attributes:
        parts: what was read so far (``SWEPT``).
        of_others: of these, what others than this sweep have recorded.
    """

    def __init__(
        self, ctx: RunContext, connections: Connections, attempt: AttemptArtifacts, sweep: str
    ) -> None:
        self.parts: list[Part] = []
        self.of_others: list[Part] = []
        self._ctx, self._connections, self._attempt = ctx, connections, attempt
        self._own, self._folder = f"{_LEDGER}{sweep}-", f"{ASSET}/{sweep}/ledger/"
        self._known: set[str] = set()

    def read(self) -> list[Part]:
        """Records written since the last call.

        Raises:
            IntegrityError: a file is damaged.
            StorageError: the store did not answer.
        """
        keys = _keys(self._attempt.store())
        new = [key for key in keys if key not in self._known]
        others = self._together([key for key in new if not key.startswith(self._own)])
        found = others + self._together([key for key in new if key.startswith(self._own)])
        self._known.update(new)
        self.parts += found
        self.of_others += others
        return found

    def _together(self, keys: Sequence[str]) -> list[Part]:
        pieces = [keys[at : at + _TOGETHER] for at in range(0, len(keys), _TOGETHER)]
        task = partial(_put_together, self._connections, self._attempt.url, self._folder)
        seconds = len(keys) * _FILE_S
        written = self._ctx.tasks.run_or_call("read the ledger", task, pieces, seconds, _TASKS)
        return [part for parts in written for part in parts]


def _put_together(
    connections: Connections, url: str, folder: str, keys: Sequence[str]
) -> list[Part]:
    store = connections.open(url)
    writer = PartWriter(store, folder, SWEPT)
    for table in thread_map(partial(_read_file, store), keys, _THREADS):
        writer.add(table)
    return [part for part in writer.finish() if part.rows]


def _keys(store: ObjectStore) -> list[str]:
    """The files of a ledger: what this lacks would be taken for something that nobody did."""
    keys = (info.key for info in store.infos_to_the_end(_LEDGER))
    return sorted(key for key in keys if key.endswith(".parquet"))


def read(attempt: AttemptArtifacts) -> pa.Table:
    """One outcome for each recorded address (``SWEPT``): what was done, else the last.

    For people, who ask for it seldom: a sweep reads it as a ``Ledger``.

    Raises:
        IntegrityError: a file is damaged.
        StorageError: the store did not answer.
    """
    store = attempt.store()
    tables = thread_map(partial(_read_file, store), _keys(store), _THREADS)
    return best_of_each(pa.concat_tables([_NOTHING, *tables]), _rank)


def recorded(attempt: AttemptArtifacts) -> pa.Table:
    """The outcomes of a sweep (``SWEPT``): all of them if it has finished, else those so far.

    Raises:
        IntegrityError: a file is damaged.
        StorageError: the store did not answer.
    """
    return attempt.read(ASSET) if attempt.has(ASSET) else read(attempt)


def _read_file(store: ObjectStore, key: str) -> pa.Table:
    try:
        return read_rows(store, key, SWEPT)
    except IntegrityError as error:
        raise IntegrityError(
            f"{error}: nobody can tell what it says was deleted. Put it back as it was. Before the "
            "sweep has ended it may be moved away, too: the next try finds missing what it had, "
            "and nobody knows then which versions of that the store keeps"
        ) from error


def _rank(rows: pa.Table) -> pa.ChunkedArray:
    """The rank of each outcome: what is back, what was deleted, all else done, what failed."""
    outcome = rows["outcome"]
    rank = pc.if_else(pc.is_in(outcome, _DONE), 1, 2)
    rank = pc.if_else(pc.equal(outcome, "deleted"), 0, rank)
    return pc.if_else(pc.equal(outcome, PUT_BACK), -1, rank)


def done(outcomes: pa.Table) -> pa.Table:
    """Of outcomes those after which nothing is left to do."""
    if not outcomes.num_rows:
        return outcomes
    return outcomes.filter(pc.is_in(outcomes["outcome"], _DONE))
