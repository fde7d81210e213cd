"""Blobs that consist of uncommitted blocks only.

They are in no usual listing, and are paid for. Azure drops the blocks of a blob a week after the
last of them was written, and reports no time of a block: so it is not known that such an upload has
ended, and nothing here removes one.

Format: https://learn.microsoft.com/rest/api/storageservices/get-block-list
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from lakegc_assets.storage.azure.listing import is_directory, name_of, read_pages
from lakegc_assets.storage.azure.service import AzureService
from lakegc_assets.storage.http import HttpFailure
from lakegc_assets.storage.values import UncommittedBlob

_THREADS: Final = 8
#: It is gone meanwhile, or no blob that is made of blocks.
_NO_BLOCKS: Final = frozenset({404, 409})


def uncommitted_blobs(
    service: AzureService, container: str, prefix: str
) -> Sequence[UncommittedBlob]:
    """See ``ObjectStore.uncommitted_blobs``. Raises HttpFailure."""
    # Empty blobs that are committed are in the list, too, which does not distinguish them.
    pages = read_pages(service, container, prefix, ["metadata,uncommittedblobs"], _empty)
    names = [name for page in pages for name in page]
    sizes_of = partial(_block_sizes, service, container)
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(zip(names, pool.map(sizes_of, names), strict=True))
    return [
        UncommittedBlob(name.removeprefix(prefix), sum(sizes)) for name, sizes in found if sizes
    ]


def _empty(blobs: ET.Element, may_hold_returns: bool) -> list[str]:  # noqa: FBT001 - read_pages'
    return [name_of(b, may_hold_returns=may_hold_returns) for b in blobs if _is_empty(b)]


def _is_empty(blob: ET.Element) -> bool:
    properties = blob.find("Properties")
    if blob.tag != "Blob" or properties is None or is_directory(blob, properties):
        return False
    return int(properties.findtext("Content-Length") or 0) == 0


def _block_sizes(service: AzureService, container: str, name: str) -> list[int]:
    query = {"comp": "blocklist", "blocklisttype": "uncommitted"}
    try:
        answer = service.send("GET", service.target(container, name, query))
    except HttpFailure as failure:
        if failure.status not in _NO_BLOCKS:
            raise
        return []
    try:
        root = ET.fromstring(answer.content)  # noqa: S314 - expat refuses what would grow
        return [int(one.text or "") for one in root.iterfind("UncommittedBlocks/Block/Size")]
    except (ET.ParseError, ValueError) as error:
        raise HttpFailure("NoAnswer", f"a damaged list of blocks: {error}") from error
