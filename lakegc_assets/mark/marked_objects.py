"""A finished mark, and the objects that it names, as files sorted by address."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from lakegc_assets.engine.datasets import Part, read_part
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import IntegrityError, LakegcError, RefusedError
from lakegc_assets.mark import relations
from lakegc_assets.mark.foreign_marks import find_mark
from lakegc_assets.mark.publication import instant, mark_folder, read_summary
from lakegc_assets.run.artifacts import LISTING, ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import KeyDigest, address_hashes, key_digest, unsigned
from lakegc_assets.run.manifest import Manifest, require_protection
from lakegc_assets.storage.base import ObjectStore


def known_attempt(
    root: ArtifactRoot, repository: str, run: str, store: Callable[[], ObjectStore]
) -> AttemptArtifacts:
    """The present attempt of a run.

    ``store``: opens the store of the namespace; called if the run is unknown.

    Raises:
        RefusedError: the run is unknown; the message tells the mark with its id, if any.
    """
    try:
        return root.attempt(repository, run)
    except RefusedError as unknown:
        what = ""
        # If the store does not answer, the first error stands alone.
        with suppress(LakegcError):
            what = _in_namespace(store(), repository, run)
        if not what:
            raise
        raise RefusedError(f"{unknown}. {what}") from unknown


def _in_namespace(store: ObjectStore, repository: str, run: str) -> str:
    mark = find_mark(store, run)
    if mark.ours:
        return (
            f"This program made {mark.url}, but its artifacts are at another place, or were "
            "pruned: set LAKEGC_ARTIFACT_ROOT to the same value as for the mark, or mark again"
        )
    return (
        f"{mark.url} is a mark of lakeFS's own collector: "
        f"`{command_line('adopt', repository, '--mark', run)}` judges each object of it, and makes "
        "a run of it"
    )


def require_candidates(attempt: AttemptArtifacts) -> None:
    """Refuse a mark that did not find its candidates.

    Raises:
        RefusedError: the mark did not finish.
    """
    if not attempt.has("deletion_candidates"):
        raise RefusedError(
            f"mark {attempt.run!r} of {attempt.repository!r} did not finish: mark again"
        )


def published_mark(ctx: RunContext) -> tuple[AttemptArtifacts, Mapping[str, Manifest]]:
    """The frozen mark of a run and its manifests, after a comparison with its published summary.

    Raises:
        RefusedError: the mark is unknown, failed, was not published, or another version made it,
            and spares other objects.
        IntegrityError: the mark differs from its manifests or its summary.
    """
    store = ctx.connections.store()
    summary = read_summary(store, ctx.run)
    if summary is not None and not summary.success:
        raise RefusedError(f"mark {ctx.run!r} of {ctx.repository!r} failed: mark again")
    attempt = known_attempt(ctx.root, ctx.repository, ctx.run, lambda: store)
    if not attempt.has("gc_report"):
        raise RefusedError(
            f"mark {ctx.run!r} of {ctx.repository!r} did not finish ({attempt.url}/gc_report has "
            "no manifest): mark again under a new id",
        )
    chain = attempt.chain("gc_report", ctx.connections.namespace_url)
    require_protection(chain["deletion_candidates"])
    start = chain["store_listing"].start
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


#: Rows that one task compares with a digest, and seconds of one core for each row.
ROWS_PER_TASK: Final = 2_000_000
_ROW_S: Final = 1e-7
_COLUMNS: Final = ("address", "hash")


class Stretch(NamedTuple):
    """Consecutive rows of a file."""

    part: Part
    begin: int
    rows: int


def stretches(parts: Sequence[Part], each: int) -> list[list[Stretch]]:
    """Cut the rows of files, in their order, into pieces of ``each`` rows."""
    pieces: list[list[Stretch]] = []
    room = 0
    for part in parts:
        begin = 0
        while begin < part.rows:
            if not room:
                pieces.append([])
                room = each
            rows = min(room, part.rows - begin)
            pieces[-1].append(Stretch(part, begin, rows))
            begin += rows
            room -= rows
    return pieces


def read_stretches(
    store: ObjectStore, piece: Sequence[Stretch], columns: Sequence[str]
) -> pa.Table:
    """The rows of a piece that is not empty.

    Raises:
        IntegrityError: a file is missing or changed.
    """
    return pa.concat_tables(
        read_part(store, part, columns).select(list(columns)).slice(begin, rows)
        for part, begin, rows in piece
    )


def marked_in_order(
    ctx: RunContext, attempt: AttemptArtifacts, marked: Manifest, folder: str
) -> Dataset:
    """Sort the objects that a mark names by address, and compare them with the mark's digest.

    ``marked``: manifest of the mark's ``deletion_candidates``.

    Returns:
        All of them, each once (``LISTING``).

    Raises:
        IntegrityError: the objects differ from the manifest.
    """
    found = Dataset(attempt.url, marked.parts["data"], LISTING)
    # If one batch deletes all objects, their order does not matter.
    if found.rows > ctx.settings.sweep_batch:
        with ctx.frames() as frames:
            ordered = relations.in_order(frames.read(found))
            what = "sort the marked objects"
            parts = frames.write(ordered, attempt.url, folder, LISTING, what)
            found = Dataset(attempt.url, parts, LISTING)
    digest = digest_of(ctx, found)
    if str(digest) != marked.digest or found.rows != marked.rows:
        raise IntegrityError(
            f"{attempt.url}/{marked.asset}/data holds {digest}, but its manifest says "
            f"{marked.digest}: something changed it. Mark again under a new id",
        )
    return found


def digest_of(ctx: RunContext, rows: Dataset) -> KeyDigest:
    """The digest of the addresses of rows (``LISTING``; more columns may follow), by tasks.

    Raises:
        IntegrityError: a hash is not the hash of its address, or a file has changed.
    """
    pieces = stretches([part for part in rows.parts if part.rows], ROWS_PER_TASK)
    task, seconds = partial(_digest_of, ctx.connections, rows.url), rows.rows * _ROW_S
    return sum(ctx.tasks.run_or_call("read addresses back", task, pieces, seconds), KeyDigest())


def _digest_of(connections: Connections, url: str, piece: Sequence[Stretch]) -> KeyDigest:
    """The digest of the addresses of a piece; verifies the hashes, which later decide on life."""
    store, digest = connections.open(url), KeyDigest()
    for part, begin, count in piece:
        rows = read_part(store, part, _COLUMNS).slice(begin, count)
        if not np.array_equal(unsigned(rows["hash"]), address_hashes(rows["address"])):
            raise IntegrityError(
                f"{store.url}/{part.key} has hashes of other addresses: something changed it. "
                "Mark again under a new id"
            )
        digest += key_digest(rows["address"])
    return digest
