"""S3 and its compatible servers as an object store, through boto3."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError

from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.bulk import Bulk
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.deadlines import Deadline
from lakegc_assets.storage.errors import (
    InvalidKeyError,
    ObjectNotFoundError,
    StorageError,
)
from lakegc_assets.storage.http import HttpFailure, etag_in, explaining, time_in
from lakegc_assets.storage.keys import url_problem
from lakegc_assets.storage.pages import Page, follow, read_level, read_range, relative
from lakegc_assets.storage.s3.client import Clients, clients, translated
from lakegc_assets.storage.s3.copies import copy
from lakegc_assets.storage.s3.deletes import KEYS_PER_CALL, S3Deletes
from lakegc_assets.storage.s3.listing import read_page
from lakegc_assets.storage.s3.objects import S3Object, named_by
from lakegc_assets.storage.s3.retention_settings import protection_of, recovery_of, retained_by
from lakegc_assets.storage.s3.unfinished import S3Unfinished
from lakegc_assets.storage.s3.uploads import Sizes, content_md5, put_once, write
from lakegc_assets.storage.s3.versions import S3Versions
from lakegc_assets.storage.streams import Pieces, reading
from lakegc_assets.storage.values import (
    Copied,
    DataProtection,
    DeleteOutcome,
    KeyRange,
    Lost,
    MultipartUpload,
    ObjectInfo,
    Prefixes,
    Recovery,
    Retained,
    UndeleteOutcome,
)

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import CopySourceTypeDef

_COPY_WHOLE: Final = TransferConfig(
    multipart_threshold=5 * 2**30, multipart_chunksize=2**30, use_threads=False
)
_OK: Final = 200
#: What is larger takes a server longer to copy than it is waited for else: bytes, and seconds; so
#: do many versions.
_LARGE: Final = 2**26
_PATIENCE_S: Final = 300.0


class S3Store(ObjectStore):
    """The objects of a bucket below a prefix.

    Attributes:
        sizes: from which sizes on something is done in parts.
    """

    sizes = Sizes()

    def __init__(self, namespace: StorageNamespace, config: StoreConfig) -> None:
        self._url = namespace.url()
        self._bucket = namespace.authority
        self._prefix = f"{namespace.prefix}/" if namespace.prefix else ""
        self._config = config
        self._bucket_seen = False

    @property
    def url(self) -> str:
        """See ``ObjectStore``."""
        return self._url

    def __repr__(self) -> str:
        return f"S3Store({self._url!r}, {self._config!r})"

    @property
    def _clients(self) -> Clients:
        return clients(self._config)

    @property
    def _client(self) -> S3Client:
        return self._clients.usual

    def list(
        self, prefix: str = "", start_after: str | None = None, end_before: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See ``ObjectStore``. One batch for each page of up to 1,000 keys."""
        wanted = KeyRange(prefix, start_after, end_before)
        objects = (page.objects for page in self._pages(wanted))
        return read_range(objects, wanted, self._listing(prefix), start_after or "")

    def list_prefixes(self, prefix: str = "", max_objects: int | None = None) -> Prefixes:
        """See ``ObjectStore``."""
        pages = self._pages(KeyRange(prefix), one_level=True)
        return read_level(pages, self._listing(prefix), max_objects)

    def get(self, key: str) -> bytes:
        """See ``ObjectStore``. An answer that breaks off in the middle is asked for again."""
        full_key, tries = self._in_url(key), 0
        with translated(self._at(key)):
            while True:
                tries += 1
                answer = self._client.get_object(Bucket=self._bucket, Key=full_key)
                status = answer["ResponseMetadata"]["HTTPStatusCode"]
                if status != _OK:
                    raise HttpFailure("NoAnswer", f"a read was answered with {status}", status)
                try:
                    return bytes(answer["Body"].read())
                except (BotoCoreError, HttpFailure):
                    if tries == self._config.max_attempts:
                        raise

    def head(self, key: str) -> ObjectInfo:
        """See ``ObjectStore``."""
        where, full_key = self._at(key), self._in_url(key)
        try:
            with translated(where):
                answer = self._client.head_object(Bucket=self._bucket, Key=full_key)
                etag = etag_in(answer.get("ETag"))
        except ObjectNotFoundError:
            self._require_bucket()
            raise
        try:
            modified = answer["LastModified"].astimezone(timezone.utc)
            return ObjectInfo(key, answer["ContentLength"], modified, etag)
        except KeyError as error:
            raise StorageError(f"{where}: the answer has no {error}") from error

    def put(self, key: str, data: bytes) -> str:
        """See ``ObjectStore``."""
        full_key = self._in_url(key)
        with translated(self._at(key)):
            answer = self._client.put_object(
                Bucket=self._bucket, Key=full_key, Body=data, ContentMD5=content_md5(data)
            )
            return etag_in(answer.get("ETag"))

    def put_if_absent(self, key: str, data: bytes) -> str:
        """See ``ObjectStore``."""
        return self._put_once(key, data, {"IfNoneMatch": "*"})

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """See ``ObjectStore``."""
        return self._put_once(key, data, {"IfMatch": f'"{etag}"'})

    @property
    def keys_per_delete(self) -> int:
        """See ``ObjectStore``."""
        return KEYS_PER_CALL

    def delete_many(
        self,
        keys: Iterable[str],
        etags: Mapping[str, str] | None = None,
        *,
        singly: bool = False,
        expires_s: float | None = None,
        since: datetime | None = None,
        trash: str | None = None,  # noqa: ARG002 - the service keeps what it keeps
    ) -> Sequence[DeleteOutcome]:
        """See ``ObjectStore``. Where a condition failed, HEAD tells what is there."""
        deadline = None if expires_s is None else Deadline.after(expires_s, since)
        calls = S3Deletes(self._client, self._bucket, self._prefix, singly, deadline)
        bulk = Bulk(
            where=self._url,
            keys_per_call=KEYS_PER_CALL,
            problem=calls.problem,
            send=calls.send,
            look=calls.look,
            alone=calls.alone,
            deadline=deadline,
        )
        return bulk.delete(keys, etags)

    def delete_deadlines(self) -> bool:
        """See ``ObjectStore``: every key pair can sign one."""
        return True

    def copy(self, source_key: str, target_key: str) -> None:
        """See ``ObjectStore``. Up to 5 GiB in one request, more in parts."""
        source: CopySourceTypeDef = {
            "Bucket": self._bucket,
            "Key": self._in_url(source_key),
        }
        target = self._in_url(target_key)
        try:
            with translated(f"{self._at(source_key)}, copied to {target_key!r}"):
                self._client.copy(source, self._bucket, target, Config=_COPY_WHOLE)
        except ObjectNotFoundError:
            self._require_bucket()
            raise

    def object_at(self, key: str, *, patient: bool = False) -> S3Object:
        """An object, after a check of its key; ``patient`` with a server that works long on it."""
        config = self._patient() if patient else self._config
        return S3Object(config, self._bucket, self._in_url(key), self._at(key))

    def checksums(self, key: str) -> Mapping[str, str]:
        """See ``ObjectStore``."""
        try:
            return named_by(self.object_at(key).look(), self._bucket)
        except ObjectNotFoundError:
            self._require_bucket()
            raise

    @contextmanager
    def stream(self, key: str, etag: str | None = None) -> Iterator[Pieces]:
        """See ``ObjectStore``."""
        one = self.object_at(key)
        with reading(one.opened, etag, self._config.max_attempts, one.where) as pieces:
            yield pieces

    def receive(self, key: str, pieces: Iterable[bytes], size: int, *, if_absent: bool) -> Copied:
        """See ``ObjectStore``."""
        target = self.object_at(key, patient=size > _LARGE)
        return write(target, pieces, size, if_absent=if_absent, sizes=self.sizes)

    def copy_from(
        self,
        source: ObjectStore,
        source_key: str,
        key: str,
        *,
        size: int,
        etag: str,
        if_absent: bool,
    ) -> Copied | None:
        """See ``ObjectStore``. A small object that may be overwritten takes one request."""
        if not isinstance(source, S3Store) or source.reached_by() != self.reached_by():
            return None
        return copy(
            source.object_at(source_key),
            self.object_at(key, patient=size > _LARGE),
            size=size,
            etag=etag,
            if_absent=if_absent,
            sizes=self.sizes,
        )

    def reached_by(self) -> tuple[str | None, ...]:
        """The server and the credentials: within what has the same ones, S3 copies by itself."""
        config = self._config
        return config.endpoint_url, config.profile, config.credentials_file

    def server_time(self) -> datetime:
        """See ``ObjectStore``: the ``Date`` of an answer of the store, to the second."""
        where = f"{self._url}: asking for the time"
        with translated(where):
            answer = self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1
            )
        return time_in(answer["ResponseMetadata"]["HTTPHeaders"].get("date"), where)

    def recovery(self) -> Recovery:
        """See ``ObjectStore``: versioning and lifecycle rules of the bucket."""
        return recovery_of(self._client, self._bucket, self._prefix, self._url)

    def data_protection(self) -> DataProtection:
        """See ``ObjectStore``: versioning, lifecycle rules and Object Lock of the bucket."""
        return protection_of(self._client, self._bucket, self._prefix, self._url)

    def retained(self, prefix: str = "") -> Retained:
        """See ``ObjectStore``: versions that are not the latest."""
        with explaining(f"{self._url}: listing versions"):
            return retained_by(self._client, self._bucket, self._prefix + prefix)

    def multipart_uploads(self, begun_before: datetime) -> Sequence[MultipartUpload]:
        """See ``ObjectStore``."""
        return self._unfinished().begun_before(begun_before)

    def abort_upload(self, upload: MultipartUpload) -> bool:
        """See ``ObjectStore``."""
        return self._unfinished().abort(upload)

    def _unfinished(self) -> S3Unfinished:
        return S3Unfinished(self._client, self._bucket, self._prefix, self._url)

    def undelete_many(self, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        """See ``ObjectStore``: delete markers are removed."""
        return self._versions().undelete(objects)

    def kept_many(self, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        """See ``ObjectStore``: versions and delete markers are looked at."""
        return self._versions().kept(objects)

    def _versions(self) -> S3Versions:
        # What is asked again while it still works on it, some servers bring back not at all.
        client = clients(self._patient()).usual
        return S3Versions(
            client, self._bucket, self._prefix, self._url, self._config.page_size,
            lambda start, end: self.list("", start, end),
        )  # fmt: skip

    def _patient(self) -> StoreConfig:
        return replace(self._config, read_timeout_s=max(self._config.read_timeout_s, _PATIENCE_S))

    def _at(self, key: str) -> str:
        return f"{self._url}: the object {key!r}"

    def _listing(self, prefix: str) -> str:
        return f"{self._url}: listing {prefix!r}"

    def _in_url(self, key: str) -> str:
        """The full key, after a check that a URL can carry it."""
        full_key = self._prefix + key
        if problem := url_problem(full_key) if key else "it is empty":
            raise InvalidKeyError(f"{self._at(key)} cannot be asked for: {problem}")
        return full_key

    def _require_bucket(self) -> None:
        """Tell a missing bucket from a missing object, which HEAD's answers do not."""
        if not self._bucket_seen:
            self.server_time()
            self._bucket_seen = True

    def _put_once(self, key: str, data: bytes, condition: Mapping[str, Any]) -> str:
        answer = put_once(self.object_at(key), data, condition)
        with explaining(self._at(key)):
            return etag_in(answer.get("ETag"))

    def _pages(self, wanted: KeyRange, *, one_level: bool = False) -> Iterator[Page]:
        """The pages of a listing, with keys relative to the store."""
        where = self._listing(wanted.prefix)
        prefix = self._prefix + wanted.prefix
        request: dict[str, Any] = {
            "Bucket": self._bucket,
            "Prefix": prefix,
            "MaxKeys": self._config.page_size,
            **({"Delimiter": "/"} if one_level else {}),
        }
        if wanted.start_after is not None:
            request["StartAfter"] = self._prefix + wanted.start_after

        def ask(token: str | None) -> Page:
            if token is not None:
                request["ContinuationToken"] = token
            with translated(where):
                answer = self._client.list_objects_v2(**request)
            return read_page(answer, where)

        for page in follow(ask, prefix, where, one_level=one_level):
            yield relative(page, self._prefix)
