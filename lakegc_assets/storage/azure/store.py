"""Azure Blob Storage and ADLS Gen2 as an object store, over its REST API.

Keys that Azure reads as others (a backslash is a slash to it) or that its XML cannot carry are
refused. Listings come in byte order, whatever order the account has.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

import pyarrow as pa
import requests

from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.storage.azure.blobs import IF_ABSENT, Blob, Sizes, named_by, put, write
from lakegc_assets.storage.azure.containers import AzureContainer
from lakegc_assets.storage.azure.copies import copy
from lakegc_assets.storage.azure.service import (
    VERSION,
    AzureService,
    failure_of_part,
    open_service,
)
from lakegc_assets.storage.azure.unfinished import AzureUnfinished
from lakegc_assets.storage.azure.versions import AzureVersions, locks_of, recovery_of
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.bulk import Answer, Bulk, answer_of_one
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.deadlines import Deadline
from lakegc_assets.storage.errors import (
    InvalidKeyError,
    StorageError,
)
from lakegc_assets.storage.http import (
    HttpFailure,
    Request,
    Sign,
    etag_in,
    explaining,
    time_in,
)
from lakegc_assets.storage.keys import path_problem
from lakegc_assets.storage.parts import joined, split
from lakegc_assets.storage.streams import Pieces, reading
from lakegc_assets.storage.values import (
    Copied,
    DataProtection,
    DeleteOutcome,
    KeyRange,
    Lost,
    ObjectInfo,
    Prefixes,
    Recovery,
    Retained,
    UncommittedBlob,
    UndeleteOutcome,
)

KEYS_PER_CALL: Final = 256
_ACCEPTED: Final = 202
_COPY_POLL_S: Final = 0.5
#: What is larger takes the service longer to copy than it is waited for else: bytes, and seconds.
_LARGE: Final = 2**26
_PATIENCE_S: Final = 300.0
# What Azure reads as another key, or does not allow, or XML 1.0 cannot carry.
_NOT_ALLOWED: Final = re.compile(r"[\\\x00-\x08\x0b-\x1f\ufffe\uffff]")


class AzureStore(ObjectStore):
    """The blobs of a container below a prefix.

    Attributes:
        sizes: from which sizes on something is done in blocks.
    """

    sizes = Sizes()

    def __init__(self, namespace: StorageNamespace, config: StoreConfig) -> None:
        self._url = namespace.url()
        self._account, _, self._container = namespace.authority.partition("/")
        self._prefix = f"{namespace.prefix}/" if namespace.prefix else ""
        self._config = config
        self._listings = AzureContainer(
            config, self._account, self._container, self._prefix, self._url
        )

    @property
    def url(self) -> str:
        """See ``ObjectStore``."""
        return self._url

    def __repr__(self) -> str:
        return f"AzureStore({self._url!r}, {self._config!r})"

    @property
    def _service(self) -> AzureService:
        return open_service(self._config, self._account)

    def list(
        self, prefix: str = "", start_after: str | None = None, end_before: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See ``ObjectStore``. Memory grows with the largest directory, if these are real ones."""
        yield from self._listings.list(KeyRange(prefix, start_after, end_before))

    def list_prefixes(self, prefix: str = "", max_objects: int | None = None) -> Prefixes:
        """See ``ObjectStore``."""
        return self._listings.list_prefixes(prefix, max_objects)

    def get(self, key: str) -> bytes:
        """See ``ObjectStore``."""
        return self.object_at(key).get()

    def head(self, key: str) -> ObjectInfo:
        """See ``ObjectStore``."""
        headers = self.object_at(key).look()
        with explaining(self._at(key)):
            etag = etag_in(headers.get("ETag"))
        modified = time_in(headers.get("Last-Modified"), self._at(key))
        size = headers.get("Content-Length", "")
        if not size.isdecimal():
            raise StorageError(f"{self._at(key)}: the answer's length is {size!r}")
        return ObjectInfo(key, int(size), modified, etag)

    def put(self, key: str, data: bytes) -> str:
        """See ``ObjectStore``."""
        return put(self.object_at(key), data)

    def put_if_absent(self, key: str, data: bytes) -> str:
        """See ``ObjectStore``."""
        return put(self.object_at(key), data, IF_ABSENT)

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """See ``ObjectStore``."""
        return put(self.object_at(key), data, {"If-Match": f'"{etag}"'})

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
        bulk = Bulk(
            where=self._url,
            keys_per_call=1 if singly else KEYS_PER_CALL,
            problem=self._problem,
            send=partial(self._delete, deadline),
            look=self._look,
            deadline=deadline,
        )
        return bulk.delete(keys, etags)

    def delete_deadlines(self) -> bool:
        """See ``ObjectStore``: not with a SAS token."""
        return self._service.signs_deadlines()

    def recovery(self) -> Recovery:
        """See ``ObjectStore``: soft delete of blobs, and versions."""
        return recovery_of(self._service, self._container, self._url)

    def data_protection(self) -> DataProtection:
        """See ``ObjectStore``: the same, and policies and holds of the container."""
        locks = locks_of(self._service, self._container)
        return DataProtection.of(self.recovery()).with_locks(locks)

    def retained(self, prefix: str = "") -> Retained:
        """See ``ObjectStore``: versions that are not the latest, and what soft delete has."""
        with explaining(f"{self._url}: listing versions"):
            return self._versions().retained(prefix)

    def uncommitted_blobs(self) -> Sequence[UncommittedBlob]:
        """See ``ObjectStore``."""
        with explaining(f"{self._url}: listing uncommitted blobs"):
            return AzureUnfinished(self._service, self._container, self._prefix).blobs()

    def undelete_many(self, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        """See ``ObjectStore``: a version is copied, or a blob undeleted."""
        return self._versions().undelete(objects)

    def kept_many(self, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        """See ``ObjectStore``: versions and deleted blobs are listed."""
        return self._versions().kept(objects)

    def _versions(self) -> AzureVersions:
        return AzureVersions(self._service, self._container, self._prefix, self._target, self._url)

    def copy(self, source_key: str, target_key: str) -> None:
        """See ``ObjectStore``. Inside an account it is done at once, or soon."""
        where = f"{self._at(source_key)}, copied to {target_key!r}"
        source, target = self._target(source_key), self._target(target_key)
        self.head(source_key)
        with explaining(where):
            answer = self._send("PUT", target, {"x-ms-copy-source": source})
            while (status := answer.headers.get("x-ms-copy-status")) == "pending":
                time.sleep(_COPY_POLL_S)
                answer = self._send("HEAD", target)
        if status != "success":
            description = answer.headers.get("x-ms-copy-status-description", "")
            raise StorageError(f"{where}: the copy ended as {status!r} {description}".rstrip())

    def object_at(self, key: str, *, patient: bool = False) -> Blob:
        """A blob, after a check of its key; ``patient`` with a service that works long on it."""
        self._target(key)
        config = self._config
        if patient:
            config = replace(config, read_timeout_s=max(config.read_timeout_s, _PATIENCE_S))
        service = open_service(config, self._account)
        name = self._prefix + key
        return Blob(service, self._container, name, self._at(key), config.max_attempts)

    def checksums(self, key: str) -> Mapping[str, str]:
        """See ``ObjectStore``: the MD5 that who wrote the blob has named."""
        return named_by(self.object_at(key).look())

    @contextmanager
    def stream(self, key: str, etag: str | None = None) -> Iterator[Pieces]:
        """See ``ObjectStore``."""
        blob = self.object_at(key)
        with reading(blob.opened, etag, blob.tries, blob.where) as pieces:
            yield pieces

    def receive(self, key: str, pieces: Iterable[bytes], size: int, *, if_absent: bool) -> Copied:
        """See ``ObjectStore``."""
        target = self.object_at(key)
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
        """See ``ObjectStore``."""
        if not isinstance(source, AzureStore) or source.reached_by() != self.reached_by():
            return None
        return copy(
            source.object_at(source_key),
            self.object_at(key, patient=size > _LARGE),
            size=size,
            etag=etag,
            if_absent=if_absent,
            sizes=self.sizes,
        )

    def reached_by(self) -> tuple[object, ...]:
        """Account and credentials: within what has the same ones, Azure copies by itself."""
        return self._account, self._config.azure

    def server_time(self) -> datetime:
        """See ``ObjectStore``: the ``Date`` of an answer of the store, to the second."""
        where = f"{self._url}: asking for the time"
        query = {"restype": "container", "comp": "list", "maxresults": "1"}
        with explaining(where):
            answer = self._send("GET", self._service.target(self._container, query=query))
        return time_in(answer.headers.get("Date"), where)

    def _at(self, key: str) -> str:
        return f"{self._url}: the object {key!r}"

    def _problem(self, key: str) -> str | None:
        """Why a key cannot be sent, or None."""
        problem = path_problem(self._prefix + key) if key else "it is empty"
        if problem is None and _NOT_ALLOWED.search(key):
            problem = "it has a backslash, which Azure reads as a slash, or a control character"
        return problem

    def _target(self, key: str) -> str:
        """The URL of an object, after a check that it can carry the key."""
        if problem := self._problem(key):
            raise InvalidKeyError(f"{self._at(key)} cannot be asked for: {problem}")
        return self._service.target(self._container, self._prefix + key)

    def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        repeatable: bool = True,
        sign: Sign | None = None,
    ) -> requests.Response:
        return self._service.send(method, url, headers, body, repeatable=repeatable, sign=sign)

    def _look(self, key: str) -> str:
        return etag_in(self._send("HEAD", self._target(key)).headers.get("ETag"))

    def _delete(
        self, deadline: Deadline | None, keys: Sequence[str], etags: Mapping[str, str] | None
    ) -> Mapping[str, Answer]:
        """Delete up to 256 keys in one call. Raises HttpFailure where it failed as a whole."""
        conditions = [{} if etags is None else {"If-Match": f'"{etags[key]}"'} for key in keys]
        if len(keys) == 1:
            sign = self._signer(keys[0], deadline)
            return {keys[0]: answer_of_one(lambda: self._delete_one(keys[0], conditions[0], sign))}
        requests_ = []
        for key, condition in zip(keys, conditions, strict=True):
            request = Request("DELETE", self._target(key), {"x-ms-version": VERSION, **condition})
            self._service.client.sign(request, self._signer(key, deadline))
            request.url = self._service.path(request.url)
            requests_.append(request)
        content_type, body = joined(requests_)
        query = {"restype": "container", "comp": "batch"}
        answer = self._send(
            "POST",
            self._service.target(self._container, query=query),
            {"Content-Type": content_type},
            body,
        )
        return split(answer, keys, failure_of_part)

    def _signer(self, key: str, deadline: Deadline | None) -> Sign | None:
        if deadline is None:
            return None
        return self._service.deleting(self._container, self._prefix + key, deadline)

    def _delete_one(self, key: str, condition: Mapping[str, str], sign: Sign | None) -> None:
        status = self._send("DELETE", self._target(key), condition, sign=sign).status_code
        if status != _ACCEPTED:
            raise HttpFailure("NoAnswer", f"a delete was answered with {status}", status)
