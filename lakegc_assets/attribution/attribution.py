"""``storage_attribution``: the class of each listed byte, and the holders of the live bytes.

No other asset depends on it. It reads the artifacts of the mark and the caches that the mark
filled. It does not decode ranges that the cache lacks: objects that only those ranges name are live
and not attributed.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from lakegc_assets.attribution import relations
from lakegc_assets.attribution.branch_groups import Ancestor, Groups, group, keepers
from lakegc_assets.attribution.relations import (
    LAKEFS,
    NOT_ADOPTED,
    NOT_LISTED,
    PRINT_BITS,
    UNEXPLAINED,
    UNKNOWN,
    WORD,
    words_of,
)
from lakegc_assets.engine.datasets import Part, write_part
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Dataset, Session
from lakegc_assets.mark.committed_addresses import PATH_RANGES
from lakegc_assets.mark.incremental_listing import sweeps_since
from lakegc_assets.mark.live_ranges import every_range
from lakegc_assets.mark.metaranges import pairs_frame
from lakegc_assets.mark.publication import OURS as OUR_FILES
from lakegc_assets.mark.ranges import cached_frame
from lakegc_assets.mark.served_candidates import SPARED as SPARED_ROWS
from lakegc_assets.mark.session_folder import SessionFolder
from lakegc_assets.retention.retained_commits import lengthen, protecting
from lakegc_assets.retention.rules import Rules
from lakegc_assets.run.artifacts import LISTING, AttemptArtifacts
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import HASHES
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.run.pins import PINS
from lakegc_assets.run.scratch import remove
from lakegc_assets.run.settings import recorded_retain
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.trash import TRASH
from lakegc_assets.wording import counted

ASSET: Final = "storage_attribution"
_WHAT: Final = "attribute what is listed"
_OBJECTS: Final = (("objects", pa.int64()), ("bytes", pa.int64()))
CELLS: Final = schema(
    "class string, why string, holders string, also_needed boolean, folder string, age bigint, "
    "size_class bigint, oldest bigint",
    _OBJECTS,
)
#: The branches of each group; null for the bit of no branch.
GROUPS: Final = schema("group bigint, branch string")
#: The active commits, the oldest first.
COMMITS: Final = schema(
    "age_rank bigint, commit_id string, committer string, creation_date bigint, branch string"
)
_CLASSES: Final = schema("class string, why string", _OBJECTS)
_TIME: Final = LISTING.field("last_modified").type
_GARBAGE: Final = schema((LISTING.field(name) for name in ("address", "hash")), "reason string")
_LISTED: Final = pa.schema(
    [LISTING.field(n) for n in ("address", "hash", "size", "last_modified", "in_place")]
)
_SIZES: Final = schema("metarange_id string", _OBJECTS)
_ENTRIES: Final = ("range_id", "hash", "size", "folder")
_PRINTS: Final = pa.schema([(name, pa.int64()) for name in relations.PRINTS])
_RANGES: Final = schema("range_id string", _PRINTS, "oldest bigint")
#: The folders of entries, and the place of each folder in sorted order.
_FOLDERS: Final = schema("folder string, place bigint")
#: Objects that entries name, before the join with the listing.
_NAMED: Final = schema("hash bigint, entry_size bigint, place bigint, oldest bigint", _PRINTS)
#: The ranges that hold the objects of each pair of prints.
_HOLDING: Final = schema(_PRINTS, "range_id string")
#: Cells, before the join with holders and folders.
_PRINTED: Final = schema(
    (field for field in CELLS if field.name not in {"holders", "folder"}),
    "place bigint",
    _PRINTS,
    "object bigint",
)
OURS: Final = "ours"
_FOLDER: Final = "_lakefs/"
_TABLE: Final = re.compile(r"_lakefs/[0-9a-f]{64}")
_GC: Final = "_lakefs/retention/gc/"
_MARK: Final = re.compile(
    rf"{_GC}(?:unified|uncommitted|addresses|addresses\.text|reports)/(?:mark_id=)?([^/]+)/"
)
#: Kinds by key prefix; the first match decides.
_KINDS: Final = (
    (TRASH, OURS, "trash"),
    (PINS, OURS, "pins"),
    (f"{_GC}lakegc/", OURS, "leases and holds"),
    (_GC, LAKEFS, "its marks, and what it prepared for them"),
    ("_lakefs/retention/", LAKEFS, "rules"),
    ("_lakefs/actions/", LAKEFS, "logs of actions"),
    ("_lakefs/exported/", LAKEFS, "exports to catalogs"),
    ("_lakefs/dummy", LAKEFS, "dummy"),
    ("_lakefs/refs_manifest.json", LAKEFS, "dumps of refs"),
)


@dataclass(frozen=True)
class _Commits:
    """The active commits of a mark."""

    #: Rows of ``COMMITS``, with metarange_id.
    rows: Sequence[Mapping[str, Any]]
    #: Groups of their metaranges.
    groups: Groups
    #: Branch → the metarange of its HEAD.
    heads: Mapping[str, str]

    def table(self) -> pa.Table:
        """metarange_id, age_rank, and the words with the bit of the group; each metarange once."""
        oldest: dict[str, int] = {}
        for row in self.rows:
            oldest.setdefault(row["metarange_id"], row["age_rank"])
        found = self.groups.of_metarange
        columns: dict[str, pa.Array] = {
            "metarange_id": pa.array(list(found), pa.string()),
            "age_rank": pa.array([oldest[metarange] for metarange in found], pa.int64()),
        }
        for number, word in enumerate(self.words):
            bits = [1 << g % WORD if g // WORD == number else 0 for g in found.values()]
            columns[word] = pa.array(bits, pa.int64())
        return pa.table(columns)

    @property
    def words(self) -> list[str]:
        """Names of the columns that hold the bits of all groups."""
        return words_of(len(self.groups.sets))


def attribute(ctx: RunContext) -> Manifest:
    """Write the ``storage_attribution`` asset of a mark, unless it exists.

    The asset has rows of ``CELLS``, the parts ``groups`` and ``commits``, and facts.

    Raises:
        IntegrityError: an artifact of the mark is missing, or differs from its manifest.
    """
    started = ctx.clocks.now()
    ctx = ctx.connect()
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    if attempt.has(ASSET):
        return attempt.manifest(ASSET)
    chain = attempt.chain("deletion_candidates", ctx.connections.namespace_url)
    commits = _commits(ctx, attempt, chain)
    store, working = attempt.store(), f"{ASSET}/working-{secrets.token_hex(8)}/"
    try:
        with ctx.frames() as frames:
            work = SessionFolder(ctx, frames, attempt.url, working)
            parts, facts = _computed(work, attempt, chain, commits)
    finally:
        remove(store, working)
    parts["groups"] = [write_part(store, f"{ASSET}/groups/", _groups(commits.groups))]
    rows = pa.Table.from_pylist([dict(row) for row in commits.rows], COMMITS)
    parts["commits"] = [write_part(store, f"{ASSET}/commits/", rows)]
    runs = ctx.root.runs(ctx.repository)
    facts["own_files"] = [list(row) for row in own_files(ctx.connections.store(), runs)]
    facts["branches"] = list(commits.groups.branches)
    facts["rules"] = chain["active_commits"].facts["rules"]
    return ctx.finish(ASSET, chain["deletion_candidates"], started, parts, facts)


def _commits(ctx: RunContext, attempt: AttemptArtifacts, chain: Mapping[str, Manifest]) -> _Commits:
    manifest = chain["active_commits"]

    active, expired, heads, tagged = (
        attempt.rows(manifest, part).to_pylist() for part in ("data", "expired", "heads", "tags")
    )
    active.sort(key=lambda row: (row["creation_date"], row["commit_id"]))
    known = {
        row["commit_id"]: Ancestor(row["creation_date"], row["main_parent"])
        for row in (*active, *expired)
    }
    rules = manifest.facts["rules"]
    start = chain["store_listing"].start
    of_heads = {row["branch"]: row["commit_id"] for row in heads}
    retain = recorded_retain([manifest.settings])
    longest = None if rules is None else lengthen(Rules.parse(rules), retain, of_heads)
    kept_by = keepers(of_heads, known, longest, start)
    tags = {row["tag"]: row["commit_id"] for row in tagged}
    if not ctx.settings.protect_tags and not manifest.settings.get("protect_tags"):
        tags = protecting(retain, tags)
    by_metadata = {row["commit_id"] for row in active if row["kind"] == "metadata"}
    protected = frozenset({*tags.values(), *by_metadata})
    groups = group(
        ((row["commit_id"], row["metarange_id"]) for row in active),
        kept_by,
        protected,
        (row["branch"] for row in heads),
    )
    ranked = [{**row, "age_rank": rank} for rank, row in enumerate(active)]
    return _Commits(ranked, groups, {row["branch"]: row["metarange_id"] for row in heads})


def _groups(groups: Groups) -> pa.Table:
    rows: list[tuple[int, str | None]] = []
    for number, members in enumerate(groups.sets):
        rows += [(number, None)] if members & 1 else []
        rows += [(number, name) for name in groups.names(members)]
    columns = list(zip(*rows, strict=True))
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, GROUPS, strict=True)], GROUPS)


def _computed(
    work: SessionFolder, attempt: AttemptArtifacts, chain: Mapping[str, Manifest], commits: _Commits
) -> tuple[dict[str, Sequence[Part]], dict[str, Any]]:
    """Compute the files of the cells, and the facts, with intermediate results in the workspace.

    One single query would hold the listed objects, the named objects and the cells in memory at the
    same time.
    """
    ctx, frames, committed = work.ctx, work.frames, chain["committed_addresses"]
    ids = attempt.rows(committed, "ranges", ["range_id"])["range_id"]
    wanted = frozenset(ids.to_pylist())
    entries, read = cached_frame(ctx, frames, wanted, _ENTRIES)
    pairs = pairs_frame(ctx, frames, commits.groups.of_metarange.keys())
    words = commits.words
    grouped = relations.range_groups(
        frames.create(_prints(read)), pairs, frames.create(commits.table()), words
    )
    kinds = schema(_RANGES, *(f"{word} bigint" for word in words))
    ranges = frames.create(frames.collect(grouped, kinds, _WHAT))
    folders = relations.numbered_folders(entries)
    folders = frames.read(work.written(folders, "folders", _FOLDERS, _WHAT))
    named = relations.named_objects(entries, ranges, folders)
    if read != wanted or PATH_RANGES in committed.parts:
        named = relations.with_unread(named, work.read(committed.parts["data"], HASHES))
    objects = _classified(work, chain, work.step(named, "named", _NAMED, _WHAT))
    cells = frames.read(work.written(relations.cells(objects), "cells", _PRINTED, _WHAT))
    # Few entries remain, so they are written first. DuckDB would otherwise unite the groups of all
    # entries.
    holding = relations.holding_ranges(entries, cells)
    holding = work.step(holding, "holding", _HOLDING, _WHAT)
    holders, folder = relations.holders(holding, ranges, words), f"{ASSET}/data/"
    found = relations.with_holders(cells, holders, folders)
    parts = frames.write(found, work.url, folder, CELLS, _WHAT)
    parts = parts or [write_part(attempt.store(), folder, CELLS.empty_table())]
    classes = _classes(frames, Dataset(work.url, parts, CELLS))
    facts: dict[str, Any] = {
        "classes": [list(row.values()) for row in classes if row["class"] != NOT_LISTED],
        "not_listed": added(row for row in classes if row["class"] == NOT_LISTED),
        "ranges_not_read": len(wanted - read),
        "covers": _coverage(chain, len(wanted - read)),
        "logical": _logical(frames, pairs, entries, commits),
    }
    return {"data": parts}, facts


def _prints(range_ids: Collection[str]) -> pa.Table:
    """Fingerprints of range ids: pseudo-random numbers (``_PRINTS``), the same in every run."""
    ids = sorted(range_ids)
    digests = [hashlib.sha256(range_id.encode()).digest() for range_id in ids]
    columns = [
        pa.array(
            [int.from_bytes(one[at : at + 8], "big") >> (64 - PRINT_BITS) for one in digests],
            pa.int64(),
        )
        for at in range(0, 8 * len(_PRINTS), 8)
    ]
    return pa.table([pa.array(ids, pa.string()), *columns], ["range_id", *_PRINTS.names])


def _classified(work: SessionFolder, chain: Mapping[str, Manifest], named: DataFrame) -> DataFrame:
    listing, candidates = chain["store_listing"], chain["deletion_candidates"]

    def read(schema: pa.Schema, manifest: Manifest, part: str = "data") -> DataFrame:
        return work.read(manifest.parts[part], schema)

    moments = relations.moments_of(listing.cutoff, listing.start)
    row = pa.Table.from_pylist([moments], pa.schema([(name, _TIME) for name in moments]))
    return relations.classified(
        read(_LISTED, listing),
        named,
        relations.needs(
            read(HASHES, chain["uncommitted_snapshot"], "hashes"),
            read(HASHES, chain["committed_addresses"], "referenced"),
        ),
        read(_GARBAGE, candidates),
        relations.exceptions(
            read(SPARED_ROWS, candidates, "spared"),
            *(work.frames.read(one) for one in sweeps_since(work.ctx, listing)),
        ),
        work.frames.create(row),
        NOT_ADOPTED if "adopted" in candidates.facts else UNEXPLAINED,
    )


def _classes(frames: Session, written: Dataset) -> list[dict[str, Any]]:
    by_class = relations.totals(frames.read(written), ["class", "why"])
    rows: list[dict[str, Any]] = frames.collect_rows(by_class, _CLASSES, _WHAT)
    return sorted(rows, key=lambda row: (row["class"], row["why"] or ""))


def added(rows: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums of the objects and bytes of rows."""
    totals = list(rows)
    return {name: sum(row[name] for row in totals) for name in ("objects", "bytes")}


def _logical(
    frames: Session, pairs: DataFrame, entries: DataFrame, commits: _Commits
) -> dict[str, Any]:
    """Objects and bytes of all active commits, and of all HEADs, as if they shared no objects."""
    sizes = relations.commit_sizes(pairs, entries)
    rows = frames.collect_rows(sizes, _SIZES, _WHAT)
    of = {row["metarange_id"]: row for row in rows}
    return {
        "commits": added(of[r["metarange_id"]] for r in commits.rows if r["metarange_id"] in of),
        "heads": {
            branch: added([of[metarange]] if metarange in of else [])
            for branch, metarange in commits.heads.items()
        },
    }


def _coverage(chain: Mapping[str, Manifest], unread: int) -> list[str]:
    """One sentence for each limit of the figures."""
    listing = chain["store_listing"]
    limits = []
    if listing.mode == "committed":
        named = counted(int(listing.facts.get("named", 0)), "object")
        limits.append(
            f"the mark is of the mode committed: it read only the {named} that ranges of expired "
            "commits name and no active commit holds; no other object of the store is included"
        )
    if listing.facts.get("mode") == "optimized":
        limits.append(
            f"{counted(int(listing.facts['carried']), 'object')} were not listed again, but taken "
            f"from the run {listing.facts['clean_run']} and the runs since"
        )
    if skipped := len(listing.facts.get("skipped_slices", ())):
        limits.append(
            f"{counted(skipped, 'slice was', 'slices were')} made after the cutoff and not listed: "
            "their objects are in no class"
        )
    if every_range(listing, chain["active_commits"].facts["rules"]):
        limits.append(
            "every range below _lakefs/ counts as live, whichever commit has it: no branch keeps "
            "the objects of ranges without an active commit, and deleting a branch frees nothing"
        )
    if below := chain["committed_addresses"].facts.get(PATH_RANGES, 0):
        limits.append(
            f"of {counted(below, 'range')} only the objects below the paths of rules are kept: "
            "they count as committed, and are attributed to nobody"
        )
    if unread:
        limits.append(
            f"{counted(unread, 'range is', 'ranges are')} not in the cache of decoded ranges, and "
            "not read for this: objects that only they hold are attributed to nobody, and objects "
            "that are shown for one branch only may be shared"
        )
    return limits


def own_files(store: ObjectStore, runs: Collection[str]) -> list[tuple[str, str, int, int]]:
    """Class, kind, objects and bytes of the files below ``_lakefs/`` now; ``runs`` are our own."""
    ours = frozenset(runs)
    found: dict[tuple[str, str], list[int]] = {}
    for page in store.list(_FOLDER):
        for key, size in zip(page["key"].to_pylist(), page["size"].to_pylist(), strict=True):
            total = found.setdefault(_kind(key, ours), [0, 0])
            total[0] += 1
            total[1] += size
    return [(name, kind, objects, size) for (name, kind), (objects, size) in sorted(found.items())]


def _kind(key: str, runs: frozenset[str]) -> tuple[str, str]:
    if _TABLE.fullmatch(key):
        return LAKEFS, "ranges and metaranges"
    mark = _MARK.match(key)
    if mark and mark[1] in runs and (OUR_FILES.fullmatch(key) or key.endswith("/deleted.csv")):
        return OURS, "marks"
    return next(
        ((name, kind) for start, name, kind in _KINDS if key.startswith(start)),
        (UNKNOWN, "below _lakefs/"),
    )
