"""The third pass: what the ranges of branch HEADs and of tags hold, by the witness."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lakegc_assets.checks.hashing import Hashes, Members, distinct, is_in
from lakegc_assets.checks.kept import Wanted, Witnessed, read_witnessed
from lakegc_assets.checks.looks import alike
from lakegc_assets.checks.scratch import Scratch, one_of
from lakegc_assets.engine.datasets import Part

#: Hashes that a task collects before it writes them down.
_WAITING: Final = 2_000_000


@dataclass(frozen=True)
class Witness:
    """An order to look at ranges.

    Attributes:
        scratch: how to reach everything.
        ranges: to look at.
        of_heads: ids of those that a branch HEAD has.
        candidates: files of their hashes.
        looks: files of the hashes of the candidates' sizes and etags.
        before: microseconds since 1970: an entry of before then should be listed.
        unlisted: hashes of the folders of slices that were not listed, sorted.
    """

    scratch: Scratch
    ranges: Sequence[Wanted]
    of_heads: frozenset[str]
    candidates: Sequence[Part]
    looks: Sequence[Part]
    before: int
    unlisted: Hashes


@dataclass(frozen=True)
class Range:
    """What is known of one range.

    Attributes:
        range_id: its id.
        digest: of its addresses, as text.
        held: hashes of the addresses that may be candidates.
        alike: how many entries look like a candidate.
        entries: how many there are.
    """

    range_id: str
    digest: str
    held: Hashes
    alike: int
    entries: int


@dataclass(frozen=True)
class Heads:
    """What ranges hold.

    Attributes:
        ranges: by id.
        expected: files of the hashes of what should be listed.
    """

    ranges: dict[str, Range]
    expected: Sequence[Part]


def look_at(order: Witness) -> Heads:
    """Look at some ranges; a task.

    Raises:
        IntegrityError: a range is missing or damaged.
    """
    candidates = Members(order.scratch.read_all(order.candidates))
    looks = Members([one_of(order.scratch.read_all(order.looks))])
    ranges: dict[str, Range] = {}
    expected: list[Part] = []
    waiting: list[Hashes] = []
    for found in read_witnessed(order.scratch.connections, order.ranges):
        of_head = found.range_id in order.of_heads
        hashes, old = placed(found, order.before, order.unlisted)
        held = distinct(hashes[candidates.among(hashes)])
        columns = (found.looks[name].to_numpy() for name in ("size", "etag"))
        count = int(alike(looks, *columns).sum()) if of_head else 0
        ranges[found.range_id] = Range(found.range_id, found.digest, held, count, found.entries)
        if of_head:
            waiting.append(old)
        if sum(map(len, waiting)) >= _WAITING:
            expected += order.scratch.write(waiting)
            waiting = []
    return Heads(ranges, [*expected, *order.scratch.write(waiting)])


def united(found: Sequence[Heads]) -> Heads:
    """What several tasks have found."""
    ranges = {range_id: of for one in found for range_id, of in one.ranges.items()}
    return Heads(ranges, [part for one in found for part in one.expected])


def placed(found: Witnessed, before: int, unlisted: Hashes) -> tuple[Hashes, Hashes]:
    """The hashes of the addresses of a range, and of those among them that should be listed."""
    columns: Iterator[Hashes] = (
        column.to_numpy() for column in found.places.select(["placed", "hash", "folder"]).columns
    )
    inside, hashes, folders = columns
    old = found.places["modified"].to_numpy() < before
    listed = ~is_in(unlisted, folders)
    return hashes[inside.astype(np.bool_)], hashes[inside.astype(np.bool_) & old & listed]
