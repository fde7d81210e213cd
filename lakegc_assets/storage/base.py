"""The interface of all object stores: the operations that the collector needs, and no more."""

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

#: Follows the slash: a folder's name with it lies behind all that is in the folder, for every
#: store, and is a bound that each of them takes.
_BEHIND: Final = "0"
#: How often an object is created whose write goes without an answer.
_TRIES: Final = 3


class ObjectStore(ABC):
    """An object store, rooted at a URL: all keys are relative to it.

    Every method may raise ``StorageError`` (see ``storage.errors``) and ``ConfigurationError``;
    messages name the URL and the key. One call deletes ``keys_per_delete`` keys at most;
    ``delete_many`` splits what is longer.
    """

    keys_per_delete: ClassVar[int] = 1000
    #: True if this process deletes object by object, and looks at the deadline before each.
    watches_deadlines: ClassVar[bool] = False

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL that keys are relative to, in its canonical form, without a slash at its end."""

    @abstractmethod
    def list(
        self, prefix: str = "", start_after: str | None = None, end_before: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """List exactly the keys that start with ``prefix`` and lie between the two bounds.

        ``prefix`` is literal and need not end at a ``/``; the bounds are exclusive and need not
        exist. The batches of ``LISTING_SCHEMA`` come in the byte order of the keys' UTF-8, none of
        them empty. Memory does not grow with the number of keys.
        """

    def infos(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """As ``list``, one plain value for each object: for folders of few objects."""
        for batch in self.list(prefix, start_after=start_after):
            yield from infos_in(batch)

    def list_to_the_end(self, prefix: str = "") -> Iterator[pa.RecordBatch]:
        """As ``list``, asked again behind the last key until none follows: one may end early."""
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
        """List one level, in memory: what follows the literal ``prefix``, up to the next ``/``.

        An answer with more objects than ``max_objects`` is not complete; any other is.
        """

    def prefixes_to_the_end(self) -> Sequence[str]:
        """The folders of the store, asked for again behind the last until none follows, in order.

        A list may end early.
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
        """As ``get``, in the way that takes least: for many objects whose bytes are verified."""
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
        """Write an object, replacing any other; atomic and durable. Returns the etag."""

    @abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> str:
        """Write an object that must not exist. Returns the etag.

        Raises PreconditionFailedError; or StoreUnavailableError: perhaps it was written.
        """

    def create(self, key: str, data: bytes) -> None:
        """Write an object that must not exist, and whose content nobody else writes there.

        So an answer that is lost stops nobody: what is there tells whether it was written, and what
        was not is sent again.

        Raises PreconditionFailedError; or StoreUnavailableError: perhaps it was written.
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
                # A store that ignores conditions would replace it.
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

        Raises PreconditionFailedError; or StoreUnavailableError: perhaps it was written.
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
        answer of the store is lost. After a call that failed as a whole no other is sent.

        Args:
            keys: to delete.
            etags: what each of the keys must still have; another object is ``spared``. Many stores
                ignore the condition without a word, so try a store with objects of your own before
                you rely on it.
            singly: one call for each key: some stores honour the condition only there.
            expires_s: the store itself is to refuse what it has not carried out so many whole
                seconds after ``since``, where it keeps such deadlines (``probes.probe_deadlines``).
                It is refused already if this is negative.
            since: a time by the store's clock; None for now by this machine's clock: what the
                clocks differ by is added to the deadline then.
            trash: where a store that keeps nothing by itself, and can, moves what is deleted: a key
                prefix ending in ``/``, below which each key keeps its name. Other stores ignore it.

        Returns:
            Exactly one outcome for each distinct key, in the order of their first appearance.

        Raises:
            KeyError: ``etags`` lacks a key.
            ConfigurationError: there is a deadline, and these credentials cannot sign one.
        """

    def delete_deadlines(self) -> bool:
        """True if deletes can be signed so that the store should refuse late ones."""
        return False

    def recovery(self) -> Recovery:
        """The protection of deleted objects by the settings of the store; never an error."""
        return Recovery("nothing", None, f"{self.url} keeps nothing of what is deleted")

    def data_protection(self) -> DataProtection:
        """The use of space by deleted objects, by the settings of the store; never an error."""
        return DataProtection.of(self.recovery())

    def expires_after(self, prefixes: Sequence[str]) -> Sequence[float | None]:
        """The days after which rules of the store remove objects below prefixes; never an error.

        None where none does, or nobody can tell: one for each prefix.
        """
        return [None] * len(prefixes)

    def undelete_many(self, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        """Bring deleted objects back from versions, soft delete or trash, where nothing is now.

        An object that is at a key stays as it is, also if it is written while this runs. A failure
        is an outcome of one object and never an exception. What a killed call brought back is
        ``already_there`` for the next one. Each key is there once; the outcomes are in the order of
        the objects.
        """
        return self._bring_back(objects, dry_run=False)

    def kept_many(self, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        """The outcomes that ``undelete_many`` would have now; nothing is changed."""
        return self._bring_back(objects, dry_run=True)

    def _bring_back(self, objects: Sequence[Lost], *, dry_run: bool) -> Sequence[UndeleteOutcome]:
        """``undelete_many``, or ``kept_many`` in a dry run, of stores that keep something."""
        del dry_run
        return [UndeleteOutcome(one.key, "not_kept") for one in objects]

    def retained(self, prefix: str = "") -> Retained:
        """Number and size of deleted objects below a prefix that are held; lists all versions."""
        del prefix
        return Retained()

    def multipart_uploads(self, begun_before: datetime) -> Sequence[MultipartUpload]:
        """Uploads in parts, begun before a time, that do not end by themselves, and have not."""
        del begun_before
        return ()

    def uncommitted_blobs(self) -> Sequence[UncommittedBlob]:
        """Names without an object for which blocks were uploaded and never committed."""
        return ()

    def abort_upload(self, upload: MultipartUpload) -> bool:
        """Give up an upload in parts, whose parts are lost; False where there is none any more."""
        raise StorageError(f"{self.url}: {upload.key!r} is no upload that could be aborted")

    def checksums(self, key: str) -> Mapping[str, str]:
        """Checksums of the whole content that the store itself can name, in lower hex.

        By name of the algorithm: md5, crc32c, crc64nvme, sha256. Raises ObjectNotFoundError.
        """
        self.head(key)
        return {}

    @contextmanager
    def stream(self, key: str, etag: str | None = None) -> Iterator[Pieces]:
        """Read an object in pieces of some MiB at most; a content that breaks off is an error.

        Raises ObjectNotFoundError; and ChangedError: it has another etag.
        """
        if etag is not None and self.head(key).etag != etag:
            raise ChangedError(f"{self.url}: the object {key!r} has another etag than {etag}")
        yield Pieces([self.get(key)])

    def put_stream(
        self, key: str, pieces: Iterable[bytes], size: int, *, if_absent: bool = False
    ) -> Copied:
        """Write an object of ``size`` bytes durably, and verify what the store says of it.

        An error while the pieces are made leaves no object behind.

        Raises:
            PreconditionFailedError: it exists, with ``if_absent``.
            StoreUnavailableError: it may not be known whether it was written.
            StorageError: the pieces have another size, and nothing was written; or the store has
                other bytes than were sent, and what is at the key stays there.
        """
        data = whole(pieces, size, f"{self.url}: the object {key!r}")
        return Copied(self.put_if_absent(key, data) if if_absent else self.put(key, data), "size")

    def copy_from(
        self, source: ObjectStore, source_key: str, key: str, asked: CopyRequest
    ) -> Copied | None:
        """Copy an object of this or another store without reading it, and verify the copy.

        None where that cannot be done, or not so that nothing is overwritten: nothing was done
        then. See ``copies.copy_object`` for the errors.
        """
        del source, source_key, key, asked
        return None

    @abstractmethod
    def server_time(self) -> datetime:
        """The time by the store's own clock, UTC."""
