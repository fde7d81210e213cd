"""Commits that earlier marks of a repository knew, and that lakeFS may no longer name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.retention.active_commits import Reason
from lakegc_assets.retention.retained import Previous
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.history import Earlier, earlier

_ASSET: Final = "active_commits"
#: Part with the commits that an earlier mark knew and that nothing leads to any more.
FORGOTTEN: Final = "forgotten"
#: Parts that together have all commits which a mark knew.
_ALL: Final = ("data", "expired", FORGOTTEN)
_FORGOTTEN: Final = pa.schema(
    [("commit_id", pa.string()), ("metarange_id", pa.string()), ("branch", pa.string())]
)
_THREADS: Final = 8


def latest_mark(ctx: RunContext, connections: Connections) -> Earlier | None:
    """The latest other run whose active commits are whole."""
    found = earlier(ctx.root, ctx.repository, _ASSET, connections.namespace_url, ctx.run)
    for one in found:
        with suppress(LakegcError):
            one.attempt.manifest(_ASSET)
            return one
    return None


def earlier_commits(ctx: RunContext, connections: Connections) -> set[str]:
    """All commits that the latest mark knew, or one before it: each hands them on to the next.

    A branch may be deleted, and a commit of it still has to stay for its metadata, which lakeFS
    tells of a commit that nothing leads to, too. No other witness has it: so a mark that cannot be
    read is not passed over.

    Raises:
        IntegrityError: a mark is damaged.
        StorageError: the store did not answer.
    """

    def read(run: str) -> Earlier | None:
        try:
            attempt = ctx.root.attempt(ctx.repository, run)
        except RefusedError:
            return None
        return Earlier(attempt, attempt.recorded(_ASSET)) if attempt.has(_ASSET) else None

    marks = thread_map(read, ctx.root.runs(ctx.repository), _THREADS)
    here = [one for one in marks if one and one.manifest.namespace == connections.namespace_url]
    if not here:
        return set()
    latest = max(here, key=lambda one: one.manifest.finished)
    tables = _tables(latest, _ALL, ["commit_id"])
    return {commit_id for table in tables for commit_id in table["commit_id"].to_pylist()}


def _tables(
    mark: Earlier, parts: Sequence[str], columns: Sequence[str] | None = None
) -> list[pa.Table]:
    """Those of some parts that a mark has."""
    there = [part for part in parts if part in mark.manifest.parts]
    return [mark.attempt.rows(mark.manifest, part, columns) for part in there]


def previous_of(latest: Earlier, parts: Sequence[str] = ("data",)) -> Previous:
    """Commits of a mark, by some of its parts; each with the reason that holds longest."""
    rows = [row for table in _tables(latest, parts) for row in table.to_pylist()]
    rows.sort(key=lambda row: (row["counted_from"] is not None, row["counted_from"]))
    reasons = {
        row["commit_id"]: Reason(row["branch"], row["kind"], None, row["counted_from"])
        for row in rows
    }
    return Previous(reasons, latest.manifest.started)


def forgotten_commits(latest: Earlier | None, commits: Collection[str]) -> pa.Table:
    """Commits that the latest mark knew, or one before it, and that are not reached any more."""
    tables = [_FORGOTTEN.empty_table()]
    if latest is not None:
        tables += _tables(latest, _ALL, _FORGOTTEN.names)
    known = pa.concat_tables(tables)
    reached = pc.is_in(known["commit_id"], pa.array(sorted(commits), pa.string()))
    return known.filter(pc.invert(reached))
