"""Entries of branch HEADs with the size, and the etag, of a candidate.

An entry's etag may say nothing of what is served at its path (``etag_hash`` is 0): a copy that
lakeFS makes keeps the etag of an upload in parts, or of another store, and its own object has
another one. Such an entry looks like all of its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.session import Dataset, Session
from lakegc_assets.mark.lookalike_relations import ANY
from lakegc_assets.mark.metaranges import pairs_of
from lakegc_assets.mark.ranges import Wanted, wanted
from lakegc_assets.run.artifacts import LISTING
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes, pair_hashes

Integers = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int32]

#: Columns of what relations take and give; see ``lookalike_relations``.
CANDIDATES: Final = pa.schema(
    [
        LISTING.field(name)
        for name in ("address", "hash", "size", "last_modified", "etag", "etag_hash")
    ]
)
SAMPLED: Final = pa.schema(
    [LISTING.field(name) for name in ("address", "size", "last_modified", "etag")]
)
RANGES: Final = pa.schema(
    [("range_id", pa.string()), ("branches", pa.int64()), ("pages", pa.int64())]
)
LOOKS: Final = pa.schema([("size", pa.int64()), ("look", pa.int64())])
LOOKS_OF: Final = pa.schema([("address", pa.string()), *LOOKS])
ALIKE: Final = pa.schema([("range_id", pa.string()), *LOOKS, ("entries", pa.int64())])
PATHS_OF: Final = pa.schema([*LOOKS, ("paths", pa.int64())])
BY_PATHS: Final = pa.schema([("paths", pa.int64()), ("looks", pa.int64())])
BEFORE: Final = pa.schema([("paths", pa.int64()), ("before", pa.int64())])
ASKED: Final = pa.schema([*LOOKS, ("turn", pa.int32())])
RANGE_IDS: Final = pa.schema([("range_id", pa.string())])
SIZES: Final = pa.schema([("size", pa.int64())])
MOST: Final = pa.schema([*SIZES, ("most", pa.int64())])
SIZED: Final = pa.schema(
    [*SIZES, *((name, pa.int64()) for name in ("candidates", "paths", "pages"))]
)
TO_READ: Final = pa.schema([("address", pa.string()), *SIZES])
CONTENTS: Final = pa.schema([("address", pa.string()), ("content", pa.int64())])
SERVED_NAMES: Final = pa.schema([("name", pa.string())])

#: Paths of a range that one page of a listing answers for, where they lie close by.
_OF_PAGE: Final = 500


def groups_of(sizes: Integers, etags: Integers | None = None) -> Hashes:
    """One number for each look: of its size and the hash of its etag, or of its size alone.

    Two looks with one number only mean that lakeFS is asked about more paths.
    """
    looks = np.full(len(sizes), ANY, np.int64) if etags is None else etags
    return pair_hashes(sizes.view(np.uint64), looks.view(np.uint64))


@dataclass(frozen=True)
class HeadRanges:
    """The ranges of branch HEADs. Elsewhere they are named by their positions here.

    Attributes:
        ranges: each once.
        branches: for each range, how many branches hold it.
        of_branch: for each branch, the positions of its ranges.
    """

    ranges: Sequence[Wanted]
    branches: Integers
    of_branch: Mapping[str, Positions]

    def entries(self) -> pa.Table:
        """range_id, and entries or null."""
        ids = pa.array([one.range_id for one in self.ranges], pa.string())
        entries = pa.array([one.entries for one in self.ranges], pa.int64())
        return pa.table([ids, entries], names=["range_id", "entries"])

    def costs(self) -> pa.Table:
        """Pages that a lookup of paths needs for each range (``RANGES``)."""
        ids = [one.range_id for one in self.ranges]
        pages = [(one.entries or 0) // _OF_PAGE + 1 for one in self.ranges]
        columns = (ids, self.branches.tolist(), pages)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, RANGES, strict=True)]
        return pa.Table.from_arrays(arrays, schema=RANGES)


def head_ranges(ctx: RunContext, connections: Connections, heads: pa.Table) -> HeadRanges:
    """The ranges of branch HEADs.

    Args:
        ctx: the run.
        connections: how tasks reach the store and the cache.
        heads: columns ``branch`` and ``metarange_id``.

    Raises:
        IntegrityError: a metarange is missing or damaged.
    """
    named = dict(zip(heads["branch"].to_pylist(), heads["metarange_id"].to_pylist(), strict=True))
    pairs = pairs_of(ctx, connections, set(named.values()))
    unique = pairs.group_by("range_id").aggregate([("entries", "max")])
    unique = pa.table(
        [unique["range_id"].cast(pa.string()), unique["entries_max"]], names=["range_id", "entries"]
    )
    metaranges, range_ids = (pairs[n].combine_chunks() for n in ("metarange_id", "range_id"))
    by_code = pc.index_in(range_ids.dictionary, unique["range_id"]).to_numpy(zero_copy_only=False)
    order = np.argsort(metaranges.indices.to_numpy(), kind="stable")
    positions = by_code[range_ids.indices.to_numpy()[order]].astype(np.int32)
    rows = np.bincount(metaranges.indices.to_numpy(), minlength=len(metaranges.dictionary))
    held = np.split(positions, np.cumsum(rows)[:-1]) if len(rows) else []
    by_metarange = dict(zip(metaranges.dictionary.to_pylist(), held, strict=True))
    nothing: Positions = np.empty(0, np.int32)
    of_branch = {branch: by_metarange.get(m, nothing) for branch, m in named.items()}
    branches = np.zeros(unique.num_rows, np.int64)
    for found in of_branch.values():
        branches[found] += 1
    return HeadRanges(wanted(unique, {}), branches, of_branch)


@dataclass(frozen=True)
class Workspace:
    """The engine's session and the folder of working files.

    Attributes:
        ctx: the run.
        connections: how tasks reach the stores.
        frames: the session.
        url: of the store of working files.
        folder: of them, with a slash at its end.
    """

    ctx: RunContext
    connections: Connections
    frames: Session
    url: str
    folder: str

    def read(self, parts: Sequence[Part], schema: pa.Schema) -> DataFrame:
        """The rows of some files."""
        return self.frames.read(Dataset(self.url, parts, schema))

    def write(self, frame: DataFrame, name: str, schema: pa.Schema, what: str) -> list[Part]:
        """Compute a frame, and write its rows to a folder of this name."""
        return self.frames.write(frame, self.url, f"{self.folder}{name}/", schema, what)
