"""Compares two marks, of ours or of lakeFS's collector: what both name, and what only one does.

Nothing is believed of either: what only one names is said with the reason of the run that marked
it, and with the reason of the run that keeps it.
"""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, PartWriter, read_part
from lakegc_assets.mark.kept import STAGED, sentence, why_kept
from lakegc_assets.mark.named import Named
from lakegc_assets.mark.sides import MARKED, Side, side_of, spread_rows
from lakegc_assets.mark.why import staging_areas
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import address_hashes
from lakegc_assets.run.sets import members
from lakegc_assets.storage.base import ObjectStore


@dataclass(frozen=True)
class Total:
    """Objects and their bytes, which nobody knows of what no run of ours has listed."""

    objects: int = 0
    bytes: int | None = 0

    def __add__(self, other: Total) -> Total:
        known = self.bytes is not None and other.bytes is not None
        size = (self.bytes or 0) + (other.bytes or 0) if known else None
        return Total(self.objects + other.objects, size)


@dataclass(frozen=True)
class Difference:
    """What only one of two marks names.

    Attributes:
        total: of all of it; what is not in the store, or was not listed, counts for no bytes.
        marked: by the reason of the run that marked it; empty for a foreign mark.
        kept: by the reason of the run that keeps it; empty where the other is a foreign mark.
        objects: some of it, the largest first: address, size, marked, kept.
    """

    total: Total
    marked: Mapping[str, Total]
    kept: Mapping[str, Total]
    objects: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Comparison:
    """Two marks beside each other.

    Attributes:
        repository: lakeFS repository.
        run: the first: its id, which kind it is, when it was begun, and what it names.
        other: the second.
        both: what both name.
        only_run: what only the first names.
        only_other: what only the second names.
        notes: what has to be known to read it, in sentences.
    """

    repository: str
    run: Mapping[str, Any]
    other: Mapping[str, Any]
    both: Total
    only_run: Difference
    only_other: Difference
    notes: Sequence[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def compare(ctx: RunContext, run: str, other: str, listed: int) -> Comparison:
    """Compare two marks.

    Args:
        ctx: of the repository; its run is of no interest.
        run: id of a run, or of a foreign mark as ``find_mark`` takes it.
        other: the same.
        listed: how many objects of each difference are to be named.

    Raises:
        RefusedError: one of them is unknown, or did not finish.
        IntegrityError: one of them is damaged.
    """
    client, connections = ctx.connect()
    with _scratch(ctx) as url:
        sides = [side_of(ctx, connections, url, *given) for given in ((run, "a/"), (other, "b/"))]
        pairs = [(sides[0], sides[1]), (sides[1], sides[0])]
        compared = [
            _compared(ctx, connections, ours, theirs, f"{name}/")
            for name, (ours, theirs) in zip(("only-a", "only-b"), pairs, strict=True)
        ]
        store = connections.open(url)
        differences = [
            _difference(store, side, one, listed) for side, one in zip(sides, compared, strict=True)
        ]
        shown = [one for difference in differences for one in difference.objects]
        staged = {one["address"] for one in shown if one.pop("kind") == STAGED}
        if staged:
            areas = staging_areas(client, ctx.repository, connections, staged)
            _name_staging_areas(shown, staged, areas)
        both = min((one.both for one in compared), key=lambda total: total.bytes is None)
        return Comparison(
            ctx.repository,
            _told(sides[0]),
            _told(sides[1]),
            both,
            differences[0],
            differences[1],
            _notes(*sides),
        )


@contextmanager
def _scratch(ctx: RunContext) -> Iterator[str]:
    """A folder below the artifacts that is gone afterwards."""
    name = f"_compared/{secrets.token_hex(8)}"
    store = ctx.root.open(ctx.repository, name)
    try:
        yield f"{ctx.root.url.rstrip('/')}/{ctx.repository}/{name}"
    finally:
        keys = [key for batch in store.list() for key in batch["key"].to_pylist()]
        store.delete_many(keys)


# Both, and one alone


@dataclass(frozen=True)
class _Compared:
    """What one side names, beside the other.

    Attributes:
        both: what the other names, too.
        only: what only this one names inside the namespace (``MARKED``).
        marked: by the reason of this side's run.
        kept: of all that only this one names, why the other's run keeps it (``KEPT``).
    """

    both: Total
    only: Sequence[Part]
    marked: Mapping[str, Total]
    kept: Sequence[Part]


def _compared(
    ctx: RunContext, connections: Connections, side: Side, other: Side, folder: str
) -> _Compared:
    groups, seconds = spread_rows(ctx, side.named.parts)
    task = partial(_split, connections, side.named, other.named.hashes, folder)
    found = ctx.tasks.run("compare marks", task, groups, seconds)
    kept: Sequence[Part] = ()
    if other.attempt is not None:
        candidates = other.attempt.manifest("deletion_candidates")
        kept = why_kept(
            ctx,
            connections,
            other.attempt,
            candidates.parts["spared"],
            other.gone,
            side.named,
            other.named.hashes,
            folder,
        )
    return _Compared(
        sum((both for both, _, _ in found), Total()),
        [part for _, parts, _ in found for part in parts],
        _added([marked for _, _, marked in found]) if side.attempt else {},
        kept,
    )


def _split(
    connections: Connections,
    named: Named,
    others: Sequence[Part],
    folder: str,
    parts: Sequence[Part],
) -> tuple[Total, list[Part], dict[str, Total]]:
    """What both name, files of what one names alone, and that by its reasons."""
    store = connections.open(named.url)
    writer = PartWriter(store, f"{folder}alone/", MARKED)
    both, marked = Total(), dict[str, Total]()
    for part in parts:
        rows = _as_marked(read_part(store, part))
        shared = members(store, others, address_hashes(rows["address"]))
        both += _total(rows.filter(pa.array(shared)))
        alone = rows.filter(pa.array(~shared))
        writer.add(alone)
        marked = _added([marked, _totals(_marked_because(alone), alone["size"])])
    return both, [part for part in writer.finish() if part.rows], marked


def _as_marked(rows: pa.Table) -> pa.Table:
    """Rows of whatever schema with those columns of ``MARKED`` that they have; else nulls."""
    columns = [
        rows[f.name] if f.name in rows.column_names else pa.nulls(rows.num_rows, f.type)
        for f in MARKED
    ]
    return pa.table(columns, schema=MARKED)


def _marked_because(rows: pa.Table) -> pa.ChunkedArray:
    held = pc.binary_join_element_wise(rows["reason"], ": last held on branch ", rows["branch"], "")
    return pc.coalesce(held, rows["reason"])


def _total(rows: pa.Table) -> Total:
    known = rows["size"].null_count == 0
    return Total(rows.num_rows, (pc.sum(rows["size"]).as_py() or 0) if known else None)


def _totals(keys: pa.ChunkedArray, sizes: pa.ChunkedArray) -> dict[str, Total]:
    """Objects and bytes by a key; what has none, or no size, counts for nothing."""
    table = pa.table({"key": keys, "size": sizes}).filter(pc.is_valid(keys)).group_by("key")
    rows = table.aggregate([([], "count_all"), ("size", "sum")]).to_pylist()
    return {row["key"]: Total(row["count_all"], row["size_sum"] or 0) for row in rows}


def _added(totals: Sequence[Mapping[str, Total]]) -> dict[str, Total]:
    found: dict[str, Total] = {}
    for some in totals:
        for key, total in some.items():
            found[key] = found.get(key, Total()) + total
    return dict(sorted(found.items(), key=lambda pair: (-pair[1].objects, pair[0])))


def _difference(store: ObjectStore, side: Side, found: _Compared, listed: int) -> Difference:
    """What only one side names, summed up, and some of it named."""
    kept: dict[str, Total] = {}
    for part in found.kept:
        rows = read_part(store, part, ["why", "size"])
        kept = _added([kept, _totals(rows["why"], rows["size"])])
    objects = sum(part.rows for part in [*found.only, *side.named.elsewhere])
    reasons = found.marked if side.attempt else kept
    size = sum(total.bytes or 0 for total in reasons.values()) if reasons or not objects else None
    return Difference(
        Total(objects, size), found.marked, kept, _largest(store, side, found, listed)
    )


def _largest(store: ObjectStore, side: Side, found: _Compared, listed: int) -> list[dict[str, Any]]:
    """The largest objects of a difference; those that are not there come last."""
    if side.attempt or not found.kept:
        parts = [*found.only, *side.named.elsewhere]
    else:
        parts = list(found.kept)
    largest: list[tuple[int, str]] = []
    for part in parts:
        rows = _as_marked(read_part(store, part))
        sized = zip(rows["size"].to_pylist(), rows["address"].to_pylist(), strict=True)
        some = [(-1 if size is None else size, address) for size, address in sized]
        largest = heapq.nsmallest(listed, [*largest, *some], key=lambda one: (-one[0], one[1]))
    marked = _rows_of(store, found.only if side.attempt else (), largest)
    kept = _rows_of(store, found.kept, largest)
    return [
        {
            "address": address,
            "size": None if size < 0 else size,
            "marked": _marked_sentence(marked.get(address)),
            "kept": sentence(kept[address]) if address in kept else None,
            "kind": kept[address]["kind"] if address in kept else None,
        }
        for size, address in largest
    ]


def _rows_of(
    store: ObjectStore, parts: Sequence[Part], largest: Sequence[tuple[int, str]]
) -> dict[str, dict[str, Any]]:
    wanted = pa.array([address for _, address in largest], pa.string())
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        rows = read_part(store, part)
        some = rows.filter(pc.is_in(rows["address"], wanted)).to_pylist()
        found |= {row["address"]: row for row in some}
    return found


def _marked_sentence(row: Mapping[str, Any] | None) -> str | None:
    if row is None or row["commit_id"] is None:
        return None if row is None else str(row["reason"])
    on = f" of branch {row['branch']!r}" if row["branch"] else ""
    return f"{row['reason']}: the commit {row['commit_id']}{on} held it last"


def _name_staging_areas(
    shown: Sequence[dict[str, Any]], staged: set[str], areas: Iterator[tuple[str, str, str]]
) -> None:
    """Say of staged objects on which branch and path; the search ends with the last of them."""
    found: dict[str, str] = {}
    for address, branch, path in areas:
        found.setdefault(address, f"it is staged on branch {branch!r} at {path!r}")
        if len(found) == len(staged):
            break
    for one in shown:
        one["kept"] = found.get(one["address"], one["kept"])


# What has to be known to read it


def _told(side: Side) -> dict[str, Any]:
    return {
        "id": side.id,
        "kind": side.kind,
        "made": side.made.isoformat(),
        "objects": side.named.objects,
    }


def _notes(first: Side, second: Side) -> list[str]:
    """What the order in time of a run and a foreign mark means."""
    if (first.attempt is None) == (second.attempt is None):
        return []
    run, mark = (first, second) if first.attempt else (second, first)
    order = "older" if run.made < mark.made else "younger"
    times = (
        f"{run.words()} ({run.made:%Y-%m-%d %H:%M:%S} UTC) is {order} than {mark.words()} "
        f"({mark.made:%Y-%m-%d %H:%M:%S} UTC)"
    )
    if order == "older":
        meaning = (
            f"what was deleted, expired or grew old enough in between only {mark.words()} can "
            "name, and that is no fault of either. Mark again, and compare that run"
        )
    else:
        meaning = (
            f"what became garbage in between only {run.words()} can name, and what came back to "
            f"life since is named by {mark.words()} alone"
        )
    return [f"{times}: {meaning}"]
