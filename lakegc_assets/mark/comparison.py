"""Compares two marks, our own or of lakeFS's collector: objects that both or only one names.

Neither mark is trusted. An object that only one mark names is shown with the reason of the run that
marked it, and with the reason of the run that keeps it. In shadow mode each of our marks is
compared with the newest finished mark of a collector of lakeFS's. Nothing depends on the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.mark import comparison_relations
from lakegc_assets.mark.comparison_relations import (
    BOTH,
    FIRST,
    MISSING,
    SECOND,
    STAGED,
)
from lakegc_assets.mark.explanation import staging_areas
from lakegc_assets.mark.foreign_marks import NAMED, find_mark, newest_mark, read_mark
from lakegc_assets.mark.marked_objects import require_candidates
from lakegc_assets.mark.reasons import CANDIDATES, SURVIVORS, Survivors, sentence, survivors
from lakegc_assets.mark.session_folder import SessionFolder
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import HASHES
from lakegc_assets.run.scratch import COMPARED, scratch

#: Columns of a run's candidates for the comparison.
_MARKED = pa.schema([f for f in CANDIDATES if f.name in NAMED.names])


@dataclass(frozen=True)
class Side:
    """One of the two marks."""

    id: str
    #: "run", or the collector that wrote the mark.
    kind: str
    #: Time when the mark was begun.
    made: datetime
    objects: int
    #: Rows of ``NAMED``.
    named: DataFrame
    #: Attempt of the run; None for a foreign mark.
    attempt: AttemptArtifacts | None = None

    def __str__(self) -> str:
        """The name of the mark in messages."""
        return f"run {self.id!r}" if self.attempt else f"mark {self.id!r}"

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        made = self.made.isoformat()
        return {"id": self.id, "kind": self.kind, "made": made, "objects": self.objects}


def side_of(work: SessionFolder, name: str) -> Side:
    """Read one of the marks: the run with this id, or a foreign mark that ``find_mark`` finds.

    Raises:
        RefusedError: the id is of neither, or the mark did not finish.
        IntegrityError: the mark is damaged.
    """
    ctx, connections, frames = work.ctx, work.connections, work.frames
    try:
        attempt = ctx.root.attempt(ctx.repository, name)
    except RefusedError as no_run:
        try:
            mark = find_mark(connections.store(), name)
        except RefusedError as error:
            raise RefusedError(f"{no_run}; and {error}") from error
        named = read_mark(work, mark)
        kind = f"{mark.form} mark of lakeFS's collector"
        return Side(mark.id, kind, mark.made, named.rows, frames.read(named))
    require_candidates(attempt)
    chain = attempt.chain("deletion_candidates", connections.namespace_url)
    candidates = chain["deletion_candidates"]
    marked = frames.read(Dataset(attempt.url, candidates.parts["data"], _MARKED))
    made = chain["store_listing"].start
    as_named = comparison_relations.as_named(marked)
    return Side(name, "run", made, candidates.rows, as_named, attempt)


#: Columns of the inputs and results of relations.
_COMPARED: Final = schema(NAMED, "named_by string")
_TOTALS: Final = schema(
    "named_by string, reason string, branch string, objects bigint, sized bigint, bytes bigint"
)
_SHOWN: Final = schema(
    "address string, reason string, commit_id string, branch string, kind string, why string, "
    "kept_commit string, kept_branch string, size bigint, kept_size bigint"
)
_WHAT: Final = "compare marks"


@dataclass(frozen=True)
class Total:
    """Number of objects and bytes; bytes are None if none of our runs has listed all objects."""

    objects: int = 0
    bytes: int | None = 0

    def __add__(self, other: Total) -> Total:
        known = self.bytes is not None and other.bytes is not None
        size = (self.bytes or 0) + (other.bytes or 0) if known else None
        return Total(self.objects + other.objects, size)


@dataclass(frozen=True)
class Difference:
    """The objects that only one of two marks names."""

    #: Sum of all of them. An object that the store does not hold has no bytes; bytes are None if
    #: sizes are unknown.
    total: Total
    #: By the reason of the run that marked them; empty for a foreign mark.
    marked: Mapping[str, Total]
    #: By the reason of the run that keeps them; empty if the other mark is foreign.
    kept: Mapping[str, Total]
    #: A sample, the largest first: address, size, marked, kept.
    objects: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison of two marks."""

    repository: str
    #: Id, kind, start and number of objects of each mark.
    run: Mapping[str, Any]
    other: Mapping[str, Any]
    both: Total
    only_run: Difference
    only_other: Difference
    #: Sentences that explain the result.
    notes: Sequence[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def compare(ctx: RunContext, run: str, other: str, listed: int) -> Comparison:
    """Compare two marks.

    ``run``: id of a run, or of a foreign mark for ``find_mark``; so is ``other``.
    ``listed``: maximum number of objects to show for each difference.

    Raises:
        RefusedError: a mark is unknown, or did not finish.
        IntegrityError: a mark is damaged.
    """
    ctx = ctx.connect()
    with scratch(ctx.root, ctx.repository, COMPARED) as url, ctx.frames() as frames:
        work = SessionFolder(ctx, frames, url)
        first, second = (
            side_of(work.below(folder), name) for name, folder in ((run, "a/"), (other, "b/"))
        )
        beside = comparison_relations.beside(first.named, second.named)
        compared = work.written(beside, "beside", _COMPARED, _WHAT)
        totals: Sequence[Mapping[str, Any]] = []
        if compared.rows:
            of_groups = comparison_relations.totals(frames.read(compared), _TOTALS.names[:3])
            totals = work.collect(of_groups, _TOTALS, _WHAT)
        asked = _Asked(work, compared, totals, listed)
        return Comparison(
            ctx.repository,
            first.to_json(),
            second.to_json(),
            sum((_total(row) for row in totals if row["named_by"] == BOTH), Total()),
            _difference(asked, FIRST, first, second),
            _difference(asked, SECOND, second, first),
            _notes(first, second),
        )


# Both, and one alone


@dataclass(frozen=True)
class _Asked:
    """Inputs from which the differences are computed."""

    work: SessionFolder
    compared: Dataset
    totals: Sequence[Mapping[str, Any]]
    listed: int


def _difference(asked: _Asked, which: str, side: Side, other: Side) -> Difference:
    """Sums of the objects that only one mark names, with a sample of them."""
    frames, mine = asked.work.frames, [row for row in asked.totals if row["named_by"] == which]
    objects = sum(row["objects"] for row in mine)
    if not objects:
        return Difference(Total(), {}, {}, [])
    alone = frames.read(asked.compared).where(f"named_by = '{which}'")
    kept, totals = _survivors_of(asked, f"{which}/", side, other, alone)
    marked = _by((_marked_because(row), row) for row in mine) if side.attempt else {}
    kept_by = _by((row["why"], row) for row in totals)
    reasons = marked if side.attempt else kept_by
    sizes = [total.bytes for total in reasons.values()]
    size = sum(one or 0 for one in sizes) if sizes and None not in sizes else None
    return Difference(Total(objects, size), marked, kept_by, _largest(asked, alone, kept))


def _survivors_of(
    asked: _Asked, folder: str, side: Side, other: Side, alone: DataFrame
) -> Survivors:
    """The objects of one mark that the other run keeps; none if the other mark is foreign."""
    attempt, work = other.attempt, asked.work.below(folder)
    if attempt is None:
        return Dataset(work.url, [], SURVIVORS), []
    parts = attempt.manifest("deletion_candidates").parts
    candidates = work.frames.read(Dataset(attempt.url, parts["data"], HASHES))
    return survivors(work, attempt, parts["spared"], alone, candidates, side.attempt)


def _largest(asked: _Asked, alone: DataFrame, kept: Dataset) -> list[dict[str, Any]]:
    """The largest objects of a difference; objects without a known size come last."""
    if not asked.listed:
        return []
    judged = comparison_relations.with_survivors(alone, asked.work.frames.read(kept))
    largest = comparison_relations.largest(judged, asked.listed)
    rows = asked.work.collect(largest, _SHOWN, _WHAT)
    staged = {row["address"] for row in rows if row["kind"] == STAGED}
    areas = staging_areas(asked.work.ctx, staged) if staged else {}
    return [
        {
            "address": row["address"],
            "size": row["size"],
            "marked": _marked_sentence(row),
            "kept": "it is staged on branch {!r} at {!r}".format(*areas[row["address"]])
            if row["address"] in areas
            else _survivor_sentence(row),
        }
        for row in rows
    ]


def _total(row: Mapping[str, Any]) -> Total:
    """The total of a group. A missing object has no bytes; another without a size makes it None."""
    known = row["sized"] == row["objects"] or row.get("kind") == MISSING
    return Total(row["objects"], row["bytes"] or 0 if known else None)


def _by(pairs: Iterator[tuple[str | None, Mapping[str, Any]]]) -> dict[str, Total]:
    """Objects and bytes by a key; a row without a key is left out."""
    found: dict[str, Total] = {}
    for key, row in pairs:
        if key is not None:
            found[key] = found.get(key, Total()) + _total(row)
    return dict(sorted(found.items(), key=lambda pair: (-pair[1].objects, pair[0])))


def _marked_because(row: Mapping[str, Any]) -> str | None:
    reason, branch = row["reason"], row["branch"]
    return reason if branch is None else f"{reason}: last held on branch {branch}"


def _marked_sentence(row: Mapping[str, Any]) -> str | None:
    if row["reason"] is None or row["commit_id"] is None:
        return None if row["reason"] is None else str(row["reason"])
    on = f" of branch {row['branch']!r}" if row["branch"] else ""
    return f"{row['reason']}: the commit {row['commit_id']}{on} held it last"


def _survivor_sentence(row: Mapping[str, Any]) -> str | None:
    if row["kind"] is None:
        return None
    of_run = {"size": "kept_size", "commit_id": "kept_commit", "branch": "kept_branch"}
    return sentence({**row, **{name: row[column] for name, column in of_run.items()}})


# Notes on the result


def _notes(first: Side, second: Side) -> list[str]:
    """A note on the order in time of a run and a foreign mark; empty for two of one kind."""
    if (first.attempt is None) == (second.attempt is None):
        return []
    run, mark = (first, second) if first.attempt else (second, first)
    order = "older" if run.made < mark.made else "younger"
    times = (
        f"{run} ({run.made:%Y-%m-%d %H:%M:%S} UTC) is {order} than {mark} "
        f"({mark.made:%Y-%m-%d %H:%M:%S} UTC)"
    )
    if order == "older":
        meaning = (
            f"only {mark} can name objects that were deleted, expired or became old enough in "
            "between. To compare marks of the same time, mark again and compare the new run"
        )
    else:
        meaning = (
            f"only {run} can name objects that became garbage in between, and only {mark} can "
            "name objects that came back to life in between"
        )
    return [f"{times}: {meaning}"]


#: Number of objects of each difference in the report.
_LISTED = 20


def compare_with_newest(ctx: RunContext) -> dict[str, Any]:
    """Compare the candidates of a run with the newest mark of the collector in ``compare_with``.

    Returns:
        A ``Comparison`` as JSON; ``{"problem": sentence}`` if there is no mark or it cannot be
        read; empty if ``compare_with`` is not set.
    """
    collector = ctx.settings.compare_with
    if collector == "none":
        return {}
    try:
        mark = newest_mark(ctx.connect().connections.store(), collector)
        if mark is None:
            problem = (
                "lakeFS's collector has finished no mark of the repository yet (compare_with is "
                f"{collector})"
            )
            ctx.log.warning("%s", problem)
            return {"problem": problem}
        return compare(ctx, ctx.run, mark, _LISTED).to_json()
    except LakegcError as error:
        ctx.log.warning("the mark is not compared with one of lakeFS's collector: %s", error)
        return {"problem": str(error)}
