"""The last pass, too: what lakeFS serves where a HEAD has an entry that looks like a candidate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from lakegc_assets.checks.hashing import Members, hash_strings
from lakegc_assets.checks.kept import fetch
from lakegc_assets.checks.scratch import Scratch, in_any, one_of
from lakegc_assets.checks.second_opinion import served_addresses
from lakegc_assets.checks.witness import alike_paths
from lakegc_assets.engine.datasets import Part
from lakegc_assets.run.connections import Connections

#: Work on one core, in seconds: of a range and each entry of it, and of asking what a branch serves
#: at a path.
_RANGE_S: Final = 0.02
_ENTRY_S: Final = 5e-7
_PATH_S: Final = 3e-4
_ASKED: Final = 10_000


@dataclass(frozen=True)
class Question:
    """An order to ask what is served at paths of some ranges.

    Attributes:
        scratch: how to reach everything.
        repository: lakeFS repository.
        ranges: ids, each with the branches whose HEAD has it.
        looks: files of the hashes of the candidates' sizes and etags.
        candidates: files of their hashes.
    """

    scratch: Scratch
    repository: str
    ranges: Sequence[tuple[str, Sequence[str]]]
    looks: Sequence[Part]
    candidates: Sequence[Part]


def seconds(entries: int, places: int) -> float:
    """About how much work a range is that has so many entries, and is asked about at places."""
    return _RANGE_S + entries * _ENTRY_S + places * _PATH_S


def serve(order: Question) -> list[str]:
    """What is served and may be a candidate, by its hash; a task.

    Raises:
        LakeFSError: lakeFS did not say what it serves.
    """
    candidates = order.scratch.read_all(order.candidates)
    found: set[str] = set()
    waiting: list[str] = []

    def compare() -> None:
        hashes = hash_strings(pa.array(waiting, pa.string()))
        found.update(waiting[at] for at in np.flatnonzero(in_any(candidates, hashes)))
        waiting.clear()

    for spelling in served_addresses(order.scratch.connections, order.repository, _places(order)):
        waiting.append(spelling)
        if len(waiting) >= _ASKED:
            compare()
    compare()
    return sorted(found)


def _places(order: Question) -> Iterator[tuple[str, str]]:
    """Branches and paths; in order within a range, so that the server finds neighbours."""
    looks = Members([one_of(order.scratch.read_all(order.looks))])
    for range_id, branches in order.ranges:
        paths = _alike(order.scratch.connections, range_id, looks)
        for branch in branches:
            yield from ((branch, path) for path in paths)


def _alike(connections: Connections, range_id: str, looks: Members) -> list[str]:
    """The paths of entries that look like a candidate."""
    data = fetch(connections, range_id)
    paths = alike_paths(data, range_id, connections.namespace(), looks)
    # A path that is no UTF-8 is shown with escapes; nobody can ask the API for it.
    return [path.decode(errors="backslashreplace") for path in paths]
