"""Tests whether etags are checksums and sizes are true, in the store and in entries of HEADs.

Stores differ: encryption with managed keys and multipart uploads give etags that are no checksums
of the content. lakeFS writes a checksum into an entry, unless a client gave another etag. Etags are
believed only if the objects that were read confirm it, and one counterexample is enough to reject
all. Sizes of entries are treated the same way: they are true unless a client declared another size.

The evidence from one range and given files of the listing never changes: the name of a range
depends on its content, and files are known by their digests. So it is cached for each range, under
the digest of the files. A sweep compares with the files of its mark, an optimized run with files
that it carried forward. So both find cached evidence, except for new ranges and new files.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from itertools import chain, pairwise
from typing import Final

import pyarrow as pa

from lakegc_assets.engine.datasets import Part, read_part, table_of, write_part
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Dataset
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import DECODER_VERSION, etag_hash
from lakegc_assets.graveler.ranges import read_range
from lakegc_assets.mark.addresses import entry_spellings
from lakegc_assets.mark.metaranges import COUNTED
from lakegc_assets.mark.ranges import Wanted, range_frame
from lakegc_assets.mark.session_folder import SessionFolder
from lakegc_assets.mark.signature_relations import etag_evidence
from lakegc_assets.run.artifacts import LISTING
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.run.table_cache import Decoded, Kind, TableCache
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ArchivedError, ObjectNotFoundError

#: Kind and version of cached evidence; raise the version when the comparison changes.
KIND: Final = "evidence"
VERSION: Final = 3
#: Columns of listed objects for the comparison.
ETAGS: Final = pa.schema([LISTING.field(n) for n in ("hash", "etag_hash", "last_modified", "size")])
#: Columns of entries for the comparison.
ENTRIES: Final = ("range_id", "hash", "size", "etag_hash")
#: Hashes of the checksums of objects that were read.
CONTENTS: Final = schema("address string, content bigint")
#: Ranges with numbers, and the rows of ``etag_evidence`` for each.
NUMBERED: Final = schema("range_id string, number int")
EVIDENCE: Final = schema(
    "number int, piece int, agree int, newest timestamp, small_agree int, sizes_agree int"
)


@dataclass(frozen=True)
class EtagFiles:
    """Files with the columns ``ETAGS``, of all that is listed."""

    parts: Sequence[Part] = ()
    #: Numbers of leading files that an earlier or a later run shares.
    shared: Sequence[int] = ()


@dataclass(frozen=True)
class Evidence:
    """Agreement of listed etags and sizes with those of entries at branch HEADs."""

    #: True if all etags agree; None if none was compared.
    agree: bool | None = None
    #: Time of the newest object compared, in microseconds since 1970.
    newest: int = 0
    #: True if the etag of an object small enough to read agrees with its entry.
    small_agree: bool = False
    #: True if no entry differs in size from its listed object.
    sizes_agree: bool = True

    def __add__(self, other: Evidence) -> Evidence:
        """Combine two pieces of evidence."""
        answers = [e.agree for e in (self, other) if e.agree is not None]
        return Evidence(
            all(answers) if answers else None,
            max(self.newest, other.newest),
            self.small_agree or other.small_agree,
            self.sizes_agree and other.sizes_agree,
        )


def etag_files(listing: Manifest) -> EtagFiles:
    """The files of a listing: files of the last run, then files for the next run, then all others.

    Empty if objects were stat-ed by name: these objects say nothing about the etags at HEADs.
    """
    if listing.mode == "committed":
        return EtagFiles()
    last, settled = (
        {part.key for part in listing.parts.get(name, ())} for name in ("carried", "settled")
    )
    files = sorted(listing.parts["data"], key=lambda p: (p.key not in last, p.key not in settled))
    return EtagFiles(files, [len(last), len(last | settled)])


def evidence_of(work: SessionFolder, ranges: Sequence[Wanted], etags: EtagFiles) -> Evidence:
    """Compare the etags and sizes of all entries of ranges with those of all listed objects.

    ``ranges``: of branch HEADs.
    ``etags``: files of listed objects, among the working files.

    Raises:
        IntegrityError: a range or a file is missing or damaged, or was not compared.
    """
    cache = work.connections.cache()
    lengths = sorted({length for length in (*etags.shared, len(etags.parts)) if length})
    caches = {length: _cache_of(cache, etags.parts[:length]) for length in lengths}
    # Evidence is stored as the facts of a range, without rows; damaged files are left out.
    known = {
        length: {i: Evidence(**slot.facts) for i, slot in caches[length].slots().items()}
        for length in (lengths if ranges else ())
    }
    # For each range, the largest number of leading files with cached evidence.
    begins = {
        one.range_id: max((n for n in lengths if one.range_id in known[n]), default=0)
        for one in ranges
    }
    found: dict[tuple[str, int], Evidence] = {}
    for begin in sorted({begin for begin in begins.values() if begin < len(etags.parts)}):
        ends = [length for length in lengths if length > begin]
        pieces = {b: etags.parts[a:b] for a, b in pairwise([begin, *ends])}
        some = [one for one in ranges if begins[one.range_id] == begin]
        found |= compare_ranges(work, some, pieces)
    total = Evidence()
    new: dict[int, dict[str, Evidence]] = {length: {} for length in lengths}
    for range_id, begin in begins.items():
        so_far = known[begin][range_id] if begin else Evidence()
        for length in lengths:
            if length > begin:
                so_far += found[range_id, length]
                new[length][range_id] = so_far
        total += so_far
    for length, rows in new.items():
        if rows:
            caches[length].write([Decoded(i, pa.table({}), asdict(e)) for i, e in rows.items()])
    return total


def compare_ranges(
    work: SessionFolder, ranges: Sequence[Wanted], pieces: Mapping[int, Sequence[Part]]
) -> dict[tuple[str, int], Evidence]:
    """Evidence of ranges for pieces of the listing, by range and name of the piece."""
    table = table_of(((one.range_id, one.entries) for one in ranges), COUNTED)
    entries = range_frame(work.ctx, work.frames, table, ENTRIES)
    numbers = table_of(((one.range_id, n) for n, one in enumerate(ranges)), NUMBERED)
    listed = [work.read(parts, ETAGS) for parts in pieces.values()]
    every = Dataset(work.url, [part for parts in pieces.values() for part in parts], ETAGS)
    few = work.frames.is_small(every)
    evidence = etag_evidence(entries, work.frames.create(numbers), listed, few)
    rows = work.frames.collect(evidence, EVIDENCE, "compare etags at branch HEADs")
    compared_ids = {ranges[number].range_id for number in rows["number"].to_pylist()}
    # Only a range that was compared may be recorded, and cached, as one without evidence.
    if missing := {one.range_id for one in ranges if one.entries != 0} - compared_ids:
        raise IntegrityError(
            f"etags of range {min(missing)} were not compared with the listing. This is a fault of "
            "lakegc: please report it, with the log of this run and the file of the range below "
            "_lakefs/",
        )
    found = {(one.range_id, piece): Evidence() for one in ranges for piece in pieces}
    names = list(pieces)
    times = rows.set_column(3, "newest", rows["newest"].cast(pa.int64())).to_pylist()
    for row in times:
        if row["piece"] is not None:
            agree = None if row["agree"] is None else bool(row["agree"])
            small, sizes = bool(row["small_agree"]), bool(row["sizes_agree"])
            compared = Evidence(agree, row["newest"] or 0, small, sizes)
            found[ranges[row["number"]].range_id, names[row["piece"]]] = compared
    return found


# The cache


def _cache_of(store: ObjectStore, parts: Sequence[Part]) -> TableCache:
    """The cache of evidence for a set of files; its key depends on their content, in any order."""
    digests = sorted(part.sha256 for part in parts)
    key = hashlib.sha256("-".join([str(DECODER_VERSION), *digests]).encode()).hexdigest()
    return TableCache(store, Kind(f"{KIND}/{key}", VERSION, "range_id"))


#: Maximum size of an object that is read as a sample, in bytes.
SAMPLE: Final = 1 << 20
#: Objects that are read as samples: the newest ones, and others at random.
NEWEST: Final = 5
AT_RANDOM: Final = 3
_THREADS: Final = 16
#: Objects that one task reads.
_READ_EACH: Final = 5_000
#: Seconds of one core to read an object.
READ_S: Final = 0.003


def md5_of(data: bytes) -> str:
    """The MD5 of an object's bytes in the form of an etag."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _get(store: ObjectStore, key: str, size: int) -> bytes | None:
    """The content of an object; None if it is gone, or has another size now.

    Raises:
        ArchivedError: the object is archived, and cannot be read now.
    """
    try:
        data = store.get(key)
    except ObjectNotFoundError:
        return None
    return data if len(data) == size else None


def agreement(store: ObjectStore, objects: pa.Table) -> tuple[bool | None, int]:
    """Test whether the etags of small objects are the MD5s of their content.

    ``objects``: address, size, last_modified and etag, as listed.

    Returns:
        True if all are, None if no object could be read as it was listed; and the time of the
        newest object that was read, in microseconds since 1970. An archived object counts as one
        whose etag is no MD5, since its content is unknown.
    """
    answers = thread_map(partial(_agrees, store), objects.to_pylist(), _THREADS)
    modified = objects["last_modified"].cast(pa.int64()).to_pylist()
    answered = [
        (agrees, at) for agrees, at in zip(answers, modified, strict=True) if agrees is not None
    ]
    if not answered:
        return None, 0
    return all(agrees for agrees, _ in answered), max(at for _, at in answered)


def _agrees(store: ObjectStore, row: dict[str, object]) -> bool | None:
    try:
        data = _get(store, str(row["address"]), int(str(row["size"])))
        if data is None:
            return None
        now = store.head(str(row["address"]))
    except ObjectNotFoundError:
        return None
    except ArchivedError:
        return False
    listed = row["last_modified"]
    assert isinstance(listed, datetime)  # noqa: S101 - the column's type
    # Some stores answer HEAD with whole seconds only.
    same_time = now.last_modified.replace(microsecond=0) == listed.replace(microsecond=0)
    if now.etag != row["etag"] or not same_time:
        # The object was written again meanwhile.
        return None
    return md5_of(data) == row["etag"]


def entries_are_checksums(
    connections: Connections, range_ids: Sequence[str], sizes: frozenset[int]
) -> bool:
    """Return whether the etags of entries are the MD5s of their objects' content, by samples.

    A copy made by lakeFS keeps the etag of its source. If that is no checksum, the content of a
    candidate cannot show that it is the copy.

    ``range_ids``: ids of the ranges to read.
    ``sizes``: only entries of these sizes count, in bytes.
    """
    store, namespace = connections.store(), connections.namespace()
    agreed: list[bool] = []
    for range_id in range_ids:
        url = connections.table_url(range_id)
        items = read_range(connections.fetch_table(range_id), url)
        found = [entry for _, entry in items if entry.size in sizes]
        for entry in found[:: max(1, len(found) // (NEWEST + AT_RANDOM))]:
            spellings, resolved = entry_spellings(namespace, entry.address, entry.address_type)
            if not resolved or not spellings:
                # An object in another store has an etag of that store.
                return False
            contents = (_get(store, address, entry.size) for address in spellings)
            try:
                data = next((data for data in contents if data is not None), None)
            except ArchivedError:
                return False
            if data is not None:
                agreed.append(md5_of(data) == entry.e_tag)
    return bool(agreed) and all(agreed)


# The content of candidates


def read_contents(work: SessionFolder, parts: Sequence[Part], deadline: float) -> list[Part]:
    """Hash the MD5s of small objects, as far as they can be read (files of ``CONTENTS``).

    ``parts``: files of address and size.
    ``deadline``: seconds since 1970; after it no object is read.
    """
    pieces = [(part, begin) for part in parts for begin in range(0, part.rows, _READ_EACH)]
    folder = f"{work.folder}contents/"
    task = partial(_read_contents, work.connections, work.url, folder, deadline)
    seconds = READ_S * sum(part.rows for part in parts)
    answers = work.ctx.tasks.run("read small candidates", task, pieces, seconds)
    return list(chain.from_iterable(answers))


def _read_contents(
    connections: Connections, url: str, folder: str, deadline: float, piece: tuple[Part, int]
) -> list[Part]:
    artifacts, store = connections.open(url), connections.store()
    part, begin = piece
    some = read_part(artifacts, part, ["address", "size"]).slice(begin, _READ_EACH)
    rows = list(zip(some["address"].to_pylist(), some["size"].to_pylist(), strict=True))
    hashes = thread_map(partial(content_hash, store, deadline), rows, _THREADS)
    known = [(row[0], found) for row, found in zip(rows, hashes, strict=True) if found is not None]
    return [write_part(artifacts, folder, table_of(known, CONTENTS))] if known else []


def content_hash(store: ObjectStore, deadline: float, row: tuple[str, int]) -> int | None:
    """The hash of an object's MD5, from key and size; None if it cannot be read in time."""
    if time.time() > deadline:
        return None
    try:
        data = _get(store, *row)
    except ArchivedError:
        return None
    return None if data is None else etag_hash(md5_of(data))
