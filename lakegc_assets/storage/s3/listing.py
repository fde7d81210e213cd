"""S3 listings, exact for every key that S3 can hold, at ten times boto3's speed.

boto3's general parser would take most of the time of a listing (``bench/listing.py`` measures
both). So the body of a page is taken out of boto3's answer before the parser runs, and read into
Arrow. obstore's listing is faster still, but it returns ``a/`` and ``/a`` as ``a`` without an
error. ``page_objects`` finds the objects, and an XML parser reads the page without them. A page
with an object in another form than S3's goes through the parser as a whole, which takes several
times as long. An inconsistent page is an error and never a shorter listing.

Format: https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc
from botocore.parsers import ResponseParserError

from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.pages import Page, damaged_page, objects_of
from lakegc_assets.storage.s3.page_objects import FIELDS, objects_in

_PAGE: Final = "LakegcPage"
_OK: Final = 200


class _Answer(NamedTuple):
    """A page without its objects, and the ``FIELDS`` of the objects."""

    root: ET.Element
    columns: Sequence[pa.Array]


def keep_page(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object
) -> None:
    """Take a page out of an answer, as botocore's ``before-parse`` handler.

    Any answer that is not good is left to botocore, which raises or repeats as needed.
    """
    if response_dict["status_code"] != _OK:
        return
    try:
        page = page_in(response_dict["body"])
    except ET.ParseError:
        return
    except LookupError as error:
        # botocore would raise this error unchanged.
        raise ResponseParserError(f"the answer is no XML: {error}") from error
    if page:
        customized_response_dict.update(page)
        response_dict["body"] = b"<ListBucketResult/>"


def page_in(body: bytes) -> dict[str, Any]:
    """The input of ``read_page`` in a good answer; empty for other answers. Raises ParseError."""
    answer = _split(body)
    listing = answer.root.tag.rpartition("}")[2] == "ListBucketResult"
    return {_PAGE: answer} if listing else {}


def _split(body: bytes) -> _Answer:
    """Read a page, the fast way if its objects have S3's form."""
    if found := objects_in(body):
        rest, columns = found
        root = parse(rest)
        space = _space(root)
        alone = b"<!" not in rest and rest.count(b"<_") == 1
        alone = alone and root.find(f".//{space}_") is not None
        encoded = root.findtext(f"{space}EncodingType") == "url"
        if alone and encoded and next(root.iter(f"{space}Contents"), None) is None:
            return _Answer(root, columns)
    root = parse(body)
    items = list(root.iter(f"{_space(root)}Contents"))
    tags = [f"{_space(root)}{name.decode()}" for name in FIELDS]
    rows = [[item.findtext(tag) for item in items] for tag in tags]
    return _Answer(root, [pa.array(column, pa.string()) for column in rows])


def parse(body: bytes) -> ET.Element:
    """The XML of an answer."""
    return ET.fromstring(body)  # noqa: S314 - as botocore itself does


def keep(
    name: str,
    path: str,
    response_dict: Mapping[str, Any],
    customized_response_dict: dict[str, Any],
    **_: object,
) -> None:
    """Add the elements at a path to an answer, as botocore's ``before-parse`` handler."""
    # botocore reports what is no XML.
    with suppress(ET.ParseError, LookupError):
        customized_response_dict[name] = parse(response_dict["body"]).findall(path)


def _space(root: ET.Element) -> str:
    """The XML namespace of a page, as ElementTree writes it before each name."""
    return root.tag[: root.tag.rfind("}") + 1]


def read_page(answer: Any, where: str) -> Page:  # noqa: ANN401 - botocore's answer plus our page
    """Read the page that ``page_in`` found in an answer. Raises StorageError: it is damaged."""
    page = answer.get(_PAGE)
    if page is None:
        raise StorageError(f"{where}: the answer is not a listing: check the endpoint")
    try:
        return _read(page.root, page.columns)
    except (ValueError, TypeError, pa.ArrowInvalid) as error:
        raise damaged_page(where, error) from error


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
    """True if percent-encoding may write some characters in another way."""
    text = keys.buffers()[2]
    return text is not None and any(mark in text.to_pybytes() for mark in (b"%", b"+"))


def _decoder(encoding: str | None) -> Callable[[str | None], str]:
    """The decoder of a page's keys, which are percent-encoded on request, if the server can."""

    def decode(key: str | None) -> str:
        if not key:
            raise ValueError("a key is missing")
        if encoding == "url":
            return unquote_plus(key, errors="strict") if "%" in key or "+" in key else key
        if any(character < " " for character in key):
            raise ValueError(
                f"{key!r} is not percent-encoded, so XML may have changed it: remove or rename "
                "that object with the tools of the store"
            )
        return key

    return decode
