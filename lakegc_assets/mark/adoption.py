"""Makes a run out of a mark that lakeFS's collector wrote: what both that mark and ours name.

Our own mark is made as always. What the other one names and ours does not is spared, with the
reason; what only ours names is left for a run of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, PartWriter, read_part
from lakegc_assets.engine.tasks import bin_pack
from lakegc_assets.errors import RefusedError
from lakegc_assets.mark.foreign import ForeignMark, find_mark
from lakegc_assets.mark.kept import SPARED_BY_MARK, why_kept
from lakegc_assets.mark.named import Named, read_mark
from lakegc_assets.mark.served import SPARED
from lakegc_assets.run.artifacts import LISTING, ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.command_line import command_line, recorded_settings
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes, address_hashes
from lakegc_assets.run.selection import Selection
from lakegc_assets.run.sets import members, write_set
from lakegc_assets.storage.base import ObjectStore

_FOLDER: Final = "deletion_candidates/adopted/"
#: Work on one core, in seconds, to compare a candidate.
_ROW_S: Final = 1e-6


@dataclass(frozen=True)
class Adopted:
    """What is left of our own candidates where another mark was adopted.

    Attributes:
        dead: the candidates that it names, too; all of ours where none was adopted.
        spared: what it names, and ours keeps (``SPARED``).
        parts: parts of the asset: ``kept`` (``KEPT``) says more about the same.
        facts: for the manifest.
    """

    dead: Selection
    spared: Sequence[Part] = ()
    parts: Mapping[str, Sequence[Part]] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)


def require_adoptable(
    store: ObjectStore, root: ArtifactRoot, repository: str, run: str, mark_id: str
) -> ForeignMark:
    """The mark of lakeFS's that a run may be made of.

    Args:
        store: rooted at the namespace.
        root: of the artifacts.
        repository: lakeFS repository.
        run: id of the run that adopts it.
        mark_id: its id, as ``find_mark`` takes it.

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
    of_run = repository, "--run", run
    try:
        settings = recorded_settings(root.attempt(repository, run))
    except RefusedError:
        return command_line("sweep", *of_run)
    return command_line("sweep", *of_run, settings=settings)


def _is_run(root: ArtifactRoot, repository: str, run: str) -> bool:
    try:
        return root.attempt(repository, run).has("deletion_candidates")
    except RefusedError:
        return False


def adopt(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    dead: Selection,
    gone: Sequence[Part],
) -> Adopted:
    """Keep of our candidates what the mark that is adopted names; all of them without one.

    Args:
        ctx: the run.
        connections: how tasks reach the stores.
        attempt: with all assets before the candidates.
        dead: our own candidates, ``LISTING``, without what is spared.
        gone: runs of the hashes of what sweeps have deleted since it was listed.

    Raises:
        RefusedError: it cannot be adopted.
        IntegrityError: it is damaged.
    """
    if ctx.settings.adopt is None:
        return Adopted(dead)
    mark = require_adoptable(
        connections.store(), ctx.root, ctx.repository, ctx.run, ctx.settings.adopt
    )
    named = read_mark(ctx, connections, mark, attempt.url, _FOLDER)
    chosen = _choose(ctx, connections, attempt, dead, named)
    store = attempt.store()
    candidates = write_set(store, f"{_FOLDER}candidates/", [one.hashes for one in chosen])
    kept = why_kept(ctx, connections, attempt, dead.without, gone, named, candidates, _FOLDER)
    not_named = {
        "objects": sum(one.objects for one in chosen),
        "bytes": sum(one.size for one in chosen),
    }
    facts = {
        "mark": mark.id,
        "form": mark.form,
        "url": mark.url,
        "made": mark.made.isoformat(),
        "objects": named.objects,
        "kept": dict(_by_why(store, kept)),
        "not_named": not_named,
    }
    return Adopted(
        Selection([part for one in chosen for part in one.parts], dead.without),
        _spared(store, kept),
        {"kept": kept},
        {"adopted": facts},
    )


@dataclass(frozen=True)
class _Chosen:
    """Of some candidates those that the mark names, and how much it does not name."""

    parts: Sequence[Part]
    hashes: Hashes
    objects: int
    size: int


def _choose(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    dead: Selection,
    named: Named,
) -> list[_Chosen]:
    costs = [part.rows * _ROW_S for part in dead.parts]
    groups = bin_pack(dead.parts, costs, ctx.settings.address_num_partitions)
    task = partial(_named_of, connections, attempt.url, dead, named)
    return ctx.tasks.run("compare with the adopted mark", task, groups, sum(costs))


def _named_of(
    connections: Connections, url: str, dead: Selection, named: Named, parts: Sequence[Part]
) -> _Chosen:
    """Compared by hashes: all of these are dead by our own mark, whoever else names them."""
    store = connections.open(url)
    writer = PartWriter(store, f"{_FOLDER}data/", LISTING)
    found: list[Hashes] = []
    objects = size = 0
    for part in parts:
        rows = dead.read(store, part)
        hashes = address_hashes(rows["address"])
        chosen = members(store, named.hashes, hashes)
        found.append(hashes[chosen])
        writer.add(rows.filter(pa.array(chosen)))
        rest = rows.filter(pa.array(~chosen))
        objects += rest.num_rows
        size += pc.sum(rest["size"]).as_py() or 0
    written = [part for part in writer.finish() if part.rows]
    return _Chosen(written, np.concatenate([np.empty(0, np.uint64), *found]), objects, size)


def _spared(store: ObjectStore, kept: Sequence[Part]) -> list[Part]:
    """What the mark names and ours keeps, but for what ours had spared before."""
    writer = PartWriter(store, f"{_FOLDER}spared/", SPARED)
    for part in kept:
        rows = read_part(store, part, ["address", "kind", "why"])
        new = rows.filter(pc.not_equal(rows["kind"], SPARED_BY_MARK))
        writer.add(new.select(SPARED.names).cast(SPARED))
    return [part for part in writer.finish() if part.rows]


def _by_why(store: ObjectStore, kept: Sequence[Part]) -> Counter[str]:
    whys = (read_part(store, part, ["why"])["why"].to_pylist() for part in kept)
    return Counter(why for some in whys for why in some)
