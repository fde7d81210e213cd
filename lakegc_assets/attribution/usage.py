"""The storage of a repository by branch, path and other dimensions, from a ``storage_attribution``.

Classes cover all listed objects. All other dimensions cover live, committed objects. An object that
several branches share counts for each of them, so the branches do not add up to the total. Paths,
commits, committers, ages and sizes do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lakegc_assets.attribution import relations
from lakegc_assets.attribution.attribution import CELLS, added, attribute
from lakegc_assets.attribution.branch_groups import NO_BRANCH, Groups
from lakegc_assets.attribution.relations import (
    ABOVE,
    AGES,
    COMMITTED,
    GARBAGE,
    NOT_LISTED,
    SIZES,
    UNEXPLAINED,
)
from lakegc_assets.engine.datasets import read_parts
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Dataset, Session
from lakegc_assets.mark.marked_objects import require_candidates
from lakegc_assets.retention.commits import instant
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.wording import counted

_TOTALS: Final = (("objects", pa.int64()), ("bytes", pa.int64()))
_BY_HOLDERS: Final = schema("holders string, also_needed boolean", _TOTALS)
_BY_FOLDER: Final = schema("folder string", _TOTALS)
_WHAT: Final = "add up what is live"
NOBODY: Final = "not attributed"
_NONE: Final = "no branch"


@dataclass(frozen=True)
class Use:
    """The storage of one branch, path, commit, committer, age or size."""

    key: str
    #: The number of objects that it holds.
    objects: int
    #: Bytes of these objects.
    bytes: int
    #: Objects and bytes that no other branch holds; for branches alone.
    only: tuple[int, int] | None = None
    #: Objects and bytes that become free after the branch is deleted and its commits have left
    #: their retention; for branches alone.
    freed: tuple[int, int] | None = None
    #: Further facts of commits.
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        found = {"key": self.key, "objects": self.objects, "bytes": self.bytes, **self.more}
        for name, pair in (("only", self.only), ("freed", self.freed)):
            if pair is not None:
                found |= {f"{name}_objects": pair[0], f"{name}_bytes": pair[1]}
        if self.only is not None:
            found["shared_objects"] = self.objects - self.only[0]
            found["shared_bytes"] = self.bytes - self.only[1]
        return found


@dataclass(frozen=True)
class Usage:
    """The storage of a repository, by one dimension."""

    repository: str
    manifest: Manifest
    by: str
    #: The largest first; ages and sizes in their own order.
    rows: Sequence[Use]
    #: Sentences about classes that do not add up to the mark.
    problems: Sequence[str]

    @property
    def facts(self) -> Mapping[str, Any]:
        """The facts of the ``storage_attribution`` manifest."""
        return self.manifest.facts

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        facts, names = self.facts, ("class", "why", "objects", "bytes")
        return {
            "repository": self.repository,
            "run": self.manifest.run,
            "mode": self.manifest.mode,
            "covers": facts["covers"],
            "problems": list(self.problems),
            "classes": [dict(zip(names, row, strict=True)) for row in facts["classes"]],
            "below_lakefs": [dict(zip(names, row, strict=True)) for row in facts["own_files"]],
            "not_listed": facts["not_listed"],
            "ranges_not_read": facts["ranges_not_read"],
            "logical": logical(self.manifest),
            "by": self.by,
            "rows": [row.to_json() for row in self.rows],
        }


def usage(ctx: RunContext, by: str, depth: int) -> Usage:
    """Add up live storage by a method of ``_Dimensions``; attribute the mark if that is missing.

    ``depth`` is the number of folders of a path that are used.

    Raises:
        RefusedError: the run is unknown, or its mark did not finish.
        IntegrityError: an artifact of the mark is missing, or differs from its manifest.
    """
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    require_candidates(attempt)
    manifest = attribute(ctx)
    ctx = ctx.connect()
    with ctx.frames() as frames:
        cells = frames.read(Dataset(attempt.url, manifest.parts["data"], CELLS))
        live = cells.where(f"class = '{COMMITTED}'")
        dimensions = _Dimensions(frames, live, attempt, manifest, depth)
        rows: list[Use] = getattr(dimensions, f"by_{by}")()
    return Usage(ctx.repository, manifest, by, rows, problems(attempt, manifest))


def logical(manifest: Manifest) -> dict[str, Any]:
    """Sizes of commits and HEADs as if they shared no objects, and the stored size to compare.

    Returns:
        ``stored``, ``of_heads`` and ``of_commits``, with objects and bytes each. Stored sizes come
        from entries, also of objects that the listing lacks.
    """
    facts = manifest.facts
    names = ("class", "why", "objects", "bytes")
    classes = [dict(zip(names, row, strict=True)) for row in facts["classes"]]
    stored = [row for row in classes if row["class"] == COMMITTED]
    return {
        "stored": added([*stored, facts["not_listed"]]),
        "of_heads": added(facts["logical"]["heads"].values()),
        "of_commits": facts["logical"]["commits"],
    }


@dataclass(frozen=True)
class _Dimensions:
    """The rows of a ``storage_attribution`` by each dimension, in methods of its name."""

    frames: Session
    #: The cells of live, committed objects.
    live: DataFrame
    attempt: AttemptArtifacts
    manifest: Manifest
    #: Number of folders of a path that make a row.
    depth: int

    def by_branch(self) -> list[Use]:
        groups = self._groups()
        by_holders = relations.totals(self.live, ["holders", "also_needed"])
        # A mark in the mode committed did not list the objects that active commits hold.
        listed = self.manifest.mode != "committed"
        branches = range(1, len(groups.branches) + 1) if listed else ()
        #: Objects and bytes of each branch: all, only its own, and those that its end frees.
        held = {1 << n: [(0, 0)] * 3 for n in branches}
        unknown = (0, 0)
        for row in self.frames.collect_rows(by_holders, _BY_HOLDERS, _WHAT):
            objects, size = row["objects"], row["bytes"]
            if row["holders"] is None:
                unknown = unknown[0] + objects, unknown[1] + size
                continue
            members = groups.united(row["holders"])
            alone = members & (members - 1) == 0
            counts = (True, alone, alone and not row["also_needed"])
            for bit in _bits(members):
                totals = zip(held.get(bit, [(0, 0)] * 3), counts, strict=True)
                held[bit] = [(o + objects * n, b + size * n) for (o, b), n in totals]
        frees = self.manifest.facts["rules"] is not None and self.manifest.mode != "uncommitted"
        rows = []
        for bit, (all_, only, freed) in held.items():
            name = _NONE if bit == NO_BRANCH else groups.branches[bit.bit_length() - 2]
            more = (freed if frees else (0, 0)) if listed and bit != NO_BRANCH else None
            rows.append(Use(name, *all_, only, more))
        rows.sort(key=lambda row: (-(row.only or (0, 0))[1], -row.bytes, row.key))
        return [*rows, *([Use(NOBODY, *unknown)] if unknown[0] else [])]

    def by_path(self) -> list[Use]:
        found = self.frames.collect_rows(
            relations.by_folder(self.live, self.depth), _BY_FOLDER, _WHAT
        )
        rows = [
            Use(
                NOBODY if row["folder"] is None else row["folder"] or "(root)",
                *(row["objects"], row["bytes"]),
            )
            for row in found
        ]
        return _largest_first(rows)

    def by_commit(self) -> list[Use]:
        commits = self.attempt.rows(self.manifest, "commits").to_pylist()
        rows = []
        for row in self._numbered("oldest"):
            if row["oldest"] is None:
                rows.append(Use(NOBODY, row["objects"], row["bytes"]))
                continue
            commit = commits[row["oldest"]]
            made = instant(commit["creation_date"]).isoformat()
            more = {"committer": commit["committer"], "made": made, "branch": commit["branch"]}
            rows.append(Use(commit["commit_id"], row["objects"], row["bytes"], more=more))
        return _largest_first(rows)

    def by_committer(self) -> list[Use]:
        found: dict[str, tuple[int, int]] = {}
        for row in self.by_commit():
            name = row.more.get("committer", NOBODY) or "(no name)"
            objects, size = found.get(name, (0, 0))
            found[name] = objects + row.objects, size + row.bytes
        return _largest_first([Use(name, *total) for name, total in found.items()])

    def by_age(self) -> list[Use]:
        names = {days: f"up to {counted(days, 'day')}" for days in AGES}
        return self._in_order("age", names | {ABOVE: f"over {counted(AGES[-1], 'day')}"})

    def by_size(self) -> list[Use]:
        names = {most: f"up to {_power(most)}" for most in SIZES}
        return self._in_order("size_class", names | {ABOVE: f"over {_power(SIZES[-1])}"})

    def _groups(self) -> Groups:
        branches = self.manifest.facts["branches"]
        bits = {name: 2 << number for number, name in enumerate(branches)}
        sets: dict[int, int] = {}
        for row in self.attempt.rows(self.manifest, "groups").to_pylist():
            bit = NO_BRANCH if row["branch"] is None else bits[row["branch"]]
            sets[row["group"]] = sets.get(row["group"], 0) | bit
        return Groups(branches, [sets[number] for number in range(len(sets))], {})

    def _numbered(self, column: str) -> list[dict[str, Any]]:
        found, kinds = relations.totals(self.live, [column]), schema(f"{column} bigint", _TOTALS)
        rows: list[dict[str, Any]] = self.frames.collect_rows(found, kinds, _WHAT)
        return rows

    def _in_order(self, column: str, names: Mapping[int, str]) -> list[Use]:
        known = {row[column]: row for row in self._numbered(column)}
        return [
            Use(name, known[number]["objects"], known[number]["bytes"])
            for number, name in names.items()
            if number in known
        ]


def _bits(members: int) -> list[int]:
    return [1 << bit for bit in range(members.bit_length()) if members >> bit & 1]


def _power(size: int) -> str:
    """A power of two, in the largest unit that divides it."""
    step = (size.bit_length() - 1) // 10
    return f"{size >> 10 * step:,} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[step]}"


def _largest_first(rows: Sequence[Use]) -> list[Use]:
    return sorted(rows, key=lambda row: (-row.bytes, row.key))


def problems(attempt: AttemptArtifacts, attribution: Manifest) -> list[str]:
    """One sentence for each sum that differs from the manifests of listing and candidates.

    The rows are read from their files and added up here, without the relations that made them.
    """
    objects: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    columns = ["class", "objects", "bytes"]
    for rows in read_parts(attempt.store(), attribution.parts["data"], columns):
        for name in rows["class"].unique().to_pylist():
            mine = rows.filter(pc.equal(rows["class"], name))
            objects[name] += pc.sum(mine["objects"]).as_py()
            sizes[name] += pc.sum(mine["bytes"]).as_py()
    listing, candidates = map(attempt.manifest, ("store_listing", "deletion_candidates"))
    reasons = candidates.facts["by_reason"].values()
    found = {
        "objects that are listed": (objects.total() - objects[NOT_LISTED], listing.rows),
        "bytes that are listed": (sizes.total() - sizes[NOT_LISTED], listing.facts["bytes"]),
        "candidates": (objects[GARBAGE], candidates.rows),
        "bytes of candidates": (sizes[GARBAGE], sum(one["bytes"] for one in reasons)),
    }
    sentences = [
        f"{what}: the classes have {ours:,}, and the mark has {theirs:,}"
        for what, (ours, theirs) in found.items()
        if ours != theirs
    ]
    if unexplained := objects[UNEXPLAINED]:
        sentences.append(
            f"{counted(unexplained, 'object')} that the mark keeps for no recorded reason"
        )
    return sentences
