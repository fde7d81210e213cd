"""Makes a run from a mark of lakeFS's collector: the objects that both that mark and ours name.

Our own mark is made as usual. Objects that only the other mark names are spared, with the reason.
Objects that only our mark names are left for a run of their own.
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
from lakegc_assets.mark.served_candidates import SPARED
from lakegc_assets.mark.session_folder import SessionFolder
from lakegc_assets.run.artifacts import LISTING, ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.command_line import command_line, recorded_settings
from lakegc_assets.storage.base import ObjectStore

_WHAT: Final = "compare with the adopted mark"
_TOTALS: Final = schema("is_named boolean, objects bigint, bytes bigint")
_COMPARED: Final = LISTING.append(pa.field("is_named", pa.bool_()))


@dataclass(frozen=True)
class Adopted:
    """The remaining candidates after a mark was adopted."""

    #: Candidates that the adopted mark names, too (``LISTING``).
    dead: Dataset
    #: Objects that it names and our mark keeps (``SPARED``); the part ``kept`` has the details.
    spared: Sequence[Part] = ()
    parts: Mapping[str, Sequence[Part]] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)


def require_adoptable(
    store: ObjectStore, root: ArtifactRoot, repository: str, run: str, mark_id: str
) -> ForeignMark:
    """The mark of lakeFS's collector from which a run may be made.

    ``run``: id of the run that adopts it.

    Raises:
        RefusedError: there is no such mark, it did not finish or is our own, or the run has its id.
        IntegrityError: the mark is damaged.
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
            "run. Choose another id for the run (--run)"
        )
    return mark


def _sweeping(root: ArtifactRoot, repository: str, run: str) -> str:
    """The command that sweeps one of our own marks."""
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
    """Keep only the candidates that another mark names, too.

    Compared by hashes: our own mark has proven all candidates dead, even without the other mark.

    ``attempt``: with all assets before the candidates.
    ``dead``: our own candidates (``LISTING``), without ``spared`` objects (``SPARED``).

    Raises:
        RefusedError: the mark cannot be adopted.
        IntegrityError: the mark is damaged.
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
