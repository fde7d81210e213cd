"""The last pass: what the listing has of the candidates, and of what HEADs hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.checks import hash_kernels
from lakegc_assets.checks.hashing import Bools, Hashes, Members, hash_strings
from lakegc_assets.checks.scratch import Scratch, one_of
from lakegc_assets.engine.datasets import Part, read_part

#: Work of one row on one core, in seconds.
ROW_S: Final = 1e-6
#: The same of what should be listed, which each task goes through.
EXPECTED_S: Final = 5e-8
#: Hashes of the listing that are compared at a time.
_WAITING: Final = 4_000_000
_ROWS: Final = pa.schema([("address", pa.string()), ("last_modified", pa.timestamp("us", "UTC"))])


@dataclass(frozen=True)
class Compare:
    """An order to compare a part of the listing.

    Attributes:
        scratch: how to reach everything.
        listing: files of the listing.
        candidates: files of the candidates' hashes.
        left: files of the candidates' addresses.
        expected: files of hashes of what should be listed.
        cutoff: of the mark.
    """

    scratch: Scratch
    listing: Sequence[Part]
    candidates: Sequence[Part]
    left: Sequence[Part]
    expected: Sequence[Part]
    cutoff: datetime


@dataclass(frozen=True)
class Compared:
    """What a part of the listing has. A bit for each row of each file.

    Attributes:
        old: candidates, in the order of ``left``, that it has with a time before the cutoff.
        young: candidates that it has with another time.
        expected: of what should be listed, what it has.
    """

    old: Sequence[bytes]
    young: Sequence[bytes]
    expected: Sequence[bytes]


def compare(order: Compare) -> Compared:
    """Compare a part of the listing; a task.

    Candidates are found by their hashes and then compared as they are. What should be listed is
    compared by hashes alone: one lost object among 10^7 is overlooked with a probability of 10^-12.
    """
    store = order.scratch.artifacts()
    candidates = Members(order.scratch.read_all(order.candidates))
    rows = [_ROWS.empty_table()]
    expected = [np.zeros(part.rows, np.bool_) for part in order.expected]
    waiting: list[Hashes] = []
    for number, part in enumerate(order.listing, 1):
        table = read_part(store, part, _ROWS.names)
        hashes = hash_strings(table["address"])
        likely = table.take(pa.array(np.flatnonzero(candidates.among(hashes))))
        rows.append(likely.cast(_ROWS))
        waiting.append(hashes)
        if number == len(order.listing) or sum(map(len, waiting)) >= _WAITING:
            listed, waiting = one_of(waiting), []
            for found, run in zip(expected, order.expected, strict=True):
                hash_kernels.meet(listed, order.scratch.read(run), found)
    likely = pa.concat_tables(rows)
    is_old = pc.less(likely["last_modified"], pa.scalar(order.cutoff, _ROWS.types[1]))
    old, young = (likely.filter(mask)["address"] for mask in (is_old, pc.invert(is_old)))
    pairs = [
        [
            _bits(_among(read_part(store, part, ["address"])["address"], some))
            for some in (old, young)
        ]
        for part in order.left
    ]
    bits = [_bits(found) for found in expected]
    return Compared([pair[0] for pair in pairs], [pair[1] for pair in pairs], bits)


def either(bits: Sequence[bytes], rows: int) -> Bools:
    """For each row, whether one of several tasks has set its bit."""
    found = np.zeros(rows, np.bool_)
    for some in bits:
        if some:
            found |= np.unpackbits(np.frombuffer(some, np.uint8), count=rows).astype(np.bool_)
    return found


def _among(addresses: pa.ChunkedArray, some: pa.ChunkedArray) -> Bools:
    found: Bools = pc.is_in(addresses, some.combine_chunks()).to_numpy().astype(np.bool_)
    return found


def _bits(found: Bools) -> bytes:
    """Nothing where nothing is set."""
    return np.packbits(found).tobytes() if found.any() else b""
