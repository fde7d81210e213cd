"""Pages of a listing as rows of a dataset, with the objects and bytes of each slice."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, PartWriter, table_of
from lakegc_assets.engine.ddl import schema
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import etag_hashes
from lakegc_assets.graveler.namespace import slice_time
from lakegc_assets.mark.addresses import in_data
from lakegc_assets.mark.incremental_listing import settled
from lakegc_assets.mark.relations import MULTIPART
from lakegc_assets.run.artifacts import LISTING
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import KeyDigest, address_hashes, key_digest, signed
from lakegc_assets.storage.base import ObjectStore


def listing_rows(page: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    """Convert a page of a store into rows of ``LISTING``.

    ``page``: key (or address), size in bytes, last_modified and etag of each object, in this order.
    """
    address, size, last_modified, etag = (_one_piece(column) for column in page.columns)
    columns = {
        "address": address,
        "hash": signed(address_hashes(address)),
        "size": size,
        "last_modified": last_modified,
        "etag": etag,
        "etag_hash": etag_hashes(etag),
        "in_place": in_data(address),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in LISTING.names], schema=LISTING)


def _one_piece(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


_ASSET: Final = "store_listing"
#: A time before every slice: compared with it, no slice is settled.
NEVER: Final = datetime(1, 1, 1, tzinfo=timezone.utc)
_PARTS: Final = {
    "data": LISTING,
    "settled": LISTING,
    "multipart": schema("address string, etag string"),
    "cuts": schema("key string"),
}
#: Fact of a listing: run and attempt of earlier listings that may have seen multipart uploads.
SEEN_IN: Final = "seen_in"
#: Totals of each slice; a settled slice gets no new objects any more.
SLICES: Final = schema("slice string, keys bigint, size bigint, oldest timestamp, settled boolean")
_SLICE: Final = len("data/") + 20
#: Hex digits of an MD5.
_DIGITS: Final = 32


class Slice(NamedTuple):
    """Totals of one slice."""

    #: Empty for objects in no slice.
    name: str
    keys: int
    #: Of all objects, in bytes.
    size: int
    oldest: datetime


@dataclass(frozen=True)
class Listed:
    """Files of a listing by the name of their part, their digests, and the totals of each slice."""

    #: ``data``; ``settled``: the files of ``data`` with settled slices only; ``multipart``;
    #: ``cuts``; and ``carried``: the files of ``settled`` that were carried forward, if any.
    parts: Mapping[str, Sequence[Part]]
    #: Digest of all addresses.
    digest: KeyDigest
    #: Digest of the addresses in settled slices.
    settled: KeyDigest
    #: Totals of each slice.
    slices: Sequence[Slice]


def added_up(listed: Sequence[Listed]) -> Listed:
    """The sum of the listings of several tasks."""
    return Listed(
        {name: [part for one in listed for part in one.parts[name]] for name in _PARTS},
        sum((one.digest for one in listed), KeyDigest()),
        sum((one.settled for one in listed), KeyDigest()),
        _joined(s for one in listed for s in one.slices),
    )


class Listing:
    """Writes the pages that the threads of one task add."""

    def __init__(self, artifacts: ObjectStore, before: datetime) -> None:
        self._writers = {
            name: PartWriter(artifacts, f"{_ASSET}/{name}/", schema)
            for name, schema in _PARTS.items()
        }
        self._before = before
        self._taking = threading.Lock()
        self._digests = {"data": KeyDigest(), "settled": KeyDigest()}
        self._slices: list[Slice] = []

    def add(self, rows: pa.RecordBatch, *, at_cut: bool) -> None:
        """Add a page with at least one row; ``at_cut`` if its last key becomes a cut."""
        slices = slices_of(rows)
        gets_no_more = settled([one.name for one in slices], self._before)
        if len(gets_no_more) == len(slices):
            sorted_out = {"settled": rows}
        elif gets_no_more:
            mask = pc.is_in(_slice_names(rows), pa.array(gets_no_more))
            sorted_out = {"settled": rows.filter(mask), "data": rows.filter(pc.invert(mask))}
        else:
            sorted_out = {"data": rows}
        digests = {name: key_digest(matching["address"]) for name, matching in sorted_out.items()}
        # Few etags are longer than a digest.
        long = rows.filter(pc.greater(pc.binary_length(rows["etag"]), _DIGITS))
        in_parts = long.filter(pc.match_substring_regex(long["etag"], MULTIPART))
        with self._taking:
            for name, matching in sorted_out.items():
                self._writers[name].add(matching)
                self._digests[name] += digests[name]
            self._writers["multipart"].add(in_parts.select(_PARTS["multipart"].names))
            if at_cut:
                last = rows["address"].slice(rows.num_rows - 1)
                self._writers["cuts"].add(pa.RecordBatch.from_arrays([last], schema=_PARTS["cuts"]))
            self._slices += slices

    def finish(self) -> Listed:
        """Close the files, and return the listing."""
        parts = {name: writer.finish() for name, writer in self._writers.items()}
        parts["data"] = [*parts["data"], *parts["settled"]]
        digest, settled_digest = self._digests["data"], self._digests["settled"]
        return Listed(parts, digest + settled_digest, settled_digest, _joined(self._slices))


def _slice_names(rows: pa.RecordBatch) -> pa.Array:
    """The slice of each object; empty where it is in none."""
    address = rows["address"]
    inside = pc.and_(
        pc.starts_with(address, "data/"),
        pc.equal(pc.utf8_slice_codeunits(address, _SLICE, _SLICE + 1), "/"),
    )
    return pc.if_else(inside, pc.utf8_slice_codeunits(address, len("data/"), _SLICE), "")


def slices_of(rows: pa.RecordBatch) -> list[Slice]:
    """Totals of each slice on one page with at least one row."""
    first, last = _slice_names(rows.take(pa.array([0, rows.num_rows - 1]))).to_pylist()
    if first and first == last:
        # Keys are sorted, so all keys between two keys of one slice are in that slice.
        oldest = pc.min(rows["last_modified"]).as_py()
        return [Slice(first, rows.num_rows, pc.sum(rows["size"]).as_py(), oldest)]
    name = _slice_names(rows)
    grouped = (
        pa.table({"name": name, "size": rows["size"], "last_modified": rows["last_modified"]})
        .group_by("name", use_threads=False)
        .aggregate([("size", "count"), ("size", "sum"), ("last_modified", "min")])
    )
    columns = ("name", "size_count", "size_sum", "last_modified_min")
    return [Slice(*row) for row in zip(*(grouped[c].to_pylist() for c in columns), strict=True)]


def _joined(found: Iterable[Slice]) -> list[Slice]:
    joined: dict[str, Slice] = {}
    for one in found:
        known = joined.get(one.name, Slice(one.name, 0, 0, one.oldest))
        keys, size = one.keys + known.keys, one.size + known.size
        joined[one.name] = Slice(one.name, keys, size, min(one.oldest, known.oldest))
    return list(joined.values())


def require_ages(ctx: RunContext, slices: Iterable[Slice], start: datetime) -> None:
    """Require that no object is older than the name of its slice says.

    The name of a slice decides if it stays unlisted, so the names must be right.

    Raises:
        IntegrityError: an object is older than its slice by more than clocks may differ.
    """
    for one in slices:
        made = slice_time(one.name)
        oldest = one.oldest.astimezone(timezone.utc)
        # A name with a time in the future is not the name of a slice.
        if made and oldest + 2 * ctx.settings.clock_skew < made <= start:
            if ctx.settings.skip_new_slices:
                raise IntegrityError(
                    f"data/{one.name}/ holds an object of {oldest}, but the slice was made at "
                    f"{made}, by its name: a clock was wrong, or the folder is not lakeFS's. "
                    "Inspect the object. If the folder is not lakeFS's, or the times were set by "
                    "hand, set skip_new_slices=false, so that every slice is listed",
                )
            ctx.log.warning("by its name, slice data/%s/ is younger than an object in it", one.name)


def slices_table(slices: Sequence[Slice], before: datetime) -> pa.Table:
    """Rows of ``SLICES``; slices that were made before ``before`` are settled."""
    named = [one for one in slices if one.name]
    gets_no_more = set(settled([one.name for one in named], before))
    rows = [(*one, one.name in gets_no_more) for one in named]
    return table_of(rows, SLICES)
