"""Objects of this namespace that other repositories of the server name by full addresses.

After an import, or when a client stages an address, a repository may name an object of another
repository. lakeFS does not report that, so every other repository is read: first the staged objects
of its branches, then its ``_lakefs/``. So an object that is committed in between is seen staged or
committed. The list of repositories is read again until it has no new ones. At first all ranges of a
repository count. Only if a range names an object of this namespace, lakeFS is asked for the active
commits. Then the ranges of active commits count, and the ranges that no commit has: an import
writes those minutes to hours before it commits them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from itertools import chain, islice
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, PartWriter
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.progress import report_progress
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError, LakegcError
from lakegc_assets.graveler.decode import decode_range
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.errors import ForbiddenError, RepositoryInDeletionError
from lakegc_assets.mark.commits import Liveness, find_liveness
from lakegc_assets.mark.earlier_marks import latest_marks
from lakegc_assets.mark.full_addresses import Inside, cached_full, inside, read_full, union_of
from lakegc_assets.mark.live_hashes import HashWriter
from lakegc_assets.mark.live_ranges import isolate, live_ranges, passed_over
from lakegc_assets.mark.metaranges import (
    COUNTED,
    each_once,
    path_ranges,
    require_in_full,
    uncounted,
)
from lakegc_assets.mark.other_repositories import (
    Other,
    Tables,
    heads_of,
    others_of,
    record_naming,
    record_read,
    staged_addresses,
    tables_of,
)
from lakegc_assets.mark.ranges import Wanted, run_on_ranges, wanted
from lakegc_assets.mark.refs import load_commits, read_tags
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import address_hashes
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.run.settings import recorded_retain
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.wording import counted

T = TypeVar("T")
V = TypeVar("V")

COMMITTED: Final = "committed"
STAGED: Final = "staged"
#: Rows: an object of this namespace, a repository that names it, and ``committed`` or ``staged``.
REFERENCES: Final = schema(
    "address string not null, repository string not null, held string not null"
)
_THREADS: Final = 8
#: Branches of one repository that are read at a time.
_BRANCHES: Final = 4
#: Maximum number of staged addresses in memory.
_AT_ONCE: Final = 50_000
#: Number of reads of the list of repositories; if it still has new ones, the run stops.
_LISTS: Final = 10


class UnreadableRepositoryError(IntegrityError):
    """The references of another repository cannot be read."""


@dataclass(frozen=True)
class References:
    """Objects that other repositories keep alive."""

    #: Rows of ``REFERENCES``.
    parts: Sequence[Part] = ()
    #: Files of the hashes of their addresses.
    hashes: Sequence[Part] = ()
    #: Last path components of full addresses that cannot be resolved.
    unresolved: AbstractSet[str] = frozenset()
    #: Number of addresses that each repository names, for all that were read. An address counts
    #: again for each task that found it, and once more if it is both staged and committed.
    counts: Mapping[str, int] = field(default_factory=dict)
    #: Names of repositories that the settings exclude.
    ignored: Sequence[str] = ()
    #: Sentences about unreadable files that nothing names.
    passed_over: Sequence[str] = ()

    def __add__(self, other: References) -> References:
        """The union of both."""
        counts = Counter(self.counts)
        counts.update(other.counts)
        return References(
            [*self.parts, *other.parts],
            [*self.hashes, *other.hashes],
            self.unresolved | other.unresolved,
            counts,
            [*self.ignored, *other.ignored],
            [*self.passed_over, *other.passed_over],
        )


def sentence(repository: str, held: str) -> str:
    """The reason why an object stays that another repository names."""
    where = "a commit" if held == COMMITTED else "what it has staged"
    return f"repository {repository!r} names it by its full address, in {where}"


def read_references(
    ctx: RunContext,
    artifacts: ObjectStore,
    folder: str,
    start: datetime,
    unread: list[str] | None = None,
) -> References:
    """Read the objects of this namespace that other repositories name.

    ``start``: start of the run; ages of commits are computed for it.
    ``unread``: receives the reason why a repository cannot be read; None to raise an error.

    Raises:
        UnreadableRepositoryError: a repository cannot be read; the message has name and reason.
        IntegrityError: the list of repositories is incomplete, or never stops growing.
    """
    read_other = partial(_or_error, partial(_read_other, ctx))
    read: list[tuple[Other, References | LakegcError]] = []
    for _ in range(_LISTS):
        others = others_of(ctx)
        new = [o for o in others if not any(known.is_same(o.repository) for known, _ in read)]
        if not new:
            break
        ctx.log.info("reading the references of %s of the server", _others(len(new)))
        now = ["their branches and staged objects"]
        with report_progress(ctx.log, partial(_how_far, ctx, now, len(new))):
            reads = thread_map(read_other, new, _THREADS)
            for other, seen in zip(new, reads, strict=True):
                now.append(f"commits and ranges of {other.name}")
                if isinstance(seen, LakegcError):
                    read.append((other, seen))
                    continue
                reading = _Reading(ctx, artifacts, folder, start, other, seen)
                read.append((other, _or_error(_Reading.read, reading)))
    else:
        raise IntegrityError(
            "repositories are made faster than they can be read, and each may name objects of "
            f"{ctx.repository!r}: run again at a quieter time"
        )
    found = References(ignored=ctx.settings.ignored_repositories)
    for other, outcome in read:
        if isinstance(outcome, References):
            found += outcome
        elif any(other.is_same(listed.repository) for listed in others) and not isinstance(
            _or_error(ctx.client.repository, other.name), RepositoryInDeletionError
        ):
            storage = other.repository.storage_id
            error = UnreadableRepositoryError(
                f"repository {other.name!r} of the same server may name objects of "
                f"{ctx.repository!r} by their full addresses, and cannot be read: {outcome}. "
                "Repair it, or give the credentials permission to read it, then run again. If "
                f"{other.name!r} names no object of {ctx.repository!r}, add it to "
                "ignored_repositories, for the mark and its sweep"
                + (
                    f". (It is in the storage {storage!r} of the server. If that is another store "
                    f"than that of {ctx.repository!r}, it names none)"
                    if storage
                    else ""
                )
            )
            if unread is None:
                raise error from outcome
            unread.append(str(error))
        # Else the repository was deleted meanwhile, or is being deleted: it keeps nothing alive.
    return found


def _how_far(ctx: RunContext, now: Sequence[str], others: int) -> str:
    """Progress of reading other repositories, from the length and the last item of ``now``."""
    which = f" ({len(now) - 1:,} of {others:,})" if len(now) > 1 else ""
    return (
        f"reading the references of {_others(others)} of the server to objects of "
        f"{ctx.repository}: {now[-1]}{which}. Later marks read only what is new"
    )


def _others(count: int) -> str:
    return counted(count, "other repository", "other repositories")


def _or_error(read: Callable[[V], T], of: V) -> T | LakegcError:
    """The result, or the error: a failure must not end the reads of other repositories."""
    try:
        return read(of)
    except LakegcError as error:
        return error


class _Reads(NamedTuple):
    """Results of the reads of another repository, in the order of the reads."""

    staged: Inside
    has_default_branch: bool
    tables: Tables


def _read_other(ctx: RunContext, other: Other) -> _Reads:
    client, connections = ctx.client, ctx.connections

    def staged(branch: str) -> Inside:
        addresses, found = staged_addresses(client, other, branch), list[Inside]()
        while batch := list(islice(addresses, _AT_ONCE)):
            found.append(inside(connections.namespace(), pa.array(batch, pa.string())))
        return union_of(found)

    heads = heads_of(client, other)
    found = thread_map(staged, list(heads), _BRANCHES)
    tables = tables_of(client, other, heads, connections.cache())
    return _Reads(union_of(found), other.repository.default_branch in heads, tables)


@dataclass(frozen=True)
class _Reading:
    """Reads the references of another repository, and writes them."""

    ctx: RunContext
    artifacts: ObjectStore
    folder: str
    start: datetime
    other: Other
    seen: _Reads

    def read(self) -> References:
        """Read and write the references of the repository.

        Raises:
            LakegcError: the repository cannot be read.
        """
        ranges, passed = self._ranges()
        url = self.artifacts.url
        write = partial(_write, self.ctx.connections, url, self.folder, self.other)
        found = sum(self._run("write references", write, ranges), References())
        staged = self.seen.staged
        if len(staged.addresses) or staged.last_parts:
            found += _written(self.artifacts, self.folder, self.other, STAGED, [staged])
        return References(counts={self.other.name: 0}, passed_over=passed) + found

    @cached_property
    def _there(self) -> RunContext:
        """The context of the run with the connections of the other repository."""
        return self.ctx.at(self.ctx.client, self.other.connections)

    def _run(self, what: str, task: Callable[[list[Wanted]], T], ranges: pa.Table) -> list[T]:
        if not ranges.num_rows:
            return []
        found = wanted(ranges, cached_full(self.other.connections))
        return run_on_ranges(self.ctx, what, task, found)

    def _ranges(self) -> tuple[pa.Table, list[str]]:
        """The ranges whose references count (range_id, entries), and sentences on unread files."""
        recorded, passed = self.seen.tables.naming, dict[str, IntegrityError]()
        if recorded is not None:
            naming = uncounted(recorded)
        else:
            naming, passed = self._naming()
        liveness = self._liveness if naming.num_rows else None
        if liveness is not None and liveness.rules is not None:
            # All active ranges: some may have been committed after ``naming`` was recorded.
            naming = pa.concat_tables([self._active(liveness), self._uncommitted(liveness, naming)])
        # Else all ranges of the repository that name an object count.
        return naming, passed_over(passed)

    def _naming(self) -> tuple[pa.Table, dict[str, IntegrityError]]:
        """Ranges that name an object here or cannot be read; and files that nothing names.

        Raises:
            IntegrityError: the metarange of a commit cannot be read, so its ranges are unknown.
        """
        other, tables = self.other, self.seen.tables
        found = live_ranges(self._there, tables.metaranges, every=True, strict=False)
        task = partial(_naming, self.ctx.connections.namespace(), other)
        named = self._run(f"read ranges of {other.name}", task, found.ranges)
        damaged = {i: error for _, errors in named for i, error in errors.items()}
        # A range of a metarange may name anything, until it turns out to be in no active commit.
        naming = {i for ids, _ in named for i in ids} | (damaged.keys() - found.lone)
        passed = {**found.passed_over, **{i: damaged[i] for i in damaged.keys() & found.lone}}
        if passed:
            # The ranges are not recorded: a range that is restored later must be read.
            self._require_no_metarange(passed)
            record_read(self.ctx.connections.cache(), other)
        else:
            record_naming(self.ctx.connections.cache(), other, tables.state, sorted(naming))
        which = pc.is_in(found.ranges["range_id"], pa.array(sorted(naming), pa.string()))
        return found.ranges.filter(which).cast(COUNTED), passed

    def _require_no_metarange(self, passed: Mapping[str, IntegrityError]) -> None:
        """Raise the error of a metarange that is passed over although a commit has it.

        No branch leads to that commit: a tag or lakeFS's list of active commits names it.
        """
        if self._liveness is not None:
            commits = self._liveness.commits
        else:
            client, name = self.ctx.client, self.other.name
            commits = load_commits(client, name, read_tags(client, name).values())
        for commit in commits.values():
            if commit.metarange_id in passed:
                raise passed[commit.metarange_id]

    def _uncommitted(self, liveness: Liveness, naming: pa.Table) -> pa.Table:
        """Ranges that no known commit has, neither an active nor an expired one."""
        ids = {commit.metarange_id for commit in liveness.commits.values()}
        committed = live_ranges(self._there, ids, every=False).ranges
        known = committed["range_id"].cast(pa.string()).combine_chunks()
        return naming.filter(pc.invert(pc.is_in(naming["range_id"], known)))

    def _active(self, liveness: Liveness) -> pa.Table:
        """The ranges of active commits."""
        ids = liveness.active_metaranges()
        ranges = live_ranges(self._there, ids, every=False).ranges.cast(COUNTED)
        # Every entry of a range counts if the range can hold paths of a rule.
        whole = frozenset(ranges["range_id"].to_pylist())
        below = path_ranges(self._there, liveness.path_metaranges(), whole)
        return pa.concat_tables([ranges, each_once(below)]) if below.num_rows else ranges

    @cached_property
    def _liveness(self) -> Liveness | None:
        """The repository's commits, tagged ones also active; None if they cannot be listed."""
        other = self.other
        if other.repository.read_only or not self.seen.has_default_branch:
            return None
        # Without a run id, to read its mark of this wave, too: only that may know some commits.
        ctx = replace(self._there, repository=other.name, run="")
        # Commits that its own marks keep by ``retain`` stay readable, too.
        manifests: dict[str, Manifest] = {}
        marks = latest_marks(ctx, manifests).marks
        retain = ctx.settings.retained | recorded_retain(one.manifest.facts for one in marks)
        settings = ctx.settings.changed(protect_tags=True, retain=retain.to_json())
        try:
            there = replace(ctx, settings=settings)
            return find_liveness(there, self.start, manifests=manifests)
        except ForbiddenError as error:
            ctx.log.warning(
                "all commits of %s count as active, since the list of its active commits cannot be "
                "read: %s",
                other.name,
                error,
            )
            return None


def _read(
    namespace: StorageNamespace, other: Other, ranges: Sequence[Wanted]
) -> Iterator[tuple[str, Inside]]:
    """Objects of the namespace that each range of another repository names."""
    count = 0
    for name, found in read_full(other.connections, ranges, namespace):
        yield name, inside(namespace, found)
        count += 1
    if count != len(ranges):
        raise IntegrityError(
            f"of {len(ranges)} ranges of {other.name!r} {count} were read. This is a fault of "
            "lakegc: please report it, with the log of this run"
        )


def _naming(
    namespace: StorageNamespace, other: Other, ranges: Sequence[Wanted]
) -> tuple[list[str], dict[str, IntegrityError]]:
    """Ranges that name objects inside, or unresolvable addresses; and damaged ranges."""

    def read(some: Sequence[Wanted]) -> list[str]:
        found = _read(namespace, other, some)
        return [name for name, named in found if len(named.addresses) or named.last_parts]

    parts, damaged = isolate(read, ranges)
    for one, error in damaged:
        # Damaged ranges that a metarange names are read again later.
        if one.entries is None:
            _require_damaged(other.connections, one.range_id, error)
    return list(chain.from_iterable(parts)), {one.range_id: error for one, error in damaged}


def _require_damaged(connections: Connections, range_id: str, error: IntegrityError) -> None:
    """Require that a range is damaged, and not only the answer that was read.

    Raises:
        IntegrityError: the range is sound, or it is gone.
    """
    data, url = connections.fetch_table(range_id), connections.table_url(range_id)
    try:
        decode_range(data, url)
    except IntegrityError:
        require_in_full(connections, range_id, data)
        return
    raise IntegrityError(f"{url} was not read in full: run again") from error


def _write(
    connections: Connections, url: str, folder: str, other: Other, ranges: Sequence[Wanted]
) -> References:
    found = (named for _, named in _read(connections.namespace(), other, ranges))
    return _written(connections.open(url), folder, other, COMMITTED, found)


def _written(
    artifacts: ObjectStore, folder: str, other: Other, held: str, found: Iterable[Inside]
) -> References:
    writer = PartWriter(artifacts, f"{folder}references/", REFERENCES)
    hashes = HashWriter(artifacts, f"{folder}referenced/")
    last_parts: frozenset[str] = frozenset()
    for one in found:
        names = [pa.repeat(pa.scalar(text), len(one.addresses)) for text in (other.name, held)]
        writer.add(pa.table([one.addresses, *names], schema=REFERENCES))
        hashes.add(address_hashes(one.addresses))
        last_parts |= one.last_parts
    return References(
        [part for part in writer.finish() if part.rows],
        hashes.finish(),
        last_parts,
        {other.name: hashes.digest.count},
    )
