"""Why a candidate is dead: which expired commit held it last, if any did.

A wrong reason, by two addresses of one hash, harms nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import Part, read_part
from lakegc_assets.engine.session import Dataset, Session
from lakegc_assets.engine.tasks import bin_pack
from lakegc_assets.errors import LakegcError
from lakegc_assets.mark import holder_relations
from lakegc_assets.mark.earlier_commits import FORGOTTEN
from lakegc_assets.mark.metaranges import ranges_of
from lakegc_assets.mark.range_frames import range_frame
from lakegc_assets.run.artifacts import LISTING, AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import HASHES, KeyDigest, key_digest

_FOLDER: Final = "deletion_candidates/"
CANDIDATES: Final = pa.schema(
    [
        *LISTING,
        pa.field("reason", pa.string(), nullable=False),
        pa.field("commit_id", pa.string()),
        pa.field("branch", pa.string()),
    ]
)
#: Columns of what relations take and give.
HOLDERS: Final = pa.schema([*HASHES, ("commit_id", pa.string()), ("branch", pa.string())])
_RANGES: Final = pa.schema([("range_id", pa.string()), ("rank", pa.int64())])
_COMMITS: Final = pa.schema(
    [("rank", pa.int64()), ("commit_id", pa.string()), ("branch", pa.string())]
)
_SUMMED: Final = pa.schema([CANDIDATES.field(name) for name in ("size", "reason", "branch")])
_TOTALS: Final = pa.schema(
    [
        *(CANDIDATES.field(name) for name in ("reason", "branch")),
        *((name, pa.int64()) for name in ("objects", "bytes")),
    ]
)
#: Work on one core, in seconds, to read the address of a candidate.
_ROW_S: Final = 3e-7


@dataclass(frozen=True)
class Written:
    """Candidates that were written.

    Attributes:
        parts: rows of ``CANDIDATES``, in the order of their addresses.
        digest: of their addresses.
        by_reason: objects and bytes by reason.
    """

    parts: Sequence[Part] = ()
    digest: KeyDigest = field(default_factory=KeyDigest)
    by_reason: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def last_holders(
    ctx: RunContext,
    connections: Connections,
    frames: Session,
    attempt: AttemptArtifacts,
    dead: DataFrame,
) -> DataFrame:
    """The expired commits that held candidates last (``HOLDERS``).

    Where none that lakeFS still names did, those count that an earlier mark knew. Ranges of expired
    commits that active commits hold as well cannot name a candidate (B without A
    of lakeFS #1932), so they are not read.

    Args:
        ctx: the run.
        connections: how tasks reach the store and the cache.
        frames: the session.
        attempt: with the commits.
        dead: the candidates, by their hashes.

    Raises:
        IntegrityError: a metarange or range of an expired commit is missing or damaged.
    """
    expired = attempt.read("active_commits", "expired")
    rows = expired.select(["creation_date", "commit_id", "branch", "metarange_id"]).to_pylist()
    rows.sort(key=lambda row: (row["creation_date"], row["commit_id"], row["branch"] or ""))
    active = attempt.read("committed_addresses", "ranges", ["range_id"])["range_id"]
    find = partial(find_holders, ctx, connections, frames, dead, without=active.combine_chunks())
    if FORGOTTEN in attempt.manifest("active_commits").parts:
        forgotten = attempt.read("active_commits", FORGOTTEN).to_pylist()
        try:
            return find([*forgotten, *rows])
        except LakegcError as error:
            # What nothing leads to any more need not be whole.
            ctx.log.warning("commits that an earlier mark knew cannot be read: %s", error)
    return find(rows)


def find_holders(
    ctx: RunContext,
    connections: Connections,
    frames: Session,
    objects: DataFrame,
    rows: Sequence[Mapping[str, Any]],
    without: pa.Array | None = None,
) -> DataFrame:
    """The last of some commits to hold each of some objects (``HOLDERS``).

    Args:
        ctx: the run.
        connections: how tasks reach the store and the cache.
        frames: the session.
        objects: by their hashes.
        rows: the commits (commit_id, branch, metarange_id).
        without: ids of ranges that are of no interest.

    Raises:
        IntegrityError: a metarange or range of a commit is missing or damaged.
    """
    ranks = {row["metarange_id"]: rank for rank, row in enumerate(rows) if row["metarange_id"]}
    ranges = ranges_of(ctx, connections, ranks, without).rows
    if not ranges.num_rows:
        return frames.create(HOLDERS.empty_table())
    commits = pa.Table.from_pylist(
        [{**row, "rank": rank} for rank, row in enumerate(rows)], _COMMITS
    )
    return holder_relations.last_holders(
        objects,
        range_frame(ctx, connections, frames, ranges, ["range_id", "hash"]),
        frames.create(ranges.select(_RANGES.names).cast(_RANGES)),
        frames.create(commits),
    )


def write_candidates(
    ctx: RunContext,
    connections: Connections,
    frames: Session,
    attempt: AttemptArtifacts,
    dead: DataFrame,
    holders: DataFrame,
) -> Written:
    """Write candidates with the reason, and the expired commit and branch that held them last.

    Args:
        ctx: the run.
        connections: how tasks reach the artifacts.
        frames: the session.
        attempt: where to write.
        dead: the candidates (``LISTING``).
        holders: who held them (``HOLDERS``).

    Raises:
        IntegrityError: a file is not what it was.
    """
    candidates = holder_relations.with_reasons(dead, holders)
    parts = frames.write(candidates, attempt.url, f"{_FOLDER}data/", CANDIDATES, "write candidates")
    if not parts:
        return Written()
    costs = [part.rows * _ROW_S for part in parts]
    groups = bin_pack(parts, costs, ctx.settings.address_num_partitions)
    task = partial(_digest, connections, attempt.url)
    digests = ctx.tasks.run("read what was written", task, groups, sum(costs))
    return Written(parts, sum(digests, KeyDigest()), _by_reason(frames, attempt, parts))


def _digest(connections: Connections, url: str, parts: Sequence[Part]) -> KeyDigest:
    store = connections.open(url)
    tables = (read_part(store, part, ["address"]) for part in parts)
    return sum((key_digest(table["address"]) for table in tables), KeyDigest())


def _by_reason(
    frames: Session, attempt: AttemptArtifacts, parts: Sequence[Part]
) -> dict[str, dict[str, int]]:
    written = frames.read(Dataset(attempt.url, parts, _SUMMED))
    totals = holder_relations.totals_by_reason(written)
    found: dict[str, dict[str, int]] = {}
    for row in frames.collect(totals, _TOTALS, "count candidates").to_pylist():
        of_reason = found.setdefault(row["reason"], {"objects": 0, "bytes": 0})
        of_reason["objects"] += row["objects"]
        of_reason["bytes"] += row["bytes"]
    return dict(sorted(found.items()))
