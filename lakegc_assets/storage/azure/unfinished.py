"""Blobs that consist of uncommitted blocks only.

They are in no usual listing, and are paid for. Azure drops the blocks of a blob a week after the
last of them was written, and reports no time of a block: so it is not known that such an upload has
ended, and nothing here removes one.

Format: https://learn.microsoft.com/rest/api/storageservices/get-block-list
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from lakegc_assets.storage.azure.listing import is_directory, name_of
from lakegc_assets.storage.azure.service import AzureService
from lakegc_assets.storage.http import HttpFailure
from lakegc_assets.storage.values import UncommittedBlob

_THREADS: Final = 8
#: It is gone meanwhile, or no blob that is made of blocks.
_NO_BLOCKS: Final = frozenset({404, 409})


@dataclass(frozen=True)
class AzureUnfinished:
    """The uncommitted blobs of a container below a prefix.

    Attributes:
        service: of the account.
        container: of the blobs.
        prefix: that keys are relative to.
    """

    service: AzureService
    container: str
    prefix: str

    def blobs(self) -> Sequence[UncommittedBlob]:
        """See ``ObjectStore.uncommitted_blobs``. Raises HttpFailure."""
        with ThreadPoolExecutor(_THREADS) as pool:
            found = list(pool.map(self._with_blocks, self._empty()))
        return [one for one in found if one is not None]

    def _empty(self) -> Iterator[str]:
        """Names of empty blobs: also of committed ones, which the list does not distinguish."""
        query = {"restype": "container", "comp": "list", "include": "metadata,uncommittedblobs"}
        if self.prefix:
            query["prefix"] = self.prefix
        while True:
            answer = self.service.send("GET", self.service.target(self.container, query=query))
            try:
                root = ET.fromstring(answer.content)  # noqa: S314 - expat refuses what would grow
                blobs = root.find("Blobs")
                if root.tag != "EnumerationResults" or blobs is None:
                    raise ValueError("it is not a listing")  # noqa: TRY301 - it is damage
                returns = b"\r" in answer.content
                names = [name_of(b, may_hold_returns=returns) for b in blobs if _is_empty(b)]
            except (ET.ParseError, ValueError) as error:
                raise HttpFailure("NoAnswer", f"a damaged list of blobs: {error}") from error
            yield from names
            marker = root.findtext("NextMarker") or ""
            if not marker:
                return
            if marker == query.get("marker"):
                raise HttpFailure("NoAnswer", "the list of blobs does not go on")
            query["marker"] = marker

    def _with_blocks(self, name: str) -> UncommittedBlob | None:
        query = {"comp": "blocklist", "blocklisttype": "uncommitted"}
        try:
            answer = self.service.send("GET", self.service.target(self.container, name, query))
        except HttpFailure as failure:
            if failure.status not in _NO_BLOCKS:
                raise
            return None
        try:
            root = ET.fromstring(answer.content)  # noqa: S314 - as above
            sizes = [int(one.text or "") for one in root.iterfind("UncommittedBlocks/Block/Size")]
        except (ET.ParseError, ValueError) as error:
            raise HttpFailure("NoAnswer", f"a damaged list of blocks: {error}") from error
        return UncommittedBlob(name.removeprefix(self.prefix), sum(sizes)) if sizes else None


def _is_empty(blob: ET.Element) -> bool:
    properties = blob.find("Properties")
    if blob.tag != "Blob" or properties is None or is_directory(blob, properties):
        return False
    return int(properties.findtext("Content-Length") or 0) == 0
