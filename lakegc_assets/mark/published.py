"""Preconditions of every use of a mark: it is complete and published."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import pyarrow as pa

from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.mark.publication import instant, read_summary
from lakegc_assets.mark.publication_layout import mark_folder
from lakegc_assets.mark.run_lookup import known_attempt
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import key_digest

_COLUMNS: Final = ("address", "size", "last_modified", "etag")


def published_mark(
    ctx: RunContext, connections: Connections
) -> tuple[AttemptArtifacts, Mapping[str, Manifest]]:
    """The frozen mark of a run and its manifests, with its summary in the namespace compared.

    Raises:
        RefusedError: the mark is unknown, failed or not published.
        IntegrityError: it is not what its manifests, or its summary, say.
    """
    store = connections.store()
    summary = read_summary(store, ctx.run)
    if summary is not None and not summary.success:
        raise RefusedError(f"mark {ctx.run!r} of {ctx.repository!r} failed: mark again")
    attempt = known_attempt(ctx.root, ctx.repository, ctx.run, lambda: store)
    if not attempt.has("gc_report"):
        raise RefusedError(
            f"mark {ctx.run!r} of {ctx.repository!r} did not finish ({attempt.url}/gc_report has "
            "no manifest): mark again under a new id",
        )
    chain = attempt.chain("gc_report", connections.namespace_url)
    start = datetime.fromisoformat(str(chain["store_listing"].facts["start"]))
    found = {
        "run_id": ctx.run,
        "start_time": instant(start),
        "cutoff_time": instant(chain["gc_report"].cutoff),
        "num_deleted_objects": chain["deletion_candidates"].rows,
    }
    if summary is None or not found.items() <= summary.__dict__.items():
        raise IntegrityError(
            f"{store.url}/{mark_folder(ctx.run)}summary.json does not say what the mark found: "
            "something changed it. Mark again under a new id",
        )
    return attempt, chain


def read_marked(attempt: AttemptArtifacts, marked: Manifest) -> pa.Table:
    """The objects of a mark, by its manifest: address, size (bytes), last_modified and etag.

    Args:
        attempt: the artifacts of the mark.
        marked: manifest of its ``deletion_candidates``.

    Raises:
        IntegrityError: it is something else.
    """
    rows = attempt.rows(marked, columns=list(_COLUMNS))
    if str(key_digest(rows["address"])) != marked.digest or rows.num_rows != marked.rows:
        raise IntegrityError(
            f"{attempt.data_url(marked.asset)} holds {key_digest(rows['address'])}, but its "
            f"manifest says {marked.digest}: something changed it. Mark again under a new id",
        )
    return rows
