"""Ranges of commits and staged addresses, read from lakeFS once more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakegc_assets.checks.scratch import Scratch
from lakegc_assets.checks.second_opinion import as_paths
from lakegc_assets.checks.witness_cache import fetch, table_url
from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.graveler.ranges import read_metarange
from lakegc_assets.run.connections import Connections

#: Work on one core, in seconds: a commit with its metarange; a list of staged objects.
COMMIT_S: Final = 0.02
LIST_S: Final = 0.2
_THREADS: Final = 8
#: Addresses that plain Python looks at: that have a scheme, or that stores may read otherwise.
_ODD: Final = r"://|(^|/)\.{0,2}(/|$)|\\"


@dataclass(frozen=True)
class RefsOrder:
    """An order to ask for commits, and to read lists of staged objects.

    Attributes:
        scratch: how to reach everything.
        repository: lakeFS repository.
        commit_ids: of the commits.
        lists: keys of the lists.
    """

    scratch: Scratch
    repository: str
    commit_ids: Sequence[str]
    lists: Sequence[str]


@dataclass(frozen=True)
class Refs:
    """Ranges of commits and staged addresses that lakeFS names.

    Attributes:
        ranges: of each commit, with the number of entries that its metarange tells.
        staged: files of the addresses that are staged, in every spelling.
    """

    ranges: Mapping[str, Mapping[str, int]]
    staged: Sequence[Part]


def read_refs(order: RefsOrder) -> Refs:
    """Ask for commits and read lists; a task.

    Raises:
        IntegrityError: a metarange is missing or damaged.
        LakeFSError: lakeFS does not know a commit.
    """
    connections = order.scratch.connections

    def of_commit(commit_id: str) -> dict[str, int]:
        return _ranges(connections, order.repository, commit_id)

    ranges = thread_map(of_commit, order.commit_ids, _THREADS)
    staged = order.scratch.write(some for key in order.lists for some in _staged(connections, key))
    return Refs(dict(zip(order.commit_ids, ranges, strict=True)), staged)


def united(found: Sequence[Refs]) -> Refs:
    """Unite the results of several tasks."""
    ranges = {commit: of for one in found for commit, of in one.ranges.items()}
    return Refs(ranges, [part for one in found for part in one.staged])


def _ranges(connections: Connections, repository: str, commit_id: str) -> dict[str, int]:
    metarange_id = connections.client().commit(repository, commit_id).meta_range_id
    if not metarange_id:
        return {}
    data = fetch(connections, metarange_id)
    infos = read_metarange(data, table_url(connections, metarange_id))
    return {info.id: info.count for info in infos}


def _staged(connections: Connections, key: str) -> Iterator[pa.Array]:
    """The addresses in a list, in every spelling."""
    namespace = connections.namespace()
    reader = pq.ParquetFile(pa.BufferReader(connections.store().get(key)))
    for page in reader.iter_batches(columns=["physical_address"]):
        addresses = page["physical_address"].cast(pa.string())
        yield addresses
        odd = addresses.filter(pc.match_substring_regex(addresses, _ODD)).to_pylist()
        full = [namespace.relatives(address) for address in odd if "://" in address]
        more = as_paths([*odd, *(relative for relatives in full for relative in relatives)])
        yield pa.array(more, pa.string())
