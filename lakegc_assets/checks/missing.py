"""Only where something is missing: the addresses behind hashes, read again by the slow reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakegc_assets.checks.hashing import Hashes, distinct, hash_strings, is_in
from lakegc_assets.checks.heads import placed
from lakegc_assets.checks.kept import Wanted, fetch, read_witnessed, table_url
from lakegc_assets.checks.scratch import Scratch, in_any
from lakegc_assets.checks.witness import meanings
from lakegc_assets.engine.datasets import Part
from lakegc_assets.graveler.ranges import read_range
from lakegc_assets.run.connections import Connections


@dataclass(frozen=True)
class Find:
    """An order to find what is missing in the listing.

    Attributes:
        scratch: how to reach everything.
        ranges: of HEADs.
        missing: files of hashes.
        before: microseconds since 1970: an entry of before then should be listed.
        unlisted: hashes of the folders of slices that were not listed, sorted.
    """

    scratch: Scratch
    ranges: Sequence[Wanted]
    missing: Sequence[Part]
    before: int
    unlisted: Hashes


def find(order: Find) -> Part:
    """A file of the addresses that are missing, some perhaps several times; a task."""
    connections = order.scratch.connections
    missing = order.scratch.read_all(order.missing)
    found: set[str] = set()
    for one in read_witnessed(connections, order.ranges):
        _, old = placed(one, order.before, order.unlisted)
        if not in_any(missing, old).any():
            continue
        addresses = pa.array(sorted(addresses_of(connections, one.range_id)), pa.string())
        hashes = hash_strings(addresses)
        # What is old enough is told by the witness, what is meant by the slow reader.
        lost = in_any(missing, hashes) & is_in(distinct(old), hashes)
        found.update(addresses.take(pa.array(np.flatnonzero(lost))).to_pylist())
    return order.scratch.write_addresses(pa.array(sorted(found), pa.string()))


def addresses_of(connections: Connections, range_id: str) -> set[str]:
    """Every relative address that an entry of a range may mean, by the slow reader.

    Raises:
        IntegrityError: the range is missing or damaged.
    """
    namespace, url = connections.namespace(), table_url(connections, range_id)
    return {
        meaning
        for _, entry in read_range(fetch(connections, range_id), url)
        for meaning in meanings(namespace, entry.address, entry.address_type)
        if meaning is not None
    }
