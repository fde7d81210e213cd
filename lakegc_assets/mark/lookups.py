"""Asks lakeFS which addresses it serves at paths that may show a candidate.

These are the paths at branch HEADs whose entries have the signature of a candidate: the rarest
signatures come first, and the time is limited. Paths in a branch's diff are always asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import Part, PartWriter, read_parts, table_of, write_tables
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.tasks import bin_pack, thread_map
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import decode_paths
from lakegc_assets.graveler.entry import AddressType
from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError
from lakegc_assets.lakefs.client import LakeFSClient, branch_ref
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.lakefs.transport import LARGEST_PAGE
from lakegc_assets.mark import signature_relations as relations
from lakegc_assets.mark.addresses import is_elsewhere, just_before, live_spellings
from lakegc_assets.mark.branch_diffs import is_deleted, require_deleted, staged_paths
from lakegc_assets.mark.session_folder import SessionFolder
from lakegc_assets.mark.signature_relations import ANY
from lakegc_assets.mark.signatures import (
    MATCHES,
    RANGE_IDS,
    SIGNATURES,
    SIZES,
    UNCLEAR,
    HeadMatches,
    HeadRanges,
    Integers,
    Positions,
    Signatures,
)
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore

#: Columns of the inputs and results of relations; see ``signature_relations``.
PATHS_OF: Final = schema(SIGNATURES, "paths bigint")
BY_PATHS: Final = schema("paths bigint, signatures bigint")
BEFORE: Final = schema("paths bigint, before bigint")
ASKED: Final = schema(SIGNATURES, "turn int")
SERVED_NAMES: Final = schema("name string")
#: Paths to ask for: the position of their range, their signature, and their turn.
_PATHS: Final = schema("position int, path string", ASKED)
#: Paths in the first page at a place; the next page doubles if one page answered for several paths.
FIRST_PAGE = 100
#: Maximum number of tasks that ask lakeFS what branches serve.
TASKS: Final = 8
_THREADS: Final = 8
#: Paths of one branch that one thread asks for.
_UNIT: Final = 20_000
#: Turn of staged paths: before all other turns, and without a deadline.
STAGED_TURN: Final = -1
#: Seconds of one core to decode an entry, to read a diff, to read a change in it, and to ask for a
#: path.
_READ_S: Final = 5e-7
_DIFF_S: Final = 0.005
_CHANGE_S: Final = 2e-6
_PATH_S: Final = 2e-5
#: Paths in the first turn; each turn holds as many paths as all turns before it together.
_FIRST_TURN: Final = 10_000
#: Distinct path counts by which signatures are grouped; the limit of lookups is used up before
#: there are more of them.
_KINDS: Final = 50_000


@dataclass(frozen=True)
class Inquiry:
    """The lookups for a set of candidates; valid while no branch moves."""

    #: URL of the store of all files.
    url: str
    folder: str
    #: Seconds since 1970; after it only staged paths are asked for.
    deadline: float
    #: Number of staged objects in lakeFS's list. If the diffs show more, the list may lack some.
    #: The number also helps to balance tasks. 0 if several tries list objects repeatedly.
    staged: int = 0
    #: Ranges of the branch HEADs.
    heads: HeadRanges = field(default_factory=HeadRanges)
    #: Files of the candidates.
    candidates: Sequence[Part] = ()
    #: Files of ``SIZES``: the sizes of candidates.
    sizes: Sequence[Part] = ()
    #: Signatures of the candidates, and the matching entries.
    signatures: Signatures = field(default_factory=Signatures)
    #: Files of ``ASKED``: the signatures to ask for, each with its turn.
    asked: Sequence[Part] = ()
    #: Files of ``SIGNATURES`` that entries have, but that are not asked for.
    over: Sequence[Part] = ()
    #: Positions of the ranges with entries to ask for.
    positions: Positions = field(default_factory=lambda: np.empty(0, np.int32))
    #: Number of paths to ask for, on all branches.
    count: int = 0
    #: Files of the paths to ask for (``_PATHS``).
    paths: Sequence[Part] = ()

    def compared(self, *, by_etag: bool) -> HeadMatches:
        """The entries of HEAD ranges that match the candidates."""
        ranges = frozenset(one.range_id for one in self.heads.ranges)
        signatures = self.signatures
        # Wherever etags are compared, sizes are compared as well.
        agree = by_etag and not signatures.unclear
        return HeadMatches(ranges, signatures.matches, by_etag, agree)

    def again(self, seconds: float, staged: int) -> Inquiry:
        """The same inquiry with a new deadline and a new count of staged objects."""
        return replace(self, deadline=time.time() + seconds, staged=staged)


def choose(work: SessionFolder, inquiry: Inquiry, candidates: DataFrame) -> Inquiry:
    """Choose the signatures to ask for: those with the fewest paths first, within the limit."""
    frames, most = work.frames, work.ctx.settings.max_served_lookups
    matches = work.read(inquiry.signatures.matches, MATCHES)
    ranked = relations.paths_of_signatures(
        matches, inquiry.signatures.of(work, candidates), frames.create(inquiry.heads.costs())
    )
    found = work.write(ranked, "signatures", PATHS_OF, "count paths at branch HEADs")
    if not found:
        return inquiry
    every = work.read(found, PATHS_OF)
    kinds = relations.signatures_by_paths(every, most, _KINDS)
    before, count = 0, 0
    rows: list[tuple[int, int]] = []
    for kind in work.collect(kinds, BY_PATHS, "count signatures by their paths"):
        each = kind["paths"]
        if before + each > most:
            break
        rows.append((each, before))
        count += each * min(kind["signatures"], (most - before) // each)
        before += each * kind["signatures"]
    if not rows:
        return replace(inquiry, over=found)
    rarer = frames.create(table_of(rows, BEFORE))
    chosen = relations.asked_signatures(every, rarer, most, _FIRST_TURN)
    asked = work.written(chosen, "turns", ASKED, "choose what to ask")
    rest = relations.other_signatures(every, frames.read(asked))
    over = work.write(rest, "over", SIGNATURES, "find what is not to be asked")
    held = relations.ranges_with(matches, frames.read(asked))
    ids = frames.collect(held, RANGE_IDS, "find ranges with paths to ask for")
    named = {one.range_id: position for position, one in enumerate(inquiry.heads.ranges)}
    positions = np.array(sorted(named[i] for i in ids["range_id"].to_pylist()), np.int32)
    return replace(inquiry, asked=asked.parts, over=over, positions=positions, count=count)


# The paths of entries


def find_paths(ctx: RunContext, inquiry: Inquiry) -> Inquiry:
    """Read the paths of the entries to ask for.

    Raises:
        IntegrityError: a range or a file is missing or damaged.
    """
    ranges = [(int(p), inquiry.heads.ranges[p]) for p in inquiry.positions]
    costs = [(one.entries or 0) * _READ_S + 0.02 for _, one in ranges]
    unclear = inquiry.signatures.unclear
    task = partial(
        _read_paths, ctx.connections, inquiry.url, inquiry.folder, inquiry.asked, unclear
    )
    named, most = [(p, one.range_id) for p, one in ranges], ctx.settings.address_num_partitions
    found = ctx.tasks.run_grouped("read paths at branch HEADs", task, named, costs, most)
    paths, nameless = ([part for parts in found for part in parts[at]] for at in (0, 1))
    return replace(inquiry, paths=paths, over=[*inquiry.over, *nameless])


def _read_paths(
    connections: Connections,
    url: str,
    folder: str,
    asked: Sequence[Part],
    unclear: Sequence[Part],
    ranges: Sequence[tuple[int, str]],
) -> tuple[list[Part], list[Part]]:
    """Read the paths of entries from the ranges themselves; caches hold no paths.

    Returns:
        Files of ``_PATHS``; and files of ``SIGNATURES`` at paths that are not UTF-8: lakeFS accepts
        such paths, but a request cannot name them.
    """
    artifacts, namespace = connections.open(url), connections.namespace()
    wanted = pa.concat_tables([ASKED.empty_table(), *read_parts(artifacts, asked)])
    ids = pa.array([range_id for _, range_id in ranges], pa.string())
    tables = (t.filter(pc.is_in(t["range_id"], ids)) for t in read_parts(artifacts, unclear))
    doubtful = pa.concat_tables([UNCLEAR.empty_table(), *tables])
    writer = PartWriter(artifacts, f"{folder}paths/", _PATHS)
    nameless: list[pa.Table] = []
    for position, range_id in ranges:
        data = connections.fetch_table(range_id)
        entries, paths = decode_paths(data, connections.table_url(range_id))
        of_range = doubtful.filter(pc.equal(doubtful["range_id"], range_id))
        signatures = _signatures(entries["size"], _etags(namespace, entries), of_range)
        found = signatures.filter(pc.is_in(signatures["size"], wanted["size"].combine_chunks()))
        found = found.join(wanted, SIGNATURES.names, join_type="inner").sort_by("row")
        columns = {
            "position": pa.repeat(pa.scalar(position, pa.int32()), found.num_rows),
            "path": _texts(paths.take(found["row"].to_numpy())),
            **{name: found[name] for name in ASKED.names},
        }
        rows = pa.table(columns, schema=_PATHS)
        has_text = pc.is_valid(rows["path"])
        writer.add(rows.filter(has_text))
        nameless.append(rows.filter(pc.invert(has_text)).select(SIGNATURES.names))
    return (
        [part for part in writer.finish() if part.rows],
        write_tables(artifacts, f"{folder}nameless/", SIGNATURES, nameless),
    )


def _signatures(sizes: pa.Array, etags: Integers, unclear: pa.Table) -> pa.Table:
    """Every signature of each entry of a range (``SIGNATURES``, and row: its number in the range).

    ``unclear``: sizes and etags of entries whose declared size proves nothing (``UNCLEAR``).
    """
    rows = np.arange(len(sizes))
    looks = pa.table({"size": sizes, "etag_hash": etags, "row": rows})
    unsized = looks.join(unclear, ["size", "etag_hash"], join_type="left semi")["row"].to_numpy()
    any_etag, any_size = np.full(len(rows), ANY, np.int64), np.full(len(unsized), ANY, np.int64)
    return pa.table(
        {
            "size": np.concatenate([sizes.to_numpy(), sizes.to_numpy(), any_size]),
            "signature": np.concatenate([etags, any_etag, any_size]),
            "row": np.concatenate([rows, rows, unsized]),
        }
    )


def _etags(namespace: StorageNamespace, entries: pa.RecordBatch) -> Integers:
    """The hashes of etags, in the form of ``ranges.decode``."""
    etags: Integers = entries["etag_hash"].to_numpy().copy()
    types = entries["address_type"].to_numpy()
    for row in np.flatnonzero(types != AddressType.RELATIVE).tolist():
        if is_elsewhere(namespace, entries["address"][row].as_py(), int(types[row])):
            etags[row] = 0
    return etags


def _texts(paths: Sequence[bytes]) -> pa.Array:
    """Paths as texts; null where one is not UTF-8."""
    try:
        return pa.array(paths, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(map(_text, paths), pa.string())


def _text(path: bytes) -> str | None:
    try:
        return path.decode()
    except UnicodeDecodeError:
        return None


# Asking


def ask(ctx: RunContext, inquiry: Inquiry) -> tuple[list[Part], list[Part]]:
    """Ask lakeFS which addresses it serves.

    Returns:
        Files of ``SERVED_NAMES``: addresses, and last parts of addresses that cannot be resolved;
        and files of ``SIGNATURES`` that were not asked for at all of their paths.

    Raises:
        IntegrityError: a range or a file is missing or damaged, or an answer is impossible.
        LakeFSError: lakeFS did not answer.
    """
    answers = _ask_all(ctx, inquiry, by_size=not inquiry.signatures.unclear)
    changes = sum(one.changes for one in answers)
    left_out = sum(one.left_out for one in answers)
    # Clients declare sizes. If lakeFS's list lacks objects, sizes exclude no candidate.
    if left_out and changes > inquiry.staged:
        ctx.log.warning(
            "branches have staged %s objects, and lakeFS's list of these has %s: it is asked for "
            "all of them, whatever their sizes are",
            *(f"{changes:,}", f"{inquiry.staged:,}"),
        )
        staged = replace(inquiry, positions=inquiry.positions[:0], count=left_out, paths=())
        answers += _ask_all(ctx, staged, by_size=False)
    served = [part for one in answers for part in one.served]
    return served, [part for one in answers for part in one.unasked]


def _ask_all(ctx: RunContext, inquiry: Inquiry, *, by_size: bool) -> list[_Answer]:
    branches = [
        (branch, held[np.isin(held, inquiry.positions)])
        for branch, held in inquiry.heads.of_branch.items()
    ]
    # The number of paths of each branch is not known.
    share = (inquiry.count * _PATH_S + inquiry.staged * _CHANGE_S) / max(1, len(branches))
    costs = [_DIFF_S + share for _ in branches]
    # A task needs only the ranges of its own branches.
    needed = replace(inquiry, heads=HeadRanges())
    task = partial(_ask, ctx.connections, ctx.repository, needed, by_size)
    orders = bin_pack(branches, costs, TASKS)
    return ctx.tasks.run("ask lakeFS what it serves", task, orders, sum(costs))


class _Answer(NamedTuple):
    """The answers for the branches of one task; see ``ask``."""

    served: list[Part]
    unasked: list[Part]
    #: Number of staged additions and changes, and the number of these that were not asked for.
    changes: int
    left_out: int


class Unit(NamedTuple):
    """Sorted paths of one branch, with the signatures for which they are asked."""

    branch: str
    turn: int
    paths: pa.ChunkedArray | pa.Array
    signatures: pa.Table


def _ask(
    connections: Connections,
    repository: str,
    inquiry: Inquiry,
    by_size: bool,  # noqa: FBT001 - given to tasks by its place
    branches: Sequence[tuple[str, Positions]],
) -> _Answer:
    client, store = connections.client(), connections.open(inquiry.url)
    names = [branch for branch, _ in branches]
    sizes = None
    if by_size:
        sizes = pa.concat_tables([SIZES.empty_table(), *read_parts(store, inquiry.sizes)])["size"]
    staged = thread_map(partial(staged_paths, client, repository, sizes=sizes), names, _THREADS)
    units = [
        Unit(
            branch, STAGED_TURN, pa.array(sorted(one.paths), pa.string()), SIGNATURES.empty_table()
        )
        for branch, one in zip(names, staged, strict=True)
        if one.paths
    ]
    units += _units(store, inquiry.paths, branches)
    # Threads take the units in this order, so the last turns are asked last.
    units.sort(key=lambda unit: unit.turn)
    ask = partial(ask_paths, client, repository, connections.namespace(), inquiry.deadline)
    answers = thread_map(ask, units, _THREADS)
    found = sorted({name for served, _ in answers for name in served})
    served = table_of(zip(found, strict=True), SERVED_NAMES)
    rest = pa.concat_tables([SIGNATURES.empty_table(), *(some for _, some in answers)])
    unasked = rest.group_by(SIGNATURES.names).aggregate([])
    changes = sum(one.changes for one in staged)
    return _Answer(
        write_tables(store, f"{inquiry.folder}served/", SERVED_NAMES, [served]),
        write_tables(store, f"{inquiry.folder}unasked/", SIGNATURES, [unasked]),
        changes,
        changes - sum(len(one.paths) for one in staged),
    )


def _units(
    store: ObjectStore, paths: Sequence[Part], branches: Sequence[tuple[str, Positions]]
) -> Iterator[Unit]:
    held = [positions for _, positions in branches]
    wanted = pa.array(np.unique(np.concatenate([np.empty(0, np.int32), *held])))
    tables = (t.filter(pc.is_in(t["position"], wanted)) for t in read_parts(store, paths))
    rows = pa.concat_tables([_PATHS.empty_table(), *tables])
    rows = rows.sort_by([("turn", "ascending"), ("path", "ascending")])
    positions, turns = rows["position"].to_numpy(), rows["turn"].to_numpy()
    for branch, of_branch in branches:
        mine = np.flatnonzero(np.isin(positions, of_branch))
        cuts = np.flatnonzero(np.diff(turns[mine])) + 1
        for rows_of_turn in np.split(mine, cuts):
            for at in range(0, len(rows_of_turn), _UNIT):
                chunk = rows.take(pa.array(rows_of_turn[at : at + _UNIT]))
                turn = int(turns[rows_of_turn[at]])
                yield Unit(branch, turn, chunk["path"], chunk.select(SIGNATURES.names))


def ask_paths(
    client: LakeFSClient,
    repository: str,
    namespace: StorageNamespace,
    deadline: float,
    unit: Unit,
) -> tuple[set[str], pa.Table]:
    """The names served at the paths of a unit; and the signatures of paths not asked for."""
    page = Page(client, repository)
    served: set[str] = set()
    for number, path in enumerate(unit.paths.to_pylist()):
        if unit.turn != STAGED_TURN and time.time() > deadline:
            return served, unit.signatures.slice(number)
        ask = page.staged if unit.turn == STAGED_TURN else page.address
        address = ask(unit.branch, path)
        if address is not None:
            served.update(_names(namespace, address))
    return served, unit.signatures.slice(0, 0)


def _names(namespace: StorageNamespace, address: str) -> Sequence[str]:
    """The relative addresses that an address may mean, or its last components if unresolved."""
    try:
        return live_spellings(namespace, address)
    except UnresolvableAddressError as error:
        return sorted(error.last_components)


class Page:
    """The last listed page of a branch: one call answers for many paths in order."""

    def __init__(self, client: LakeFSClient, repository: str) -> None:
        self.client = client
        self.repository = repository
        self.branch = ""
        self.low = ""
        self.high: str | None = ""
        self.addresses: Mapping[str, str] = {}
        self.amount = FIRST_PAGE
        self.answered = 0
        #: True if the branch was found to be deleted.
        self.is_deleted = False

    def address(self, branch: str, path: str) -> str | None:
        """The physical address that lakeFS serves at a path; None if it serves nothing."""
        known = branch == self.branch and path > self.low
        if not (known and (self.high is None or path <= self.high)):
            self._turn(branch, path)
        self.answered += 1
        return self.addresses.get(path)

    def staged(self, branch: str, path: str) -> str | None:
        """``address`` of a path in the branch's diff; a path that the listing lacks is stat-ed.

        Raises:
            NotFoundError: the repository is not found.
        """
        found = self.address(branch, path)
        if found is not None or self.is_deleted:
            return found
        try:
            return self.client.stat(self.repository, branch_ref(branch), path).physical_address
        except NotFoundError:
            # Reset or deleted in between: the object alone, or the whole branch.
            self.is_deleted = is_deleted(self.client, self.repository, branch)
            return None

    def _turn(self, branch: str, path: str) -> None:
        useful = branch == self.branch and self.answered > 1
        self.amount = min(2 * self.amount, LARGEST_PAGE) if useful else FIRST_PAGE
        self.branch, self.low, self.answered = branch, just_before(path), 0
        self.is_deleted = False
        try:
            objects, has_more = self.client.objects_page(
                self.repository, branch_ref(branch), after=self.low, amount=self.amount
            )
        except NotFoundError as error:
            but = f"listing its objects says not found ({error})"
            require_deleted(self.client, self.repository, branch, but)
            objects, has_more, self.is_deleted = [], False, True
        self.addresses = {found.path: found.physical_address for found in objects}
        # The server may end a list early, so a page says nothing about paths after its last item;
        # only an empty page says that nothing follows.
        self.high = max(self.addresses, default=None)
        if has_more and (self.high is None or self.high < path):
            # Few paths lie between ``low`` and the path, so a full page must reach the path.
            raise IntegrityError(
                f"listing branch {branch!r} after {self.low!r} skipped {path!r}: run again"
            )
