"""The tables of the lake in memory: each range is one entry, which its id tells, and no file.

In place of what reads ranges and metaranges of a store, and what asks lakeFS about what they hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from lakegc_assets.engine import datasets
from lakegc_assets.engine.datasets import Part, write_part
from lakegc_assets.graveler.decode import etag_hashes
from lakegc_assets.mark.live_ranges import Live, LiveRanges
from lakegc_assets.mark.served_candidates import SPARED
from lakegc_assets.mark.signature_relations import SERVED
from lakegc_assets.mark.signatures import NOTHING_COMPARED, HeadMatches
from lakegc_assets.mark.uncommitted_snapshot import Staged
from lakegc_assets.run.artifacts import UNCOMMITTED
from lakegc_assets.run.hashing import HASHES, KeyDigest, address_hashes, hash_table, key_digest
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.sweep.delta_extension import AddedObjects, TooMuchError
from lakegc_assets_tests.simulation import row_files
from lakegc_assets_tests.simulation.client import NAMESPACE, REPOSITORY
from lakegc_assets_tests.simulation.current_world import world
from lakegc_assets_tests.simulation.lake import Entry, Lake

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


class SimTables:
    """Answers in place of the functions of these names (``run.connections.reads_tables``)."""

    @staticmethod
    def live_ranges(
        ctx: Any, metarange_ids: Iterable[str], *, every: bool, **_strict: bool
    ) -> LiveRanges:
        ids, lake, links = set(metarange_ids), world().lake, ctx.connections
        if links.namespace_url != NAMESPACE:
            name = links.namespace_url.rpartition("/")[2]
            if name not in world().others:
                raise ObjectNotFoundError(f"{links.namespace_url} is gone")
            lake = world().others[name]
        if every:
            ids |= set(lake.trees)
        return LiveRanges(_range_table(tuple(sorted(_ranges_of(ids, lake)))), len(ids), 0)

    @staticmethod
    def read_live(
        _ctx: Any, ranges: pa.Table, store: ObjectStore, folder: str, **_strict: bool
    ) -> Live:
        addresses = {_entry(one).address for one in ranges["range_id"].to_pylist()}
        hashes, digest = _hashed(tuple(sorted(addresses)))
        runs = [_write(store, f"{folder}data/", hashes, HASHES)] if addresses else []
        cached = pa.array([False] * ranges.num_rows, pa.bool_())
        return Live(runs, ranges.append_column("from_cache", cached), frozenset(), digest)

    @staticmethod
    def read_lists(links: Any, url: str, folder: str, keys: Sequence[str]) -> Staged:
        """Of staged objects, as ``SimClient`` writes them."""
        store, artifacts = links.store(), links.open(url)
        listed = [row for key in keys for row in row_files.rows_of(store.get(key))]
        addresses = tuple(row["physical_address"] for row in listed)
        hashes, digest = _hashed(addresses)
        rows = [{"address": one, "created": _EPOCH, "resolved": True} for one in addresses]
        parts = [_write(artifacts, f"{folder}data/", rows, UNCOMMITTED)]
        runs = [_write(artifacts, f"{folder}hashes/", hashes, HASHES)] if rows else []
        return Staged(parts, runs, frozenset(), len(rows), digest)

    @staticmethod
    def read_added(_extender: Any, metaranges: Any, ranges: Any) -> AddedObjects:
        if len(metaranges) > world().most_metaranges:
            raise TooMuchError(f"{len(metaranges)} metaranges are to be read")
        found = _ranges_of(metaranges) - set(ranges)
        return AddedObjects(found, *_extension(tuple(sorted(found))))

    @staticmethod
    def read_full(_links: Any, ranges: Iterable[Any], _namespace: Any) -> Iterator[Any]:
        for one in ranges:
            address = _entry(one.range_id).address
            yield one.range_id, pa.array([address] if "://" in address else [], pa.string())

    @staticmethod
    def staged_addresses(client: Any, other: Any, branch: str) -> Iterator[str]:
        """Without pages."""
        for change in client.diff_branch(other.name, branch):
            if change.type != "removed":
                yield client.stat(other.name, branch, change.path).physical_address

    @staticmethod
    def served_candidates(
        ctx: Any, inquiry: Any, heads: pa.Table, candidates: Sequence[Part], etags: Any
    ) -> tuple[pa.Table, HeadMatches]:
        """By size alone where no listing shows whether etags can be compared."""
        names = heads["branch"].to_pylist()
        read = dict(zip(names, heads["metarange_id"].to_pylist(), strict=True))
        rows = _rows(ctx.connections.open(inquiry.url), candidates)
        if not etags.parts:
            rows = [{**row, "etag": None} for row in rows]
        found = _served(ctx.connections.client(), names, rows, read)
        return _spared(found), NOTHING_COMPARED

    @staticmethod
    def served(deltas: Any, candidates: Any, liveness: Any, _folder: str, _staged: int) -> pa.Table:
        rows = _rows(deltas.attempt.store(), candidates.parts)
        return _spared(_served(deltas.ctx.connections.client(), liveness.heads, rows))

    @staticmethod
    def named_by_none(
        _ctx: Any, attempt: Any, others: pa.Table, active: pa.Table
    ) -> tuple[list[Part], dict[str, Exception]]:
        of_b, of_a = (
            {_entry(one).address for one in ranges["range_id"].to_pylist()}
            for ranges in (others, active)
        )
        if not of_b - of_a:
            return [], {}
        rows = pa.table({"address": pa.array(sorted(of_b - of_a), pa.string())})
        return [write_part(attempt.store(), "store_listing/expired/named/", rows)], {}

    @staticmethod
    def last_holders(*_: Any) -> list[dict[str, Any]]:
        """Nobody held anything: it is only what the report says."""
        return []

    @staticmethod
    def holders_of(*_: Any) -> dict[str, Any]:
        """Nobody: it is only what an alarm says."""
        return {}


def _rows(store: ObjectStore, parts: Iterable[Part]) -> row_files.Rows:
    return [row for part in parts for row in row_files.rows_of(datasets.fetch_part(store, part))]


def _write(store: ObjectStore, folder: str, rows: row_files.Rows, schema: pa.Schema) -> Part:
    return datasets.write_file(store, folder, row_files.encode_rows(rows, schema), len(rows))


def _spared(found: Iterable[str]) -> pa.Table:
    rows = [{"address": one, "why": SERVED} for one in sorted(found)]
    return row_files.table_of(rows, SPARED)


@lru_cache(maxsize=4096)
def _extension(range_ids: tuple[str, ...]) -> tuple[Any, frozenset[str], pa.Table]:
    """Hashes, last parts and looks of the entries that ranges are."""
    entries = [_entry(one) for one in range_ids]
    looks = {
        "size": pa.array([entry.size for entry in entries], pa.int64()),
        "etag_hash": etag_hashes(pa.array([entry.etag for entry in entries], pa.string())),
    }
    addresses = pa.array([entry.address for entry in entries], pa.string())
    return address_hashes(addresses), frozenset(), pa.table(looks)


def _served(
    client: Any,
    heads: Iterable[str],
    rows: row_files.Rows,
    metaranges: Mapping[str, str] | None = None,
) -> set[str]:
    """Which of some objects lakeFS serves, although no list of it has them.

    Args:
        client: of the lake.
        heads: the branches.
        rows: of the objects: address, size and etag, which is None where nobody knows it.
        metaranges: of the branches, as they were read; None for those that they have now.
    """
    here = world()
    sizes = {row["size"] for row in rows}
    looks = {(row["size"], row["etag"]) for row in rows}
    found: set[str] = set()
    for branch in sorted(heads):
        paths = [
            change.path
            for change in client.diff_branch(REPOSITORY, branch)
            if change.type != "removed" and change.size_bytes in sizes and here.diff_witness
        ]
        if here.shadow_rule and branch in here.lake.branches:
            now = here.lake.commits[here.lake.branches[branch]].meta_range_id
            tree = here.lake.trees[now if metaranges is None else metaranges[branch]]
            paths += [
                path
                for path, entry in tree.items()
                if entry[1:] in looks or (entry.size, None) in looks
            ]
        for path in sorted(set(paths)):
            found.add(client.stat(REPOSITORY, branch, path).physical_address)
    inside = {address.removeprefix(f"{NAMESPACE}/") for address in found}
    return inside & {row["address"] for row in rows}


def _ranges_of(metaranges: Iterable[str], lake: Lake | None = None) -> set[str]:
    here, found = world(), set()
    trees = (here.lake if lake is None else lake).trees
    for metarange in sorted(set(metaranges) - {""}):
        here.ask("get", f"_lakefs/{metarange[:6]}")
        for path, entry in trees[metarange].items():
            found.add("|".join((path, entry.address, str(entry.size), entry.etag)))
    return found


def _entry(range_id: str) -> Entry:
    _, address, size, etag = range_id.split("|")
    return Entry(address, int(size), etag)


@lru_cache(maxsize=4096)
def _range_table(range_ids: tuple[str, ...]) -> pa.Table:
    entries = pa.array([1] * len(range_ids), pa.int64())
    return pa.table({"range_id": pa.array(range_ids, pa.string()), "entries": entries})


@lru_cache(maxsize=4096)
def _hashed(addresses: tuple[str, ...]) -> tuple[row_files.Rows, KeyDigest]:
    """Rows of ``HASHES``, and the digest of the addresses."""
    keys = pa.array(addresses, pa.string())
    return hash_table(address_hashes(keys)).to_pylist(), key_digest(keys)
