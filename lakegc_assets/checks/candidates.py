"""The first pass: what candidates are called, and by what others are compared with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.checks.hashing import Hashes, hash_strings
from lakegc_assets.checks.looks import candidates_looks, etags_of
from lakegc_assets.checks.scratch import Scratch
from lakegc_assets.engine.datasets import Part
from lakegc_assets.run.selection import Selection

#: How many addresses a message shows.
EXAMPLES: Final = 5
#: Rows that one task looks at, at least; and the work of one, in seconds of one core.
TASK_ROWS: Final = 500_000
ROW_S: Final = 1e-6


@dataclass(frozen=True)
class Wrong:
    """Candidates that must not be any: how many, and some of them."""

    count: int = 0
    examples: Sequence[str | None] = ()

    def __add__(self, other: Wrong) -> Wrong:
        """Both."""
        return Wrong(self.count + other.count, [*self.examples, *other.examples][:EXAMPLES])


@dataclass(frozen=True)
class Look:
    """An order to look at some candidates."""

    scratch: Scratch
    selection: Selection


@dataclass(frozen=True)
class Looked:
    """What was seen of candidates.

    Attributes:
        rows: how many there are.
        left: files with their addresses, in as many rows.
        outside: those that are not where lakeFS writes objects.
        special: those that are lakeFS's own, or cannot be listed.
        hashes: files of the hashes of all addresses.
        looks: files of their ``looks.candidates_looks``.
    """

    rows: int
    left: Sequence[Part]
    outside: Wrong
    special: Wrong
    hashes: Sequence[Part]
    looks: Sequence[Part]


def look(order: Look) -> Looked:
    """Look at some candidates; a task."""
    scratch, store = order.scratch, order.scratch.artifacts()
    left: list[Part] = []
    outside, special = Wrong(), Wrong()
    hashes: list[Hashes] = []
    looks: list[Hashes] = []
    for part in order.selection.parts:
        rows = order.selection.read(store, part, ["address", "size", "etag"])
        addresses = rows["address"]
        outside += _wrong(addresses, _is_outside(addresses))
        special += _wrong(addresses, _is_special(addresses))
        named = pc.fill_null(addresses, "")
        left.append(scratch.write_addresses(named) if order.selection.without else part)
        hashes.append(hash_strings(named))
        looks.append(_looks(rows))
    found, alike = (scratch.write(some) for some in (hashes, looks))
    return Looked(sum(map(len, hashes)), left, outside, special, found, alike)


def united(found: Sequence[Looked]) -> Looked:
    """What several tasks have seen."""
    return Looked(
        sum(one.rows for one in found),
        [part for one in found for part in one.left],
        sum((one.outside for one in found), Wrong()),
        sum((one.special for one in found), Wrong()),
        [part for one in found for part in one.hashes],
        [part for one in found for part in one.looks],
    )


def _is_outside(addresses: pa.ChunkedArray) -> pa.ChunkedArray:
    where = pc.match_substring_regex(addresses, r"(?s)^data/.|^[^/]+$")
    odd = pc.match_substring_regex(addresses, r"(^|/)\.\.?(/|$)|://")
    return pc.fill_null(pc.or_(pc.invert(where), odd), fill_value=True)


def _is_special(addresses: pa.ChunkedArray) -> pa.ChunkedArray:
    # Below data/ they are of a repository in there, which this server may know nothing of.
    own = pc.match_substring_regex(addresses, "^_lakefs|(^|/)(_lakefs/|dummy$)|[\r\n]")
    return pc.fill_null(own, fill_value=False)


def _wrong(addresses: pa.ChunkedArray, mask: pa.ChunkedArray) -> Wrong:
    found = addresses.filter(mask)
    return Wrong(len(found), found.slice(0, EXAMPLES).to_pylist())


def _looks(rows: pa.Table) -> Hashes:
    return candidates_looks(rows["size"].to_numpy(), etags_of(pc.fill_null(rows["etag"], "")))
