"""Why a run keeps objects that another list names: the judgement of its own mark, object by object.

Objects are found by their hashes. Nothing is deleted for what is said here: at worst an object that
is kept gets the reason of another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.session import Dataset, Session
from lakegc_assets.mark import comparison_relations, holder_relations, relations
from lakegc_assets.mark.comparison_relations import COMMITTED, NOT_ADOPTED, OTHER, STAGED
from lakegc_assets.mark.incremental_listing import sweeps_since
from lakegc_assets.mark.reasons import HOLDERS, find_holders
from lakegc_assets.mark.served import SPARED
from lakegc_assets.run.artifacts import LISTING, AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import HASHES

#: ``size`` is null for what the store does not hold, ``commit_id`` for what no commit holds.
KEPT: Final = pa.schema(
    [
        *HASHES,
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64()),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("why", pa.string(), nullable=False),
        pa.field("commit_id", pa.string()),
        pa.field("branch", pa.string()),
    ]
)
_FOUND: Final = pa.schema(list(KEPT)[:5])
_STORE: Final = pa.schema(
    [LISTING.field(name) for name in ("address", "hash", "size", "last_modified")]
)
_FOLDERS: Final = pa.schema([("folder", pa.string())])
_TOTALS: Final = pa.schema(
    [
        *(KEPT.field(name) for name in ("kind", "why")),
        *((name, pa.int64()) for name in ("objects", "bytes")),
    ]
)


@dataclass(frozen=True)
class Kept:
    """Objects of a list that a run keeps, with reasons.

    Attributes:
        rows: of ``KEPT``.
        totals: kind, why, objects, bytes; these are null where the store holds nothing of it.
    """

    rows: Dataset
    totals: Sequence[Mapping[str, Any]] = ()


def why_kept(
    ctx: RunContext,
    connections: Connections,
    frames: Session,
    attempt: AttemptArtifacts,
    spared: Sequence[Part],
    named: DataFrame,
    candidates: DataFrame,
    url: str,
    folder: str,
) -> Kept:
    """Say of each object that a list names, and a run would not delete, why it stays.

    Args:
        ctx: a run.
        connections: how tasks reach the stores.
        frames: the session.
        attempt: of the run that is asked, with all before its candidates.
        spared: what that run spared (``SPARED``), in its own store.
        named: what the list names (``NAMED``).
        candidates: what that run would delete, by hashes.
        url: of the store to write to.
        folder: relative to it, with a slash at its end.

    Raises:
        IntegrityError: a file is not what it was.
    """
    listing = attempt.manifest("store_listing")
    committed, staged = (
        attempt.manifest(name).parts for name in ("committed_addresses", "uncommitted_snapshot")
    )

    def read(schema: pa.Schema, parts: Sequence[Part]) -> DataFrame:
        return frames.read(Dataset(attempt.url, parts, schema))

    swept = [frames.read(one) for one in sweeps_since(ctx, listing)]
    store = read(_STORE, listing.parts["data"])
    skipped = pa.array(sorted(listing.facts.get("skipped_slices", ())), pa.string())
    judged = comparison_relations.why_kept(
        named,
        candidates,
        relations.without_swept(store, swept) if swept else store,
        comparison_relations.live_by_kind(
            read(HASHES, committed["data"]),
            read(HASHES, staged["hashes"]),
            read(HASHES, committed.get("referenced", ())),
        ),
        read(SPARED, spared),
        frames.create(pa.table([skipped], schema=_FOLDERS)),
        listing.cutoff,
        NOT_ADOPTED if _has_adopted(attempt) else OTHER,
    )
    what = "say why objects stay"
    found = Dataset(url, frames.write(judged, url, f"{folder}found/", _FOUND, what), _FOUND)
    if not found.rows:
        return Kept(Dataset(url, [], KEPT))
    of_kind = comparison_relations.totals(frames.read(found), ["kind", "why"])
    totals = frames.collect(of_kind, _TOTALS, what).to_pylist()
    holders = frames.create(HOLDERS.empty_table())
    if any(row["kind"] == COMMITTED for row in totals):
        held = comparison_relations.of_kind(frames.read(found), COMMITTED)
        holders = _holders(ctx, connections, frames, attempt, held)
    rows = holder_relations.with_holders(frames.read(found), holders)
    return Kept(Dataset(url, frames.write(rows, url, f"{folder}kept/", KEPT, what), KEPT), totals)


def _has_adopted(attempt: AttemptArtifacts) -> bool:
    """Return whether the candidates of a run that has some are those of a mark that it adopted."""
    asset = "deletion_candidates"
    return attempt.has(asset) and "adopted" in attempt.manifest(asset).facts


def _holders(
    ctx: RunContext,
    connections: Connections,
    frames: Session,
    attempt: AttemptArtifacts,
    held: DataFrame,
) -> DataFrame:
    """The active commit that holds each committed object: a HEAD if there is one."""
    columns = ["commit_id", "branch", "kind", "metarange_id"]
    commits = attempt.read("active_commits", columns=columns).to_pylist()
    commits.sort(key=lambda c: (c["kind"] == "head", c["branch"] or "", c["commit_id"]))
    return find_holders(ctx, connections, frames, held, commits)


def sentence(row: Mapping[str, Any]) -> str:
    """Why an object stays, with who holds it.

    Args:
        row: of ``KEPT``.
    """
    why = str(row["why"])
    if row["kind"] == COMMITTED and row["commit_id"] is not None:
        on = f" of branch {row['branch']!r}" if row["branch"] else ""
        why = f"the active commit {row['commit_id']}{on} holds it"
    elif row["kind"] == COMMITTED:
        why = f"{why}, or a rule of `paths`, or without rules any range below _lakefs/"
    if row["kind"] in {COMMITTED, STAGED} and row["size"] is None:
        why = f"{why}, and it is not in the run's listing of the store"
    return why
