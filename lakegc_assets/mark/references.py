"""Objects of this namespace that other repositories of the server name by full addresses.

An import, or a client that stages an address, lets one repository name an object of another, and
lakeFS tells neither. So every other repository is read: what its branches have staged first, what
is below its ``_lakefs/`` behind that, so that what is committed meanwhile is seen as one or the
other; and the list of repositories until it has nothing new. All of its ranges count at first.
Only where one names something in here are its active commits asked for, and then theirs count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, partial
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, PartWriter
from lakegc_assets.engine.progress import report_progress
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError, LakegcError
from lakegc_assets.graveler.decode import decode_range
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import ForbiddenError
from lakegc_assets.mark.commits import Liveness, find_liveness
from lakegc_assets.mark.full_addresses import Inside, cached_full, inside, read_full, union_of
from lakegc_assets.mark.live_hashes import HashWriter
from lakegc_assets.mark.live_ranges import isolate, live_ranges, passed_over
from lakegc_assets.mark.metaranges import (
    COUNTED,
    each_once,
    fetch,
    path_ranges,
    require_in_full,
    table_url,
    uncounted,
)
from lakegc_assets.mark.other_repositories import (
    Other,
    Tables,
    heads_of,
    others_of,
    record_look,
    staged_addresses,
    tables_of,
)
from lakegc_assets.mark.ranges import Wanted, seconds, spread_ranges, wanted
from lakegc_assets.mark.refs import load_commits, read_tags
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import address_hashes
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.wording import counted

T = TypeVar("T")

COMMITTED: Final = "committed"
STAGED: Final = "staged"
SAME_HASH: Final = "its hash is that of an address that another repository names"
#: Rows: an object of this namespace, the repository that names it, and whether in a commit.
REFERENCES: Final = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("repository", pa.string(), nullable=False),
        pa.field("held", pa.string(), nullable=False),
    ]
)
_THREADS: Final = 8
#: Branches of one repository that are read at a time.
_BRANCHES: Final = 4
#: Staged addresses that are held at a time.
_AT_ONCE: Final = 50_000
#: How often the list of repositories may have grown before the run stops.
_LISTS: Final = 10


class UnreadableRepositoryError(IntegrityError):
    """The references of another repository cannot be read."""


@dataclass(frozen=True)
class References:
    """Objects that other repositories keep alive.

    Attributes:
        parts: rows of ``REFERENCES``.
        hashes: files of the hashes of their addresses.
        unresolved: last path components of full addresses that nobody can place.
        counts: how many addresses each repository names, for all that were read; what several
            tasks found, staged and in commits say, counts for each.
        ignored: names of those that the settings exclude.
        passed_over: sentences about files of theirs that cannot be read, and that nothing names.
    """

    parts: Sequence[Part] = ()
    hashes: Sequence[Part] = ()
    unresolved: Sequence[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    ignored: Sequence[str] = ()
    passed_over: Sequence[str] = ()


def sentence(repository: str, held: str) -> str:
    """Why an object stays that another repository names."""
    where = "a commit" if held == COMMITTED else "what it has staged"
    return f"repository {repository!r} names it by its full address, in {where}"


def read_references(
    ctx: RunContext,
    client: LakeFSClient,
    connections: Connections,
    artifacts: ObjectStore,
    folder: str,
    start: datetime,
    unread: list[str] | None = None,
) -> References:
    """Read what other repositories name of this one.

    ``start``: of the run, against which ages of commits are taken.
    ``unread``: takes why a repository cannot be read, in place of an error.

    Raises:
        UnreadableRepositoryError: one of them cannot be read; which, and why.
        IntegrityError: the list of repositories is not whole, or does not come to rest.
    """
    look = partial(_look, client, connections)
    read: list[tuple[Other, References | LakegcError]] = []
    for _ in range(_LISTS):
        others = others_of(ctx, client, connections)
        new = [o for o in others if not any(known.is_same(o.repository) for known, _ in read)]
        if not new:
            break
        ctx.log.info("reading %d other repositories of the server: what they name", len(new))
        reading = _Reading(ctx, client, connections, artifacts, folder, start)
        now = ["their branches, and what is staged there"]
        with report_progress(ctx.log, partial(_how_far, ctx, now, len(new))):
            looks = thread_map(look, new, _THREADS)
            for other, seen in zip(new, looks, strict=True):
                now.append(f"commits and ranges of {other.name}")
                read.append((other, reading.read(other, seen)))
    else:
        raise IntegrityError(
            f"repositories are made faster than they can be read for what they name of "
            f"{ctx.repository!r}: run again at a quieter time"
        )
    found: list[References] = []
    for other, outcome in read:
        if isinstance(outcome, References):
            found.append(outcome)
        elif any(other.is_same(listed.repository) for listed in others):
            error = _unreadable(ctx, other, outcome)
            if unread is None:
                raise error from outcome
            unread.append(str(error))
        # Else it was deleted while it was read, and keeps nothing alive.
    return joined(found, ctx.settings.ignored_repositories)


def _how_far(ctx: RunContext, now: Sequence[str], others: int) -> str:
    """Progress of reading other repositories; the first and the last of ``now`` count."""
    which = f" ({len(now) - 1:,} of {others:,})" if len(now) > 1 else ""
    return (
        f"reading what {counted(others, 'other repository', 'other repositories')} of the server "
        f"may name of {ctx.repository}: {now[-1]}{which}. What was read is not read again by later "
        "marks"
    )


def _unreadable(ctx: RunContext, other: Other, error: LakegcError) -> UnreadableRepositoryError:
    return UnreadableRepositoryError(
        f"repository {other.name!r} of the same server may name objects of {ctx.repository!r} by "
        f"their full addresses, and cannot be read: {error}. So nothing of {ctx.repository!r} is "
        f"collected. Mend that; or, if {other.name!r} names none, exclude it by its name with "
        "ignored_repositories"
    )


class _Look(NamedTuple):
    """Results of the reads of another repository, in the order of the reads."""

    staged: Inside
    has_default_branch: bool
    tables: Tables


def _look(client: LakeFSClient, connections: Connections, other: Other) -> _Look | LakegcError:
    def staged(branch: str) -> Inside:
        addresses, found = staged_addresses(client, other, branch), list[Inside]()
        while some := list(islice(addresses, _AT_ONCE)):
            found.append(inside(connections.namespace(), pa.array(some, pa.string())))
        return union_of(found)

    try:
        heads = heads_of(client, other)
        found = thread_map(staged, list(heads), _BRANCHES)
        tables = tables_of(client, other, heads, connections.cache())
    except LakegcError as error:
        return error
    return _Look(union_of(found), other.repository.default_branch in heads, tables)


@dataclass(frozen=True)
class _Order:
    """The input of a task: some ranges of another repository."""

    #: Of the repository that is collected.
    namespace: StorageNamespace
    other: Other
    ranges: Sequence[Wanted]

    def read(self) -> Iterator[tuple[str, Inside]]:
        """Objects of this namespace that each of the ranges names.

        Raises:
            IntegrityError: a range is missing or damaged, or was not read.
        """
        count = 0
        for name, found in read_full(self.other.connections, self.ranges, self.namespace):
            yield name, inside(self.namespace, found)
            count += 1
        if count != len(self.ranges):
            raise IntegrityError(
                f"of {len(self.ranges)} ranges of {self.other.name} {count} were read: this is a "
                "fault of the mark, please report it"
            )


@dataclass(frozen=True)
class _Reading:
    """Reads what other repositories name, and writes it."""

    ctx: RunContext
    client: LakeFSClient
    connections: Connections
    artifacts: ObjectStore
    folder: str
    start: datetime

    def read(self, other: Other, look: _Look | LakegcError) -> References | LakegcError:
        """References of one repository; the error where it cannot be read."""
        if isinstance(look, LakegcError):
            return look
        try:
            ranges, passed = self._ranges(other, look)
            task = partial(_write, self.connections, self.artifacts.url, self.folder)
            written = self._run("write references", task, other, ranges)
        except LakegcError as error:
            return error
        if len(look.staged.addresses) or look.staged.last_parts:
            written.append(_written(self.artifacts, self.folder, other, STAGED, [look.staged]))
        return joined([References(counts={other.name: 0}, passed_over=passed), *written])

    def _run(
        self, what: str, task: Callable[[_Order], T], other: Other, ranges: pa.Table
    ) -> list[T]:
        if not ranges.num_rows:
            return []
        namespace = self.connections.namespace()
        found = wanted(ranges, cached_full(other.connections))
        groups = spread_ranges(found, self.ctx.settings.address_num_partitions)
        orders = [_Order(namespace, other, group) for group in groups]
        return self.ctx.tasks.run(what, task, orders, sum(map(seconds, found)))

    def _ranges(self, other: Other, look: _Look) -> tuple[pa.Table, list[str]]:
        """The ranges whose references count (range_id, entries), and what was passed over."""
        liveness = cache(partial(self._liveness, other, look))
        recorded, passed = look.tables.naming, dict[str, IntegrityError]()
        if recorded is not None:
            naming = uncounted(recorded)
        else:
            naming, passed = self._naming(other, look, liveness)
        if naming.num_rows:
            # All of them: some may have been committed since the look.
            active = self._active(other, liveness())
            naming = naming if active is None else active
        return naming, passed_over(passed)

    def _naming(
        self, other: Other, look: _Look, liveness: Callable[[], Liveness | None]
    ) -> tuple[pa.Table, dict[str, IntegrityError]]:
        """The ranges that name something, or cannot be read; and files that nothing names.

        Raises:
            IntegrityError: the metarange of a commit cannot be read, so that nobody knows its
                ranges.
        """
        tables = look.tables
        found = live_ranges(
            self.ctx, other.connections, tables.metaranges, every=True, strict=False
        )
        seen = self._run(f"read ranges of {other.name}", _naming, other, found.ranges)
        damaged = {i: error for one in seen for i, error in one.damaged.items()}
        # What a metarange names may name anything, until it turns out that no active commit has it.
        naming = {i for one in seen for i in one.naming} | (damaged.keys() - found.lone)
        passed = {**found.passed_over, **{i: damaged[i] for i in damaged.keys() & found.lone}}
        if passed:
            # Not recorded: what is restored is to be read.
            self._require_no_metarange(other, liveness(), passed)
        else:
            record_look(self.connections.cache(), other, tables.look, sorted(naming))
        which = pc.is_in(found.ranges["range_id"], pa.array(sorted(naming), pa.string()))
        return found.ranges.filter(which).cast(COUNTED), passed

    def _require_no_metarange(
        self, other: Other, liveness: Liveness | None, passed: Mapping[str, IntegrityError]
    ) -> None:
        """Require that no commit has what is passed over, though no branch leads to it.

        Raises:
            IntegrityError: a tagged commit, or one that only lakeFS's own list names, does.
        """
        if liveness is not None:
            commits = liveness.commits
        else:
            tagged = read_tags(self.client, other.name)
            commits = load_commits(self.client, other.name, tagged.values())
        for commit in commits.values():
            if commit.metarange_id in passed:
                raise passed[commit.metarange_id]

    def _active(self, other: Other, liveness: Liveness | None) -> pa.Table | None:
        """The ranges of active commits; None where all that is there counts."""
        if liveness is None or liveness.rules is None:
            return None
        ids = {liveness.commits[commit].metarange_id for commit in liveness.active.active}
        ranges = live_ranges(self.ctx, other.connections, ids, every=False).ranges.cast(COUNTED)
        # Of a range that can hold something below a path of rules all counts.
        below = path_ranges(
            self.ctx,
            other.connections,
            liveness.path_metaranges(),
            frozenset(ranges["range_id"].to_pylist()),
        )
        if not below.num_rows:
            return ranges
        return pa.concat_tables([ranges, each_once(below)])

    def _liveness(self, other: Other, look: _Look) -> Liveness | None:
        """The commits of a repository, tagged ones active too; None where lakeFS may not tell."""
        if other.repository.read_only or not look.has_default_branch:
            return None
        settings = self.ctx.settings.changed(protect_tags=True)
        ctx = replace(self.ctx, repository=other.name, settings=settings)
        try:
            return find_liveness(ctx, self.client, other.connections, self.start)
        except ForbiddenError as error:
            ctx.log.warning("all commits of %s count, active or not: %s", other.name, error)
            return None


class _Naming(NamedTuple):
    """Full addresses that a task found in some ranges."""

    #: Those that name something inside, or something that nobody can place.
    naming: Sequence[str]
    damaged: Mapping[str, IntegrityError]


def _naming(order: _Order) -> _Naming:
    def read(ranges: Sequence[Wanted]) -> list[str]:
        found = replace(order, ranges=ranges).read()
        return [name for name, named in found if len(named.addresses) or named.last_parts]

    parts, damaged = isolate(read, order.ranges)
    for one, error in damaged:
        # Others are read again, since a metarange names them.
        if one.entries is None:
            _require_damaged(order.other.connections, one.range_id, error)
    naming = [name for part in parts for name in part]
    return _Naming(naming, {one.range_id: error for one, error in damaged})


def _require_damaged(connections: Connections, range_id: str, error: IntegrityError) -> None:
    """Require that a range is damaged, and not only an answer about it.

    Raises:
        IntegrityError: it is not, or it is gone.
    """
    store, namespace_url = connections.store(), connections.namespace_url
    data, url = fetch(store, namespace_url, range_id), table_url(namespace_url, range_id)
    try:
        decode_range(data, url)
    except IntegrityError:
        require_in_full(store, namespace_url, range_id, data)
        return
    raise IntegrityError(f"{url} was not read in full: run again") from error


def _write(connections: Connections, url: str, folder: str, order: _Order) -> References:
    found = (named for _, named in order.read())
    return _written(connections.open(url), folder, order.other, COMMITTED, found)


def _written(
    artifacts: ObjectStore, folder: str, other: Other, held: str, found: Iterable[Inside]
) -> References:
    writer = PartWriter(artifacts, f"{folder}references/", REFERENCES)
    hashes = HashWriter(artifacts, f"{folder}referenced/")
    last_parts: set[str] = set()
    for one in found:
        names = [pa.repeat(pa.scalar(text), len(one.addresses)) for text in (other.name, held)]
        writer.add(pa.table([one.addresses, *names], schema=REFERENCES))
        hashes.add(address_hashes(one.addresses))
        last_parts |= one.last_parts
    return References(
        [part for part in writer.finish() if part.rows],
        hashes.finish(),
        sorted(last_parts),
        {other.name: hashes.digest.count},
    )


def joined(found: Sequence[References], ignored: Sequence[str] = ()) -> References:
    """Several as one."""
    counts: Counter[str] = Counter()
    for one in found:
        counts.update(one.counts)
    return References(
        [part for one in found for part in one.parts],
        [run for one in found for run in one.hashes],
        sorted({last for one in found for last in one.unresolved}),
        dict(counts),
        ignored,
        [said for one in found for said in one.passed_over],
    )
