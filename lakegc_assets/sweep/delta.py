"""The delta mark: the objects that came back to life since a mark was made.

Before anything is deleted, staged addresses, rules, branches and active commits are read again. A
revert, a branch from an old commit, a longer rule or a late link may need objects: these are
removed from the candidates. Only ranges are read that neither the mark nor an earlier delta mark of
the sweep has read, so the cost grows with the changes only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final

import pyarrow as pa

from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import IntegrityError, LakegcError
from lakegc_assets.graveler.errors import NoTableError
from lakegc_assets.mark import relations as mark_relations
from lakegc_assets.mark.commits import Liveness, find_liveness, heads_alone, refs_of
from lakegc_assets.mark.committed_addresses import PATH_RANGES
from lakegc_assets.mark.earlier_marks import MADE
from lakegc_assets.mark.etags import etag_files
from lakegc_assets.mark.live_ranges import (
    LiveRanges,
    every_range,
    isolate,
    live_ranges,
    read_live,
    read_path_ranges,
)
from lakegc_assets.mark.live_sets import LiveSets
from lakegc_assets.mark.lookups import Inquiry
from lakegc_assets.mark.metaranges import COUNTED, path_ranges
from lakegc_assets.mark.references import References, read_references
from lakegc_assets.mark.served_candidates import SPARED, answered, inquire, read_compared
from lakegc_assets.mark.uncommitted_snapshot import (
    Staged,
    listed_once,
    prepare_uncommitted,
    read_staged,
)
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.retained_commits import deciding
from lakegc_assets.retention.rules import Rules
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.clocks import Moment
from lakegc_assets.run.connections import Connections, reads_tables
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import Manifest, require_begun
from lakegc_assets.run.pins import pinned
from lakegc_assets.sweep.batch_guard import Fingerprint, fingerprint_of
from lakegc_assets.sweep.delta_extension import HELD, CommitFiles, KnownCommits, write_known

STAGED: Final = "it is staged on a branch now"
#: Seconds for which lakeFS may be asked for the objects that it serves.
_ASKING_S: Final = 120.0


class EarlierRepositoryError(IntegrityError):
    """The repository was made anew since the mark, which therefore is never swept."""


@dataclass(frozen=True)
class DeltaMark:
    """The result of a delta mark.

    Attributes:
        seen: fingerprint of the HEADs, rules and protecting tags that it has read.
        taken: time of its begin.
        spared: objects that came back to life (``CAME_BACK``), in files below the attempt.
        alive: everything that it has found to be alive.
        known: writes the data that tasks need to extend it; None if they cannot extend it.
        liveness: the active commits that it found, which name the holder of an object.
    """

    seen: Fingerprint
    taken: Moment
    spared: Dataset
    alive: LiveSets
    known: Callable[[], CommitFiles] | None = None
    liveness: Liveness | None = None


@dataclass
class DeltaMarks:
    """The delta marks of one sweep.

    Attributes:
        ctx: the run; ``take`` connects it.
        folder: folder of the sweep's files, relative to the attempt, with a slash at its end.
        manifests: the manifests of other marks that were read (``latest_marks``).
        ranges: ranges that were read in addition to the mark's (range_id, entries).
    """

    ctx: RunContext
    chain: Mapping[str, Manifest]
    attempt: AttemptArtifacts
    folder: str
    manifests: dict[str, Manifest] = field(default_factory=dict)
    ranges: pa.Table = field(init=False)

    def __post_init__(self) -> None:
        """Begin with the ranges that the mark has read."""
        self.ranges = _NO_RANGES
        active, committed = self.chain["active_commits"], self.chain["committed_addresses"]
        commits = self.attempt.values(active, columns=["metarange_id"])
        self._metaranges = {row["metarange_id"] for row in commits}
        ranges = self.attempt.values(committed, "ranges", ["range_id"])
        self._ranges = {row["range_id"] for row in ranges}
        self._path_ranges: set[tuple[str, str]] = set()
        if PATH_RANGES in committed.parts:
            below = self.attempt.values(committed, PATH_RANGES, _OF_PATHS)
            self._path_ranges = {(row["range_id"], row["pattern"]) for row in below}
        self._marked = refs_of(self.ctx, self.attempt, active)
        self._commits: Mapping[str, Commit] = {}
        self._runs: list[Part] = []
        self._last_parts: set[str] = set()
        self._asked: tuple[pa.Table, Sequence[Part], Inquiry] | None = None

    @property
    def connections(self) -> Connections:
        """The connections that tasks use."""
        return self.ctx.connections

    def take(self, candidates: Dataset, name: str, unread: list[str] | None = None) -> DeltaMark:
        """Find the marked objects that are alive now.

        HEADs that move meanwhile do no harm. A delta mark is of the HEADs that it read last. Staged
        objects are read before HEADs, so that a commit in between is seen in one of the two.

        ``unread``: receives references that cannot be read, with the errors, instead of a raise.
        The references that can be read are enough to prove that an object is alive.

        Raises:
            RefusedError: a clock is off, or was ahead when the mark was made.
            EarlierRepositoryError: the repository was made anew, here or at another namespace.
            IntegrityError: an answer is incomplete.
        """
        self.ctx = ctx = self.ctx.connect()
        self._require_same_namespace()
        if unread is None:
            self._require_same_repository()
        now = ctx.check_clocks(ctx.client, ctx.connections.store())
        if unread is None:
            require_begun(self.chain["store_listing"], now, ctx.settings.clock_skew)
        taken = Moment.now(ctx.connections.store(), ctx.clocks)
        artifacts, folder = self.attempt.store(), f"{self.folder}{name}/"
        staged, listed = Staged(), 0
        with _collecting(unread, "staged objects"):
            files = prepare_uncommitted(ctx)
            staged = read_staged(ctx, artifacts, f"{folder}staged/", files.keys)
            listed = listed_once(staged.listed, files.tries)
        start = self.chain["store_listing"].start
        liveness = self._liveness(start, unread)
        known = self._known(liveness, start)
        self._read_new_ranges(known, folder, unread)
        with _collecting(unread, "objects below the paths of rules"):
            self._read_paths(liveness, folder)
        others, served = References(), SPARED.empty_table()
        with _collecting(unread, "objects that other repositories name"):
            others = read_references(ctx, artifacts, folder, start, unread)
        with _collecting(unread, "objects that lakeFS serves"):
            served = self._served(candidates, liveness, f"{folder}served/", listed)
        alive = LiveSets(
            ctx,
            self.attempt.url,
            {HELD: [*self._runs], STAGED: staged.hashes, mark_relations.SAME_HASH: others.hashes},
            {*self._last_parts, *staged.unresolved, *others.unresolved},
            [served, pinned(ctx.connections.store())],
            others.parts,
        )
        with ctx.frames() as frames:
            spared = alive.came_back(frames, candidates, f"{folder}spared/")
        tags = liveness.tags
        if not ctx.settings.protect_tags:
            tags = deciding(ctx.settings.retained, tags)
        return DeltaMark(
            seen=fingerprint_of(liveness.heads, liveness.rules, tags),
            taken=taken,
            spared=spared,
            alive=alive,
            # Only tasks extend a delta mark: the look after a sweep has no tasks.
            known=partial(
                write_known, artifacts, f"{folder}known/", known, frozenset(self._ranges)
            ),
            liveness=liveness,
        )

    def _require_same_namespace(self) -> None:
        marked, found = self.chain["store_listing"].namespace, self.connections.namespace_url
        if found != marked:
            raise EarlierRepositoryError(
                f"{self.ctx.repository!r} is at {found} now, and the mark is about {marked}: "
                "the repository was made anew. Mark it under a new id",
            )

    def _require_same_repository(self) -> None:
        """Refuse to delete by a mark if its repository was made anew in the same place."""
        made = self.connections.made
        marked = self.chain["active_commits"].facts.get(MADE, made)
        if made is not None and marked != made:
            raise EarlierRepositoryError(
                f"{self.ctx.repository!r} was made anew, or restored, in "
                f"{self.connections.namespace_url} since it was marked, so the mark is of an "
                "earlier repository: mark it under a new id",
            )

    def _liveness(self, start: datetime, unread: list[str] | None) -> Liveness:
        """Find the commits that are active by their age at the mark; only the HEADs on error."""
        ctx = self.ctx
        try:
            liveness = find_liveness(ctx, start, self._marked, self._commits, self.manifests)
        except LakegcError as error:
            if unread is None:
                raise
            unread.append(f"the active commits: {error}")
            # Without rules all commits are active: the mark knew those that are unknown now.
            raw = self.chain["active_commits"].facts["rules"]
            rules = None if raw is None else Rules.parse(raw)
            liveness = heads_alone(ctx.client, ctx.repository, rules)
        self._commits = liveness.commits
        return liveness

    def _known(self, liveness: Liveness, start: datetime) -> KnownCommits:
        """Build the known commits that tasks extend, by their age at the mark."""
        return KnownCommits(
            liveness.rules,
            start,
            liveness.heads,
            liveness.commits,
            liveness.active.active.keys(),
            self.ctx.settings.retained,
            {pattern: kept.keys() for pattern, kept in liveness.paths.items()},
        )

    def _read_new_ranges(self, known: KnownCommits, folder: str, unread: list[str] | None) -> None:
        """Read the live ranges that neither the mark nor an earlier delta mark has read."""
        every = every_range(self.chain["store_listing"], known.rules)
        ids = known.metaranges()
        # If ranges of no known commit count as well, all ranges in the store are listed.
        wanted = ids if every else ids - self._metaranges
        found = self.find_ranges(wanted, unread, every=every)
        unseen = [range_id not in self._ranges for range_id in found["range_id"].to_pylist()]
        if any(unseen):
            new = found.filter(pa.array(unseen, pa.bool_()))
            store, strict = self.attempt.store(), unread is None
            live = read_live(self.ctx, new, store, f"{folder}live/", strict=strict)
            if unread is not None:
                unread += map(str, live.damaged.values())
            self._ranges |= set(live.ranges["range_id"].to_pylist())
            self._runs += live.runs
            self._last_parts |= set(live.unresolved)
            self.ranges = pa.concat_tables([self.ranges, live.ranges.select(COUNTED.names)])
        # A range that could not be read is tried again by the next delta mark.
        self._metaranges |= ids

    def _read_paths(self, liveness: Liveness, folder: str) -> None:
        """Read entries below paths of rules that no mark has read yet."""
        metaranges = liveness.path_metaranges()
        every = every_range(self.chain["store_listing"], liveness.rules)
        if every or not any(metaranges.values()):
            return
        found = path_ranges(self.ctx, metaranges, self._ranges)
        columns = (found[name].to_pylist() for name in _OF_PATHS)
        pairs = list(zip(*columns, strict=True))
        new = found.filter(pa.array([pair not in self._path_ranges for pair in pairs], pa.bool_()))
        if new.num_rows:
            store = self.attempt.store()
            live = read_path_ranges(self.ctx, new, store, f"{folder}below/")
            self._runs += live.runs
            self._last_parts |= set(live.unresolved)
            self._path_ranges.update(pairs)

    def find_ranges(
        self, metaranges: AbstractSet[str], unread: list[str] | None, *, every: bool
    ) -> pa.Table:
        """Find the ranges of metaranges, or all in the store; errors as in ``take``."""
        if unread is None:
            return live_ranges(self.ctx, metaranges, every=every).ranges

        def read(some: Collection[str]) -> LiveRanges:
            return live_ranges(self.ctx, some, every=every, strict=False)

        # With ``every``, the empty id finds all ranges, even if no active commit can be read.
        parts, damaged = isolate(read, [*sorted(metaranges), ""])
        passed = {i: e for part in parts for i, e in part.passed_over.items()}
        errors = [error for _, error in damaged]
        errors += [error for error in passed.values() if not isinstance(error, NoTableError)]
        unread += map(str, errors)
        tables = [part.ranges.select(COUNTED.names) for part in parts]
        if len(tables) == 1:
            return tables[0]
        rows = pa.concat_tables([COUNTED.empty_table(), *tables]).group_by("range_id")
        return rows.aggregate([("entries", "max")]).rename_columns(COUNTED.names)

    @reads_tables
    def _served(
        self, candidates: Dataset, liveness: Liveness, folder: str, staged: int
    ) -> pa.Table:
        """Find objects that lakeFS serves, or may serve, although no list names them.

        If neither branches nor candidates differ from the last time, the same questions are asked.

        ``staged``: as in ``Inquiry``.
        """
        heads = liveness.heads_table()
        asked = self._asked
        if asked is not None and asked[0].equals(heads) and asked[1] == candidates.parts:
            return answered(self.ctx, asked[2].again(_ASKING_S, staged))
        inquiry = inquire(
            self.ctx,
            Inquiry(self.attempt.store().url, folder, time.time() + _ASKING_S, staged),
            heads,
            candidates.parts,
            etag_files(self.chain["store_listing"]),
            read_compared(self.attempt, self.chain["deletion_candidates"]),
        )
        self._asked = (heads, candidates.parts, inquiry)
        return answered(self.ctx, inquiry)


_NO_RANGES: Final = COUNTED.empty_table()
_OF_PATHS: Final = ("range_id", "pattern")


@contextmanager
def _collecting(unread: list[str] | None, what: str) -> Iterator[None]:
    """Add an error of the block to ``unread`` and continue after it; raise it if that is None."""
    try:
        yield
    except LakegcError as error:
        if unread is None:
            raise
        unread.append(f"{what}: {error}")
