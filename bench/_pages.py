"""Listings of many objects as pages that exist before they are requested.

Slices of 10,000 keys ``ns/data/<slice>/<id>`` each, with names in lakeFS's form. The XML of one
kind of slices is made once, with a gap for the slice's name. So a page costs little more than
sending its bytes.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from itertools import accumulate
from urllib.parse import parse_qsl, urlsplit

from lakegc_assets.graveler.namespace import Xid, encode_xid, new_slice_name

KEYS_EACH = 10_000
PAGE = 1000
NAMESPACE = "ns"
DATA = f"{NAMESPACE}/data/"
_MACHINE, _PID = b"lgc", 7
#: Time of all objects.
MADE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
_GAP = b"@" * 20
#: The first 20 digits of an etag are the number of the slice, the others that of its object.
_TAG = b"#" * 20
SIZE = 4096
_OBJECT = (
    f"<Contents><Key>{DATA}{_GAP.decode()}/%s</Key>"
    "<LastModified>2026-01-02T03:04:05.000Z</LastModified>"
    f"<ETag>&quot;{_TAG.decode()}%012x&quot;</ETag>"
    "<ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType>"
    "<Size>%s</Size><StorageClass>STANDARD</StorageClass></Contents>"
)
_ADDRESS = re.compile(r"data/([^/]+)/([^/]+)")
#: Sorts after every key with the same prefix.
_LAST = "\U0010ffff"


@lru_cache(1)
def ids() -> list[str]:
    """The names of the objects of a slice, in order, the same in all slices."""
    moment = int(MADE.timestamp())
    return [encode_xid(Xid(moment, _MACHINE, _PID, n)) for n in range(KEYS_EACH)]


def slice_names(count: int) -> list[str]:
    """Names of slices, one for each hour, in order: the newest first."""
    return sorted(
        new_slice_name(MADE - timedelta(hours=n), _MACHINE, _PID, 0) for n in range(count)
    )


def etag(number: int, row: int) -> str:
    """Etag of an object by the number of its slice and its row there."""
    return f"{number:020x}{row:012x}"


class Kind:
    """The XML of slices with the same objects.

    Args:
        sizes: in bytes by row, all with the same number of digits; a missing row has no object.
    """

    def __init__(self, sizes: Mapping[int, int]) -> None:
        self.rows = sorted(sizes)
        self.sizes = sizes
        self.ids = [ids()[row] for row in self.rows]
        objects = "".join(
            _OBJECT % (name, row, sizes[row]) for name, row in zip(self.ids, self.rows, strict=True)
        )
        self.objects = objects.encode()
        self.width = len(objects) // len(self.rows)


class Pages:
    """The answers to listings of a bucket.

    Args:
        slices: their names, in order.
        kinds: of each slice.
        first: number of the first slice; the others follow it.
    """

    def __init__(self, slices: Sequence[str], kinds: Sequence[Kind], first: int = 0) -> None:
        self.slices = slices
        self._kinds = kinds
        self._first = first
        self._starts = list(accumulate((len(kind.rows) for kind in kinds), initial=0))
        self.count = self._starts[-1]

    @classmethod
    def alike(cls, slices: int) -> Pages:
        """Complete slices of objects of one size."""
        kind = Kind(dict.fromkeys(range(KEYS_EACH), SIZE))
        return cls(slice_names(slices), [kind] * slices)

    def named(self) -> Iterator[tuple[str, str]]:
        """Address and etag of each object, in their order."""
        for number, (name, kind) in enumerate(zip(self.slices, self._kinds, strict=True)):
            for row, of_object in zip(kind.rows, kind.ids, strict=True):
                yield f"data/{name}/{of_object}", etag(self._first + number, row)

    def find(self, address: str) -> tuple[int, str] | None:
        """Size and etag of an object; None if it does not exist."""
        found = _ADDRESS.fullmatch(address)
        if found is None:
            return None
        number = bisect_left(self.slices, found[1])
        if self.slices[number : number + 1] != [found[1]]:
            return None
        kind = self._kinds[number]
        at = bisect_left(kind.ids, found[2])
        if kind.ids[at : at + 1] != [found[2]]:
            return None
        row = kind.rows[at]
        return kind.sizes[row], etag(self._first + number, row)

    def answer(self, target: str) -> bytes:
        """The body of the answer to a request for a page of keys or folders, by its URL."""
        return self.page(dict(parse_qsl(urlsplit(target).query, keep_blank_values=True)))

    def page(self, query: Mapping[str, str]) -> bytes:
        """The body of the answer to such a request, by the parameters of its query."""
        most = int(query.get("max-keys", PAGE))
        token = query.get("continuation-token")
        if "delimiter" in query:
            first = int(token or 0)
            folders = self.slices[first : first + most]
            rows = "".join(
                f"<CommonPrefixes><Prefix>{DATA}{name}/</Prefix></CommonPrefixes>"
                for name in folders
            ).encode()
            return listing(rows, len(folders), _next(first, len(folders), len(self.slices)))
        prefix = query.get("prefix", "")
        begin = max(query.get("start-after", ""), prefix)
        first = self._behind(begin) if token is None else int(token)
        behind = self._behind(prefix + _LAST) if prefix.startswith(DATA) else self.count
        last = max(first, min(first + most, behind))
        rows = b"".join(self._rows(first, last))
        return listing(rows, last - first, _next(first, last - first, behind))

    def _rows(self, first: int, last: int) -> Iterator[bytes]:
        while first < last:
            number = bisect_right(self._starts, first) - 1
            kind, row = self._kinds[number], first - self._starts[number]
            end = min(len(kind.rows), row + last - first)
            rows = kind.objects[row * kind.width : end * kind.width]
            name, tag = self.slices[number].encode(), b"%020x" % (self._first + number)
            yield rows.replace(_GAP, name).replace(_TAG, tag)
            first += end - row

    def _behind(self, key: str) -> int:
        """The number of the first key after a key, which need not exist."""
        if key < DATA:
            return 0
        if not key.startswith(DATA):
            return self.count
        name, slash, rest = key.removeprefix(DATA).partition("/")
        number = bisect_left(self.slices, name)
        if slash and number < len(self.slices) and self.slices[number] == name:
            return self._starts[number] + bisect_right(self._kinds[number].ids, rest)
        return self._starts[number]


def _next(first: int, count: int, of: int) -> str | None:
    return str(first + count) if first + count < of else None


def listing(rows: bytes, count: int, token: str | None) -> bytes:
    """The XML of a page."""
    more = b""
    if token:
        more = b"<NextContinuationToken>%s</NextContinuationToken>" % token.encode()
    return (
        b'<?xml version="1.0" encoding="UTF-8"?>\n'
        b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        b"<Name>bench</Name><KeyCount>%d</KeyCount><EncodingType>url</EncodingType>"
        b"<IsTruncated>%s</IsTruncated>%s%s</ListBucketResult>"
    ) % (count, b"true" if token else b"false", more, rows)
