"""Sifts the listing: what is old enough, in its place, and on no list of live objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, PartWriter, read_part, read_parts, write_part
from lakegc_assets.engine.tasks import bin_pack
from lakegc_assets.graveler.decode import etag_hashes
from lakegc_assets.mark.addresses import UNNAMEABLE, in_data
from lakegc_assets.mark.evidence import ETAGS
from lakegc_assets.mark.listed import MULTIPART
from lakegc_assets.mark.served import SPARED
from lakegc_assets.mark.suspects import last_parts
from lakegc_assets.run.artifacts import LISTING
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes, address_hashes
from lakegc_assets.run.sets import members
from lakegc_assets.storage.base import ObjectStore

AMBIGUOUS: Final = "a full address that cannot be resolved ends like it"
CONTROL: Final = "its name has a line break or another control character"
#: Work on one core, in seconds, to sift a listed object, and to compare an upload in parts.
_ROW_S: Final = 2e-6
_COMPARE_S: Final = 5e-7
#: Files of uploads in parts that are held at a time, as strings.
_HELD_PARTS: Final = 4

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Sieve:
    """What keeps an object from being a candidate.

    Attributes:
        url: of the store of all files.
        folder: where to write in it, with a slash at its end.
        cutoff: only what was written before it may be a candidate.
        live: runs of the hashes of live addresses.
        unresolved: last parts of live addresses that nobody can place (last_part).
    """

    url: str
    folder: str
    cutoff: datetime
    live: Sequence[Part]
    unresolved: Sequence[Part]


@dataclass(frozen=True)
class Sifted:
    """What is left, in files; none of them is empty.

    Attributes:
        unlisted: candidates so far (``LISTING``).
        multipart: what was uploaded in parts, and would be a candidate else (``LISTING``).
        spared: address and why.
        etags: of all that is listed: ``ETAGS``, each file sorted; in the order of the listing.
        facts: counts of all that is listed.
    """

    unlisted: Sequence[Part] = ()
    multipart: Sequence[Part] = ()
    spared: Sequence[Part] = ()
    etags: Sequence[Part] = ()
    facts: Mapping[str, int] = field(default_factory=dict)


def sift(
    ctx: RunContext, connections: Connections, listing: Sequence[Part], sieve: Sieve
) -> Sifted:
    """Sift a listing.

    Raises:
        IntegrityError: a file is missing, or not what its manifest says.
    """
    costs = [part.rows * _ROW_S for part in listing]
    groups = bin_pack(listing, costs, ctx.settings.address_num_partitions)
    found = ctx.tasks.run(
        "sift the listing", partial(_sift, connections, sieve), groups, sum(costs)
    )
    files = (zip(group, one.etags, strict=True) for group, one in zip(groups, found, strict=True))
    etags = {part.key: of for some in files for part, of in some}
    names = ("listed", "listed_bytes", "outside_data", "too_young", "too_young_bytes")
    return Sifted(
        [part for one in found for part in one.unlisted],
        [part for one in found for part in one.multipart],
        [part for one in found for part in one.spared],
        [etags[part.key] for part in listing],
        {name: sum(one.facts[name] for one in found) for name in names},
    )


def _sift(connections: Connections, sieve: Sieve, listing: Sequence[Part]) -> Sifted:
    store = connections.open(sieve.url)
    unresolved = pa.concat_arrays(
        [
            pa.array([], pa.string()),
            *(t["last_part"].combine_chunks() for t in read_parts(store, sieve.unresolved)),
        ]
    )
    writers = {
        name: PartWriter(store, f"{sieve.folder}{name}/", schema)
        for name, schema in (("unlisted", LISTING), ("multipart", LISTING), ("spared", SPARED))
    }
    etags: list[Part] = []
    facts = dict.fromkeys(
        ("listed", "listed_bytes", "outside_data", "too_young", "too_young_bytes"), 0
    )
    for part, hashes, live in _known(store, listing, sieve.live):
        rows = read_part(store, part)
        etags.append(write_part(store, f"{sieve.folder}etags/", _etags(rows, hashes), plain=True))
        for name, table in _sorted_out(sieve, unresolved, rows, live, facts).items():
            if table.num_rows:
                writers[name].add(table)
    written = {name: [p for p in w.finish() if p.rows] for name, w in writers.items()}
    return Sifted(**written, etags=etags, facts=facts)


def _known(
    store: ObjectStore, listing: Sequence[Part], runs: Sequence[Part]
) -> Iterator[tuple[Part, Hashes, Flags]]:
    """Each file with the hashes of its addresses, and which of them are in a set.

    Hashes are small and sets are large: so the whole of a set is read once for all files.
    """
    hashes = [address_hashes(read_part(store, part, ["address"])["address"]) for part in listing]
    live = members(store, runs, np.concatenate([np.empty(0, np.uint64), *hashes]))
    ends = np.cumsum([len(some) for some in hashes])
    yield from zip(listing, hashes, np.split(live, ends[:-1]), strict=True)


def _etags(rows: pa.Table, hashes: Hashes) -> pa.Table:
    columns = {
        "hash": hashes,
        "etag_hash": etag_hashes(rows["etag"].combine_chunks()),
        "modified": rows["last_modified"].cast(pa.int64()),
    }
    return pa.table(columns, schema=ETAGS).sort_by("hash")


def _sorted_out(
    sieve: Sieve, unresolved: pa.Array, rows: pa.Table, live: Flags, facts: dict[str, int]
) -> dict[str, pa.Table]:
    placed = in_data(rows["address"])
    old = pc.less(rows["last_modified"], pa.scalar(sieve.cutoff, rows["last_modified"].type))
    young = rows.filter(pc.and_not(placed, old))
    for name, count in (
        ("listed", rows.num_rows),
        ("listed_bytes", _bytes(rows)),
        ("outside_data", rows.num_rows - (pc.sum(placed).as_py() or 0)),
        ("too_young", young.num_rows),
        ("too_young_bytes", _bytes(young)),
    ):
        facts[name] += count
    dead = rows.filter(pc.and_(pc.and_(placed, old), pa.array(~live)))
    addresses = dead["address"]
    ambiguous = pc.is_in(last_parts(addresses), unresolved).to_numpy()
    control = pc.match_substring_regex(addresses, UNNAMEABLE).to_numpy() & ~ambiguous
    multipart = pc.match_substring_regex(dead["etag"], MULTIPART).to_numpy()
    spared = [
        pa.table([some, pa.array([why] * len(some), pa.string())], schema=SPARED)
        for why, those in ((AMBIGUOUS, ambiguous), (CONTROL, control))
        for some in [addresses.filter(pa.array(those))]
    ]
    rest = ~(ambiguous | control)
    return {
        "unlisted": dead.filter(pa.array(rest & ~multipart)),
        "multipart": dead.filter(pa.array(rest & multipart)),
        "spared": pa.concat_tables(spared),
    }


def _bytes(rows: pa.Table) -> int:
    return pc.sum(rows["size"]).as_py() or 0


# Uploads in parts


def seen_before(
    ctx: RunContext,
    connections: Connections,
    url: str,
    multipart: Sequence[Part],
    earlier: tuple[str, Sequence[Part]],
) -> list[Flags]:
    """Which of some objects an earlier listing had, with the same etags.

    Args:
        ctx: the run.
        connections: how tasks reach artifacts.
        url: of the store of the objects' files.
        multipart: these files.
        earlier: URL of the store of the earlier listing, and its files of address and etag.

    Raises:
        IntegrityError: a file is missing, or not what its manifest says.
    """
    seen: list[Flags] = [np.zeros(part.rows, np.bool_) for part in multipart]
    if not multipart:
        return seen
    where, parts = earlier
    costs = [part.rows * _COMPARE_S for part in parts]
    task = partial(_seen, connections, url, multipart, where)
    groups = bin_pack(parts, costs, ctx.settings.address_num_partitions)
    for packed in ctx.tasks.run("compare uploads in parts", task, groups, sum(costs)):
        for number, flags in enumerate(packed):
            seen[number] |= np.unpackbits(flags, count=len(seen[number])).astype(np.bool_)
    return seen


def _seen(
    connections: Connections,
    url: str,
    multipart: Sequence[Part],
    where: str,
    earlier: Sequence[Part],
) -> list[npt.NDArray[np.uint8]]:
    """For each file which of its rows are in one of the others; a bit for each."""
    store, other = connections.open(url), connections.open(where)
    found: list[Flags] = []
    for at in range(0, len(multipart), _HELD_PARTS):
        some = multipart[at : at + _HELD_PARTS]
        wanted = [_pairs(read_part(store, part, ["address", "etag"])) for part in some]
        seen = [np.zeros(len(pairs), np.bool_) for pairs in wanted]
        for part in earlier:
            known = _pairs(read_part(other, part, ["address", "etag"]))
            for number, pairs in enumerate(wanted):
                seen[number] |= pc.is_in(pairs, known).to_numpy(zero_copy_only=False)
        found += seen
    return [np.packbits(flags) for flags in found]


def _pairs(rows: pa.Table) -> pa.Array:
    """Etag and address in one string each; etags of uploads in parts have no slash."""
    joined = pc.binary_join_element_wise(rows["etag"], rows["address"], "/")
    return pa.concat_arrays([pa.array([], pa.string()), *joined.chunks])
