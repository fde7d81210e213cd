"""Sets of 64-bit hashes, kept as sorted runs, and which of some hashes are in them.

A run is a file with one column, ``hash``: sorted, without repetitions, of a length that a task can
hold. A set is several of them, which may overlap: so tasks write their own and nothing is ever
exchanged. Asking for sorted hashes reads each run from its beginning to its end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from lakegc_assets.engine.datasets import Part, read_part, write_part
from lakegc_assets.run.hashing import Hashes, hash_table, unsigned
from lakegc_assets.storage.base import ObjectStore

T = TypeVar("T", bound=np.generic)

#: Hashes in a run: 32 MB.
RUN_LENGTH: Final = 4_000_000
#: What a process keeps of runs that it has read, in bytes.
_KEPT: Final = 128 << 20

_kept: OrderedDict[str, Hashes] = OrderedDict()
_lock = Lock()


def write_set(store: ObjectStore, folder: str, hashes: Sequence[Hashes]) -> list[Part]:
    """Write a set of hashes, which may come in any order and more than once.

    Args:
        store: to write to.
        folder: relative to the store, with a slash at its end.
        hashes: of the members, in several arrays.
    """
    members = union(hashes)
    return [
        write_part(store, folder, hash_table(members[at : at + RUN_LENGTH]), plain=True)
        for at in range(0, len(members), RUN_LENGTH)
    ]


def read_run(store: ObjectStore, part: Part) -> Hashes:
    """The sorted hashes of one run; kept for the next reader in this process.

    Raises:
        IntegrityError: it is not what it was.
    """
    with _lock:
        if part.sha256 in _kept:
            _kept.move_to_end(part.sha256)
            return _kept[part.sha256]
    table = read_part(store, part)
    hashes = unsigned(table["hash"])
    with _lock:
        _kept[part.sha256] = hashes
        while sum(run.nbytes for run in _kept.values()) > _KEPT and len(_kept) > 1:
            _kept.popitem(last=False)
    return hashes


def members(store: ObjectStore, runs: Iterable[Part], hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Mark the hashes that are members of a set.

    Args:
        store: that the runs were written to.
        runs: of the set.
        hashes: in any order.

    Raises:
        IntegrityError: a run is not what it was.
    """
    return members_of((read_run(store, run) for run in runs), hashes)


def members_of(runs: Iterable[Hashes], hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Mark the hashes that are in any of some sorted arrays."""
    order = np.argsort(hashes, kind="stable")
    wanted = hashes[order]
    found = np.zeros(len(wanted), np.bool_)
    for run in runs:
        if len(run) and len(wanted):
            at = np.searchsorted(run, wanted)
            at[at == len(run)] = 0
            found |= run[at] == wanted
    answer = np.empty(len(found), np.bool_)
    answer[order] = found
    return answer


def union(runs: Sequence[Hashes]) -> Hashes:
    """The sorted members of several arrays of hashes."""
    return distinct(np.concatenate([np.empty(0, np.uint64), *runs]))


def distinct(numbers: npt.NDArray[T]) -> npt.NDArray[T]:
    """Some numbers sorted, each once.

    ``numpy.unique`` fills a hash table first, which takes ten times as long where most differ.
    """
    found = np.sort(numbers)
    return found[np.concatenate([[True], found[1:] != found[:-1]])] if len(found) else found
