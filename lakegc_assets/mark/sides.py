"""The two sides of a comparison: a run of ours or a mark of lakeFS's collector, in one form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

import pyarrow as pa

from lakegc_assets.engine.datasets import Part, PartWriter, read_part
from lakegc_assets.engine.tasks import bin_pack
from lakegc_assets.errors import RefusedError
from lakegc_assets.mark.carrying import swept_since
from lakegc_assets.mark.foreign import find_mark
from lakegc_assets.mark.named import Named, read_mark
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import address_hashes
from lakegc_assets.run.sets import write_set

#: Work on one core, in seconds, to look at a row.
_ROW_S: Final = 1e-6
#: What is known of a candidate; of an object that a foreign mark names only the address.
MARKED: Final = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("commit_id", pa.string()),
        pa.field("branch", pa.string()),
    ]
)


@dataclass(frozen=True)
class Side:
    """One of the two marks.

    Attributes:
        id: as it was given.
        kind: run, or what wrote it.
        made: when it was begun.
        named: what it names; in parts of ``MARKED`` columns or ``ADDRESSES``.
        attempt: of a run of ours.
        gone: of a run of ours, runs of hashes of what sweeps have deleted since its listing.
    """

    id: str
    kind: str
    made: datetime
    named: Named
    attempt: AttemptArtifacts | None = None
    gone: Sequence[Part] = ()

    def words(self) -> str:
        """As people call it."""
        return f"run {self.id!r}" if self.attempt else f"mark {self.id!r}"


def side_of(ctx: RunContext, connections: Connections, url: str, name: str, folder: str) -> Side:
    """Read one side.

    Args:
        ctx: of the repository; its run is of no interest.
        connections: how tasks reach the stores.
        url: of the store to write to.
        name: id of a run, or of a foreign mark as ``find_mark`` takes it.
        folder: relative to the store, with a slash at its end.

    Raises:
        RefusedError: it is neither, or did not finish.
        IntegrityError: it is damaged.
    """
    try:
        attempt = ctx.root.attempt(ctx.repository, name)
    except RefusedError as no_run:
        try:
            mark = find_mark(connections.store(), name)
        except RefusedError as error:
            raise RefusedError(f"{no_run}; and {error}") from error
        named = read_mark(ctx, connections, mark, url, folder)
        return Side(mark.id, f"{mark.form} mark of lakeFS's collector", mark.made, named)
    chain = attempt.chain("deletion_candidates", connections.namespace_url)
    listing, parts = chain["store_listing"], chain["deletion_candidates"].parts["data"]
    groups, seconds = spread_rows(ctx, parts)
    task = partial(_copy, connections, attempt.url, url, folder)
    copied = ctx.tasks.run("read candidates", task, groups, seconds)
    store = connections.open(url)
    named = Named(
        url,
        [part for written, _ in copied for part in written],
        [part for _, hashes in copied for part in hashes],
        (),
        chain["deletion_candidates"].rows,
    )
    gone = write_set(store, f"{folder}gone/", [address_hashes(swept_since(ctx, listing))])
    made = datetime.fromisoformat(str(listing.facts["start"]))
    return Side(name, "run", made, named, attempt, gone)


def _copy(
    connections: Connections, source: str, url: str, folder: str, parts: Sequence[Part]
) -> tuple[list[Part], list[Part]]:
    """Candidates of a run as they are compared, and the runs of their hashes."""
    store, where = connections.open(source), connections.open(url)
    writer = PartWriter(where, f"{folder}named/", MARKED)
    hashes = []
    for part in parts:
        rows = read_part(store, part, MARKED.names).select(MARKED.names)
        hashes.append(address_hashes(rows["address"]))
        writer.add(rows)
    written = [part for part in writer.finish() if part.rows]
    return written, write_set(where, f"{folder}hashes/", hashes)


def spread_rows(ctx: RunContext, parts: Sequence[Part]) -> tuple[list[list[Part]], float]:
    """Files of rows for tasks, and about how much work they are, in seconds of one core."""
    costs = [part.rows * _ROW_S for part in parts]
    return bin_pack(parts, costs, ctx.settings.address_num_partitions), sum(costs)
