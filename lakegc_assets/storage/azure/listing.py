"""Pages of Azure's listings, read into Arrow, or refused.

Directories are no objects: on accounts with a hierarchical namespace they have a resource type, on
others Hadoop marks them by an empty blob with the metadata ``hdi_isfolder``.

Format: https://learn.microsoft.com/rest/api/storageservices/list-blobs
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final, TypeVar
from urllib.parse import unquote

import pyarrow as pa

from lakegc_assets.storage.azure.service import AzureService
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.http import HttpFailure
from lakegc_assets.storage.pages import Page, objects_of

_Read = TypeVar("_Read")

_BAD_REQUEST: Final = 400


def read_page(body: bytes, where: str) -> Page:
    """Read a page of a listing.

    Raises:
        StorageError: it is not a listing, or contradicts itself.
    """
    try:
        return _read(*_listing_in(body))
    except (ET.ParseError, ValueError, TypeError, pa.ArrowInvalid) as error:
        raise StorageError(f"{where}: the store answered with a damaged page: {error}") from error


def _listing_in(body: bytes) -> tuple[ET.Element, ET.Element]:
    """A listing, and its blobs. Raises ValueError and ParseError: it is none, or is damaged."""
    root = ET.fromstring(body)  # noqa: S314 - expat refuses what would grow without bounds
    blobs = root.find("Blobs")
    if root.tag != "EnumerationResults" or blobs is None:
        raise ValueError("it is not a listing: check the endpoint")
    if b"\r" in body:
        for name in root.iter("Name"):
            if name.get("Encoded") != "true" and "\n" in (name.text or ""):
                raise ValueError(f"XML may have changed the line ends in {name.text!r}")
    return root, blobs


def read_pages(
    service: AzureService,
    container: str,
    prefix: str,
    include: Sequence[str],
    read: Callable[[ET.Element], _Read],
) -> Iterator[_Read]:
    """Read all pages of a listing that holds more than blobs.

    Args:
        service: of the account.
        container: that is listed.
        prefix: of the names.
        include: what is asked for, the most first, where the account does not know it.
        read: reads the blobs of a page. Raises ValueError.

    Raises:
        HttpFailure: a request was refused, or a page is damaged.
    """
    which = iter(include)
    query = {"restype": "container", "comp": "list", "include": next(which)}
    if prefix:
        query["prefix"] = prefix
    while True:
        try:
            answer = service.send("GET", service.target(container, query=query))
        except HttpFailure as failure:
            # Accounts with real directories have no versions, and take the word for an error.
            if failure.status != _BAD_REQUEST or query["include"] == include[-1]:
                raise
            query["include"] = next(which)
            continue
        try:
            root, blobs = _listing_in(answer.content)
            found = read(blobs)
        except (ET.ParseError, ValueError) as error:
            what = query["include"]
            raise HttpFailure("NoAnswer", f"a damaged list of blobs ({what}): {error}") from error
        yield found
        marker = root.findtext("NextMarker") or ""
        if not marker:
            return
        if marker == query.get("marker"):
            raise HttpFailure("NoAnswer", "the list of blobs does not go on")
        query["marker"] = marker


def _read(root: ET.Element, blobs: ET.Element) -> Page:
    rows = list(_objects_in(blobs))
    keys, times, etags, sizes = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [])
    written = pa.array([_time(time or "") for time in times], pa.timestamp("us", "UTC"))
    objects = objects_of(keys, sizes, written, etags)
    prefixes = [name_of(item) for item in blobs.iter("BlobPrefix")]
    marker = root.find("NextMarker")
    if marker is None:
        raise ValueError("it has no NextMarker, so it may be cut")
    return Page(objects, prefixes, marker.text or None)


def _objects_in(blobs: ET.Element) -> Iterator[Sequence[str | None]]:
    """Name, time, etag and size of each blob that is no directory."""
    for blob in blobs.iter("Blob"):
        properties = blob.find("Properties")
        if properties is None:
            raise ValueError("a blob has no properties")
        if not is_directory(blob, properties):
            texts = map(properties.findtext, ("Last-Modified", "Etag", "Content-Length"))
            yield (name_of(blob), *texts)


def name_of(item: ET.Element) -> str:
    """The name of a blob or a prefix. Raises ValueError."""
    name = item.find("Name")
    if name is None or not name.text:
        raise ValueError("a name is missing")
    return unquote(name.text, errors="strict") if name.get("Encoded") == "true" else name.text


def is_directory(blob: ET.Element, properties: ET.Element) -> bool:
    """True if a listed blob is a directory, and no object."""
    if (properties.findtext("ResourceType") or "").lower() == "directory":
        return True
    metadata = blob.find("Metadata")
    return metadata is not None and any(
        item.tag.lower() == "hdi_isfolder" and (item.text or "").lower() == "true"
        for item in metadata
    )


@lru_cache(maxsize=4096)
def _time(text: str) -> object:
    return parsedate_to_datetime(text)


def soft_delete_days(body: bytes) -> int | None:
    """The days for which deleted blobs stay, by the properties of a service; None without them.

    Raises:
        ValueError: these are no properties of a service.
    """
    try:
        root = ET.fromstring(body)  # noqa: S314 - as above
    except ET.ParseError as error:
        raise ValueError("the answer is damaged") from error
    policy = root.find("DeleteRetentionPolicy")
    if root.tag != "StorageServiceProperties":
        raise ValueError("the answer holds no properties")
    if policy is None or (policy.findtext("Enabled") or "").lower() != "true":
        return None
    return int(policy.findtext("Days") or 0)
