"""Ranges and metaranges below ``_lakefs/`` that no commit, branch or dump of refs names.

A failed merge or import leaves them. A table stays unless it is known to be unreferenced. So these
stay: tables younger than 30 days, dumps of refs, tables that a dump names, and ranges of a
metarange that stays. The files are listed before the server dumps its commits, so a commit made in
between is seen. The tables are only reported: a server may at any time commit an old table without
writing it again (docs/safety.md).

A dump is lakeFS's own list of all commits, branches and tags of a repository, including commits
that no branch or tag leads to. The field with the result of a compaction exists only in some lakeFS
versions. So every value that could be the id of a table counts, in any field.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.entry import decode_commit_data
from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.graveler.sstable import SSTable, read_dump
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark.live_ranges import Tables, all_tables
from lakegc_assets.mark.metaranges import ranges_of
from lakegc_assets.mark.refs import load_commits
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.values import LISTING_SCHEMA

_ENTITIES: Final = ("commit", "branch", "tag")
#: A string of 64 hex digits in a protobuf message; matches may overlap.
_ID: Final = re.compile(rb"(?=\x40([0-9a-f]{64}))")
_PLAIN_ID: Final = re.compile(rb"[0-9a-f]{64}")
_THREADS: Final = 8
#: Age below which a table may belong to a running commit, merge or import.
MIN_AGE: Final = timedelta(days=30)
_FOLDER: Final = "_lakefs/"
_TABLE: Final = re.compile(rf"{_FOLDER}[0-9a-f]{{64}}")


@dataclass(frozen=True)
class Dumped:
    """Ids in some files of dumps; ids of several files are united."""

    #: Commits that the files list.
    commits: frozenset[str] = frozenset()
    #: Parents of these commits, and commits of branches and tags, which must exist.
    needed: frozenset[str] = frozenset()
    #: Metaranges of these commits.
    metaranges: frozenset[str] = frozenset()
    #: Ranges that make up a dump, as the files name them.
    ranges: frozenset[str] = frozenset()
    #: All values in the files that may be the id of a table.
    named: frozenset[str] = frozenset()


def _read_dumps(connections: Connections, ids: Collection[str]) -> Dumped:
    """Read files below ``_lakefs/`` that are dumps of refs, both metaranges and ranges.

    Raises:
        IntegrityError: a file is missing or damaged, or is not a dump.
    """
    found = thread_map(partial(_read, connections), sorted(ids), _THREADS)
    return _joined(found)


def _read_dump_of(connections: Connections, metarange_id: str, listed: Collection[str]) -> Dumped:
    """Read one dump, with all ranges that its metarange names.

    ``listed``: ids of the files of dumps that the store lists.

    Raises:
        IntegrityError: a file is missing or damaged, or not listed.
    """
    metarange = _read_dumps(connections, [metarange_id])
    if missing := sorted({metarange_id, *metarange.ranges} - set(listed)):
        raise IntegrityError(
            f"{connections.table_url(missing[0])}, which lakeFS has just written, is not in the "
            "listing: run again"
        )
    return _joined([metarange, _read_dumps(connections, metarange.ranges)])


def _joined(found: Collection[Dumped]) -> Dumped:
    """The union of the ids of several dumps."""
    names = [field.name for field in fields(Dumped)]
    return Dumped(*(frozenset().union(*(getattr(one, name) for one in found)) for name in names))


def _read(connections: Connections, table_id: str) -> Dumped:
    url = connections.table_url(table_id)
    entity, table = _table(connections.fetch_table(table_id), url)
    named = {one.decode() for record in table.records for one in _ID.findall(record.value)}
    ids = {r.identity.decode() for r in table.records if _PLAIN_ID.fullmatch(r.identity)}
    if table.properties["type"] == b"metaranges":
        if len(ids) != len(table.records):
            raise _unknown_form(url, "it names its ranges in another form")
        return Dumped(ranges=frozenset(ids), named=frozenset(named | ids))
    if entity != "commit":
        # The identity of a branch or tag is its commit.
        return Dumped(needed=frozenset(ids), named=frozenset(named | ids))
    try:
        commits = [decode_commit_data(record.value) for record in table.records]
    except ValueError as error:
        raise _unknown_form(url, f"a commit in it cannot be decoded ({error})") from error
    metaranges = {one.metarange_id for one in commits} - {""}
    if not metaranges <= named:
        raise _unknown_form(url, "it names metaranges in another form")
    return Dumped(
        commits=frozenset(one.id for one in commits),
        needed=frozenset(parent for one in commits for parent in one.parents),
        metaranges=frozenset(metaranges),
        named=frozenset(named | ids),
    )


def _unknown_form(url: str, what: str) -> IntegrityError:
    return IntegrityError(
        f"{url} is not a dump as this lakegc knows it: {what}. A newer lakeFS may have written it. "
        "Report this with the file and the version of the server"
    )


def _table(data: bytes, name: str) -> tuple[str, SSTable]:
    """The kind of a dump, and its table."""
    for entity in _ENTITIES[:-1]:
        try:
            return entity, read_dump(data, name, entity)
        except FormatError as error:
            if "no dump of refs" not in str(error):
                raise
    return _ENTITIES[-1], read_dump(data, name, _ENTITIES[-1])


@dataclass(frozen=True)
class UnreferencedTables:
    """Tables below ``_lakefs/`` of a repository that nothing names."""

    repository: str
    #: Rows as the store lists them (``LISTING_SCHEMA``), metaranges first.
    tables: pa.Table
    #: Number of metaranges among the tables.
    metaranges: int
    #: Number of all ranges and metaranges, dumps included.
    listed: int
    #: Number of files of dumps of refs among these, which always stay.
    dumps: int

    @property
    def size(self) -> int:
        """Bytes of the tables that nothing names."""
        return pc.sum(self.tables["size"]).as_py() or 0


def unreferenced_tables(ctx: RunContext) -> UnreferencedTables:
    """The old tables of a repository that nothing names, by two dumps that agree.

    If there are old tables, this makes lakeFS dump its refs.

    Raises:
        IntegrityError: a table is missing or damaged, or its kind is unknown; or a dump is
            incomplete.
        LakeFSError: the server does not dump its refs.
    """
    listed, old = _tables(ctx.connections.store())
    if not old.num_rows:
        return UnreferencedTables(ctx.repository, old, 0, listed.num_rows, 0)
    commits = frozenset(
        load_commits(ctx.client, ctx.repository, _heads(ctx.client, ctx.repository))
    )
    known = _known(ctx, commits)
    unnamed = _unnamed(ctx, old, known)
    if unnamed:
        # A list that the server cut short by a temporary fault is longer the next time.
        known = _known(ctx, commits | known.commits | known.heads)
        unnamed &= _unnamed(ctx, old, known)
    first = unnamed & known.metaranges
    return UnreferencedTables(
        ctx.repository,
        pa.concat_tables([_chosen(old, first), _chosen(old, unnamed - first)]),
        len(first),
        listed.num_rows,
        len(known.dumps),
    )


def is_accounted_for(ctx: RunContext) -> bool:
    """Return whether logs and earlier dumps name all old tables, so that no new dump is needed.

    Each dump stays below ``_lakefs/``, and a report without leftovers must not add files.

    Raises:
        IntegrityError: a named table cannot be read.
    """
    _, old = _tables(ctx.connections.store())
    if not old.num_rows:
        return True
    commits = load_commits(ctx.client, ctx.repository, _heads(ctx.client, ctx.repository))
    tables = all_tables(ctx, ())
    if tables.unreadable:
        return False
    dumps = _of_kind(tables, "refs")
    named = _read_dumps(ctx.connections, dumps).named | {c.metarange_id for c in commits.values()}
    known = _Known(
        frozenset(commits), frozenset(), dumps, _of_kind(tables, "metaranges"), frozenset(named)
    )
    return not _unnamed(ctx, old, known)


@dataclass(frozen=True)
class _Known:
    """The ids that dumps or logs name."""

    #: All commits.
    commits: frozenset[str]
    #: Commits of branches and tags in the dump.
    heads: frozenset[str]
    #: Files of dumps, and metaranges, below ``_lakefs/``.
    dumps: frozenset[str]
    metaranges: frozenset[str]
    #: All ids that any dump, or the logs, name.
    named: frozenset[str]


def _known(ctx: RunContext, before: Collection[str]) -> _Known:
    """Make lakeFS dump its refs, and read this dump and all others.

    A complete dump has all commits in ``before``. Raises IntegrityError if it is incomplete.
    """
    dump = ctx.client.dump_refs(ctx.repository)
    tables = all_tables(ctx, ())
    for error in tables.unreadable.values():
        raise IntegrityError(
            f"{error}. It may be a metarange, so it is not known what is unreferenced: restore it, "
            "or remove it if lakeFS never wrote it"
        ) from error
    dumps, metaranges = _of_kind(tables, "refs"), _of_kind(tables, "metaranges")
    dumped = {i: _read_dump_of(ctx.connections, i, dumps) for i in dump.metaranges}
    commits = dumped[dump.commits_meta_range_id]
    # A branch may have received a commit after lakeFS wrote the list of commits.
    heads = frozenset().union(*(one.needed for one in dumped.values() if one is not commits))
    if missing := sorted((commits.needed | set(before)) - commits.commits):
        raise IntegrityError(
            f"the server's list of all commits of {ctx.repository!r} lacks {missing[0]}, which "
            "the log of a branch or tag, a child or an earlier list has: it is incomplete, and "
            "nothing is known to be unreferenced. Run again"
        )
    if missing := sorted(commits.metaranges - metaranges):
        raise IntegrityError(
            f"{ctx.connections.table_url(missing[0])}, the metarange of a commit, is not in the "
            "listing: its ranges would be taken for unreferenced. If it is in the store, run "
            "again; else restore it"
        )
    return _Known(
        commits.commits, heads, dumps, metaranges, _read_dumps(ctx.connections, dumps).named
    )


def _of_kind(tables: Tables, kind: str) -> frozenset[str]:
    return frozenset(i for i, found in tables.kinds.items() if found == kind)


def _unnamed(ctx: RunContext, listed: pa.Table, known: _Known) -> set[str]:
    """The ids of the listed tables that nothing names."""
    ids = {key.removeprefix(_FOLDER) for key in listed["key"].to_pylist()}
    ids -= known.named | known.dumps
    # A damaged metarange stops the run here: the ranges that it names are unknown.
    named = ranges_of(ctx, dict.fromkeys(known.metaranges - ids, 0)).rows["range_id"]
    return ids - set(named.to_pylist())


def _tables(store: ObjectStore) -> tuple[pa.Table, pa.Table]:
    """All ranges and metaranges that a store lists, dumps included; and the old ones."""
    pages = [LISTING_SCHEMA.empty_table()]
    for page in store.list_to_the_end(_FOLDER):
        which = [_TABLE.fullmatch(key) is not None for key in page["key"].to_pylist()]
        pages.append(pa.table(page.filter(pa.array(which, pa.bool_()))))
    listed = pa.concat_tables(pages)
    return listed, listed.filter(pc.less(listed["last_modified"], store.server_time() - MIN_AGE))


def _chosen(listed: pa.Table, ids: Collection[str]) -> pa.Table:
    keys = pa.array([f"{_FOLDER}{i}" for i in ids], pa.string())
    return listed.filter(pc.is_in(listed["key"], keys))


def _heads(client: LakeFSClient, repository: str) -> set[str]:
    return {one.commit_id for refs in (client.branches, client.tags) for one in refs(repository)}
