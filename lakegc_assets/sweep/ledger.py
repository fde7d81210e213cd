"""The durable record of the outcome of each marked object.

Every batch of a sweep is one Parquet file below ``swept_set/ledger/``, written atomically before
the next batch of its task starts. The next try of a killed sweep reads the ledger and continues
from it. If a task deleted objects and could not record that, the next sweep asks the store for them
again. So an address may be recorded more than once; then a final outcome counts before a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.clocks import SYSTEM_CLOCKS, Clocks
from lakegc_assets.run.records import best_of_each, read_rows, write_rows, write_values
from lakegc_assets.storage.base import ObjectStore

ASSET: Final = "swept_set"
#: Final outcomes.
DONE: Final = ("deleted", "already_missing", "spared", "locked", "put_back")
#: Outcomes after which the object is not in the store.
GONE: Final = ("deleted", "already_missing")
#: Outcome of an object that was deleted, is needed after all, and is back.
PUT_BACK: Final = "put_back"
SWEPT: Final = schema(
    "address string, size bigint, outcome string, error_code string, detail string",
    "at timestamp, version string",
)
_NOTHING: Final = SWEPT.empty_table()
_DONE: Final = pa.array(DONE)
FOLDER: Final = f"{ASSET}/ledger/"
#: Rows in one file of spared objects.
_ROWS: Final = 100_000
#: Files that a task reads in parallel.
THREADS: Final = 16


@dataclass(frozen=True)
class Outcome:
    """The outcome of one marked object.

    Attributes:
        address: address relative to the namespace.
        size: bytes, as listed.
        outcome: deleted, already_missing, spared, locked, put_back or failed.
        error_code: the store's code, if locked or failed.
        detail: the state of the space of a deleted object (``DataProtection.space_of``), the
            store's message, or the reason why the object was spared or is needed after all.
        version: id of the version that the store kept of a deleted object, for ``undelete_many``;
            None if the store returned none.
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
    """Make outcomes durable: either all of them are in the ledger afterwards, or none.

    ``artifacts``: rooted at the attempt. ``name``: a unique name of the batch.
    """
    now = clocks.now()
    rows = [
        (o.address, o.size, o.outcome, o.error_code, o.detail, now, o.version) for o in outcomes
    ]
    write_values(artifacts, f"{FOLDER}{name}.parquet", rows, SWEPT)


def record_spared(
    artifacts: ObjectStore, name: str, spared: pa.Table, clocks: Clocks = SYSTEM_CLOCKS
) -> None:
    """Record objects (address, size, why) as spared, as ``record`` does."""
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
        key = f"{FOLDER}{name}-{number:06d}.parquet"
        write_rows(artifacts, key, table.slice(at, _ROWS))


def ledger_keys(store: ObjectStore) -> list[str]:
    """List the keys of all files of a ledger until no key follows: none may be overlooked."""
    keys = (info.key for info in store.infos_to_the_end(FOLDER))
    return sorted(key for key in keys if key.endswith(".parquet"))


def read(attempt: AttemptArtifacts) -> pa.Table:
    """Read one outcome for each recorded address (``SWEPT``): a final outcome, else the last.

    For reports, which are rare: a sweep keeps the ledger in files (``ledger_state.LedgerState``).

    Raises:
        IntegrityError: a file is damaged.
        StorageError: the store did not answer.
    """
    store = attempt.store()
    tables = thread_map(partial(read_file, store), ledger_keys(store), THREADS)
    return best_of_each(pa.concat_tables([_NOTHING, *tables]), outcome_rank)


def recorded(attempt: AttemptArtifacts) -> pa.Table:
    """Read the outcomes of a sweep (``SWEPT``): all of them if it has finished, else those so far.

    Raises:
        IntegrityError: a file is damaged.
        StorageError: the store did not answer.
    """
    return attempt.read(ASSET) if attempt.has(ASSET) else read(attempt)


def read_file(store: ObjectStore, key: str) -> pa.Table:
    """Read the outcomes of a batch (``SWEPT``).

    Raises:
        IntegrityError: the file is damaged; the message says what to do.
    """
    try:
        return read_rows(store, key, SWEPT)
    except IntegrityError as error:
        raise IntegrityError(
            f"{error}: its outcomes are not known. Restore the file from a copy. If there is none, "
            "and the sweep has not finished, move the file away and sweep again: the deleted "
            "objects in it then count as already_missing, and the ids of their versions are lost"
        ) from error


def outcome_rank(rows: pa.Table) -> pa.ChunkedArray:
    """Return the rank of each outcome: put back, deleted, other final outcomes, failures."""
    outcome = rows["outcome"]
    rank = pc.if_else(pc.is_in(outcome, _DONE), 1, 2)
    rank = pc.if_else(pc.equal(outcome, "deleted"), 0, rank)
    return pc.if_else(pc.equal(outcome, PUT_BACK), -1, rank)


def done(outcomes: pa.Table) -> pa.Table:
    """Return the rows with final outcomes (``DONE``)."""
    return outcomes.filter(pc.is_in(outcomes["outcome"], _DONE))
