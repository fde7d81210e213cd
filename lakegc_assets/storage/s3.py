"""S3 and its compatible servers as an object store, through boto3."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError

from lakegc_assets.errors import LakegcError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.storage.base import (
    LISTING_SCHEMA,
    DeleteOutcome,
    KeyRange,
    ObjectInfo,
    ObjectStore,
    Prefixes,
)
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import (
    InvalidKeyError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
)
from lakegc_assets.storage.pages import Page, check_order
from lakegc_assets.storage.s3_client import (
    BOTO_ERRORS,
    BotoError,
    Clients,
    clients,
    code_of,
    translate,
    translated,
)
from lakegc_assets.storage.s3_delete import (
    KEYS_PER_CALL,
    delete_keys,
    key_problem,
    url_problem,
)
from lakegc_assets.storage.s3_listing import read_page

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import CopySourceTypeDef

_COPY_WHOLE: Final = TransferConfig(
    multipart_threshold=5 * 2**30, multipart_chunksize=2**30, use_threads=False
)
# Two conditional puts met: S3 carried out neither or the other one.
_CONFLICTS: Final = frozenset({"409", "ConditionalRequestConflict"})
_LONGEST_PAUSE_S: Final = 10.0


class S3Store(ObjectStore):
    """The objects of a bucket below a prefix."""

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

    @cached_property
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
        for page in self._pages(wanted):
            objects = page.objects
            if end_before is not None and objects.num_rows:
                inside = pc.less(objects["key"], end_before).true_count
                if inside < objects.num_rows:
                    if inside:
                        yield objects.slice(0, inside)
                    return
            if objects.num_rows:
                yield objects

    def list_prefixes(self, prefix: str = "", max_objects: int | None = None) -> Prefixes:
        """See ``ObjectStore``."""
        found = Prefixes([], [])
        for page in self._pages(KeyRange(prefix), Delimiter="/"):
            found.prefixes.extend(page.prefixes)
            found.objects.extend(ObjectInfo(**row) for row in page.objects.to_pylist())
            if max_objects is not None and len(found.objects) > max_objects:
                break
        return found

    def get(self, key: str) -> bytes:
        """See ``ObjectStore``. An answer that breaks off in the middle is asked for again."""
        full_key, tries = self._in_url(key), 0
        with translated(self._at(key)):
            while True:
                tries += 1
                body = self._client.get_object(Bucket=self._bucket, Key=full_key)["Body"]
                try:
                    return body.read()
                except BotoCoreError:
                    if tries == self._config.max_attempts:
                        raise

    def head(self, key: str) -> ObjectInfo:
        """See ``ObjectStore``."""
        where = self._at(key)
        try:
            with translated(where):
                answer = self._client.head_object(Bucket=self._bucket, Key=self._in_url(key))
        except ObjectNotFoundError:
            self._require_bucket()
            raise
        modified = answer["LastModified"].astimezone(timezone.utc)
        return ObjectInfo(key, answer["ContentLength"], modified, _etag(answer))

    def put(self, key: str, data: bytes) -> str:
        """See ``ObjectStore``."""
        full_key = self._in_url(key)
        with translated(self._at(key)):
            return _etag(self._client.put_object(Bucket=self._bucket, Key=full_key, Body=data))

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
        self, keys: Iterable[str], etags: Mapping[str, str] | None = None, *, singly: bool = False
    ) -> Sequence[DeleteOutcome]:
        """See ``ObjectStore``. Where a condition failed, HEAD tells what is there."""
        full_keys = {key: self._prefix + key if key else "" for key in keys}
        return delete_keys(
            self._client, self._bucket, full_keys, self._url, etags=etags, singly=singly
        )

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

    def server_time(self) -> datetime:
        """See ``ObjectStore``: the ``Date`` of an answer of the store, to the second."""
        where = f"{self._url}: asking for the time"
        with translated(where):
            answer = self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1
            )
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
        try:
            return parsedate_to_datetime(date).astimezone(timezone.utc)
        except ValueError:
            raise StorageError(f"{where}: the answer's Date is {date!r}") from None

    def retention_notice(self) -> str | None:
        """See ``ObjectStore``: the versioning of the bucket."""
        try:
            answer = self._client.get_bucket_versioning(Bucket=self._bucket)
        except BOTO_ERRORS as error:
            return (
                f"{self._url}: whether the bucket keeps deleted objects could not be found out "
                f"({code_of(error)}): look at its versioning, or allow s3:GetBucketVersioning"
            )
        status = str(answer.get("Status", "")).lower()
        if not status:
            return None
        return (
            f"{self._url}: versioning is {status}: older versions of deleted objects stay, "
            "and are paid for, until a lifecycle rule ends them"
        )

    def _at(self, key: str) -> str:
        return f"{self._url}: the object {key!r}"

    def _in_url(self, key: str) -> str:
        """The full key, after a check that a URL can carry it."""
        full_key = self._prefix + key
        problem = key_problem(full_key) if key else "it is empty"
        if problem := problem or url_problem(full_key):
            raise InvalidKeyError(f"{self._at(key)} cannot be asked for: {problem}")
        return full_key

    def _require_bucket(self) -> None:
        """Tell a missing bucket from a missing object, which HEAD's answers do not."""
        if not self._bucket_seen:
            self.server_time()
            self._bucket_seen = True

    def _put_once(self, key: str, data: bytes, condition: Mapping[str, Any]) -> str:
        """A conditional put, repeated only after an answer that says it was not carried out.

        A repeated put would meet its own first try, and report that as somebody else's.
        """
        full_key, tries = self._in_url(key), 0
        while True:
            tries += 1
            try:
                answer = self._clients.once.put_object(
                    Bucket=self._bucket, Key=full_key, Body=data, **condition
                )
                return _etag(answer)
            except BOTO_ERRORS as error:
                found = self._not_put(error, key)
                if tries == self._config.max_attempts or not (
                    isinstance(found, StoreThrottledError) or code_of(error) in _CONFLICTS
                ):
                    raise found from error
            time.sleep(min(_LONGEST_PAUSE_S, 0.1 * 2**tries) * random.uniform(0.5, 1))

    def _not_put(self, error: BotoError, key: str) -> LakegcError:
        """What an error says about a conditional put."""
        found = translate(error, self._at(key))
        if code_of(error) in _CONFLICTS or isinstance(found, ObjectNotFoundError):
            return PreconditionFailedError(str(found))
        if isinstance(found, StoreUnavailableError):
            return StoreUnavailableError(f"{found}: it is not known whether it was written")
        return found

    def _pages(self, wanted: KeyRange, **more: Any) -> Iterator[Page]:  # noqa: ANN401 - boto3's
        """The pages of a listing, with keys relative to the store, after a check of their order."""
        where = f"{self._url}: listing {wanted.prefix!r}"
        request = {
            "Bucket": self._bucket,
            "Prefix": self._prefix + wanted.prefix,
            "MaxKeys": self._config.page_size,
            **more,
        }
        if wanted.start_after is not None:
            request["StartAfter"] = self._prefix + wanted.start_after
        last_key, last_prefix = request.get("StartAfter", ""), ""
        while True:
            with translated(where):
                answer = self._client.list_objects_v2(**request)
            page = read_page(answer, where)
            last_key = check_order(page.objects["key"], request["Prefix"], last_key, where)
            prefixes = pa.array(page.prefixes, pa.string())
            last_prefix = check_order(prefixes, request["Prefix"], last_prefix, where)
            yield self._relative(page)
            if page.next_token is None:
                return
            if page.next_token == request.get("ContinuationToken"):
                raise StorageError(f"{where}: the store gave the same page token twice")
            request["ContinuationToken"] = page.next_token

    def _relative(self, page: Page) -> Page:
        """The page with keys relative to the store, without the marker of its own directory."""
        keys = pc.utf8_slice_codeunits(page.objects["key"], len(self._prefix))
        objects = page.objects.set_column(0, LISTING_SCHEMA.field("key"), keys)
        if len(keys) and not keys[0].as_py():
            objects = objects.slice(1)
        prefixes = [prefix[len(self._prefix) :] for prefix in page.prefixes]
        return replace(page, objects=objects, prefixes=prefixes)


def _etag(answer: Any) -> str:  # noqa: ANN401 - any of boto3's answers
    return str(answer.get("ETag", "")).strip('"')
