"""S3 and its compatible servers as an object store, through boto3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from lakegc_assets.storage.bulk import Bulk, Deadline
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import AccessDeniedError
from lakegc_assets.storage.http import HttpFailure
from lakegc_assets.storage.pages import Page, follow, relative
from lakegc_assets.storage.s3.client import failing, is_aws, translated, whole
from lakegc_assets.storage.s3.deletes import S3Deletes, S3Versions
from lakegc_assets.storage.s3.listing import read_page
from lakegc_assets.storage.s3.objects import S3Object, copy
from lakegc_assets.storage.s3.small_objects import PAUSE_S
from lakegc_assets.storage.values import Copied, CopyRequest, KeyRange, MultipartUpload, ObjectInfo


class S3Store(S3Versions):
    """The objects of a bucket below a prefix."""

    def _object(self, full_key: str, where: str, config: StoreConfig) -> S3Object:
        return S3Object(config, self.bucket, full_key, where)

    def reached_by(self) -> tuple[Any, ...]:
        config = self.config
        return S3Store, config.endpoint_url, config.profile, config.credentials_file

    def fetch(self, key: str) -> bytes:
        """See ``ObjectStore``: by obstore, as long as that succeeds."""
        small = self.clients.small
        if small.usable(self.bucket):
            found = small.get(self.bucket, self._full_key(key))
            if found is not None:
                return found
            # boto3 tells what is wrong: the object may be missing, or the way be another one.
            small.pause(self.bucket, PAUSE_S)
        return self.get(key)

    def head(self, key: str) -> ObjectInfo:
        with self._bucket_confirmed():
            return ObjectInfo(key, *self.object_at(key).state(checksums=False)[:3])

    def delete_deadlines(self) -> bool:
        """See ``ObjectStore``: every key pair can sign one."""
        return True

    def _date(self, where: str) -> str | None:
        with translated(where):
            answer = self.client.list_objects_v2(Bucket=self.bucket, Prefix=self.prefix, MaxKeys=1)
        return answer["ResponseMetadata"]["HTTPHeaders"].get("date")

    def _uploads(self) -> Iterator[MultipartUpload]:
        begun = self._begun(self.prefix)
        if not begun and not is_aws(self.clients.endpoint):
            # MinIO lists the uploads of a bucket, or those of one key: none below a prefix. Who may
            # list below the prefix alone has had the answer.
            try:
                begun = self._begun("")
            except HttpFailure as failure:
                if failure.kind is not AccessDeniedError:
                    raise
        for one in begun:
            since = _utc(one["Initiated"])
            yield MultipartUpload(one["Key"], one["UploadId"], since, since, 0)

    def _begun(self, prefix: str) -> list[Any]:
        pages = self.client.get_paginator("list_multipart_uploads")
        with failing():
            listed = whole(pages.paginate(Bucket=self.bucket, Prefix=prefix), "uploads")
            return [one for page in listed for one in page.get("Uploads", ())]

    def _parts(self, upload: MultipartUpload) -> Iterator[tuple[int, datetime]]:
        pages = self.client.get_paginator("list_parts")
        with failing():
            listed = pages.paginate(Bucket=self.bucket, Key=upload.key, UploadId=upload.upload_id)
            # Without its last parts an upload would look older than it is.
            for page in whole(listed, "parts"):
                for one in page.get("Parts", ()):
                    yield one["Size"], _utc(one["LastModified"])

    def _abort(self, full_key: str, upload_id: str) -> None:
        with failing():
            self.client.abort_multipart_upload(Bucket=self.bucket, Key=full_key, UploadId=upload_id)

    def _copied(self, source: S3Object, target: S3Object, asked: CopyRequest) -> Copied | None:
        """A small object that may be overwritten takes one request."""
        return copy(source, target, asked, self.sizes)

    def _deletes(
        self, deadline: Deadline | None, etags: Mapping[str, str] | None, *, singly: bool
    ) -> Bulk:
        del etags
        calls = S3Deletes(self.client, self.bucket, self.prefix, singly, deadline)
        ways = calls.problem, calls.send, calls.etag_at, calls.alone
        return Bulk(self._url, self.keys_per_delete, *ways, deadline)

    def _pages(self, wanted: KeyRange, *, one_level: bool = False) -> Iterator[Page]:
        where = self._listing(wanted.prefix)
        prefix = self.prefix + wanted.prefix
        request: dict[str, Any] = {
            "Bucket": self.bucket,
            "Prefix": prefix,
            "MaxKeys": self.config.page_size,
            **({"Delimiter": "/"} if one_level else {}),
        }
        if wanted.start_after is not None:
            request["StartAfter"] = self.prefix + wanted.start_after

        def ask(token: str | None) -> Page:
            if token is not None:
                request["ContinuationToken"] = token
            with translated(where):
                answer = self.client.list_objects_v2(**request)
            return read_page(answer, where)

        for page in follow(ask, prefix, where, one_level=one_level):
            yield relative(page, self.prefix)


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(timezone.utc)
