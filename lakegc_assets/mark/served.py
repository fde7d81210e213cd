"""Which candidates lakeFS still serves although it lists them nowhere.

An upload whose size, checksum, metadata and content type equal what HEAD has at its path is served
from its new address, yet neither ``diff`` nor ``prepare_uncommited`` names it. So a candidate that
looks like an entry of some branch HEAD (equal size, and equal etag where etags can be compared) is
a candidate only after lakeFS was asked which address it serves at each such path. So it is with
what a branch's diff shows and ``prepare_uncommited`` may have lost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, read_part, write_part
from lakegc_assets.mark.etags import (
    AT_RANDOM,
    NEWEST,
    READ_S,
    SAMPLE,
    agreement,
    entries_are_checksums,
    read_contents,
)
from lakegc_assets.mark.evidence import EtagFiles, Evidence, evidence_of
from lakegc_assets.mark.lookalike_relations import SMALL
from lakegc_assets.mark.lookalikes import (
    Alike,
    HeadRanges,
    Integers,
    compare,
    groups_of,
    head_ranges,
    unclear_of,
)
from lakegc_assets.mark.lookups import Question, ask, find_paths
from lakegc_assets.mark.suspects import Flags, Suspects, last_parts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes
from lakegc_assets.run.selection import Selection
from lakegc_assets.run.sets import distinct, members_of, write_set
from lakegc_assets.storage.base import ObjectStore

SPARED: Final = pa.schema([("address", pa.string()), ("why", pa.string())])
SERVED: Final = "lakeFS serves it"
UNVERIFIED: Final = "more paths at branch HEADs look like it than may be asked"
#: Seconds for which lakeFS may be asked at least.
LEAST_SECONDS: Final = 60.0
#: Bytes of candidates that are read at most, to know their checksums.
_MOST_BYTES: Final = 1 << 30
#: A page of a listing, in seconds, and the paths that one answers for where they lie close by.
_PAGE_S: Final = 0.03
_OF_PAGE: Final = 500
#: Paths that are asked for in the first turn; all turns before one hold as many as it does.
_FIRST_TURN: Final = 10_000


def served_candidates(
    ctx: RunContext,
    connections: Connections,
    heads: pa.Table,
    store: ObjectStore,
    folder: str,
    candidates: Selection,
    etags: EtagFiles,
    seconds: float,
    staged: int = 0,
) -> pa.Table:
    """The candidates that must stay, with the reason: columns ``address`` and ``why``.

    Args:
        ctx: the run.
        connections: how tasks reach lakeFS, the store and the cache.
        heads: HEAD of each branch (branch, metarange_id).
        store: of artifacts.
        folder: of working files in it, with a slash at its end.
        candidates: what nothing lists any more (address, size, last_modified, etag).
        etags: of what is listed, in the same store; none where only some objects were looked at.
        seconds: for how long small candidates may be read and lakeFS may be asked.
        staged: about how many objects all branches have staged, by which the work is spread.

    Raises:
        IntegrityError: a range or a file is missing or damaged, or an answer cannot be true.
        LakeFSError: lakeFS did not answer.
    """
    return answered(
        ctx,
        connections,
        inquire(ctx, connections, heads, store, folder, candidates, etags, seconds, staged),
    )


@dataclass(frozen=True)
class Inquiry:
    """What is to be asked about some candidates; it holds while branches stay where they are.

    Attributes:
        heads: what the branches hold.
        suspects: the candidates.
        groups: of each, what it looks like.
        question: what to ask.
        paths: where.
        over: groups that are not asked for, although entries look like them.
        store: of working files.
    """

    heads: HeadRanges
    suspects: Suspects
    groups: Hashes
    question: Question
    paths: Sequence[Part]
    over: Hashes
    store: ObjectStore


def inquire(
    ctx: RunContext,
    connections: Connections,
    heads: pa.Table,
    store: ObjectStore,
    folder: str,
    candidates: Selection,
    etags: EtagFiles,
    seconds: float,
    staged: int = 0,
) -> Inquiry:
    """Find out what is to be asked; the arguments and errors of ``served_candidates``."""
    suspects = Suspects.read(store, candidates)
    rule = _ShadowRule(ctx, connections, store, folder, suspects, time.time() + seconds)
    ranges = head_ranges(ctx, connections, heads)
    groups, alike = rule.choose(ranges, etags)
    question = replace(rule.question(ranges, groups, alike), staged=staged)
    paths = find_paths(ctx, connections, ranges, store.url, folder, question)
    over = _beyond(store, question, groups, alike)
    return Inquiry(ranges, suspects, groups, question, paths, over, store)


def answered(ctx: RunContext, connections: Connections, inquiry: Inquiry) -> pa.Table:
    """The candidates that must stay, by what lakeFS answers; see ``served_candidates``."""
    answer = ask(
        ctx, connections, inquiry.heads, inquiry.store.url, inquiry.question, inquiry.paths
    )
    doubtful = distinct(np.concatenate([inquiry.over, answer.unasked]))
    unverified: Flags = np.any([members_of([doubtful], row) for row in inquiry.groups], axis=0)
    return _named(inquiry.store, inquiry.suspects, answer.served, unverified)


def again(inquiry: Inquiry, seconds: float) -> Inquiry:
    """The same, to be asked from now on, for so long."""
    return replace(inquiry, question=replace(inquiry.question, deadline=time.time() + seconds))


def _beyond(store: ObjectStore, question: Question, groups: Hashes, alike: Alike) -> Hashes:
    """Groups that entries look like, and that are not asked for."""
    asked = read_part(store, question.turns)["group"].to_numpy()
    mine = distinct(alike.groups[_of(groups, alike)])
    beyond: Hashes = mine[~members_of([asked], mine)]
    return beyond


def _of(groups: Hashes, alike: Alike) -> Flags:
    """Which of what is alike is of a group of a candidate; one row of these at a time."""
    unique, which = np.unique(alike.groups, return_inverse=True)
    wanted = np.zeros(len(unique), np.bool_)
    for row in groups:
        wanted |= members_of([distinct(row)], unique)
    found: Flags = wanted[which]
    return found


def _named(
    store: ObjectStore, suspects: Suspects, served: Sequence[str], unverified: Flags
) -> pa.Table:
    """The rows of those that stay; what is served is compared by its name, letter by letter."""
    names = pa.array(served, pa.string())
    found = [SPARED.empty_table()]
    at = 0
    for part, rows in zip(suspects.selection.parts, suspects.rows, strict=True):
        doubtful = unverified[at : at + rows]
        at += rows
        if not served and not doubtful.any():
            continue
        addresses = suspects.selection.read(store, part, ["address"])["address"].combine_chunks()
        # What is served from an address that cannot be resolved is known by its last part only.
        is_served = pc.or_(
            pc.is_in(addresses, names), pc.is_in(last_parts(addresses), names)
        ).to_numpy(zero_copy_only=False)
        for why, those in ((SERVED, is_served), (UNVERIFIED, doubtful & ~is_served)):
            some = addresses.filter(pa.array(those))
            found.append(pa.table([some, pa.array([why] * len(some), pa.string())], schema=SPARED))
    return pa.concat_tables(found)


@dataclass(frozen=True)
class _ShadowRule:
    """What is asked about which candidate."""

    ctx: RunContext
    connections: Connections
    store: ObjectStore
    folder: str
    suspects: Suspects
    deadline: float

    def choose(self, heads: HeadRanges, etags: EtagFiles) -> tuple[Hashes, Alike]:
        """The three groups of each candidate (equal where it has one), and entries like them."""
        suspects = self.suspects
        by_etag, by_size = groups_of(suspects.sizes, suspects.etags), groups_of(suspects.sizes)
        unclear = unclear_of(suspects.sizes)
        wanted = np.concatenate([by_etag, distinct(by_size), distinct(unclear)])
        alike = self._compare(heads, wanted)
        if not etags.parts:
            # Nothing tells whether etags are checksums, so that they are not compared.
            return np.stack([by_size, by_size, by_size]), alike
        evidence = evidence_of(self.ctx, self.connections, heads.ranges, self.store, etags)
        like_heads = members_of([distinct(alike.groups)], by_size)
        until = self._comparable_until(evidence, like_heads)
        which = "no etags" if until is None else f"etags until {np.datetime64(until, 'us')} UTC"
        self.ctx.log.info("%s of the store can be compared with those at HEADs", which)
        comparable = suspects.plain & (suspects.modified <= (-1 if until is None else until))
        # What has an etag to compare looks like entries of that etag, and of an unclear one.
        first, last = (np.where(comparable, of, by_size) for of in (by_etag, unclear))
        groups = np.stack([first, first, last])
        chosen = self._worth_reading(heads, alike, by_size, like_heads & ~comparable)
        if not len(chosen) or evidence.small_agree or not self._checksums(heads, alike, chosen):
            return groups, alike
        known, contents = self._read(chosen)
        # Where the entry's etag is not the content's MD5, it is the one that the store gave.
        groups[0, known] = groups_of(suspects.sizes[known], contents)
        groups[1, known] = by_etag[known]
        groups[2, known] = unclear[known]
        more = self._compare(heads, groups[0, known])
        return groups, Alike(
            np.concatenate([alike.positions, more.positions]),
            np.concatenate([alike.groups, more.groups]),
            np.concatenate([alike.entries, more.entries]),
        )

    def _compare(self, heads: HeadRanges, groups: Hashes) -> Alike:
        runs = write_set(self.store, f"{self.folder}groups/", [groups])
        return compare(self.ctx, self.connections, heads, self.store.url, runs)

    def _comparable_until(self, evidence: Evidence, like_heads: Flags) -> int | None:
        """Until which time of writing an object's etag in the store is the checksum in its entry.

        Etags count as comparable only if they agree for every object at a branch HEAD, and for
        every one that was read; and only for objects written before the latest of these. Some are
        read in any case: entries may have the store's etags, whatever these are, where clients
        linked them.
        """
        if evidence.agree is False:
            return None
        until = evidence.newest if evidence.agree else -1
        plain = self.suspects.plain
        if (plain & like_heads).any():
            agree, newest = self._sample(np.flatnonzero(plain & (self.suspects.sizes <= SAMPLE)))
            if agree is False:
                return None
            until = max(until, newest if agree else -1)
        return None if until < 0 else until

    def _sample(self, indices: Integers) -> tuple[bool | None, int]:
        """Compare etags with the content of the newest of some objects, and of a few others."""
        if not len(indices):
            return None, 0
        newest = indices[np.argsort(self.suspects.modified[indices], kind="stable")]
        random = indices[np.argsort(self.suspects.addresses[indices], kind="stable")]
        chosen = np.unique(np.concatenate([newest[-NEWEST:], random[:AT_RANDOM]]))
        tables = [
            self.suspects.selection.read(self.store, part).take(pa.array(rows))
            for part, rows in self.suspects.by_part(chosen)
        ]
        return agreement(self.connections.store(), pa.concat_tables(tables))

    def _worth_reading(
        self, heads: HeadRanges, alike: Alike, by_size: Hashes, doubtful: Flags
    ) -> Integers:
        """Small candidates without a comparable etag that are read sooner than asked about."""
        indices = np.flatnonzero(doubtful & (self.suspects.sizes <= SMALL))
        groups, which, members = np.unique(
            by_size[indices], return_inverse=True, return_counts=True
        )
        mine = np.isin(alike.groups, groups)
        positions, of_group = alike.positions[mine], np.searchsorted(groups, alike.groups[mine])
        branches, found = heads.branches[positions], alike.entries[mine]
        held = np.array([one.entries or 0 for one in heads.ranges], np.int64)[positions]
        # Paths that lie close by share a page.
        seconds = np.minimum(found, held // _OF_PAGE + 1) * branches * _PAGE_S
        left = self.deadline - time.time()
        few = (found * branches).sum() <= self.ctx.settings.max_served_lookups
        if not len(groups) or (few and seconds.sum() < left / 4):
            return indices[:0]
        costs = np.bincount(of_group, seconds, len(groups))
        # Where lakeFS may not be asked, to read is all that is left.
        chosen = indices[(costs > members * READ_S)[which]] if few else indices
        total = np.cumsum(self.suspects.sizes[chosen])
        worth: Integers = chosen[total <= _MOST_BYTES]
        return worth

    def _checksums(self, heads: HeadRanges, alike: Alike, chosen: Integers) -> bool:
        sizes = distinct(self.suspects.sizes[chosen])
        mine = np.isin(alike.groups, groups_of(sizes))
        positions = np.unique(alike.positions[mine])
        some = positions[:: max(1, len(positions) // 3)][:3]
        ids = [heads.ranges[position].range_id for position in some]
        return entries_are_checksums(self.connections, ids, frozenset(sizes.tolist()))

    def _read(self, chosen: Integers) -> tuple[Integers, Integers]:
        """Which of some candidates could be read, and the hashes of their contents' MD5s."""
        half = (time.time() + self.deadline) / 2
        suspects = self.suspects
        by_part = suspects.by_part(chosen)
        answers = read_contents(
            self.ctx, self.connections, self.store.url, suspects.selection, by_part, half
        )
        known = np.concatenate([known for known, _ in answers])
        hashes = np.concatenate([hashes for _, hashes in answers])
        return chosen[known], hashes[known]

    def question(self, heads: HeadRanges, groups: Hashes, alike: Alike) -> Question:
        """What to ask: the rarest groups first, as far as paths may be looked up."""
        mine = _of(groups, alike)
        unique, which = np.unique(alike.groups[mine], return_inverse=True)
        weights = alike.entries[mine] * heads.branches[alike.positions[mine]]
        paths = np.bincount(which, weights, len(unique)).astype(np.int64)
        order = np.lexsort((unique, paths))
        total = np.empty(len(unique), np.int64)
        total[order] = np.cumsum(paths[order])
        affordable = total <= self.ctx.settings.max_served_lookups
        turns = np.ceil(np.log2(np.maximum(total / _FIRST_TURN, 1))).astype(np.int32)
        table = pa.table({"group": unique[affordable], "turn": turns[affordable]})
        asked = mine & np.isin(alike.groups, unique[affordable])
        write, folder = self.store, self.folder
        return Question(
            write_part(write, f"{folder}turns/", table, plain=True),
            np.unique(alike.positions[asked]),
            write_set(write, f"{folder}sizes/", [self.suspects.sizes.view(np.uint64)]),
            write_set(write, f"{folder}names/", [self.suspects.names]),
            int(paths[affordable].sum()),
            self.deadline,
        )
