"""A second reader of ranges, as fast as it must be to look at every HEAD before every sweep.

It reads what the slow reader's frame gives it (``graveler.sstable``: footer, properties, index,
checksums), and entries by a loop of its own. It shares nothing with the decoder of the mark: where
the two disagree about what a range holds, no run goes on.
"""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakegc_assets.checks import hash_kernels, hashing
from lakegc_assets.checks import witness_kernels as kernels
from lakegc_assets.checks.looks import alike, forget_unclear
from lakegc_assets.graveler.entry import AddressType
from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError
from lakegc_assets.graveler.sstable import Blocks, read_blocks
from lakegc_assets.run.table_cache import Decoded

#: Raised with what is kept of a range: all are then read again.
VERSION = 2
#: Columns: where entries are, and what an upload that they shadow looks like.
PLACES = ("placed", "hash", "modified", "folder")
LOOKS = ("size", "etag")
_ROWS = pa.schema(
    [
        ("placed", pa.bool_()),
        ("hash", pa.uint64()),
        ("modified", pa.int64()),
        ("folder", pa.uint64()),
        ("size", pa.int64()),
        ("etag", pa.uint64()),
    ]
)
_BASE = np.uint64(hashing.BASES[0])
_SLICE = re.compile("data/[^/]*/")
#: Bytes of an entry in a block: lengths, the key's kind, and lengths within the value.
_SMALLEST_ENTRY = 13
#: What fits into microseconds, in seconds.
_MOST_SECONDS = 9_000_000_000_000


def witness(data: bytes, range_id: str, namespace: StorageNamespace) -> Decoded:
    """What a range holds.

    Args:
        data: the file.
        range_id: its id, for errors.
        namespace: of the repository.

    Returns:
        ``PLACES`` and ``LOOKS``, a row for each relative address that an entry may mean, and one
        for an entry that means none, or an unclear one. ``placed`` is False in the latter,
        ``hash`` is that of the address, ``modified`` is the entry's time in microseconds since
        1970, ``folder`` the hash of ``data/<slice>/`` or 0; ``size`` is in bytes and ``etag`` a
        hash, or 0 of what is no MD5, or of an object that is not placed here. The facts are
        ``entries`` and ``digest``, which is of the addresses as they stand in the entries.

    Raises:
        FormatError: the file is damaged, truncated, or no range. The content id is not compared:
            the mark does that.
    """
    text, _, fields = _fields(read_blocks(data, range_id), range_id)
    count = len(fields.size)
    first, second, folders = (np.empty(count, np.uint64) for _ in range(3))
    marks, etags = np.empty(count, np.uint8), _etags(text, fields)
    spans = (text, fields.address_at, fields.address_end)
    hash_kernels.hash_addresses(*spans, (first, second, folders, marks))
    seconds = np.clip(fields.seconds, -_MOST_SECONDS, _MOST_SECONDS)
    odd = _Odd(text, fields, range_id, namespace)
    odd.require_utf8(np.flatnonzero(marks & 2))
    relative = fields.address_type == AddressType.RELATIVE
    by_prefix = fields.address_type == AddressType.BY_PREFIX_DEPRECATED
    usual = relative | (by_prefix & (marks & 1 == 0))
    extra, spelled = odd.spelled(np.flatnonzero(~usual))
    rows = np.concatenate([np.flatnonzero(usual), extra])
    known = [address or "" for address in spelled]
    other = _places_of(known)
    placed = np.concatenate([np.ones(usual.sum(), np.bool_), [a is not None for a in spelled]])
    placed = placed.astype(np.bool_)
    columns = {
        "placed": placed,
        "hash": np.concatenate([first[usual], other[0]]),
        "modified": (seconds * 1_000_000 + fields.nanos // 1000)[rows],
        "folder": np.concatenate([folders[usual], other[1]]),
        "size": fields.size[rows],
        "etag": np.where(placed, etags[rows], np.uint64(0)),
    }
    return Decoded(
        range_id,
        pa.table(columns, schema=_ROWS),
        {"entries": count, "digest": hashing.digest_text(first, second)},
    )


def alike_paths(
    data: bytes, range_id: str, namespace: StorageNamespace, looks: hashing.Members
) -> list[bytes]:
    """The paths of the entries of a range that look like a candidate.

    Args:
        data: the file.
        range_id: its id, for errors.
        namespace: of the repository.
        looks: of the candidates, as ``looks.alike`` takes them.

    Raises:
        FormatError: as ``witness``.
    """
    text, starts, fields = _fields(read_blocks(data, range_id), range_id)
    etags = _etags(text, fields)
    odd = _Odd(text, fields, range_id, namespace)
    rows, spelled = odd.spelled(np.flatnonzero(fields.address_type != AddressType.RELATIVE))
    etags[[row for row, meaning in zip(rows, spelled, strict=True) if meaning is None]] = 0
    wanted = alike(looks, fields.size, etags)
    ends = np.empty(int(wanted.sum()), np.int64)
    key = np.empty(int(np.diff(starts).max(initial=0)), np.uint8)
    kernels.copy_keys(text, starts, wanted, key, np.empty(0, np.uint8), ends)
    copied = np.empty(ends[-1] if len(ends) else 0, np.uint8)
    kernels.copy_keys(text, starts, wanted, key, copied, ends)
    begins = [0, *ends.tolist()]
    return [bytes(copied[a:b]) for a, b in pairwise(begins)]


def _etags(text: npt.NDArray[np.uint8], fields: kernels.Fields) -> hashing.Hashes:
    """The hash of each etag, 0 of one that is no MD5."""
    etags = np.empty(len(fields.size), np.uint64)
    hash_kernels.hash_spans(text, fields.etag_at, fields.etag_end, _BASE, etags)
    forget_unclear(text, fields.etag_at, fields.etag_end, etags)
    return etags


def _fields(
    blocks: Blocks, range_id: str
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], kernels.Fields]:
    """The blocks as one text, where they begin, and where the fields of all entries are in it."""
    text = np.frombuffer(b"".join(blocks.payloads), np.uint8)
    sizes = [len(payload) for payload in blocks.payloads]
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
    claimed = blocks.properties.get("count", b"")
    # What a file claims is not what memory is given for.
    if not claimed.isdigit() or int(claimed) > len(text) // _SMALLEST_ENTRY:
        raise FormatError(range_id, 0, f"it cannot hold {claimed!r} entries")
    fields = kernels.Fields(*(np.empty(int(claimed), np.int64) for _ in kernels.Fields._fields))
    key = np.empty(max(sizes, default=0), np.uint8)
    code, block, found, length = kernels.walk(text, starts, key, fields)
    if code != kernels.FINE:
        raise FormatError(range_id, blocks.offsets[block], kernels.REASONS[code])
    if found != int(claimed):
        raise FormatError(range_id, 0, f"it holds {found} entries, but says {int(claimed)}")
    last = bytes(key[: max(length - 8, 0)])
    if blocks.properties.get("max_key", b"") != last:
        raise FormatError(range_id, 0, f"its last key is {last!r}, and not what it says")
    return text, starts, fields


def _places_of(addresses: list[str]) -> tuple[hashing.Hashes, hashing.Hashes]:
    """The hash of each address and that of its slice's folder."""
    hashes = hashing.hash_strings(pa.array(addresses, pa.string()))
    slices = (_SLICE.match(address) for address in addresses)
    folders = [hashing.hash_text(found[0]) if found else 0 for found in slices]
    return hashes, np.array(folders, np.uint64)


class _Odd:
    """The addresses that plain Python looks at."""

    def __init__(
        self,
        text: npt.NDArray[np.uint8],
        fields: kernels.Fields,
        range_id: str,
        namespace: StorageNamespace,
    ) -> None:
        self._text, self._fields = text, fields
        self._range_id, self._namespace = range_id, namespace

    def _address(self, row: int) -> str:
        at, end = self._fields.address_at[row], self._fields.address_end[row]
        try:
            return self._text[at:end].tobytes().decode()
        except UnicodeDecodeError as error:
            raise FormatError(self._range_id, 0, f"an address is not UTF-8: {error}") from None

    def require_utf8(self, rows: npt.NDArray[np.int64]) -> None:
        for row in rows:
            self._address(row)

    def spelled(
        self, rows: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], list[str | None]]:
        """What the addresses of some rows may mean, each with its row."""
        found = [
            (row, meaning)
            for row in rows.tolist()
            for meaning in meanings(
                self._namespace,
                self._address(row),
                AddressType(int(self._fields.address_type[row])),
            )
        ]
        return np.array([row for row, _ in found], np.int64), [meaning for _, meaning in found]


def meanings(
    namespace: StorageNamespace, address: str, address_type: AddressType
) -> list[str | None]:
    """Every relative address that an entry may mean; None where it means none, or it is unclear."""
    try:
        return [*sorted(namespace.resolve(address, address_type))] or [None]
    except UnresolvableAddressError:
        return [None]
