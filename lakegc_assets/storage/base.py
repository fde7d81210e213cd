"""The interface of all object stores, with only the operations that the collector needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import ClassVar, Final

import pyarrow as pa

from lakegc_assets.storage.errors import (
    ChangedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreUnavailableError,
)
from lakegc_assets.storage.streams import Pieces, whole
from lakegc_assets.storage.values import (
    Copied,
    CopyRequest,
    DataProtection,
    DeleteOutcome,
    Lost,
    MultipartUpload,
    ObjectInfo,
    Prefixes,
    Recovery,
    Retained,
    UncommittedBlob,
    UndeleteOutcome,
    infos_in,
)

#: The character after the slash: the name of a folder with it sorts after every key in the folder,
#: in every store, and every store accepts it as a bound.
_BEHIND: Final = "0"
#: The most attempts to create an object if the write gets no answer.
_TRIES: Final = 3


class ObjectStore(ABC):
    """An object store, rooted at a URL: all keys are relative to it.

    Every method may raise ``StorageError`` (see ``storage.errors``) and ``ConfigurationError``;
    messages name the URL and the key. One call deletes at most ``keys_per_delete`` keys;
    ``delete_many`` splits longer lists.
    """

    keys_per_delete: ClassVar[int] = 1000
    #: True if this process deletes object by object, and checks the deadline before each.
    watches_deadlines: ClassVar[bool] = False
    #: True if each key that is deleted with a deadline needs a request of its own.
    sends_deadlines_singly: ClassVar[bool] = False

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL that keys are relative to, in its canonical form, without a slash at its end."""

    @abstractmethod
    def list(
        self, prefix: str = "", start_after: str | None = None, end_before: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """List exactly the keys that start with ``prefix`` and are between the two bounds.

        ``prefix`` is literal and need not end at a ``/``; the bounds are exclusive and need not
        exist. The batches of ``LISTING_SCHEMA`` are in the byte order of the keys' UTF-8, and none
        is empty. Memory does not grow with the number of keys.
        """

    def infos(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """List as ``list``, with one plain value for each object: for folders of few objects."""
        for batch in self.list(prefix, start_after=start_after):
            yield from infos_in(batch)

    def list_to_the_end(self, prefix: str = "") -> Iterator[pa.RecordBatch]:
        """List as ``list``, again after the last key until none follows: a list may end early."""
        last: str | None = None
        while True:
            before = last
            for batch in self.list(prefix, start_after=last):
                yield batch
                last = batch["key"][-1].as_py()
            if last == before:
                return

    def infos_to_the_end(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """As ``list_to_the_end``, one plain value for each object: for folders of few objects."""
        for batch in self.list_to_the_end(prefix):
            yield from infos_in(batch)

    @abstractmethod
    def list_prefixes(self, prefix: str = "", max_objects: int | None = None) -> Prefixes:
        """List one level, in memory: the names after the literal ``prefix``, up to the next ``/``.

        An answer with more objects than ``max_objects`` is incomplete; any other is complete.
        """

    def prefixes_to_the_end(self) -> Sequence[str]:
        """The folders of the store in order, listed again after the last one until none follows.

        One list may end early.
        """
        found = self.list_prefixes().prefixes
        behind = f"{found[-1][:-1]}{_BEHIND}" if found else None
        while (more := next(self.infos(start_after=behind), None)) is not None:
            name, is_folder, _ = more.key.partition("/")
            behind = f"{name}{_BEHIND}" if is_folder else more.key
            found += [f"{name}/"] if is_folder else []
        return found

    @abstractmethod
    def get(self, key: str) -> bytes:
        """The content of an object. Raises ObjectNotFoundError."""

    def fetch(self, key: str) -> bytes:
        """Read as ``get``, in the cheapest way: for many objects that are verified afterwards."""
        return self.get(key)

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Size, time and etag of an object. Raises ObjectNotFoundError."""

    def exists(self, key: str) -> bool:
        """True if there is such an object."""
        with suppress(ObjectNotFoundError):
            self.head(key)
            return True
        return False

    @abstractmethod
    def put(self, key: str, data: bytes) -> str:
        """Write an object, or replace an existing one; atomic and durable. Returns the etag."""

    @abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> str:
        """Write an object that must not exist. Returns the etag.

        Raises PreconditionFailedError; or StoreUnavailableError: the write may have happened.
        """

    def create(self, key: str, data: bytes) -> None:
        """Write an object that must not exist, at a key to which nobody else writes this content.

        So a lost answer does no harm: the object at the key shows whether the write happened, and a
        write that did not happen is sent again.

        Raises PreconditionFailedError; or StoreUnavailableError: the write may have happened.
        """
        for attempt in range(1, _TRIES + 1):
            try:
                self.put_if_absent(key, data)
            except (PreconditionFailedError, StoreUnavailableError) as error:
                present = None
                with suppress(StorageError):
                    present = self.get(key)
                if present == data:
                    return
                # A store that ignores conditions would replace the object.
                if present is not None and isinstance(error, StoreUnavailableError):
                    raise PreconditionFailedError(
                        f"{self.url}: the object {key!r} exists, with another content"
                    ) from error
                if attempt == _TRIES or isinstance(error, PreconditionFailedError):
                    raise
            else:
                return

    @abstractmethod
    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace an object that must still have this etag. Returns the new etag.

        Raises PreconditionFailedError; or StoreUnavailableError: the write may have happened.
        """

    @abstractmethod
    def delete_many(
        self,
        keys: Iterable[str],
        etags: Mapping[str, str] | None = None,
        *,
        singly: bool = False,
        expires_s: float | None = None,
        since: datetime | None = None,
        trash: str | None = None,
    ) -> Sequence[DeleteOutcome]:
        """Delete any number of keys, in calls of the size that the store allows.

        A failure of a key, or of a whole call, is an outcome and never an exception, so that no
        answer of the store is lost. After a call that failed as a whole, no other call is sent.

        Args:
            keys: to delete.
            etags: the etag that each key must still have; another object is ``spared``. Many stores
                ignore the condition silently, so test a store with objects of your own before you
                rely on it.
            singly: one call for each key: some stores honour the condition only there.
            expires_s: whole seconds after ``since`` after which the store itself must refuse the
                delete, if it keeps such deadlines (``probes.probe_deadlines``). It refuses a
                negative value at once.
            since: a time by the store's clock. None for now by this machine's clock: the difference
                of the clocks then adds to the deadline.
            trash: a key prefix ending in ``/``, for stores that retain nothing by themselves but
                can move deleted objects there; each object keeps its key below it. Other stores
                ignore it.

        Returns:
            Exactly one outcome for each distinct key, in the order of their first appearance.

        Raises:
            KeyError: ``etags`` lacks a key.
            ConfigurationError: there is a deadline, and these credentials cannot sign one.
        """

    def is_deleted_alone(self, key: str) -> bool:
        """True if a delete of several keys sends this key in a request of its own."""
        del key
        return False

    def delete_deadlines(self) -> bool:
        """True if deletes can be signed with a deadline, after which the store refuses them."""
        return False

    def recovery(self) -> Recovery:
        """The protection of deleted objects by the store's settings; never an error."""
        return Recovery("nothing", None, f"{self.url} keeps nothing of what is deleted")

    def data_protection(self) -> DataProtection:
        """The use of space by deleted objects, by the store's settings; never an error."""
        return DataProtection.of(self.recovery())

    def expires_after(self, prefixes: Sequence[str]) -> Sequence[float | None]:
        """The days after which rules of the store remove objects below prefixes; never an error.

        One value for each prefix; None if no rule does, or if it is not known.
        """
        return [None] * len(prefixes)

    def undelete_many(self, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        """Restore deleted objects from versions, soft delete or trash, at keys without an object.

        An object at a key is never changed, even if it is written during the call. A failure is an
        outcome of one object and never an exception. An object that a killed call restored is
        ``already_there`` for the next call. Keys are distinct; outcomes are in the order of the
        objects.
        """
        return self._bring_back(objects, dry_run=False)

    def kept_many(self, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        """The outcomes that ``undelete_many`` would have now; nothing is changed."""
        return self._bring_back(objects, dry_run=True)

    def _bring_back(self, objects: Sequence[Lost], *, dry_run: bool) -> Sequence[UndeleteOutcome]:
        """Do ``undelete_many``, or ``kept_many`` in a dry run, if the store retains objects."""
        del dry_run
        return [UndeleteOutcome(one.key, "not_kept") for one in objects]

    def retained(self, prefix: str = "") -> Retained:
        """Number and size of retained deleted objects below a prefix; lists all versions."""
        del prefix
        return Retained()

    def multipart_uploads(self, begun_before: datetime) -> Sequence[MultipartUpload]:
        """Unfinished uploads in parts from before a time that the store does not end by itself."""
        del begun_before
        return ()

    def uncommitted_blobs(self) -> Sequence[UncommittedBlob]:
        """Names without an object for which blocks were uploaded and never committed."""
        return ()

    def abort_upload(self, upload: MultipartUpload) -> bool:
        """Abort an upload in parts and lose its parts; False if it no longer exists."""
        raise StorageError(f"{self.url}: {upload.key!r} is no upload that could be aborted")

    def checksums(self, key: str) -> Mapping[str, str]:
        """Checksums of the whole content that the store itself can name, in lower hex.

        By name of the algorithm: md5, crc32c, crc64nvme, sha256. Raises ObjectNotFoundError.
        """
        self.head(key)
        return {}

    @contextmanager
    def stream(self, key: str, etag: str | None = None) -> Iterator[Pieces]:
        """Read an object in pieces of at most some MiB; a content that breaks off is an error.

        Raises ObjectNotFoundError; and ChangedError: it has another etag.
        """
        if etag is not None and self.head(key).etag != etag:
            raise ChangedError(f"{self.url}: the object {key!r} has another etag than {etag}")
        yield Pieces([self.get(key)])

    def put_stream(
        self, key: str, pieces: Iterable[bytes], size: int, *, if_absent: bool = False
    ) -> Copied:
        """Write an object of ``size`` bytes durably, and verify it by the store's answer.

        An error in the source of the pieces leaves no object.

        Raises:
            PreconditionFailedError: it exists, with ``if_absent``.
            StoreUnavailableError: the write may have happened.
            StorageError: the pieces have another size, and nothing was written; or the store has
                other bytes than were sent, and the object stays at the key.
        """
        data = whole(pieces, size, f"{self.url}: the object {key!r}")
        return Copied(self.put_if_absent(key, data) if if_absent else self.put(key, data), "size")

    def copy_from(
        self, source: ObjectStore, source_key: str, key: str, asked: CopyRequest
    ) -> Copied | None:
        """Copy an object of this or another store without reading it, and verify the copy.

        Returns None, and does nothing, if the store cannot copy so, or cannot without the risk of
        an overwrite. See ``copies.copy_object`` for the errors.
        """
        del source, source_key, key, asked
        return None

    @abstractmethod
    def server_time(self) -> datetime:
        """The time by the store's own clock, UTC."""
