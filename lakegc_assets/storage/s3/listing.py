"""S3 listings, exact for every key that S3 can hold, at ten times boto3's speed.

boto3's general parser would take most of the time of a listing (``bench/listing.py`` has both), so
the body of a page is taken out of boto3's answer before it, and read into Arrow. obstore's listing
is faster still, but it gives ``a/`` and ``/a`` as ``a`` without an error. Objects that all have the
form of the first one in a page are read by a regular expression, the page without them by an XML
parser; a page with any other object as a whole by the parser, in three times as long. A page that
says anything inconsistent is an error and never a shorter listing.

Format: https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.pages import Page, objects_of

_PAGE: Final = "LakegcPage"
_OK: Final = 200
#: The elements of an object that make its columns.
FIELDS: Final = ("Key", "LastModified", "ETag", "Size")
#: A text without entities in printable ASCII, so that an XML parser would not change it.
TEXT: Final = "[ -%'-;=?-~]*"
_QUOTE: Final = "(?:&quot;|&#34;)?"
#: What only some objects of AWS have, behind their etag.
_CHECKSUMS: Final = (
    f"(?:<ChecksumAlgorithm>{TEXT}</ChecksumAlgorithm>|<ChecksumType>{TEXT}</ChecksumType>)*"
)
_OBJECT: Final = b"<Contents>"
_END: Final = b"</Contents>"
_NAME: Final = re.compile("<([A-Za-z]+)>")
#: Question marks of the declaration of XML, ``<?xml … ?>``.
_DECLARATION: Final = 2


class _Answer(NamedTuple):
    """A page without its objects, and the ``FIELDS`` of these."""

    root: ET.Element
    columns: Sequence[pa.Array]


def keep_page(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object
) -> None:
    """The ``before-parse`` handler for botocore: take a page out of an answer.

    Whatever is no good answer is left to botocore, which knows what to raise and to repeat.
    """
    if response_dict["status_code"] != _OK:
        return
    try:
        page = page_in(response_dict["body"])
    except ET.ParseError:
        return
    if page:
        customized_response_dict.update(page)
        response_dict["body"] = b"<ListBucketResult/>"


def page_in(body: bytes) -> dict[str, Any]:
    """The input of ``read_page``, from a good answer; empty for others. Raises ParseError."""
    answer = _split(body)
    listing = answer.root.tag.rpartition("}")[2] == "ListBucketResult"
    return {_PAGE: answer} if listing else {}


def _split(body: bytes) -> _Answer:
    """Read a page, the fast way if all of its objects have one form."""
    begin = -1 if _has_markup(body) else body.find(_OBJECT)
    end = body.find(_END, begin) if begin >= 0 else -1
    first = body[begin + len(_OBJECT) : end].decode(errors="replace") if end >= 0 else ""
    names = tuple(dict.fromkeys(_NAME.findall(first)))
    if set(FIELDS) <= set(names) and "Contents" not in names:
        # What stands between two objects, then the fields of the second one, and so on.
        texts = object_form(names).split(body)
        # With an element in place of each: what is no XML around an object is none without it.
        root = parse(b"<_/>".join(texts[:: len(FIELDS) + 1]))
        encoded = root.findtext(f"{_space(root)}EncodingType") == "url"
        if encoded and next(root.iter(f"{_space(root)}Contents"), None) is None:
            order = [name for name in names if name in FIELDS]
            columns = (texts[order.index(name) + 1 :: len(FIELDS) + 1] for name in FIELDS)
            return _Answer(root, [pa.array(column, pa.string()) for column in columns])
    root = parse(body)
    items = list(root.iter(f"{_space(root)}Contents"))
    tags = [f"{_space(root)}{name}" for name in FIELDS]
    rows = [[item.findtext(tag) for item in items] for tag in tags]
    return _Answer(root, [pa.array(column, pa.string()) for column in rows])


def _has_markup(body: bytes) -> bool:
    """True for comments, CDATA and instructions in a page: what stands in one is no object."""
    # One byte is found fifty times as fast as two, and most pages have no such one.
    if b"!" in body and b"<!" in body:
        return True
    return body.count(b"?") > _DECLARATION and body.count(b"<?") > 1


@lru_cache
def object_form(names: Sequence[str]) -> re.Pattern[bytes]:
    """The form of an object that has elements with these names, in this order, each without others.

    Its groups are the texts of ``FIELDS``; of the other elements it may have none or several.
    """
    parts = []
    for name in names:
        if name == "ETag":
            parts.append(f"<ETag>{_QUOTE}({TEXT}){_QUOTE}</ETag>{_CHECKSUMS}")
        elif name in FIELDS:
            parts.append(f"<{name}>({TEXT})</{name}>")
        else:
            parts.append(f"(?:<{name}>{TEXT}</{name}>)*")
    return re.compile(f"<Contents>{''.join(parts)}</Contents>".encode())


def parse(body: bytes) -> ET.Element:
    """The XML of an answer."""
    return ET.fromstring(body)  # noqa: S314 - as botocore itself does


def _space(root: ET.Element) -> str:
    """The XML namespace of a page, as ElementTree writes it before each name."""
    return root.tag[: root.tag.rfind("}") + 1]


def read_page(answer: Any, where: str) -> Page:  # noqa: ANN401 - botocore's answer plus our page
    """Read the page in an answer, which ``page_in`` found. Raises StorageError: it is damaged."""
    page = answer.get(_PAGE)
    if page is None:
        raise StorageError(f"{where}: the answer is not a listing: check the endpoint")
    try:
        return _read(page.root, page.columns)
    except (ValueError, TypeError, pa.ArrowInvalid) as error:
        raise StorageError(f"{where}: the store answered with a damaged page: {error}") from error


def _read(root: ET.Element, columns: Sequence[pa.Array]) -> Page:
    space = _space(root)
    encoding = root.findtext(f"{space}EncodingType")
    decode = _decoder(encoding)
    keys, times, etags, sizes = columns
    if encoding != "url" or keys.null_count or _has_escapes(keys):
        keys = pa.array([decode(key) for key in keys.to_pylist()], pa.string())
    prefixes = [
        decode(item.findtext(f"{space}Prefix")) for item in root.iter(f"{space}CommonPrefixes")
    ]
    truncated = root.findtext(f"{space}IsTruncated")
    if truncated not in {"true", "false"}:
        raise ValueError(f"IsTruncated is {truncated!r}")
    token = root.findtext(f"{space}NextContinuationToken")
    if (truncated == "true") is not bool(token):
        raise ValueError(f"IsTruncated is {truncated}, and the token for the next page {token!r}")
    count = root.findtext(f"{space}KeyCount")
    # Some servers count objects only (NooBaa before 5.12, SeaweedFS before 2.21).
    if count is not None and int(count) not in {len(keys), len(keys) + len(prefixes)}:
        raise ValueError(f"it counts {count} keys, and has {len(keys) + len(prefixes)}")
    # Some servers give nanoseconds.
    exact = pc.cast(times, pa.timestamp("ns", "UTC"))
    objects = objects_of(keys, sizes, exact, etags)
    return Page(objects, prefixes, token or None)


def _has_escapes(keys: pa.StringArray) -> bool:
    """True if there may be characters that percent-encoding writes in another way."""
    text = keys.buffers()[2]
    return text is not None and any(mark in text.to_pybytes() for mark in (b"%", b"+"))


def _decoder(encoding: str | None) -> Callable[[str | None], str]:
    """The decoder of the keys of a page: percent-encoded, as asked for, where the server can."""

    def decode(key: str | None) -> str:
        if not key:
            raise ValueError("a key is missing")
        if encoding == "url":
            return unquote_plus(key, errors="strict") if "%" in key or "+" in key else key
        if any(character < " " for character in key):
            raise ValueError(f"{key!r} is not percent-encoded, so XML may have changed it")
        return key

    return decode
