"""The second pass: what lakeFS names, read one commit and one list at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakegc_assets.checks.hashing import Members, hash_strings
from lakegc_assets.checks.kept import fetch, table_url
from lakegc_assets.checks.scratch import Scratch
from lakegc_assets.checks.second_opinion import as_paths
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
class Ask:
    """An order to ask for commits, and to read lists of staged objects.

    Attributes:
        scratch: how to reach everything.
        repository: lakeFS repository.
        commit_ids: of the commits.
        lists: keys of the lists.
        candidates: files of their hashes.
    """

    scratch: Scratch
    repository: str
    commit_ids: Sequence[str]
    lists: Sequence[str]
    candidates: Sequence[Part]


@dataclass(frozen=True)
class Told:
    """What lakeFS says.

    Attributes:
        ranges: of each commit, with the number of entries that its metarange tells.
        staged: lists that have what may be a candidate, by its hash: for each the spellings.
    """

    ranges: Mapping[str, Mapping[str, int]]
    staged: Sequence[str]


def ask(order: Ask) -> Told:
    """Ask for commits and read lists; a task.

    Raises:
        IntegrityError: a metarange is missing or damaged.
        LakeFSError: lakeFS does not know a commit.
    """
    connections = order.scratch.connections

    def of_commit(commit_id: str) -> dict[str, int]:
        return _ranges(connections, order.repository, commit_id)

    ranges = thread_map(of_commit, order.commit_ids, _THREADS)
    found: set[str] = set()
    if order.lists:
        candidates = Members(order.scratch.read_all(order.candidates))
        for key in order.lists:
            found.update(_staged(connections, key, candidates))
    return Told(dict(zip(order.commit_ids, ranges, strict=True)), sorted(found))


def united(found: Sequence[Told]) -> Told:
    """What several tasks were told."""
    ranges = {commit: of for one in found for commit, of in one.ranges.items()}
    return Told(ranges, sorted({address for one in found for address in one.staged}))


def _ranges(connections: Connections, repository: str, commit_id: str) -> dict[str, int]:
    metarange_id = connections.client().commit(repository, commit_id).meta_range_id
    if not metarange_id:
        return {}
    data = fetch(connections, metarange_id)
    infos = read_metarange(data, table_url(connections, metarange_id))
    return {info.id: info.count for info in infos}


def _staged(connections: Connections, key: str, candidates: Members) -> list[str]:
    """The spellings in a list that may be candidates, by their hashes."""
    namespace = connections.namespace()
    reader = pq.ParquetFile(pa.BufferReader(connections.store().get(key)))
    found: list[str] = []
    for page in reader.iter_batches(columns=["physical_address"]):
        addresses = page["physical_address"].cast(pa.string())
        odd = addresses.filter(pc.match_substring_regex(addresses, _ODD)).to_pylist()
        full = [namespace.relatives(address) for address in odd if "://" in address]
        more = as_paths([*odd, *(relative for relatives in full for relative in relatives)])
        for some in (addresses, pa.array(more, pa.string())):
            hits = candidates.among(hash_strings(some))
            found += some.take(pa.array(np.flatnonzero(hits))).to_pylist()
    return found
