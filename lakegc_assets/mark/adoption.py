"""Makes a run out of a mark that lakeFS's collector wrote: what both that mark and ours name.

Our own mark is made as always. What the other one names and ours does not is spared, with the
reason; what only ours names is left for a run of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import RefusedError
from lakegc_assets.mark import comparison_relations
from lakegc_assets.mark.comparison_relations import SPARED_BY_MARK
from lakegc_assets.mark.foreign_marks import ForeignMark, find_mark, read_mark
from lakegc_assets.mark.reasons import survivors
from lakegc_assets.mark.served import SPARED
from lakegc_assets.mark.session_folder import SessionFolder
from lakegc_assets.run.artifacts import LISTING, ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.command_line import command_line, recorded_settings
from lakegc_assets.storage.base import ObjectStore

_WHAT: Final = "compare with the adopted mark"
_TOTALS: Final = schema("is_named boolean, objects bigint, bytes bigint")
_COMPARED: Final = LISTING.append(pa.field("is_named", pa.bool_()))


@dataclass(frozen=True)
class Adopted:
    """The candidates that remain where another mark was adopted."""

    #: Those that it names, too (``LISTING``).
    dead: Dataset
    #: What it names, and ours keeps (``SPARED``); the part ``kept`` says more about the same.
    spared: Sequence[Part] = ()
    parts: Mapping[str, Sequence[Part]] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)


def require_adoptable(
    store: ObjectStore, root: ArtifactRoot, repository: str, run: str, mark_id: str
) -> ForeignMark:
    """The mark of lakeFS's that a run may be made of.

    ``run``: id of the run that adopts it.

    Raises:
        RefusedError: there is no such mark, it did not finish, it is one of ours, or the run has
            its id.
        IntegrityError: it is damaged.
    """
    mark = find_mark(store, mark_id)
    if mark.ours or _is_run(root, repository, mark.id):
        raise RefusedError(
            f"mark {mark.id!r} is not lakeFS's: this program made it, and has no need to adopt it. "
            f"Sweep it: `{_sweeping(root, repository, mark.id)}`"
        )
    if run == mark.id:
        raise RefusedError(
            f"{run!r} is the id of the mark that is adopted: its lists would mix with those of the "
            "run. Give the run an id of its own"
        )
    return mark


def _sweeping(root: ArtifactRoot, repository: str, run: str) -> str:
    """The command that sweeps a mark of ours."""
    settings: Mapping[str, object] = {}
    with suppress(RefusedError):
        settings = recorded_settings(root.attempt(repository, run))
    return command_line("sweep", repository, "--run", run, settings=settings)


def _is_run(root: ArtifactRoot, repository: str, run: str) -> bool:
    try:
        return root.attempt(repository, run).has("deletion_candidates")
    except RefusedError:
        return False


def adopt(
    work: SessionFolder,
    attempt: AttemptArtifacts,
    mark_id: str,
    dead: DataFrame,
    spared: Sequence[Part],
) -> Adopted:
    """Keep of our candidates what another mark names, too.

    Compared by hashes: all of these are dead by our own mark, whoever else names them.

    ``attempt``: with all assets before the candidates.
    ``dead``: our own candidates (``LISTING``), without what is ``spared`` (``SPARED``).

    Raises:
        RefusedError: it cannot be adopted.
        IntegrityError: it is damaged.
    """
    ctx, frames = work.ctx, work.frames
    store = work.connections.store()
    mark = require_adoptable(store, ctx.root, ctx.repository, ctx.run, mark_id)
    listed = read_mark(work, mark)
    by_list = comparison_relations.by_list(dead, frames.read(listed))
    compared = work.written(by_list, "compared", _COMPARED, _WHAT)
    adopted = work.written(frames.read(compared).where("is_named"), "data", LISTING, _WHAT)
    kept, totals = survivors(work, attempt, spared, frames.read(listed), frames.read(adopted))
    by_why = Counter[str]()
    for row in totals:
        by_why[row["why"]] += row["objects"]
    facts = {
        "mark": mark.id,
        "form": mark.form,
        "url": mark.url,
        "made": mark.made.isoformat(),
        "objects": listed.rows,
        "kept": dict(by_why),
        "not_named": _not_named(work, compared),
    }
    new = frames.read(kept).where(f"kind <> '{SPARED_BY_MARK}'")
    return Adopted(
        adopted,
        work.write(new, "spared", SPARED, _WHAT),
        {"kept": kept.parts},
        {"adopted": facts},
    )


def _not_named(work: SessionFolder, compared: Dataset) -> dict[str, int]:
    """Number and bytes of our candidates that the adopted mark does not name."""
    totals = comparison_relations.totals(work.frames.read(compared), ["is_named"])
    rows = work.collect(totals, _TOTALS, _WHAT)
    found = next((row for row in rows if not row["is_named"]), {"objects": 0, "bytes": 0})
    return {name: found[name] for name in ("objects", "bytes")}
