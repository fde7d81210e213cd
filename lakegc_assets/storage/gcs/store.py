"""Google Cloud Storage as an object store, over its JSON API.

An object's generation is its etag here: it changes with each write, and GCS takes it as a condition
for puts and deletes alike.

Format: https://cloud.google.com/storage/docs/json_api/v1
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

import pyarrow as pa
import requests

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.bulk import Bulk
from lakegc_assets.storage.codes import error_class
from lakegc_assets.storage.config import GcsAccess, StoreConfig
from lakegc_assets.storage.deadlines import Deadline
from lakegc_assets.storage.errors import (
    ChangedError,
    InvalidKeyError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from lakegc_assets.storage.gcs.copies import copy
from lakegc_assets.storage.gcs.deletes import KEYS_PER_CALL, GcsDeletes, is_generation
from lakegc_assets.storage.gcs.listing import read_object, read_page
from lakegc_assets.storage.gcs.objects import GcsObject, Sizes, write
from lakegc_assets.storage.gcs.service import GcsService, open_service
from lakegc_assets.storage.gcs.unfinished import GcsUnfinished
from lakegc_assets.storage.gcs.versions import (
    SETTINGS,
    GcsVersions,
    locks_of,
    recovery_of,
    retained_by,
)
from lakegc_assets.storage.http import HttpFailure, explaining, time_in, writing_once
from lakegc_assets.storage.keys import url_problem
from lakegc_assets.storage.pages import Page, follow, read_level, read_range, relative
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

# What a bound may hold, and an object's name may not: the listing is asked for less than the bound.
_LAST: Final = "\U0010ffff"
_ODD: Final = re.compile(rf"[\x00-\x1f{_LAST}]")
_FIELDS: Final = "name,size,updated,generation"


class GcsStore(ObjectStore):
    """The objects of a bucket below a prefix.

    Attributes:
        sizes: from which size on something is sent in chunks.
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
        return f"GcsStore({self._url!r}, {self._config!r})"

    @property
    def _service(self) -> GcsService:
        return open_service(self._config)

    def list(
        self, prefix: str = "", start_after: str | None = None, end_before: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See ``ObjectStore``. One batch for each page of up to 1,000 keys."""
        wanted = KeyRange(prefix, start_after, end_before)
        objects = (page.objects for page in self._pages(wanted))
        return read_range(objects, wanted, self._listing(prefix))

    def list_prefixes(self, prefix: str = "", max_objects: int | None = None) -> Prefixes:
        """See ``ObjectStore``."""
        pages = self._pages(KeyRange(prefix), one_level=True)
        return read_level(pages, self._listing(prefix), max_objects)

    def get(self, key: str) -> bytes:
        """See ``ObjectStore``. A 404 in plain text, as a proxy's, makes it ask again."""
        try:
            return self._of_object(key, self._target(key, {"alt": "media"})).content
        except ObjectNotFoundError:
            raise
        except StorageError:
            self.head(key)
            raise

    def head(self, key: str) -> ObjectInfo:
        """See ``ObjectStore``."""
        return self._info(key, self._of_object(key, self._target(key, {"fields": _FIELDS})))

    def put(self, key: str, data: bytes) -> str:
        """See ``ObjectStore``."""
        with explaining(self._at(key)):
            return self._put(key, data, {})

    def put_if_absent(self, key: str, data: bytes) -> str:
        """See ``ObjectStore``."""
        return self._put_once(key, data, "0")

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """See ``ObjectStore``."""
        self._target(key)
        if not is_generation(etag):
            raise PreconditionFailedError(
                f"{self._at(key)} cannot have the etag {etag!r}: generations are numbers"
            )
        return self._put_once(key, data, etag)

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
        """See ``ObjectStore``. Where a condition failed, the metadata tell what is there.

        With a deadline there is one request for each key, since batches cannot be signed for one.
        """
        deadline = None if expires_s is None else Deadline.after(expires_s, since)
        sign = None if deadline is None else self._service.until(deadline)
        calls = GcsDeletes(
            self._service, self._bucket, self._prefix, self._target, self._require_bucket_exists,
            sign, etags,
        )  # fmt: skip
        bulk = Bulk(
            where=self._url,
            keys_per_call=1 if singly or sign else KEYS_PER_CALL,
            problem=calls.problem,
            send=calls.send if sign is None else calls.send_until,
            look=self._look,
            deadline=deadline,
        )
        return bulk.delete(keys, etags)

    def delete_deadlines(self) -> bool:
        """See ``ObjectStore``: only with the key of a service account."""
        return self._service.key is not None

    def copy(self, source_key: str, target_key: str) -> None:
        """See ``ObjectStore``."""
        where = f"{self._at(source_key)}, copied to {target_key!r}"
        url = f"{self._target(source_key)}/rewriteTo{self._path(target_key)}"
        token: dict[str, str] = {}
        while True:
            query = urlencode({"fields": "done,rewriteToken", **token})
            answer = self._of_object(source_key, f"{url}?{query}", "POST")
            try:
                rewrite = json.loads(answer.content)
                if rewrite["done"]:
                    return
                token = {"rewriteToken": rewrite["rewriteToken"]}
            except (ValueError, LookupError, TypeError) as error:
                raise StorageError(f"{where}: the store's answer is damaged") from error

    def object_at(self, key: str) -> GcsObject:
        """An object, after a check of its key."""
        self._path(key)
        name = self._prefix + key
        return GcsObject(
            self._service, self._bucket, name, self._at(key), self._config.max_attempts
        )

    def checksums(self, key: str) -> Mapping[str, str]:
        """See ``ObjectStore``: objects that were composed of others have no MD5."""
        with self._bucket_told():
            return self.object_at(key).look().checksums

    @contextmanager
    def stream(self, key: str, etag: str | None = None) -> Iterator[Pieces]:
        """See ``ObjectStore``."""
        one = self.object_at(key)
        if etag is not None and not is_generation(etag):
            raise ChangedError(
                f"{one.where} cannot have the etag {etag!r}: generations are numbers"
            )
        with self._bucket_told(), reading(one.opened, etag, one.tries, one.where) as pieces:
            yield pieces

    def receive(self, key: str, pieces: Iterable[bytes], size: int, *, if_absent: bool) -> Copied:
        """See ``ObjectStore``."""
        return write(self.object_at(key), pieces, size, if_absent=if_absent, sizes=self.sizes)

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
        """See ``ObjectStore``."""
        if not isinstance(source, GcsStore) or source.reached_by() != self.reached_by():
            return None
        original, target = source.object_at(source_key), self.object_at(key)
        return copy(original, target, size=size, etag=etag, if_absent=if_absent)

    def reached_by(self) -> GcsAccess:
        """The endpoint and the credentials: within what has the same ones, GCS copies by itself."""
        return self._config.gcs

    def server_time(self) -> datetime:
        """See ``ObjectStore``: the ``Date`` of an answer of the store, to the second."""
        where = f"{self._url}: asking for the time"
        answer = self._list_page({"maxResults": "1", "fields": "nextPageToken"}, where)
        return time_in(answer.headers.get("Date"), where)

    def recovery(self) -> Recovery:
        """See ``ObjectStore``: soft delete, versions and retention policies of the bucket."""
        return self._settings()[0]

    def data_protection(self) -> DataProtection:
        """See ``ObjectStore``: the same, and what holds single objects."""
        recovery, locks = self._settings()
        return DataProtection.of(recovery).with_locks(locks)

    def _settings(self) -> tuple[Recovery, Sequence[str]]:
        """The protection of deleted objects by the bucket, and what may hold single ones."""
        fields = urlencode({"fields": SETTINGS})
        try:
            answer = self._send("GET", f"{self._bucket_url}?{fields}")
            settings = json.loads(answer.content)
            return recovery_of(settings, self._prefix, self._url), locks_of(settings)
        except (HttpFailure, ValueError, AttributeError, TypeError) as error:
            code = error.code if isinstance(error, HttpFailure) else error
            notice = (
                f"{self._url}: whether the bucket keeps deleted objects could not be found out "
                f"({code}): look at its soft delete policy and its versioning, or allow "
                "storage.buckets.get"
            )
            return Recovery("unknown", None, notice), ()

    def retained(self, prefix: str = "") -> Retained:
        """See ``ObjectStore``: generations that are not the latest, and what soft delete has."""
        with explaining(f"{self._url}: listing versions"):
            return retained_by(self._send, self._bucket_url, self._prefix + prefix)

    def multipart_uploads(self, begun_before: datetime) -> Sequence[MultipartUpload]:
        """See ``ObjectStore``: those of the XML API."""
        return self._unfinished().begun_before(begun_before)

    def abort_upload(self, upload: MultipartUpload) -> bool:
        """See ``ObjectStore``."""
        return self._unfinished().abort(upload)

    def _unfinished(self) -> GcsUnfinished:
        return GcsUnfinished(self._service, self._bucket, self._prefix, self._url)

    def undelete_many(self, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        """See ``ObjectStore``: a generation is copied, or restored."""
        return self._versions().undelete(objects)

    def kept_many(self, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        """See ``ObjectStore``: generations are asked for."""
        return self._versions().kept(objects)

    def _versions(self) -> GcsVersions:
        return GcsVersions(self._send, self._target, self._path, self._is_there, self._url)

    def _at(self, key: str) -> str:
        return f"{self._url}: the object {key!r}"

    def _listing(self, prefix: str) -> str:
        return f"{self._url}: listing {prefix!r}"

    @property
    def _bucket_url(self) -> str:
        return f"{self._service.url}/storage/v1/b/{quote(self._bucket, safe='')}"

    def _problem(self, key: str) -> str | None:
        """Why a key cannot be sent, or None."""
        return url_problem(self._prefix + key) if key else "it is empty"

    def _path(self, key: str) -> str:
        """The path of an object below ``/storage/v1``; refuses a key that no URL can carry."""
        if problem := self._problem(key):
            raise InvalidKeyError(f"{self._at(key)} cannot be asked for: {problem}")
        return f"/b/{quote(self._bucket, safe='')}/o/{quote(self._prefix + key, safe='')}"

    def _target(self, key: str, query: Mapping[str, str] | None = None) -> str:
        url = f"{self._service.url}/storage/v1{self._path(key)}"
        return f"{url}?{urlencode(query)}" if query else url

    def _send(self, method: str, url: str, **more: Any) -> requests.Response:  # noqa: ANN401 - send's
        return self._service.client.send(method, url, **more)

    def _of_object(self, key: str, url: str, method: str = "GET") -> requests.Response:
        with self._about(key):
            return self._send(method, url)

    @contextmanager
    def _about(self, key: str) -> Iterator[None]:
        """Raise our own errors; a missing bucket is another one than a missing object."""
        with self._bucket_told(), explaining(self._at(key)):
            yield

    @contextmanager
    def _bucket_told(self) -> Iterator[None]:
        """Tell a missing bucket from a missing object."""
        try:
            yield
        except ObjectNotFoundError:
            self._require_bucket()
            raise

    def _require_bucket(self) -> None:
        if not self._bucket_seen:
            self.server_time()
            self._bucket_seen = True

    def _put(
        self, key: str, data: bytes, condition: Mapping[str, str], *, repeatable: bool = True
    ) -> str:
        self._path(key)
        query = {"uploadType": "media", "name": self._prefix + key, "fields": _FIELDS, **condition}
        url = (
            f"{self._service.url}/upload/storage/v1/b/{quote(self._bucket, safe='')}/o"
            f"?{urlencode(query)}"
        )
        headers = {"Content-Type": "application/octet-stream"}
        answer = self._send("POST", url, headers=headers, body=data, repeatable=repeatable)
        return self._info(key, answer).etag

    @writing_once()
    def _put_once(self, key: str, data: bytes, generation: str) -> str:
        """A conditional put, repeated only after an answer that says it was not carried out."""
        with self._about(key):
            return self._put(key, data, {"ifGenerationMatch": generation}, repeatable=False)

    def _info(self, key: str, answer: requests.Response) -> ObjectInfo:
        info = read_object(answer.content, self._at(key))
        if info.key != self._prefix + key:
            raise StorageError(f"{self._at(key)}: the answer names {info.key!r}")
        return replace(info, key=key)

    def _require_bucket_exists(self) -> None:
        """Without its bucket an object is not known to be missing. Raises HttpFailure."""
        try:
            self._require_bucket()
        except ConfigurationError as error:
            raise HttpFailure("NoSuchBucket", error) from error
        except StorageError as error:
            raise HttpFailure("NoAnswer", error) from error

    def _look(self, key: str) -> str:
        return self._info(key, self._send("GET", self._target(key, {"fields": _FIELDS}))).etag

    def _is_there(self, key: str) -> bool:
        try:
            self._look(key)
        except HttpFailure as failure:
            if error_class(failure.code) is not ObjectNotFoundError:
                raise
            self._require_bucket_exists()
            return False
        return True

    def _list_page(self, query: Mapping[str, str], where: str) -> requests.Response:
        try:
            with explaining(where):
                return self._send("GET", f"{self._bucket_url}/o?{urlencode(query)}")
        except ObjectNotFoundError as error:
            raise ConfigurationError(
                f"{where}: the bucket does not exist: check its name and the endpoint ({error})"
            ) from error

    def _pages(self, wanted: KeyRange, *, one_level: bool = False) -> Iterator[Page]:
        """The pages of a listing, with keys relative to the store."""
        where = self._listing(wanted.prefix)
        prefix = self._prefix + wanted.prefix
        query = {
            "prefix": prefix,
            "maxResults": str(self._config.page_size),
            "fields": f"kind,nextPageToken,prefixes,items({_FIELDS})",
            **({"delimiter": "/"} if one_level else {}),
        }
        if wanted.start_after:
            query["startOffset"] = self._prefix + _ODD.split(wanted.start_after, maxsplit=1)[0]
        if wanted.end_before:
            # A space sorts after every control character; what is too much is left out later.
            plain, *odd = _ODD.split(wanted.end_before, maxsplit=1)
            if not odd or not wanted.end_before.startswith(plain + _LAST):
                query["endOffset"] = self._prefix + plain + (" " if odd else "")

        def ask(token: str | None) -> Page:
            if token is not None:
                query["pageToken"] = token
            return read_page(self._list_page(query, where).content, where)

        for page in follow(ask, prefix, where, one_level=one_level):
            yield relative(page, self._prefix)
