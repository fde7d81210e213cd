"""Pages of Azure's listings, read into Arrow, or refused.

Directories are no objects: on accounts with a hierarchical namespace they have a resource type, on
others Hadoop marks them by an empty blob with the metadata ``hdi_isfolder``.

Format: https://learn.microsoft.com/rest/api/storageservices/list-blobs
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from email.utils import parsedate_to_datetime
from functools import lru_cache
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.storage.base import LISTING_SCHEMA
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.pages import Page


def read_page(body: bytes, where: str) -> Page:
    """Read a page of a listing.

    Raises:
        StorageError: it is not a listing, or contradicts itself.
    """
    try:
        root = ET.fromstring(body)  # noqa: S314 - expat refuses what would grow without bounds
        blobs = root.find("Blobs")
        if root.tag != "EnumerationResults" or blobs is None:
            raise StorageError(f"{where}: the answer is not a listing: check the endpoint")
        return _read(root, blobs, may_hold_returns=b"\r" in body)
    except (ET.ParseError, ValueError, TypeError, pa.ArrowInvalid) as error:
        raise StorageError(f"{where}: the store answered with a damaged page: {error}") from error


def _read(root: ET.Element, blobs: ET.Element, *, may_hold_returns: bool) -> Page:
    keys: list[str] = []
    sizes: list[str | None] = []
    times: list[object] = []
    etags: list[str] = []
    for blob in blobs.iter("Blob"):
        properties = blob.find("Properties")
        if properties is None:
            raise ValueError("a blob has no properties")
        if _is_directory(blob, properties):
            continue
        keys.append(_name(blob, may_hold_returns=may_hold_returns))
        sizes.append(properties.findtext("Content-Length"))
        times.append(_time(properties.findtext("Last-Modified") or ""))
        etags.append((properties.findtext("Etag") or "").strip('"'))
    objects = pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.string()),
            pc.cast(pa.array(sizes, pa.string()), pa.int64()),
            pa.array(times, LISTING_SCHEMA.field("last_modified").type),
            pa.array(etags, pa.string()),
        ],
        schema=LISTING_SCHEMA,
    )
    if objects["size"].null_count:
        raise ValueError("a blob has no size")
    prefixes = [_name(item, may_hold_returns=may_hold_returns) for item in blobs.iter("BlobPrefix")]
    marker = root.find("NextMarker")
    if marker is None:
        raise ValueError("it has no NextMarker, so it may be cut")
    return Page(objects, prefixes, marker.text or None)


def _name(item: ET.Element, *, may_hold_returns: bool) -> str:
    name = item.find("Name")
    if name is None or not name.text:
        raise ValueError("a name is missing")
    if name.get("Encoded") == "true":
        return unquote(name.text, errors="strict")
    if may_hold_returns and "\n" in name.text:
        raise ValueError(f"XML may have changed the line ends in {name.text!r}")
    return name.text


def _is_directory(blob: ET.Element, properties: ET.Element) -> bool:
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
    """For how many days deleted blobs stay, by the properties of a service; None for not at all.

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
