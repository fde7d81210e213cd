"""The delta mark: what came back to life since a mark was made.

Before anything is deleted, staged addresses, rules, branches and active commits are read again. A
revert, a branch from an old commit, a longer rule, a late link: what they need is taken out of the
candidates. Only ranges that neither the mark nor an earlier delta mark of the sweep has read are
read, so the cost follows what changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part
from lakegc_assets.errors import IntegrityError, LakegcError
from lakegc_assets.graveler.errors import NoTableError
from lakegc_assets.mark.commits import Liveness, find_liveness, heads_alone, refs_of
from lakegc_assets.mark.damage import isolate
from lakegc_assets.mark.evidence import etag_files
from lakegc_assets.mark.live import LiveRanges, every_range, live_ranges, read_live
from lakegc_assets.mark.references import References, read_references, referenced
from lakegc_assets.mark.served import UNVERIFIED, Inquiry, again, answered, inquire
from lakegc_assets.mark.suspects import last_parts
from lakegc_assets.mark.uncommitted import Staged, prepare_uncommitted, read_staged
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.rules import Rules
from lakegc_assets.run import strings
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes, KeyDigest, address_hashes
from lakegc_assets.run.pins import PINNED, among, pinned
from lakegc_assets.run.selection import Selection
from lakegc_assets.run.sets import members
from lakegc_assets.sweep.extending import HELD, UNCLEAR
from lakegc_assets.sweep.extension import Known
from lakegc_assets.sweep.known import KnownFiles, write_known
from lakegc_assets.sweep.look import Fingerprint, fingerprint_of
from lakegc_assets.sweep.moment import Moment

T = TypeVar("T")

STAGED: Final = "it is staged on a branch now"
SPARED: Final = pa.schema([("address", pa.string()), ("why", pa.string())])
#: What is spared by these, or by a pin, is not known to be alive, only not to be deleted.
_UNCERTAIN: Final = (UNCLEAR, UNVERIFIED)
#: For how long lakeFS may be asked what it serves, in seconds.
_ASKING_S: Final = 120.0


@dataclass(frozen=True)
class Candidates:
    """Objects that a mark names, all or some.

    Attributes:
        rows: address, size, last_modified and etag.
        parts: files of the same rows in the same order, below the attempt.
    """

    rows: pa.Table
    parts: Sequence[Part]

    @cached_property
    def hashes(self) -> Hashes:
        """Of the addresses."""
        return address_hashes(self.rows["address"])


@dataclass(frozen=True)
class DeltaMark:
    """What a delta mark found.

    Attributes:
        seen: the HEADs, rules and protecting tags that it is about.
        taken: when it began.
        spared: what came back to life (address, why), each once.
        known: writes what tasks need to extend it; None where they cannot.
        liveness: the active commits that it found; they say who needs an object.
    """

    seen: Fingerprint
    taken: Moment
    spared: pa.Table
    known: Callable[[], KnownFiles] | None = None
    liveness: Liveness | None = None


@dataclass
class Deltas:
    """The delta marks of one sweep.

    Attributes:
        ctx: the run.
        chain: the manifests of the mark.
        attempt: its artifacts.
        folder: where this sweep keeps its files, relative to the attempt, with a slash at its end.
        ranges: what they have read besides the mark (range_id, entries).
    """

    ctx: RunContext
    chain: Mapping[str, Manifest]
    attempt: AttemptArtifacts
    folder: str
    ranges: pa.Table = field(init=False)

    def __post_init__(self) -> None:
        """Begin with what the mark has read."""
        self.ranges = _RANGES.empty_table()
        active, committed = self.chain["active_commits"], self.chain["committed_addresses"]
        metaranges = self.attempt.rows(active, columns=["metarange_id"])["metarange_id"]
        self._metaranges = set(metaranges.to_pylist())
        ranges = self.attempt.rows(committed, "ranges", ["range_id"])["range_id"]
        self._ranges = set(ranges.to_pylist())
        self._marked = refs_of(self.ctx, self.attempt, active)
        self._commits: Mapping[str, Commit] = {}
        self._runs: list[Part] = []
        self._last_parts: set[str] = set()
        self._asked: tuple[pa.Table, Hashes, Inquiry] | None = None

    def take(self, candidates: Candidates, name: str, unread: list[str] | None = None) -> DeltaMark:
        """Find which of some marked objects are alive now.

        HEADs that move meanwhile are no harm: what it is about is what it read last, and staged
        objects were read before that, so that what was committed in between was seen.

        Args:
            candidates: the objects.
            name: of this delta mark in the sweep.
            unread: takes what cannot be read, and why, in place of an error; what can be read is
                enough to say of an object that it is alive.

        Raises:
            IntegrityError: the repository is at another namespace now, or an answer is not whole.
        """
        ctx = self.ctx
        client, connections = ctx.connect()
        marked = self.chain["store_listing"].namespace
        if connections.namespace_url != marked:
            raise IntegrityError(
                f"{ctx.repository!r} is at {connections.namespace_url} now, and the mark is about "
                f"{marked}: it was made anew, so mark it under a new id",
            )
        ctx.check_clocks(client, connections.store())
        taken = Moment.now(connections.store())
        artifacts, folder = self.attempt.store(), f"{self.folder}{name}/"

        def staged_now() -> Staged:
            files = prepare_uncommitted(ctx, client, connections)
            return read_staged(ctx, connections, artifacts, f"{folder}staged/", files.keys)

        staged = _or_noted(unread, "what is staged", staged_now, _NOTHING_STAGED)
        start = datetime.fromisoformat(str(self.chain["store_listing"].facts["start"]))
        find = partial(find_liveness, ctx, client, connections, start, self._marked, self._commits)
        liveness = _or_noted(unread, "which commits are active", find, None)
        if liveness is None:
            # No rules mean that all counts: what is not known now, the mark knew.
            raw = self.chain["active_commits"].facts["rules"]
            rules = None if raw is None else Rules.parse(raw)
            liveness = heads_alone(client, ctx.repository, rules)
        self._commits = liveness.commits
        known = Known(
            liveness.rules, start, liveness.heads, liveness.commits, liveness.active.active.keys()
        )
        self._read_new_ranges(connections, known, folder, unread)
        references = partial(
            read_references, ctx, client, connections, artifacts, folder, start, unread
        )
        others = _or_noted(unread, "what other repositories name", references, References())
        served = partial(self._served, connections, candidates, liveness, f"{folder}served/")

        addresses = candidates.rows["address"]
        unclear = {*self._last_parts, *staged.unresolved, *others.unresolved}
        reasons = [
            _chosen(addresses, members(artifacts, self._runs, candidates.hashes), HELD),
            _chosen(addresses, members(artifacts, staged.hashes, candidates.hashes), STAGED),
            referenced(artifacts, others, addresses),
            _or_noted(unread, "what lakeFS serves", served, _NOTHING),
            _chosen(addresses, _ends_in(addresses, unclear), UNCLEAR),
            among(pinned(connections.store()), addresses),
        ]
        tags = liveness.tags if ctx.settings.protect_tags else {}
        return DeltaMark(
            seen=fingerprint_of(liveness.heads, liveness.rules, tags),
            taken=taken,
            spared=one_reason(pa.concat_tables(reasons)),
            # Only for tasks: the look after a sweep has none.
            known=partial(
                write_known, artifacts, f"{folder}known/", known, frozenset(self._ranges)
            ),
            liveness=liveness,
        )

    def _read_new_ranges(
        self, connections: Connections, known: Known, folder: str, unread: list[str] | None
    ) -> None:
        """Read the ranges that are live now and that nobody has read yet."""
        every = every_range(self.chain["store_listing"], known.rules)
        ids = known.metaranges()
        # Where also what no commit leads to counts, all that is there is looked at.
        wanted = ids if every else ids - self._metaranges
        found = self._live_ranges(connections, wanted, unread, every=every)
        seen = pc.is_in(found["range_id"], pa.array(sorted(self._ranges), pa.string()))
        new = found.filter(pc.invert(seen))
        if new.num_rows:
            store, strict = self.attempt.store(), unread is None
            live = read_live(self.ctx, connections, new, store, f"{folder}live/", strict=strict)
            if unread is not None:
                unread += map(str, live.damaged.values())
            self._ranges |= set(live.ranges["range_id"].to_pylist())
            self._runs += live.runs
            self._last_parts |= set(live.unresolved)
            self.ranges = pa.concat_tables([self.ranges, live.ranges.select(_RANGES.names)])
        # What could not be read is read by the next one.
        self._metaranges |= ids

    def _live_ranges(
        self,
        connections: Connections,
        metaranges: AbstractSet[str],
        unread: list[str] | None,
        *,
        every: bool,
    ) -> pa.Table:
        """The ranges of metaranges, or all that are there: of those that can be read."""
        if unread is None:
            return live_ranges(self.ctx, connections, metaranges, every=every).ranges

        def read(some: Collection[str]) -> LiveRanges:
            return live_ranges(self.ctx, connections, some, every=every, strict=False)

        # Where all that is there counts, it does also without any active commit that can be read.
        parts, damaged = isolate(read, [*sorted(metaranges), ""])
        passed = {i: e for part in parts for i, e in part.passed_over.items()}
        errors = [error for _, error in damaged]
        errors += [error for error in passed.values() if not isinstance(error, NoTableError)]
        unread += map(str, errors)
        tables = [part.ranges.select(_RANGES.names) for part in parts]
        rows = pa.concat_tables([_RANGES.empty_table(), *tables]).group_by("range_id")
        return rows.aggregate([("entries", "max")]).rename_columns(_RANGES.names)

    def _served(
        self, connections: Connections, candidates: Candidates, liveness: Liveness, folder: str
    ) -> pa.Table:
        """What lakeFS serves, or may serve, although nothing lists it.

        What is to be asked is what was asked before, where neither branches nor candidates differ.
        """
        heads = liveness.heads_table()
        asked = self._asked
        if (
            asked is not None
            and asked[0].equals(heads)
            and np.array_equal(asked[1], candidates.hashes)
        ):
            return answered(self.ctx, connections, again(asked[2], _ASKING_S))
        inquiry = inquire(
            self.ctx,
            connections,
            heads,
            self.attempt.store(),
            folder,
            Selection(candidates.parts),
            etag_files(self.chain["store_listing"]),
            _ASKING_S,
            # It only tells how the work is spread, so that what the mark knew is as good.
            int(self.chain["uncommitted_snapshot"].facts["listed"]),
        )
        self._asked = (heads, candidates.hashes, inquiry)
        return answered(self.ctx, connections, inquiry)


_RANGES: Final = pa.schema([("range_id", pa.string()), ("entries", pa.int64())])
_NOTHING: Final = SPARED.empty_table()
_NOTHING_STAGED: Final = Staged((), (), (), 0, KeyDigest())


def _or_noted(unread: list[str] | None, what: str, read: Callable[[], T], otherwise: T) -> T:
    """What is read; what is so otherwise, where an error is to be noted in place of raised."""
    if unread is None:
        return read()
    try:
        return read()
    except LakegcError as error:
        unread.append(f"{what}: {error}")
        return otherwise


def _ends_in(addresses: pa.ChunkedArray, names: AbstractSet[str]) -> npt.NDArray[np.bool_]:
    """Whether the last part of each address is one of some names; mostly there are none."""
    if not names:
        return np.zeros(len(addresses), np.bool_)
    return np.asarray(pc.is_in(last_parts(addresses), pa.array(sorted(names), pa.string())))


def _chosen(addresses: pa.ChunkedArray, which: npt.NDArray[np.bool_], why: str) -> pa.Table:
    if not which.any():
        return _NOTHING
    found = addresses.filter(pa.array(which, pa.bool_()))
    return pa.table([found, pa.repeat(pa.scalar(why), len(found))], schema=SPARED)


def one_reason(spared: pa.Table) -> pa.Table:
    """Each address once: the alarm after a sweep looks at certain reasons only, so these count."""
    if spared.num_rows <= 1:
        return spared
    ranked = spared.append_column("doubt", _doubted(spared))
    order = [("address", "ascending"), ("doubt", "ascending"), ("why", "ascending")]
    ranked = strings.in_order(ranked, order)
    first = ranked.filter(strings.first_of_each(ranked["address"]))
    return first.select(SPARED.names).cast(SPARED)


def certainly_alive(spared: pa.Table) -> pa.Table:
    """Of what a delta mark spared: what is known to be alive, not only not known to be dead."""
    return spared.filter(pc.invert(_doubted(spared)))


def _doubted(spared: pa.Table) -> pa.ChunkedArray:
    """Whether each is spared only by doubt, or by a pin; a pin may name what is not there."""
    why = spared["why"]
    return pc.or_(pc.is_in(why, pa.array(_UNCERTAIN)), pc.starts_with(why, PINNED))


def without(rows: pa.Table, addresses: pa.ChunkedArray) -> pa.Table:
    """Rows but for those of some addresses, compared letter by letter."""
    if not len(addresses):
        return rows
    return rows.filter(pc.invert(strings.among(rows["address"], addresses)))
