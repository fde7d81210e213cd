"""Asks lakeFS which addresses it serves where a candidate could lie.

Asked are the paths at branch HEADs whose entries look like a candidate, the rarest looks first and
for a limited time, and in any case those that a branch has staged by its diff.

The diffs are a second witness beside ``prepare_uncommited``, which can lose rows without a word:
the scan of a branch ends early, or a branch is deleted meanwhile. A diff names paths and no
addresses, so lakeFS is asked what it serves at those where a candidate could lie.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, PartWriter, read_parts, write_part
from lakegc_assets.engine.tasks import bin_pack, thread_map
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import decode_paths
from lakegc_assets.graveler.entry import AddressType
from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError
from lakegc_assets.lakefs.calls import LARGEST_PAGE
from lakegc_assets.lakefs.client import LakeFSClient, branch_ref
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.lakefs.models import Change
from lakegc_assets.mark.addresses import is_elsewhere, just_before, live_spellings
from lakegc_assets.mark.lookalikes import (
    ASKED,
    LOOKS,
    SERVED_NAMES,
    HeadRanges,
    Integers,
    Positions,
    groups_of,
)
from lakegc_assets.mark.metaranges import fetch, table_url
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes
from lakegc_assets.storage.base import ObjectStore

#: Changes that are held at a time: a branch may have staged millions.
_CHANGES_AT_ONCE: Final = 50_000


def staged_paths(
    client: LakeFSClient, repository: str, branch: str, sizes: pa.Array | pa.ChunkedArray
) -> set[str]:
    """Paths at which a branch has staged possible candidates, by their sizes.

    ``sizes``: of the candidates, in bytes.

    Raises:
        IntegrityError: the branch exists, and lakeFS says that it does not.
    """
    found: set[str] = set()
    for changes in _many(_staged(client, repository, branch)):
        known = pa.array(map(_size, changes), pa.int64())
        alike = pc.or_(pc.is_null(known), pc.is_in(known, sizes))
        found.update(change["path"] for change in compress(changes, alike.to_pylist()))
    return found


def _many(pages: Iterable[list[Change]]) -> Iterator[list[Change]]:
    """The changes of several pages together, since to compare a few takes as long as many."""
    held: list[Change] = []
    for page in pages:
        held += page
        if len(held) >= _CHANGES_AT_ONCE:
            yield held
            held = []
    if held:
        yield held


def _size(change: Change) -> int | None:
    """The size of what is new, in bytes. That of what replaces something may be of either: None."""
    size = change.get("size_bytes")
    return size if size is not None and size >= 0 and change["type"] == "added" else None


def changed_paths(client: LakeFSClient, repository: str, branch: str) -> Iterator[str]:
    """Paths at which a branch has staged an addition or change; none where the branch is gone.

    Raises:
        IntegrityError: the branch exists, and lakeFS says that it does not.
    """
    return (change["path"] for page in _staged(client, repository, branch) for change in page)


def _staged(client: LakeFSClient, repository: str, branch: str) -> Iterator[list[Change]]:
    """Staged additions and changes of a branch, in pages."""
    try:
        for page in client.changes(repository, branch):
            yield [change for change in page if change["type"] != "removed"]
    except NotFoundError as error:
        if branch in {found.id for found in client.branches(repository)}:
            raise IntegrityError(
                f"branch {branch!r} of {repository!r} exists, but its diff says not found "
                f"({error}): run again",
            ) from error


#: Paths in the first page of a place; the next is twice as long if it answered for several.
_PAGE = 100
_TASKS: Final = 8
_THREADS: Final = 8
#: Paths of one branch that one thread asks for.
_UNIT: Final = 20_000
#: Paths to be asked: of which range and look (``groups_of``), and in which turn.
_PATHS: Final = pa.schema(
    [("position", pa.int32()), ("path", pa.string()), ("group", pa.uint64()), ("turn", pa.int32())]
)
#: What must be asked in any case, whatever time it takes, comes before all turns.
_STAGED: Final = -1
#: Work on one core, in seconds: of an entry that is decoded, of a diff and each change in it, of a
#: path.
_READ_S: Final = 5e-7
_DIFF_S: Final = 0.005
_CHANGE_S: Final = 2e-6
_PATH_S: Final = 2e-5


@dataclass(frozen=True)
class Question:
    """The lookups that may be sent to lakeFS, with their budget.

    Attributes:
        turns: files of ``ASKED``: the looks to ask for, in which turn each.
        positions: of the ranges that hold such entries.
        sizes: files of ``SIZES``: those of candidates.
        paths: how many paths there are, on all branches.
        deadline: seconds since 1970 after which no more is asked, but for what is staged.
        staged: about how many objects all branches have staged.
    """

    turns: Sequence[Part]
    positions: Positions
    sizes: Sequence[Part]
    paths: int
    deadline: float
    staged: int = 0


@dataclass(frozen=True)
class Answer:
    """The results of the lookups.

    Attributes:
        served: files of ``SERVED_NAMES``: addresses, and last parts of those that nobody resolves.
        unasked: files of ``LOOKS`` that were not asked for on all their paths.
    """

    served: Sequence[Part]
    unasked: Sequence[Part]


def ask(
    ctx: RunContext,
    connections: Connections,
    heads: HeadRanges,
    url: str,
    folder: str,
    question: Question,
    paths: Sequence[Part],
) -> Answer:
    """Ask lakeFS.

    ``paths``: files there, of ``find_paths``.

    Raises:
        IntegrityError: a range or a file is missing or damaged, or an answer cannot be true.
        LakeFSError: lakeFS did not answer.
    """
    branches = [
        (branch, held[np.isin(held, question.positions)])
        for branch, held in heads.of_branch.items()
    ]
    # Nobody tells which branch has how many.
    share = (question.paths * _PATH_S + question.staged * _CHANGE_S) / max(1, len(branches))
    costs = [_DIFF_S + share for _ in branches]
    orders = [
        _Asking(connections, ctx.repository, url, folder, some, paths, question)
        for some in bin_pack(branches, costs, _TASKS)
    ]
    answers = ctx.tasks.run("ask lakeFS what it serves", _ask, orders, sum(costs))
    return Answer(
        [part for answer in answers for part in answer.served],
        [part for answer in answers for part in answer.unasked],
    )


@dataclass(frozen=True)
class _Turns:
    """Looks that are asked for, sorted by their groups."""

    groups: Hashes
    rows: pa.Table

    @classmethod
    def read(cls, store: ObjectStore, parts: Sequence[Part]) -> _Turns:
        rows = pa.concat_tables([ASKED.empty_table(), *read_parts(store, parts)])
        groups = groups_of(rows["size"].to_numpy(), rows["look"].to_numpy())
        order = np.argsort(groups, kind="stable")
        return cls(groups[order], rows.take(pa.array(order)))

    def looks(self, groups: Hashes) -> pa.Table:
        """All looks of some groups (``LOOKS``)."""
        return self.rows.filter(pa.array(np.isin(self.groups, groups))).select(LOOKS.names)


# The paths of entries


def find_paths(
    ctx: RunContext,
    connections: Connections,
    heads: HeadRanges,
    url: str,
    folder: str,
    question: Question,
) -> list[Part]:
    """The paths of entries that may be asked for: files of these in a folder of a store.

    Raises:
        IntegrityError: a range or a file is missing or damaged.
    """
    ranges = [(int(p), heads.ranges[p].range_id) for p in question.positions]
    costs = [(heads.ranges[p].entries or 0) * _READ_S + 0.02 for p in question.positions]
    groups = bin_pack(ranges, costs, ctx.settings.address_num_partitions)
    task = partial(_read_paths, connections, url, f"{folder}paths/", question.turns)
    answers = ctx.tasks.run("read paths at branch HEADs", task, groups, sum(costs))
    return [part for parts in answers for part in parts]


def _read_paths(
    connections: Connections,
    url: str,
    folder: str,
    turns_of_looks: Sequence[Part],
    ranges: Sequence[tuple[int, str]],
) -> list[Part]:
    """Paths of ranges, which are read again, whatever is cached of them."""
    artifacts, store = connections.open(url), connections.store()
    namespace_url, namespace = connections.namespace_url, connections.namespace()
    turns = _Turns.read(artifacts, turns_of_looks)
    groups, numbers = turns.groups, turns.rows["turn"].to_numpy()
    writer = PartWriter(artifacts, folder, _PATHS)
    for position, range_id in ranges:
        data = fetch(store, namespace_url, range_id)
        entries, paths = decode_paths(data, table_url(namespace_url, range_id))
        sizes = entries["size"].to_numpy()
        for hashes in (groups_of(sizes, _etags(namespace, entries)), groups_of(sizes)):
            at = np.minimum(np.searchsorted(groups, hashes), len(groups) - 1)
            rows = np.flatnonzero(groups[at] == hashes)
            columns = [
                np.full(len(rows), position, np.int32),
                _text(paths.take(rows), f"range {range_id} of {namespace_url}"),
                hashes[rows],
                numbers[at[rows]],
            ]
            writer.add(pa.table(columns, schema=_PATHS))
    return writer.finish()


def _etags(namespace: StorageNamespace, entries: pa.RecordBatch) -> Integers:
    """The hashes of etags, as ``ranges.decode`` gives them."""
    etags: Integers = entries["etag_hash"].to_numpy().copy()
    types = entries["address_type"].to_numpy()
    for row in np.flatnonzero(types != AddressType.RELATIVE).tolist():
        if is_elsewhere(namespace, entries["address"][row].as_py(), int(types[row])):
            etags[row] = 0
    return etags


def _text(paths: Sequence[bytes], where: str) -> pa.Array:
    """Paths as text.

    Raises:
        IntegrityError: one is not UTF-8.
    """
    try:
        return pa.array(paths, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        raise IntegrityError(
            f"{where} has a path that is not UTF-8: lakeFS cannot be asked what it serves there"
        ) from None


# Asking


@dataclass(frozen=True)
class _Asking:
    connections: Connections
    repository: str
    url: str
    folder: str
    branches: Sequence[tuple[str, Positions]]
    paths: Sequence[Part]
    question: Question


@dataclass(frozen=True)
class _Unit:
    """Paths of one branch, in order, with the groups for which they are asked."""

    branch: str
    turn: int
    paths: pa.ChunkedArray | pa.Array
    groups: Hashes


def _ask(order: _Asking) -> Answer:
    client = order.connections.client()
    names = [branch for branch, _ in order.branches]
    store = order.connections.open(order.url)
    sizes = [part["size"] for part in read_parts(store, order.question.sizes)]
    of_candidates = pa.chunked_array([one for some in sizes for one in some.chunks], pa.int64())
    staged = thread_map(
        partial(staged_paths, client, order.repository, sizes=of_candidates), names, _THREADS
    )
    units = [
        _Unit(branch, _STAGED, pa.array(sorted(paths), pa.string()), np.empty(0, np.uint64))
        for branch, paths in zip(names, staged, strict=True)
        if paths
    ]
    units += _units(order)
    # Threads take them in this order, so that what comes late is what is asked last.
    units.sort(key=lambda unit: unit.turn)
    answers = thread_map(partial(_ask_unit, order, client), units, _THREADS)
    served = pa.array(sorted({name for names, _ in answers for name in names}), pa.string())
    unasked = np.unique(np.concatenate([np.empty(0, np.uint64), *(some for _, some in answers)]))
    looks = LOOKS.empty_table()
    if len(unasked):
        looks = _Turns.read(store, order.question.turns).looks(unasked)
    return Answer(
        _written(store, f"{order.folder}served/", pa.table([served], schema=SERVED_NAMES)),
        _written(store, f"{order.folder}unasked/", looks),
    )


def _written(store: ObjectStore, folder: str, rows: pa.Table) -> list[Part]:
    return [write_part(store, folder, rows)] if rows.num_rows else []


def _units(order: _Asking) -> list[_Unit]:
    store = order.connections.open(order.url)
    held = [positions for _, positions in order.branches]
    wanted = pa.array(np.unique(np.concatenate([np.empty(0, np.int32), *held])))
    tables = [
        table.filter(pc.is_in(table["position"], wanted))
        for table in read_parts(store, order.paths)
    ]
    rows = pa.concat_tables([_PATHS.empty_table(), *tables])
    rows = rows.sort_by([("turn", "ascending"), ("path", "ascending")])
    positions, turns = rows["position"].to_numpy(), rows["turn"].to_numpy()
    groups = rows["group"].to_numpy()
    units: list[_Unit] = []
    for branch, of_branch in order.branches:
        mine = np.flatnonzero(np.isin(positions, of_branch))
        cuts = np.flatnonzero(np.diff(turns[mine])) + 1
        for some in np.split(mine, cuts):
            for at in range(0, len(some), _UNIT):
                chunk = some[at : at + _UNIT]
                paths = rows["path"].take(pa.array(chunk))
                units.append(_Unit(branch, int(turns[chunk[0]]), paths, groups[chunk]))
    return units


def _ask_unit(order: _Asking, client: LakeFSClient, unit: _Unit) -> tuple[set[str], Hashes]:
    """Addresses served at the paths of a unit, and the groups that time did not suffice for."""
    namespace = order.connections.namespace()
    page = Page(client, order.repository)
    served: set[str] = set()
    unasked = unit.groups[:0]
    for number, path in enumerate(unit.paths.to_pylist()):
        if unit.turn != _STAGED and time.time() > order.question.deadline:
            unasked = np.unique(unit.groups[number:])
            break
        address = page.address(unit.branch, path)
        if address is not None:
            served.update(_names(namespace, address))
    return served, unasked


def _names(namespace: StorageNamespace, address: str) -> Sequence[str]:
    """The relative addresses that an address may mean; its last parts where nobody can tell."""
    try:
        return live_spellings(namespace, address)
    except UnresolvableAddressError as error:
        return sorted(error.last_components)


class Page:
    """The part of a branch that was listed last: one call answers for many paths in order."""

    def __init__(self, client: LakeFSClient, repository: str) -> None:
        self.client = client
        self.repository = repository
        self.branch = ""
        self.low = ""
        self.high: str | None = ""
        self.addresses: Mapping[str, str] = {}
        self.amount = _PAGE
        self.answered = 0

    def address(self, branch: str, path: str) -> str | None:
        """The physical address that lakeFS serves at a path; None where it serves nothing."""
        known = branch == self.branch and path > self.low
        if not (known and (self.high is None or path <= self.high)):
            self._turn(branch, path)
        self.answered += 1
        return self.addresses.get(path)

    def _turn(self, branch: str, path: str) -> None:
        useful = branch == self.branch and self.answered > 1
        self.amount = min(2 * self.amount, LARGEST_PAGE) if useful else _PAGE
        self.branch, self.low, self.answered = branch, just_before(path), 0
        try:
            objects, has_more = self.client.objects_page(
                self.repository, branch_ref(branch), after=self.low, amount=self.amount
            )
        except NotFoundError as error:
            if branch in {b.id for b in self.client.branches(self.repository)}:
                raise IntegrityError(
                    f"branch {branch!r} of {self.repository!r} exists, but listing its objects "
                    f"says not found ({error}): run again",
                ) from error
            objects, has_more = [], False
        self.addresses = {found.path: found.physical_address for found in objects}
        self.high = max(self.addresses) if has_more else None
        if has_more and (self.high is None or self.high < path):
            # Nothing is served at this path if even the page that starts before it ends before it.
            raise IntegrityError(
                f"listing branch {branch!r} after {self.low!r} skipped {path!r}: run again"
            )
