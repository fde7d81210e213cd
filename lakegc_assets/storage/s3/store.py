"""S3 and its compatible servers as an object store, through boto3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from lakegc_assets.storage.bucket_store import PATIENCE_S, BucketStore
from lakegc_assets.storage.bulk import Bulk, Deadline
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import AccessDeniedError
from lakegc_assets.storage.http import HttpFailure, explaining, time_in
from lakegc_assets.storage.pages import Page, follow, relative
from lakegc_assets.storage.s3.client import Clients, clients, failing, is_aws, translated
from lakegc_assets.storage.s3.deletes import S3Deletes, S3Versions
from lakegc_assets.storage.s3.listing import read_page
from lakegc_assets.storage.s3.objects import S3Object, copy
from lakegc_assets.storage.s3.retention_settings import protection_of, recovery_of, retained_by
from lakegc_assets.storage.values import (
    Copied,
    CopyRequest,
    DataProtection,
    KeyRange,
    Lost,
    MultipartUpload,
    ObjectInfo,
    Recovery,
    Retained,
    UndeleteOutcome,
)

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_THREADS: Final = 8
_NO_UPLOAD: Final = "NoSuchUpload"


class S3Store(BucketStore[S3Object]):
    """The objects of a bucket below a prefix."""

    @property
    def clients(self) -> Clients:
        """Of the server; the same ones in all stores of one configuration."""
        return clients(self.config)

    @property
    def client(self) -> S3Client:
        """The one whose requests are repeated."""
        return self.clients.usual

    def object_at(self, key: str, *, patient: bool = False) -> S3Object:
        config = self._patient() if patient else self.config
        return S3Object(config, self.bucket, self._full_key(key), self._at(key))

    def reached_by(self) -> tuple[Any, ...]:
        config = self.config
        return S3Store, config.endpoint_url, config.profile, config.credentials_file

    def head(self, key: str) -> ObjectInfo:
        with self._bucket_confirmed():
            return ObjectInfo(key, *self.object_at(key).state(checksums=False)[:3])

    def delete_deadlines(self) -> bool:
        """See ``ObjectStore``: every key pair can sign one."""
        return True

    def server_time(self) -> datetime:
        """See ``ObjectStore``: the ``Date`` of an answer of the store, to the second."""
        where = f"{self._url}: asking for the time"
        with translated(where):
            answer = self.client.list_objects_v2(Bucket=self.bucket, Prefix=self._prefix, MaxKeys=1)
        return time_in(answer["ResponseMetadata"]["HTTPHeaders"].get("date"), where)

    def recovery(self) -> Recovery:
        """See ``ObjectStore``: versioning and lifecycle rules of the bucket."""
        return recovery_of(self.client, self.bucket, self._prefix, self._url)

    def data_protection(self) -> DataProtection:
        """See ``ObjectStore``: versioning, lifecycle rules and Object Lock of the bucket."""
        return protection_of(self.client, self.bucket, self._prefix, self._url)

    def retained(self, prefix: str = "") -> Retained:
        """See ``ObjectStore``: versions that are not the latest."""
        with explaining(f"{self._url}: listing versions"):
            return retained_by(self.client, self.bucket, self._prefix + prefix)

    def multipart_uploads(self, begun_before: datetime) -> Sequence[MultipartUpload]:
        with translated(f"{self._url}: listing uploads in parts"):
            begun = list(self._uploads(self._prefix))
        if not begun and not is_aws(self.clients.endpoint):
            # MinIO lists the uploads of a bucket, or those of one key: none below a prefix.
            try:
                with translated(f"{self._url}: listing uploads in parts"):
                    begun = [
                        one for one in self._uploads("") if one["Key"].startswith(self._prefix)
                    ]
            except AccessDeniedError:
                # Who may list below the prefix alone has had the answer.
                begun = []
        old = [one for one in begun if _utc(one["Initiated"]) < begun_before]
        with translated(f"{self._url}: listing parts"), ThreadPoolExecutor(_THREADS) as pool:
            found = list(pool.map(self._with_parts, old))
        return [one for one in found if one is not None]

    def abort_upload(self, upload: MultipartUpload) -> bool:
        with translated(f"{self._url}: aborting the upload of {upload.key!r}"):
            try:
                with failing():
                    self.client.abort_multipart_upload(
                        Bucket=self.bucket,
                        Key=self._prefix + upload.key,
                        UploadId=upload.upload_id,
                    )
            except HttpFailure as failure:
                if failure.code != _NO_UPLOAD:
                    raise
                return False
        return True

    def _uploads(self, prefix: str) -> Iterator[Any]:
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
            if failure.code != _NO_UPLOAD:
                raise
            return None
        key = listed["Key"].removeprefix(self._prefix)
        return MultipartUpload(key, listed["UploadId"], begun, newest, size)

    def _bring_back(self, objects: Sequence[Lost], *, dry_run: bool) -> Sequence[UndeleteOutcome]:
        """Remove delete markers, or look whether they could be removed."""
        # What is asked again while it still works on it, some servers bring back not at all.
        client = clients(self._patient()).usual
        place = self.bucket, self._prefix, self._url
        versions = S3Versions(client, *place, self.config.page_size)
        return versions.undelete(objects, dry_run=dry_run)

    def _patient(self) -> StoreConfig:
        return replace(self.config, read_timeout_s=max(self.config.read_timeout_s, PATIENCE_S))

    def _copied(self, source: S3Object, target: S3Object, asked: CopyRequest) -> Copied | None:
        """A small object that may be overwritten takes one request."""
        return copy(source, target, asked, self.sizes)

    def _deletes(
        self, deadline: Deadline | None, etags: Mapping[str, str] | None, *, singly: bool
    ) -> Bulk:
        del etags
        calls = S3Deletes(self.client, self.bucket, self._prefix, singly, deadline)
        ways = calls.problem, calls.send, calls.etag_at, calls.alone
        return Bulk(self._url, self.keys_per_delete, *ways, deadline)

    def _pages(self, wanted: KeyRange, *, one_level: bool = False) -> Iterator[Page]:
        where = self._listing(wanted.prefix)
        prefix = self._prefix + wanted.prefix
        request: dict[str, Any] = {
            "Bucket": self.bucket,
            "Prefix": prefix,
            "MaxKeys": self.config.page_size,
            **({"Delimiter": "/"} if one_level else {}),
        }
        if wanted.start_after is not None:
            request["StartAfter"] = self._prefix + wanted.start_after

        def ask(token: str | None) -> Page:
            if token is not None:
                request["ContinuationToken"] = token
            with translated(where):
                answer = self.client.list_objects_v2(**request)
            return read_page(answer, where)

        for page in follow(ask, prefix, where, one_level=one_level):
            yield relative(page, self._prefix)


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(timezone.utc)
