"""Dumps of refs below ``_lakefs/``: which commits they have, and which tables they name.

A dump is lakeFS's own list of all commits, branches and tags of a repository, of commits that
nothing leads to as well. What a branch was compacted into stands in a field that some servers do
not have: so every value that could be the id of a table counts, whatever its field is called.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, fields
from functools import partial
from typing import Final

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.entry import decode_commit_data
from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.graveler.sstable import SSTable, read_dump
from lakegc_assets.mark.metaranges import fetch, table_url
from lakegc_assets.run.connections import Connections

_ENTITIES: Final = ("commit", "branch", "tag")
#: A protobuf's string of 64 hex digits; matches may overlap.
_ID: Final = re.compile(rb"(?=\x40([0-9a-f]{64}))")
_PLAIN_ID: Final = re.compile(rb"[0-9a-f]{64}")
_THREADS: Final = 8


@dataclass(frozen=True)
class Dumped:
    """Contents of some files of dumps.

    Attributes:
        commits: ids of the commits that they list.
        needed: ids of commits that these, or branches and tags, say that there are.
        metaranges: of these commits.
        ranges: that they say a dump consists of.
        named: everything in them that may be the id of a table.
    """

    commits: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()
    metaranges: frozenset[str] = frozenset()
    ranges: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()


def read_dumps(connections: Connections, ids: Collection[str]) -> Dumped:
    """Read the files below ``_lakefs/`` that are dumps of refs.

    Args:
        connections: how the store is reached.
        ids: of the files, metaranges and ranges alike.

    Raises:
        IntegrityError: one is missing or damaged, or no dump.
    """
    found = thread_map(partial(_read, connections), sorted(ids), _THREADS)
    return _joined(found)


def read_dump_of(connections: Connections, metarange_id: str, listed: Collection[str]) -> Dumped:
    """Read one dump, of all ranges that its metarange names.

    Args:
        connections: how the store is reached.
        metarange_id: of the dump.
        listed: ids of the files of dumps that the store lists.

    Raises:
        IntegrityError: a file is missing or damaged, or not listed.
    """
    metarange = read_dumps(connections, [metarange_id])
    if missing := sorted({metarange_id, *metarange.ranges} - set(listed)):
        raise IntegrityError(
            f"{table_url(connections.namespace_url, missing[0])}, which lakeFS has just written, "
            "is not listed: run again"
        )
    return _joined([metarange, read_dumps(connections, metarange.ranges)])


def _joined(found: Collection[Dumped]) -> Dumped:
    return Dumped(
        *(
            frozenset().union(*(getattr(one, field.name) for one in found))
            for field in fields(Dumped)
        )
    )


def _read(connections: Connections, table_id: str) -> Dumped:
    data = fetch(connections.store(), connections.namespace_url, table_id)
    entity, table = _table(data, table_url(connections.namespace_url, table_id))
    named = {one.decode() for record in table.records for one in _ID.findall(record.value)}
    ids = {r.identity.decode() for r in table.records if _PLAIN_ID.fullmatch(r.identity)}
    if table.properties["type"] == b"metaranges":
        if len(ids) != len(table.records):
            raise IntegrityError(f"the dump {table_id} names its ranges in an unknown form")
        return Dumped(ranges=frozenset(ids), named=frozenset(named | ids))
    if entity != "commit":
        # The identity of a branch, and of a tag, is its commit.
        return Dumped(needed=frozenset(ids), named=frozenset(named | ids))
    try:
        commits = [decode_commit_data(record.value) for record in table.records]
    except ValueError as error:
        raise IntegrityError(f"the dump {table_id} has a damaged commit: {error}") from error
    metaranges = {one.metarange_id for one in commits} - {""}
    if not metaranges <= named:
        raise IntegrityError(f"the dump {table_id} names metaranges in an unknown form")
    return Dumped(
        commits=frozenset(one.id for one in commits),
        needed=frozenset(parent for one in commits for parent in one.parents),
        metaranges=frozenset(metaranges),
        named=frozenset(named | ids),
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
