"""The common parts of S3, Azure and Google Cloud Storage: one bucket, below a prefix."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar, cast

import pyarrow as pa

from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.bulk import Bulk, Deadline
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import (
    ChangedError,
    InvalidKeyError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from lakegc_assets.storage.http import HttpFailure, explaining, time_in, writing_once
from lakegc_assets.storage.pages import Page, read_level, read_range
from lakegc_assets.storage.streams import PART, Opened, Pieces, reading
from lakegc_assets.storage.values import (
    Copied,
    CopyRequest,
    DeleteOutcome,
    KeyRange,
    Lost,
    MultipartUpload,
    ObjectInfo,
    Prefixes,
    UndeleteOutcome,
)

#: Bytes above which an object is written or copied with a longer time-out, and that time-out (s).
_LARGE: Final = 2**26
_PATIENCE_S: Final = 300.0
#: The most objects that are restored, or uploads that are read, at a time.
_THREADS: Final = 16
_KEY_BYTES: Final = 1024
# Path components that proxies and servers rewrite in URLs.
_DOTS: Final = re.compile(r"(^|/)\.{1,2}(/|$)")
_EMPTY: Final = re.compile(r"^/|//")


def key_problem(full_key: str) -> str | None:
    """The reason that no store can hold a key, or None."""
    try:
        size = len(full_key.encode())
    except UnicodeEncodeError:
        return "it is not UTF-8"
    if not full_key:
        return "it is empty"
    return f"it has {size} bytes, {_KEY_BYTES} are allowed" if size > _KEY_BYTES else None


def url_problem(full_key: str) -> str | None:
    """The reason that a key cannot be sent in a URL, or None."""
    if _DOTS.search(full_key):
        return "it has a '.' or '..' path component, which servers and proxies rewrite in URLs"
    return key_problem(full_key)


def path_problem(full_key: str) -> str | None:
    """The reason that a key cannot be sent as a path, in which ``//`` may become ``/``, or None."""
    if _EMPTY.search(full_key):
        return "it has an empty path component, which servers and proxies rewrite in URLs"
    return url_problem(full_key)


@dataclass(frozen=True)
class Sizes:
    """Sizes in bytes from which a write or a copy is done in parts."""

    #: Part of an upload; a content that is no larger is sent at once. Parts are larger if the
    #: upload would need more of them than the service takes. GCS takes multiples of 256 KiB only.
    part: int = PART
    #: The most that the service copies at once, and the size of a part of a larger copy.
    whole: int = 5 * 2**30
    copied_part: int = 5 * 2**30


class ObjectState(NamedTuple):
    """Metadata of an object; its checksums are those of ``ObjectStore.checksums``."""

    size: int
    last_modified: datetime
    etag: str
    checksums: Mapping[str, str]


class BucketObject(ABC):
    """One object of a bucket, whose key was checked; ``where`` names the object in messages."""

    where: str

    @abstractmethod
    def state(self) -> ObjectState:
        """Read the metadata. Raises StorageError."""

    @abstractmethod
    def opened(self, offset: int, etag: str | None) -> Opened:
        """Begin to read from an offset on. Raises HttpFailure."""

    @abstractmethod
    def put(self, data: bytes, *, etag: str | None = None, if_absent: bool = False) -> str:
        """Write the object at once, if it has an etag, or is absent. Returns its new etag.

        A conditional write is sent again only if it was not carried out. Raises StorageError.
        """

    @abstractmethod
    def write(self, pieces: Iterable[bytes], size: int, *, if_absent: bool, sizes: Sizes) -> Copied:
        """See ``ObjectStore.put_stream``."""

    @contextmanager
    def writing(self, *, once: bool) -> Iterator[None]:
        """Raise failures as the store's errors; ``once`` for a conditional write."""
        with writing_once() if once else nullcontext(), explaining(self.where):
            yield

    def require_absent(self) -> None:
        """Raises PreconditionFailedError: it exists."""
        with suppress(ObjectNotFoundError):
            self.state()
            raise PreconditionFailedError(f"{self.where} exists already")

    def require_original(self, asked: CopyRequest) -> ObjectState:
        """Return its metadata. Raises ChangedError: it is not the object that was to be copied."""
        found = self.state()
        if (found.size, found.etag) != (asked.size, asked.etag):
            raise ChangedError(
                f"{self.where} has {found.size} bytes and the etag {found.etag}; {asked.size} and "
                f"{asked.etag} were expected"
            )
        return found

    def require_written(self, size: int, etag: str) -> ObjectState:
        """Return its metadata. Raises StorageError: it is not the object that was written."""
        found = self.state()
        if (found.size, found.etag) != (size, etag):
            raise StorageError(
                f"{self.where}: size and etag are {found.size} and {found.etag}, {size} and {etag} "
                "were written: the store cut it short, or somebody else writes there; end that "
                "writer, and run again"
            )
        return found

    def damaged(self, md5: str) -> StorageError:
        """The error for a content that the store got with another MD5 than was sent."""
        return StorageError(
            f"{self.where}: the store got other bytes than were sent: it names the MD5 {md5}. Run "
            "again; if that does not help, check the network, the proxies, and the store's log"
        )

    def compare(self, original: Mapping[str, str], copied: Mapping[str, str]) -> str:
        """The name of the first common checksum, or ``size``. Raises StorageError: they differ."""
        for name, expected in original.items():
            if name in copied:
                if copied[name] != expected:
                    raise StorageError(
                        f"{self.where}: the copy has the {name} {copied[name]}, the object has "
                        f"{expected}: run again"
                    )
                return name
        return "size"


_Object = TypeVar("_Object", bound=BucketObject)


class BucketStore(ObjectStore, Generic[_Object]):
    """The objects of a bucket or container below a prefix; each service adds its own calls."""

    #: True if answers to GET and PUT tell a missing bucket from a missing object; no HEAD does.
    names_missing_buckets: ClassVar[bool] = True
    #: True if listings begin exactly after ``start_after``.
    starts_after: ClassVar[bool] = True
    sizes = Sizes()

    def __init__(self, namespace: StorageNamespace, config: StoreConfig) -> None:
        self._url = namespace.url()
        self.bucket = namespace.authority
        self.prefix = f"{namespace.prefix}/" if namespace.prefix else ""
        self.config = config
        self.bucket_seen = False

    @property
    def url(self) -> str:
        return self._url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r}, {self.config!r})"

    @abstractmethod
    def _object(self, full_key: str, where: str, config: StoreConfig) -> _Object:
        """Return an object whose key was checked, with its connection."""

    @abstractmethod
    def reached_by(self) -> tuple[Any, ...]:
        """Service and credentials: the service itself copies between stores that share both."""

    @abstractmethod
    def _pages(self, wanted: KeyRange, *, one_level: bool = False) -> Iterator[Page]:
        """The pages of a listing, with keys relative to the store."""

    @abstractmethod
    def _deletes(
        self, deadline: Deadline | None, etags: Mapping[str, str] | None, *, singly: bool
    ) -> Bulk:
        """The calls that delete. Raises ConfigurationError: these credentials sign no deadline."""

    @abstractmethod
    def _copied(self, source: _Object, target: _Object, asked: CopyRequest) -> Copied | None:
        """Let the service make a copy. See ``ObjectStore.copy_from``."""

    def object_at(self, key: str, *, patient: bool = False) -> _Object:
        """Return an object after a check of its key; ``patient``: with the longer time-outs."""
        full_key = self._full_key(key)
        return self._object(full_key, self._at(key), self._patient() if patient else self.config)

    def _patient(self) -> StoreConfig:
        return replace(self.config, read_timeout_s=max(self.config.read_timeout_s, _PATIENCE_S))

    @abstractmethod
    def _date(self, where: str) -> str | None:
        """The ``Date`` header of an answer of the service. Raises StorageError."""

    def server_time(self) -> datetime:
        """See ``ObjectStore``: to the second."""
        where = f"{self._url}: asking for the time"
        return time_in(self._date(where), where)

    def list(
        self, prefix: str = "", start_after: str | None = None, end_before: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See ``ObjectStore``. One batch for each page."""
        wanted = KeyRange(prefix, start_after, end_before)
        objects = (page.objects for page in self._pages(wanted))
        last = start_after if self.starts_after else None
        return read_range(objects, wanted, self._listing(prefix), last or "")

    def list_prefixes(self, prefix: str = "", max_objects: int | None = None) -> Prefixes:
        pages = self._pages(KeyRange(prefix), one_level=True)
        return read_level(pages, self._listing(prefix), max_objects)

    def get(self, key: str) -> bytes:
        with self.stream(key) as pieces:
            return b"".join(pieces)

    def head(self, key: str) -> ObjectInfo:
        with self._bucket_confirmed():
            return ObjectInfo(key, *self.object_at(key).state()[:3])

    def checksums(self, key: str) -> Mapping[str, str]:
        with self._bucket_confirmed():
            return self.object_at(key).state().checksums

    def put(self, key: str, data: bytes) -> str:
        return self.object_at(key).put(data)

    @writing_once()
    def put_if_absent(self, key: str, data: bytes) -> str:
        with self._bucket_confirmed(bodiless=False):
            return self.object_at(key).put(data, if_absent=True)

    @writing_once()
    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        with self._bucket_confirmed(bodiless=False):
            return self.object_at(key).put(data, etag=etag)

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
        """See ``ObjectStore``. If a condition failed, the metadata show which object is there."""
        deadline = None if expires_s is None else Deadline.after(expires_s, since)
        return self._deletes(deadline, etags, singly=singly).delete(keys, etags)

    @contextmanager
    def stream(self, key: str, etag: str | None = None) -> Iterator[Pieces]:
        one = self.object_at(key)
        tries = self.config.max_attempts
        with (
            self._bucket_confirmed(bodiless=False),
            reading(one.opened, etag, tries, one.where) as pieces,
        ):
            yield pieces

    def put_stream(
        self, key: str, pieces: Iterable[bytes], size: int, *, if_absent: bool = False
    ) -> Copied:
        target = self.object_at(key, patient=size > _LARGE)
        return target.write(pieces, size, if_absent=if_absent, sizes=self.sizes)

    def copy_from(
        self, source: ObjectStore, source_key: str, key: str, asked: CopyRequest
    ) -> Copied | None:
        if not isinstance(source, BucketStore) or source.reached_by() != self.reached_by():
            return None
        original = cast("_Object", source.object_at(source_key))
        return self._copied(original, self.object_at(key, patient=asked.size > _LARGE), asked)

    def _at(self, key: str) -> str:
        return f"{self._url}: the object {key!r}"

    def _listing(self, prefix: str) -> str:
        return f"{self._url}: listing {prefix!r}"

    def _problem(self, key: str) -> str | None:
        """The reason that a key cannot be sent, or None."""
        return url_problem(self.prefix + key) if key else "it is empty"

    def _full_key(self, key: str) -> str:
        """The key in the bucket, after a check that it can be sent in a URL."""
        if problem := self._problem(key):
            raise InvalidKeyError(f"{self._at(key)} cannot be requested: {problem}")
        return self.prefix + key

    @contextmanager
    def _bucket_confirmed(self, *, bodiless: bool = True) -> Iterator[None]:
        """Raise ConfigurationError if the bucket is missing, and not only the object.

        ``bodiless`` answers cannot name the bucket.
        """
        try:
            yield
        except ObjectNotFoundError:
            if bodiless or not self.names_missing_buckets:
                self._require_bucket()
            raise

    def _require_bucket(self) -> None:
        if not self.bucket_seen:
            self.server_time()
            self.bucket_seen = True


class UploadingStore(BucketStore[_Object]):
    """A store that keeps the parts of uploads until a client completes or aborts the uploads."""

    @abstractmethod
    def _uploads(self) -> Iterable[MultipartUpload]:
        """Unfinished uploads by full keys, without their parts. Raises HttpFailure."""

    @abstractmethod
    def _parts(self, upload: MultipartUpload) -> Iterable[tuple[int, datetime]]:
        """Size and time of each part of an upload. Raises HttpFailure."""

    @abstractmethod
    def _abort(self, full_key: str, upload_id: str) -> None:
        """Abort an upload. Raises HttpFailure."""

    @abstractmethod
    def _expirations(self) -> Iterable[tuple[str, float]]:
        """Prefixes of full keys, and the days after which a rule removes the keys below each.

        Raises HttpFailure.
        """

    def expires_after(self, prefixes: Sequence[str]) -> Sequence[float | None]:
        """See ``ObjectStore``."""
        try:
            rules = list(self._expirations())
        except HttpFailure:
            rules = []
        wholes = [self.prefix + prefix for prefix in prefixes]
        below = [[days for start, days in rules if overlap(start, whole)] for whole in wholes]
        return [min(found, default=None) for found in below]

    def multipart_uploads(self, begun_before: datetime) -> Sequence[MultipartUpload]:
        with (
            explaining(f"{self._url}: listing uploads in parts"),
            ThreadPoolExecutor(_THREADS) as pool,
        ):
            # Some servers list uploads of other prefixes, too.
            begun = (one for one in self._uploads() if one.key.startswith(self.prefix))
            old = [one for one in begun if one.begun < begun_before]
            return [one for one in pool.map(self._with_parts, old) if one is not None]

    def abort_upload(self, upload: MultipartUpload) -> bool:
        with explaining(f"{self._url}: aborting the upload of {upload.key!r}"):
            try:
                self._abort(self.prefix + upload.key, upload.upload_id)
            except HttpFailure as failure:
                if not _has_ended(failure):
                    raise
                return False
        return True

    def _with_parts(self, upload: MultipartUpload) -> MultipartUpload | None:
        """Add size and time of its parts to an upload; None if it has ended meanwhile."""
        try:
            parts = list(self._parts(upload))
        except HttpFailure as failure:
            if not _has_ended(failure):
                raise
            return None
        newest = max([upload.begun, *(written for _, written in parts)])
        key, size = upload.key.removeprefix(self.prefix), sum(size for size, _ in parts)
        return upload._replace(key=key, newest=newest, size=size)


def overlap(start: str, prefix: str) -> bool:
    """True if a key can begin with both prefixes."""
    return start.startswith(prefix) or prefix.startswith(start)


def _has_ended(failure: HttpFailure) -> bool:
    return failure.code == "NoSuchUpload" or failure.kind is ObjectNotFoundError


def undelete_each(
    objects: Sequence[Lost], undelete: Callable[[Lost], UndeleteOutcome], where: str
) -> list[UndeleteOutcome]:
    """Restore objects by ``undelete``, several at a time, and return their outcomes.

    ``undelete`` raises StorageError, or HttpFailure: the code of a failed condition means that an
    object is at the key by now.
    """

    def outcome(lost: Lost) -> UndeleteOutcome:
        try:
            return undelete(lost)
        except HttpFailure as failure:
            if failure.kind is PreconditionFailedError:
                return UndeleteOutcome(lost.key, "already_there")
            detail = str(failure.explained(where))
            return UndeleteOutcome(lost.key, "failed", failure.code, detail)
        except StorageError as error:
            code = "InvalidKey" if isinstance(error, InvalidKeyError) else "NoAnswer"
            return UndeleteOutcome(lost.key, "failed", code, str(error))

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(outcome, objects))
