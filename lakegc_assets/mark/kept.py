"""Why a run keeps objects that another list names: the judgement of its own mark, object by object.

Objects are found by their hashes. Nothing is deleted for what is said here: at worst an object that
is kept gets the reason of another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, PartWriter, read_part
from lakegc_assets.engine.tasks import bin_pack
from lakegc_assets.mark.addresses import in_data
from lakegc_assets.mark.named import Named
from lakegc_assets.mark.reasons import Holders, find_holders, ranks_of
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import address_hashes
from lakegc_assets.run.sets import members, union, write_set
from lakegc_assets.storage.base import ObjectStore

#: ``size`` is null for what the store does not hold, ``commit_id`` for what no commit holds.
KEPT: Final = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64()),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("why", pa.string(), nullable=False),
        pa.field("commit_id", pa.string()),
        pa.field("branch", pa.string()),
    ]
)
_FOUND: Final = pa.schema(list(KEPT)[:4])
COMMITTED: Final = "committed"
STAGED: Final = "staged"
REFERENCED: Final = "referenced"
SPARED_BY_MARK: Final = "spared"
#: What a run says of each kind; ``spared`` has reasons of its own.
WHY: Final = {
    COMMITTED: "an active commit holds it",
    STAGED: "it is staged on a branch",
    REFERENCED: "another repository names it by its full address",
    "too young": "it was written after the cutoff",
    "outside data": "it is neither below data/ nor at the root, where lakeFS writes objects",
    "missing": "the store does not hold it",
    "elsewhere": "it is not in the namespace",
    "not adopted": "the mark that the run adopted does not name it",
    "other": "the run keeps it",
}
#: Work on one core, in seconds, to look at a row.
_ROW_S: Final = 1e-6


@dataclass(frozen=True)
class _Question:
    """What the tasks need to know.

    Attributes:
        connections: how to reach the stores.
        run_url: of the artifacts of the run that is asked.
        url: of the store of the list, and of what is written.
        folder: relative to it, with a slash at its end.
        named: runs of the hashes of what the list names.
        candidates: those of what the run would delete of it.
        committed: those of what active commits hold.
        staged: those of what is staged.
        referenced: those of what other repositories name.
        gone: those of what sweeps have deleted since it was listed.
        spared: what the run spared, and why.
        cutoff: what was written since then is too young.
        skipped: folders that were not listed, since they are too young.
        otherwise: the kind of what is kept for none of the other reasons.
    """

    connections: Connections
    run_url: str
    url: str
    folder: str
    named: Sequence[Part]
    candidates: Sequence[Part]
    committed: Sequence[Part]
    staged: Sequence[Part]
    referenced: Sequence[Part]
    gone: Sequence[Part]
    spared: Sequence[Part]
    cutoff: datetime
    skipped: frozenset[str]
    otherwise: str


def why_kept(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    spared: Sequence[Part],
    gone: Sequence[Part],
    named: Named,
    candidates: Sequence[Part],
    folder: str,
) -> list[Part]:
    """Say of each object that a list names, and a run would not delete, why it stays (``KEPT``).

    Args:
        ctx: a run.
        connections: how tasks reach the stores.
        attempt: of the run that is asked, with all before its candidates.
        spared: what that run spared, in its own store.
        gone: runs of the hashes of what sweeps have deleted since it was listed, in the store of
            the list.
        named: what the list names.
        candidates: those of what that run would delete, in the same store.
        folder: where to write in the store of the list, with a slash at its end.

    Raises:
        IntegrityError: a file is not what it was.
    """
    listing = attempt.manifest("store_listing")
    question = _Question(
        connections,
        attempt.url,
        named.url,
        folder,
        named.hashes,
        candidates,
        attempt.manifest("committed_addresses").parts["data"],
        attempt.manifest("uncommitted_snapshot").parts["hashes"],
        attempt.manifest("committed_addresses").parts.get("referenced", ()),
        gone,
        spared,
        listing.cutoff,
        frozenset(listing.facts.get("skipped_slices", ())),
        "not adopted" if _has_adopted(attempt) else "other",
    )
    most = ctx.settings.address_num_partitions

    def over(what: str, task: Any, parts: Sequence[Part]) -> list[Any]:  # noqa: ANN401 - any task
        costs = [part.rows * _ROW_S for part in parts]
        return ctx.tasks.run(what, task, bin_pack(parts, costs, most), sum(costs))

    listed = over("judge listed objects", partial(_listed, question), listing.parts["data"])
    known = [part for _, runs in listed for part in runs]
    unlisted = over("judge other objects", partial(_unlisted, question, known), named.parts)
    elsewhere = over("judge addresses", partial(_elsewhere, question), named.elsewhere)
    found = [part for parts, _ in listed for part in parts]
    found += [part for parts in [*unlisted, *elsewhere] for part in parts]
    found = [part for part in found if part.rows]
    holders = _holders(ctx, connections, attempt, question, found)
    written = over("name holders", partial(_with_holders, question, holders), found)
    return [part for parts in written for part in parts]


def _has_adopted(attempt: AttemptArtifacts) -> bool:
    """Whether the candidates of a run that has some are those of a mark that it adopted."""
    asset = "deletion_candidates"
    return attempt.has(asset) and "adopted" in attempt.manifest(asset).facts


def _listed(question: _Question, parts: Sequence[Part]) -> tuple[list[Part], list[Part]]:
    """What the listing knows of: with its reasons, and the runs of its hashes."""
    asked, where = _stores(question)
    writer = PartWriter(where, f"{question.folder}found/", _FOUND)
    seen = []
    for part in parts:
        rows = read_part(asked, part, ["address", "size", "last_modified"])
        hashes = address_hashes(rows["address"])
        wanted = members(where, question.named, hashes)
        wanted &= ~members(where, question.candidates, hashes)
        wanted &= ~members(where, question.gone, hashes)
        if wanted.any():
            rows = rows.filter(pa.array(wanted))
            seen.append(hashes[wanted])
            kind, why = _reasons(question, asked, rows)
            table = [rows["address"], rows["size"], kind, why]
            writer.add(pa.table(table, schema=_FOUND))
    return writer.finish(), write_set(where, f"{question.folder}listed/", seen)


def _reasons(question: _Question, asked: ObjectStore, rows: pa.Table) -> tuple[pa.Array, pa.Array]:
    """Kind and reason of each of some listed objects, which the run would not delete."""
    addresses, hashes = rows["address"], address_hashes(rows["address"])
    cutoff = pa.scalar(question.cutoff, rows["last_modified"].type)
    outside = ~in_data(addresses).to_numpy()
    young = pc.greater_equal(rows["last_modified"], cutoff).to_numpy()
    committed = members(asked, question.committed, hashes)
    staged = members(asked, question.staged, hashes)
    referenced = members(asked, question.referenced, hashes)
    kinds = np.full(rows.num_rows, question.otherwise, object)
    whys = np.full(rows.num_rows, WHY[question.otherwise], object)
    for part in question.spared:
        known = read_part(asked, part, ["address", "why"])
        at = pc.index_in(addresses, known["address"].combine_chunks())
        there = at.is_valid().to_numpy()
        kinds[there] = SPARED_BY_MARK
        whys[there] = known["why"].take(at.drop_null()).to_numpy()
    for kind, those in (
        (REFERENCED, referenced),
        (STAGED, staged),
        (COMMITTED, committed),
        ("too young", young),
        ("outside data", outside),
    ):
        kinds[those], whys[those] = kind, WHY[kind]
    return pa.array(kinds, pa.string()), pa.array(whys, pa.string())


def _unlisted(question: _Question, known: Sequence[Part], parts: Sequence[Part]) -> list[Part]:
    """What the listing does not know of; what is needed and lost, or was not looked at, too."""
    asked, where = _stores(question)
    writer = PartWriter(where, f"{question.folder}found/", _FOUND)
    for part in parts:
        addresses = read_part(where, part)["address"]
        hashes = address_hashes(addresses)
        rest = ~members(where, [*known, *question.candidates], hashes)
        addresses, hashes = addresses.filter(pa.array(rest)), hashes[rest]
        folders = pc.struct_field(
            pc.extract_regex(addresses.combine_chunks(), "^(?P<folder>[^/]*/[^/]*/)"), "folder"
        )
        skipped = pc.is_in(folders, pa.array(sorted(question.skipped), pa.string()))
        kind = pc.case_when(
            pc.make_struct(
                pc.invert(in_data(addresses)).combine_chunks(),
                pa.array(members(asked, question.committed, hashes)),
                pa.array(members(asked, question.staged, hashes)),
                pa.array(members(asked, question.referenced, hashes)),
                skipped,
            ),
            *("outside data", COMMITTED, STAGED, REFERENCED, "too young", "missing"),
        )
        why = pa.array([WHY[one] for one in kind.to_pylist()], pa.string())
        size = pa.nulls(len(addresses), pa.int64())
        writer.add(pa.table([addresses, size, kind, why], schema=_FOUND))
    return writer.finish()


def _elsewhere(question: _Question, parts: Sequence[Part]) -> list[Part]:
    _, where = _stores(question)
    writer = PartWriter(where, f"{question.folder}found/", _FOUND)
    for part in parts:
        rows = read_part(where, part)
        size = pa.nulls(rows.num_rows, pa.int64())
        kind = pa.repeat("elsewhere", rows.num_rows)
        writer.add(pa.table([rows["address"], size, kind, rows["why"]], schema=_FOUND))
    return writer.finish()


def _stores(question: _Question) -> tuple[ObjectStore, ObjectStore]:
    """The store of the run that is asked, and that of the list."""
    return question.connections.open(question.run_url), question.connections.open(question.url)


# Who holds it


def _holders(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    question: _Question,
    found: Sequence[Part],
) -> Holders:
    """Which active commit holds what is kept as committed: a HEAD if there is one."""
    where = connections.open(question.url)
    held = [np.empty(0, np.uint64)]
    for part in found:
        rows = read_part(where, part, ["address", "kind"])
        held.append(address_hashes(rows.filter(pc.equal(rows["kind"], COMMITTED))["address"]))
    columns = ["commit_id", "branch", "kind", "metarange_id"]
    commits: list[Mapping[str, Any]] = []
    if any(len(hashes) for hashes in held):
        commits = attempt.read("active_commits", columns=columns).to_pylist()
    commits.sort(key=lambda c: (c["kind"] == "head", c["branch"] or "", c["commit_id"]))
    hashes = union(held)
    return find_holders(ctx, connections, question.url, question.folder, commits, hashes)


def _with_holders(question: _Question, holders: Holders, parts: Sequence[Part]) -> list[Part]:
    _, where = _stores(question)
    last, commits = read_part(where, holders.last), read_part(where, holders.commits)
    writer = PartWriter(where, f"{question.folder}kept/", KEPT)
    for part in parts:
        rows = read_part(where, part)
        rank = ranks_of(last, address_hashes(rows["address"]))
        rank = pc.if_else(pc.equal(rows["kind"], COMMITTED), rank, None)
        writer.add(
            pa.table(
                [*rows.columns, commits["commit_id"].take(rank), commits["branch"].take(rank)],
                schema=KEPT,
            )
        )
    return [part for part in writer.finish() if part.rows]


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
        why = f"{why}, or without rules any range below _lakefs/"
    if row["kind"] in {COMMITTED, STAGED} and row["size"] is None:
        why = f"{why}, and it is not in the run's listing of the store"
    return why
