"""S3 listings, exact for every key that S3 can hold, at several times boto3's speed.

boto3 sends the requests, signs them and repeats them, but its general parser takes most of the time
of a listing. So the body of a page is taken out before that parser sees it, and read into Arrow
here. The listing of obstore (Rust's object_store) is faster still, but it gives ``a/`` and ``/a``
as ``a`` without a word: a key that a listing names must be the key that would be deleted.

A page that says anything inconsistent (not a listing, out of order, outside of what was asked for,
a count that is wrong, no token for the next page) is an error and never a shorter listing.

Format: https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc
from botocore.utils import parse_timestamp

from lakegc_assets.storage.base import LISTING_SCHEMA
from lakegc_assets.storage.errors import StorageError

_PAGE: Final = "LakegcPage"
_FIELDS: Final = ("Key", "Size", "LastModified", "ETag")


def keep_page(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object
) -> None:
    """Botocore's ``before-parse`` handler: take a page out of an answer before it is parsed.

    Whatever is not a good answer with well-formed XML is left to botocore, which knows what to
    raise and what to repeat.
    """
    if response_dict["status_code"] != 200:  # noqa: PLR2004 - HTTP's OK
        return
    try:
        root = ET.fromstring(response_dict["body"])  # noqa: S314 - as botocore itself does
    except ET.ParseError:
        return
    customized_response_dict[_PAGE] = root
    response_dict["body"] = b"<ListBucketResult/>"


@dataclass(frozen=True)
class Page:
    """One page of a listing, with full keys.

    Attributes:
        objects: of ``LISTING_SCHEMA``, in strictly ascending order.
        prefixes: common prefixes, where a delimiter was asked for.
        next_token: what to ask for next, None at the end.
    """

    objects: pa.RecordBatch
    prefixes: Sequence[str]
    next_token: str | None


def read_page(answer: Any, where: str) -> Page:  # noqa: ANN401 - botocore's answer plus our page
    """Read the page that ``keep_page`` took out of an answer.

    Raises:
        StorageError: it is not a listing, or contradicts itself.
    """
    root = answer.get(_PAGE)
    if root is None or root.tag.rpartition("}")[2] != "ListBucketResult":
        raise StorageError(f"{where}: the answer is not a listing: check the endpoint")
    space = root.tag.rpartition("}")[0]
    space = f"{space}}}" if space else ""
    try:
        return _read(root, space)
    except (ValueError, TypeError, pa.ArrowInvalid) as error:
        raise StorageError(f"{where}: the store answered with a damaged page: {error}") from error


def check_order(keys: pa.Array, prefix: str, last: str, where: str) -> str:
    """The last of the keys, after a check that all are where they were asked for.

    Raises:
        StorageError: they are not strictly ascending after ``last``, or one has another prefix.
    """
    if not len(keys):
        return last
    ascending = pc.all(pc.less(keys[:-1], keys[1:])).as_py() is not False
    if not ascending or keys[0].as_py() <= last or not pc.all(pc.starts_with(keys, prefix)).as_py():
        raise StorageError(
            f"{where}: the store's keys are out of order, or were not asked for, between "
            f"{keys[0].as_py()!r} and {keys[-1].as_py()!r}: such a listing cannot be trusted"
        )
    return str(keys[-1].as_py())


def _read(root: ET.Element, space: str) -> Page:
    decode = _decoder(root.findtext(f"{space}EncodingType"))
    tags = [space + name for name in _FIELDS]
    rows = [[item.findtext(tag) for tag in tags] for item in root.iter(f"{space}Contents")]
    keys, sizes, times, etags = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [])
    prefixes = [
        decode(item.findtext(f"{space}Prefix")) for item in root.iter(f"{space}CommonPrefixes")
    ]
    truncated = root.findtext(f"{space}IsTruncated")
    if truncated not in {"true", "false"}:
        raise ValueError(f"IsTruncated is {truncated!r}")
    token = root.findtext(f"{space}NextContinuationToken")
    if truncated == "true" and not token:
        raise ValueError("it is truncated, and has no token for the next page")
    count = root.findtext(f"{space}KeyCount")
    if count is not None and int(count) != len(rows) + len(prefixes):
        raise ValueError(f"it counts {count} keys, and has {len(rows) + len(prefixes)}")
    objects = pa.RecordBatch.from_arrays(
        [
            pa.array([decode(key) for key in keys], pa.string()),
            pc.cast(pa.array(sizes, pa.string()), pa.int64()),
            _timestamps(times),
            pc.utf8_trim(pa.array([etag or "" for etag in etags], pa.string()), '"'),
        ],
        schema=LISTING_SCHEMA,
    )
    for name in ("size", "last_modified"):
        if objects[name].null_count:
            raise ValueError(f"an object has no {name}")
    return Page(objects, prefixes, token if truncated == "true" else None)


def _decoder(encoding: str | None) -> Callable[[str | None], str]:
    """How the keys of a page are read: percent-encoded, as asked for, where the server can."""

    def decode(key: str | None) -> str:
        if not key:
            raise ValueError("a key is missing")
        if encoding == "url":
            return unquote_plus(key, errors="strict") if "%" in key or "+" in key else key
        if any(character < " " for character in key):
            raise ValueError(f"{key!r} is not percent-encoded, so XML may have changed it")
        return key

    return decode


def _timestamps(times: list[str | None]) -> pa.Array:
    kind = LISTING_SCHEMA.field("last_modified").type
    try:
        return pc.cast(pa.array(times, pa.string()), kind)
    except pa.ArrowInvalid:
        return pa.array([parse_timestamp(time or "") for time in times], kind)
