"""Uploads in parts that a bucket still holds the parts of, since nobody completed or aborted them.

They are in no listing of objects, and are paid for until a lifecycle rule or an abort ends them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lakegc_assets.storage.errors import AccessDeniedError
from lakegc_assets.storage.http import HttpFailure
from lakegc_assets.storage.s3.client import failing, translated
from lakegc_assets.storage.values import MultipartUpload

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_THREADS: Final = 8
_GONE: Final = "NoSuchUpload"


@dataclass(frozen=True)
class S3Unfinished:
    """The unfinished uploads of a bucket below a prefix.

    Attributes:
        client: its retries are the retries of the calls.
        bucket: of the uploads.
        prefix: that keys are relative to.
        where: URL of the store, for messages.
    """

    client: S3Client
    bucket: str
    prefix: str
    where: str

    def begun_before(self, moment: datetime) -> Sequence[MultipartUpload]:
        """See ``ObjectStore.multipart_uploads``."""
        with translated(f"{self.where}: listing uploads in parts"):
            begun = list(self._begun(self.prefix))
        if not begun and not self._on_aws:
            # MinIO lists the uploads of a bucket, or those of one key: none below a prefix.
            try:
                with translated(f"{self.where}: listing uploads in parts"):
                    begun = [one for one in self._begun("") if one["Key"].startswith(self.prefix)]
            except AccessDeniedError:
                # Who may list below the prefix alone has had the answer.
                begun = []
        old = [one for one in begun if _utc(one["Initiated"]) < moment]
        with translated(f"{self.where}: listing parts"), ThreadPoolExecutor(_THREADS) as pool:
            found = list(pool.map(self._with_parts, old))
        return [one for one in found if one is not None]

    def abort(self, upload: MultipartUpload) -> bool:
        """See ``ObjectStore.abort_upload``."""
        with translated(f"{self.where}: aborting the upload of {upload.key!r}"):
            try:
                with failing():
                    self.client.abort_multipart_upload(
                        Bucket=self.bucket,
                        Key=self.prefix + upload.key,
                        UploadId=upload.upload_id,
                    )
            except HttpFailure as failure:
                if failure.code != _GONE:
                    raise
                return False
        return True

    @property
    def _on_aws(self) -> bool:
        host = urlsplit(self.client.meta.endpoint_url).hostname or ""
        return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))

    def _begun(self, prefix: str) -> Iterator[Any]:
        pages = self.client.get_paginator("list_multipart_uploads")
        for page in pages.paginate(Bucket=self.bucket, Prefix=prefix):
            yield from page.get("Uploads", ())

    def _with_parts(self, listed: Any) -> MultipartUpload | None:  # noqa: ANN401 - boto3's
        """An upload with size and time of its parts; None if it has ended meanwhile."""
        begun = newest = _utc(listed["Initiated"])
        size = 0
        try:
            with failing():
                for page in self.client.get_paginator("list_parts").paginate(
                    Bucket=self.bucket, Key=listed["Key"], UploadId=listed["UploadId"]
                ):
                    for part in page.get("Parts", ()):
                        size += part["Size"]
                        newest = max(newest, _utc(part["LastModified"]))
        except HttpFailure as failure:
            if failure.code != _GONE:
                raise
            return None
        key = listed["Key"].removeprefix(self.prefix)
        return MultipartUpload(key, listed["UploadId"], begun, newest, size)


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(timezone.utc)
