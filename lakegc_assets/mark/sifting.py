"""The etags of all that is listed, in files that are sorted by the hash of the address."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from lakegc_assets.engine.datasets import Part, read_part, write_part
from lakegc_assets.engine.tasks import bin_pack
from lakegc_assets.mark.evidence import ETAGS, EtagFiles
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import unsigned

_FOLDER: Final = "deletion_candidates/etags/"
#: Work on one core, in seconds, to sort a listed object.
_ROW_S: Final = 1e-6


def etag_files(
    ctx: RunContext,
    connections: Connections,
    url: str,
    listing: Sequence[Part],
    kept: Sequence[int],
) -> EtagFiles:
    """Write the etags of a listing, file by file.

    Args:
        ctx: the run.
        connections: how tasks reach artifacts.
        url: of the store of all files.
        listing: its files (``LISTING``).
        kept: how many of the first ones another run has, too.
    """
    costs = [part.rows * _ROW_S for part in listing]
    groups = bin_pack(listing, costs, ctx.settings.address_num_partitions)
    task = partial(_write_etags, connections, url)
    found = ctx.tasks.run("sort etags", task, groups, sum(costs))
    pairs = (zip(group, some, strict=True) for group, some in zip(groups, found, strict=True))
    etags = {part.key: of for some in pairs for part, of in some}
    return EtagFiles([etags[part.key] for part in listing], kept)


def _write_etags(connections: Connections, url: str, listing: Sequence[Part]) -> list[Part]:
    store = connections.open(url)
    tables = (etags(read_part(store, part)) for part in listing)
    return [write_part(store, _FOLDER, table, plain=True) for table in tables]


def etags(rows: pa.Table) -> pa.Table:
    """Rows of ``LISTING`` as ``ETAGS``, in order."""
    columns = {
        "hash": unsigned(rows["hash"]),
        "etag_hash": rows["etag_hash"],
        "modified": rows["last_modified"].cast(pa.int64()),
    }
    return pa.table(columns, schema=ETAGS).sort_by("hash")
