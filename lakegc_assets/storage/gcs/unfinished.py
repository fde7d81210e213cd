"""Uploads in parts of the XML API that nobody completed or aborted: a bucket keeps their parts.

Resumable uploads, which the JSON API makes, end by themselves after a week and are in no list.

Format: https://cloud.google.com/storage/docs/xml-api/get-bucket-uploads
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final
from urllib.parse import quote, urlencode

from lakegc_assets.storage.gcs.service import GcsService
from lakegc_assets.storage.http import HttpFailure, explaining
from lakegc_assets.storage.values import MultipartUpload

_GONE: Final = frozenset({"NoSuchUpload", "notFound", "NoSuchKey"})
#: The list that has elements of a tag, and where what a request has to go on with stands in it.
_LISTS: Final = {
    "Upload": (
        "ListMultipartUploadsResult",
        {"key-marker": "NextKeyMarker", "upload-id-marker": "NextUploadIdMarker"},
    ),
    "Part": ("ListPartsResult", {"part-number-marker": "NextPartNumberMarker"}),
}


@dataclass(frozen=True)
class GcsUnfinished:
    """The unfinished uploads of a bucket below a prefix; ``where`` is the URL of the store."""

    service: GcsService
    bucket: str
    prefix: str
    where: str

    def begun_before(self, moment: datetime) -> Sequence[MultipartUpload]:
        """See ``ObjectStore.multipart_uploads``."""
        found: list[MultipartUpload] = []
        with explaining(f"{self.where}: listing uploads in parts"):
            for element in self._items("", {"uploads": "", "prefix": self.prefix}, "Upload"):
                begun = _time(_text(element, "Initiated"))
                name = _text(element, "Key")
                if begun < moment and name.startswith(self.prefix):
                    one = self._with_parts(name, _text(element, "UploadId"), begun)
                    found += [one] if one else []
        return found

    def abort(self, upload: MultipartUpload) -> bool:
        """See ``ObjectStore.abort_upload``."""
        query = {"uploadId": upload.upload_id}
        with explaining(f"{self.where}: aborting the upload of {upload.key!r}"):
            try:
                self.service.client.send("DELETE", self._url(self.prefix + upload.key, query))
            except HttpFailure as failure:
                if failure.code not in _GONE:
                    raise
                return False
        return True

    def _with_parts(self, name: str, upload_id: str, begun: datetime) -> MultipartUpload | None:
        """An upload with size and time of its parts; None if it has ended meanwhile."""
        try:
            parts = list(self._items(name, {"uploadId": upload_id}, "Part"))
        except HttpFailure as failure:
            if failure.code not in _GONE:
                raise
            return None
        newest = max([begun, *(_time(_text(part, "LastModified")) for part in parts)])
        size = sum(int(_text(part, "Size")) for part in parts)
        return MultipartUpload(name.removeprefix(self.prefix), upload_id, begun, newest, size)

    def _items(self, name: str, query: dict[str, str], tag: str) -> Iterator[ET.Element]:
        """The elements of a list, page by page. Raises HttpFailure."""
        root_tag, markers = _LISTS[tag]
        while True:
            answer = self.service.client.send("GET", self._url(name, query))
            try:
                root = ET.fromstring(answer.content)  # noqa: S314 - expat refuses what would grow
                for element in root.iter():
                    element.tag = element.tag.rpartition("}")[2]
                if root.tag != root_tag:
                    raise ValueError(f"it is a {root.tag}")  # noqa: TRY301 - it is damage
                yield from root.iter(tag)
                more = (root.findtext("IsTruncated") or "").lower() == "true"
                following = {name: root.findtext(tag) or "" for name, tag in markers.items()}
            except (ET.ParseError, ValueError) as error:
                raise HttpFailure(
                    "NoAnswer", f"the answer is no list of {tag}s: {error}"
                ) from error
            if not more:
                return
            if following.items() <= query.items():
                raise HttpFailure("NoAnswer", f"the list of {tag}s does not go on")
            query = {**query, **following}

    def _url(self, name: str, query: dict[str, str]) -> str:
        path = f"{quote(self.bucket, safe='')}/{quote(name, safe='/')}".rstrip("/")
        return f"{self.service.url}/{path}?{urlencode(query, quote_via=quote)}"


def _text(element: ET.Element, tag: str) -> str:
    text = element.findtext(tag)
    if not text:
        raise HttpFailure("NoAnswer", f"a list lacks a {tag}")
    return text


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)
    except ValueError as error:
        raise HttpFailure("NoAnswer", f"{text!r} is no time") from error
