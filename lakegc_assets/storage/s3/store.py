"""S3 and its compatible servers as an object store, through boto3."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, Final, NamedTuple

from lakegc_assets.storage.bulk import Bulk, Deadline
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import AccessDeniedError
from lakegc_assets.storage.http import HttpFailure, explaining
from lakegc_assets.storage.pages import Page, follow, relative
from lakegc_assets.storage.s3.client import failing, is_aws, translated, whole
from lakegc_assets.storage.s3.deletes import S3Deletes, S3Versions, needs_url
from lakegc_assets.storage.s3.lifecycle import (
    archives,
    days_until_gone,
    days_until_removed,
    ends_all,
    rules_in,
    start_of,
)
from lakegc_assets.storage.s3.listing import read_page
from lakegc_assets.storage.s3.objects import S3Object, copy
from lakegc_assets.storage.s3.small_objects import PAUSE_S
from lakegc_assets.storage.values import (
    Copied,
    CopyRequest,
    DataProtection,
    KeyRange,
    MultipartUpload,
    ObjectInfo,
    Recovery,
    Retained,
)

_NO_RULES: Final = "NoSuchLifecycleConfiguration"
#: Codes of a bucket without locks, or of a server that does not know the question.
_NO_LOCK: Final = frozenset({"ObjectLockConfigurationNotFoundError", "NotImplemented"})
#: What is said of versioning that does not keep each object of a namespace.
_NOT_KEPT: Final = {
    "suspended": "versioning is suspended: what is written and deleted now is not kept, and older "
    "versions stay, and are paid for, until a lifecycle rule ends them",
    "excluded": "prefixes of this namespace are excluded from the versioning of the bucket "
    "(ExcludedPrefixes): what is written and deleted there is not kept. Remove the exclusion "
    "(with mc version enable) if deleted objects must come back",
}
#: Days of a year, at least.
_YEAR: Final = 365


class ObjectLock(NamedTuple):
    """Object Lock of a bucket, with mode (GOVERNANCE, COMPLIANCE) and days of any default."""

    enabled: bool
    mode: str = ""
    days: float = 0


class S3Store(S3Versions):
    """The objects of a bucket below a prefix, and the protection of its deleted objects."""

    def _object(self, full_key: str, where: str, config: StoreConfig) -> S3Object:
        return S3Object(config, self.bucket, full_key, where)

    def reached_by(self) -> tuple[Any, ...]:
        config = self.config
        return S3Store, config.endpoint_url, config.profile, config.credentials_file

    def fetch(self, key: str) -> bytes:
        """See ``ObjectStore``: by obstore, as long as it succeeds."""
        small = self.clients.small
        if small.usable(self.bucket):
            found = small.get(self.bucket, self._full_key(key))
            if found is not None:
                return found
            # boto3 finds the cause: the object may be missing, or obstore may not reach the bucket.
            small.pause(self.bucket, PAUSE_S)
        return self.get(key)

    def head(self, key: str) -> ObjectInfo:
        with self._bucket_confirmed():
            return ObjectInfo(key, *self.object_at(key).state(checksums=False)[:3])

    def is_deleted_alone(self, key: str) -> bool:
        return needs_url(self.prefix, key)

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
            # MinIO lists the uploads of a bucket, or of one key, but none below a prefix. A user
            # who may list only below the prefix keeps the first answer.
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
        """See ``BucketStore``. A small copy that may replace an object takes one request."""
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

    def recovery(self) -> Recovery:
        return self._settings()[0]

    def _settings(self) -> tuple[Recovery, str, Sequence[Any] | None]:
        """Recovery, versioning and lifecycle rules; None for unknown rules."""
        where = self._url
        try:
            versioning = self._versioning()
        except HttpFailure as failure:
            advice = "check the versioning of the bucket, or allow s3:GetBucketVersioning"
            return Recovery.unknown(where, failure.code, advice), "unknown", ()
        if versioning != "enabled":
            # Other servers may have more statuses than S3.
            why = _NOT_KEPT.get(versioning, "the bucket keeps nothing of what is deleted")
            return Recovery("nothing", None, f"{where}: {why}"), versioning, ()
        kept = f"{where}: versioning is enabled: deleted objects stay as versions, and are paid for"
        try:
            rules = self._rules()
        except HttpFailure as failure:
            why = f"{failure.code}: allow s3:GetLifecycleConfiguration"
            notice = f"{kept}, and it is not known until when ({why})"
            return Recovery("versions", None, notice), versioning, None
        ends = [days for one in rules if (days := days_until_gone(one, self.prefix)) is not None]
        until = "until a lifecycle rule ends them; none does now"
        if ends:
            until = f"for {min(ends):g} days, by a lifecycle rule"
        notice = "; ".join([f"{kept}, {until}", *archives(rules, self.prefix)])
        return Recovery("versions", min(ends, default=None), notice), versioning, rules

    def data_protection(self) -> DataProtection:
        """See ``ObjectStore``.

        A delete without a version leaves a marker in spite of any lock. The space is freed when a
        lifecycle rule may remove the version below.
        """
        recovery, versioning, rules = self._settings()
        found, lock = DataProtection.of(recovery), self._object_lock()
        if versioning in _NOT_KEPT:
            # Objects from before that have a version, which stays.
            found = found._replace(held=None)
        if rules is not None:
            concerned = [rule for rule in rules if days_until_gone(rule, self.prefix) is not None]
            exact = len(concerned) == 1 and ends_all(concerned[0], self.prefix)
            found = found._replace(at_least=not exact)
        return found._replace(locked_days=lock.days if lock else 0).with_locks(_in_words(lock))

    def _expirations(self) -> Iterable[tuple[str, float]]:
        """See ``UploadingStore``: rules for some tags do not concern lakeFS's objects or ours."""
        found = ((start_of(rule), days_until_removed(rule)) for rule in self._rules())
        return [(start, days) for start, days in found if days is not None]

    def retained(self, prefix: str = "") -> Retained:
        """See ``ObjectStore``. No list has locks of single objects: the default lock counts."""
        markers = 0

        def kept(lock: timedelta | None) -> Iterator[tuple[int, bool, datetime | None]]:
            nonlocal markers
            pages = self.client.get_paginator("list_object_versions")
            listed = pages.paginate(Bucket=self.bucket, Prefix=self.prefix + prefix)
            for page in whole(listed, "versions"):
                markers += len(page.get("DeleteMarkers", ()))
                for one in page.get("Versions", ()):
                    if not one.get("IsLatest"):
                        yield one["Size"], False, one["LastModified"] + lock if lock else None

        with explaining(f"{self._url}: listing versions"), failing():
            if not self._versioning():
                return Retained()
            lock = self._object_lock()
            found = Retained.counting(kept(timedelta(lock.days) if lock and lock.days else None))
        return found._replace(markers=markers, locked=None if lock is None else found.locked)

    def _object_lock(self) -> ObjectLock | None:
        """Object Lock of the bucket; None if it is not known."""
        try:
            with failing():
                answer = self.client.get_object_lock_configuration(Bucket=self.bucket)
        except HttpFailure as failure:
            return ObjectLock(enabled=False) if failure.code in _NO_LOCK else None
        lock = answer.get("ObjectLockConfiguration", {})
        default = lock.get("Rule", {}).get("DefaultRetention", {})
        days = default.get("Days", 0) + _YEAR * default.get("Years", 0)
        return ObjectLock(lock.get("ObjectLockEnabled") == "Enabled", default.get("Mode", ""), days)

    def _rules(self) -> Sequence[Any]:
        """The lifecycle rules of the bucket. Raises HttpFailure."""
        try:
            with failing():
                answer = self.client.get_bucket_lifecycle_configuration(Bucket=self.bucket)
        except HttpFailure as failure:
            if failure.code != _NO_RULES:
                raise
            return []
        return rules_in(answer)


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(timezone.utc)


def _in_words(lock: ObjectLock | None) -> Sequence[str]:
    """Object Lock of a bucket, as a sentence; None if it is not known."""
    if lock is None:
        allow = "allow s3:GetBucketObjectLockConfiguration"
        return [f"it is not known whether objects are locked: {allow}"]
    if lock.days:
        since = f"for {lock.days:g} days from when it was written ({lock.mode})"
        longer = "or longer by a separate lock or legal hold"
        return [f"Object Lock is enabled: each object is locked {since}, {longer}"]
    if lock.enabled:
        return ["Object Lock is enabled: single objects may have locks and legal holds"]
    return []
