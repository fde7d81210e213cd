"""Arguments and results of ``base.ObjectStore``."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from math import inf
from typing import Final, Literal, NamedTuple

import pyarrow as pa

from lakegc_assets.storage.errors import StorageError
from lakegc_assets.wording import counted

LISTING_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("last_modified", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("etag", pa.string(), nullable=False),
    ]
)

#: States of the space of a deleted object; the end of the retention follows ``HELD``.
FREED: Final = "space freed"
HELD: Final = "space held"
#: State of a deleted local file that still has other names (hard links).
HELD_BY_LINKS: Final = f"{HELD}, the file has another hard link"
PERHAPS_HELD: Final = "space perhaps held"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: Rules may name more days than the calendar has.
_MOST_DAYS: Final = 36_500


@dataclass(frozen=True)
class ObjectInfo:
    """One object of a store, with its size in bytes; its key is relative to the store's URL.

    Times are UTC, to the microsecond if the store knows it. The etag has no quotes; it changes
    whenever the content does, and need not be an MD5.
    """

    key: str
    size: int
    last_modified: datetime
    etag: str


class Prefixes(NamedTuple):
    """One level of a store, in byte order: prefixes, each ending in ``/``, and objects."""

    prefixes: list[str]
    objects: list[ObjectInfo]


@dataclass(frozen=True)
class DeleteOutcome:
    """The outcome of one key of a delete, by the store's own answer.

    Attributes:
        outcome: ``already_missing`` only if the store says so: S3 answers ``deleted`` for keys that
            did not exist, too. ``spared`` if another object than the expected one is there.
            ``locked`` if a lock, a hold or a retention policy keeps the object.
        error_code: the store's when failed or locked; or ``InvalidKey`` (not sent), ``NotSent`` (an
            earlier call failed as a whole), ``Expired`` (it came too late), or ``NoAnswer``,
            ``Timeout``, ``ConnectionFailed`` (it is not known whether the object still exists).
        detail: the store's message, for people; for a deleted object, the state of its space if the
            store knows it better than by its settings.
        version: name of the retained object, for ``undelete_many``; None if the store named none.
    """

    key: str
    outcome: Literal["deleted", "already_missing", "spared", "locked", "failed"]
    error_code: str | None = None
    detail: str | None = None
    version: str | None = None

    @property
    def refused(self) -> bool:
        """True if the delete failed, or a lock keeps the object."""
        return self.outcome in {"locked", "failed"}


def require_removed(outcomes: Iterable[DeleteOutcome], where: str, advice: str) -> None:
    """Raises StorageError: a store, named by ``where``, did not delete an object."""
    if failed := [one for one in outcomes if one.refused]:
        first = failed[0]
        raise StorageError(
            f"{where}: {counted(len(failed), 'object')} could not be removed, for example "
            f"{first.key!r}: {first.error_code}: {first.detail}. {advice}"
        )


class Recovery(NamedTuple):
    """The protection of deleted objects by a store, according to its settings.

    ``days`` is None if no end is known. The notice is a sentence for people.
    """

    kind: Literal["versions", "soft_delete", "trash", "nothing", "unknown"]
    days: float | None
    notice: str

    @classmethod
    def unknown(cls, where: str, why: object, advice: str = "run again") -> Recovery:
        """A protection of which nothing is known."""
        notice = f"{where}: it is not known whether deleted objects are kept ({why}): {advice}"
        return cls("unknown", None, notice)

    def keeps_less_than(self, before: Recovery) -> bool:
        """True if objects are kept for a shorter time than before, as far as both are known."""
        if "unknown" in {self.kind, before.kind} or before.kind == "nothing":
            return False
        ends, ended = (inf if one.days is None else one.days for one in (self, before))
        return self.kind == "nothing" or ends < ended


class DataProtection(NamedTuple):
    """The use of space by deleted objects of a store, and the objects that it does not delete.

    Attributes:
        held: whether the space of a deleted object stays in use; None if it is not known.
        days: days after the delete until it is free; None if no end is known.
        locked_days: days after the write for which the store holds each object in any case.
        at_least: whether it may be longer: by locks of single objects, or by rules for a part.
        notice: in a sentence, for people.
    """

    held: bool | None
    days: float | None
    locked_days: float
    at_least: bool
    notice: str

    @classmethod
    def of(cls, recovery: Recovery) -> DataProtection:
        """The use of space that follows from the recovery settings of a store."""
        # With a trash, each delete reports the place of its object.
        held = None if recovery.kind == "unknown" else recovery.kind not in {"nothing", "trash"}
        return cls(held, recovery.days, 0, recovery.kind == "versions", recovery.notice)

    def with_locks(self, locks: Sequence[str]) -> DataProtection:
        """Add locks, one sentence each: they may hold space for longer."""
        if not locks:
            return self
        return self._replace(at_least=True, notice="; ".join([self.notice, *locks]))

    def space_of(self, version: str | None, written: datetime, deleted: datetime) -> str:
        """The state of a deleted object's space, by the version that the delete reported.

        ``FREED``, ``PERHAPS_HELD``, or ``HELD`` with its end; times are UTC.
        """
        if self.held is not True and version in {None, "null"}:
            return FREED if self.held is False else PERHAPS_HELD
        if self.days is None:
            # The end of a lock frees nothing without a rule that removes the locked object.
            return f"{HELD}, until when is not known"
        lock, rule = (min(days, _MOST_DAYS) for days in (self.locked_days, self.days))
        until = max(written + timedelta(days=lock), deleted + timedelta(days=rule))
        # Rules are applied once a day.
        day = f"{until + timedelta(days=1):%Y-%m-%d}"
        return f"{HELD} until {day}{' at least' if self.at_least else ''}"


#: The protection by a store that holds nothing.
NO_PROTECTION: Final = DataProtection(
    held=False, days=None, locked_days=0, at_least=False, notice="the store holds nothing"
)


class Lost(NamedTuple):
    """A deleted object to restore, as it was listed: only an object with its etag is restored.

    ``version`` is the version that the delete reported; None to search for it. If the object has a
    copy elsewhere (``copied``), it is not restored to a state that cannot be read (``ARCHIVED``).
    """

    key: str
    size: int
    etag: str
    version: str | None = None
    copied: bool = False


#: Start of the detail of a restored object whose content cannot be read yet.
ARCHIVED: Final = "it is in an archive"


@dataclass(frozen=True)
class UndeleteOutcome:
    """The outcome of one object to restore, with the store's code when it failed.

    ``already_there``: some object is at the key and is not changed. ``not_kept``: the store does
    not retain the object (any more). A ``restored`` object has a detail only if it cannot be read
    yet (``ARCHIVED``).
    """

    key: str
    outcome: Literal["restored", "already_there", "not_kept", "failed"]
    error_code: str | None = None
    detail: str | None = None


class MultipartUpload(NamedTuple):
    """An upload in parts that was begun, and neither completed nor aborted.

    ``newest`` is the time of its last part, or of its begin; times are UTC. The size is the sum of
    its parts, in bytes.
    """

    key: str
    upload_id: str
    begun: datetime
    newest: datetime
    size: int


class UncommittedBlob(NamedTuple):
    """A name with uncommitted blocks in a store, and their size in bytes."""

    key: str
    size: int


class Retained(NamedTuple):
    """Number and size (in bytes) of deleted or replaced objects that a store still holds.

    Delete ``markers`` hold no bytes. ``locked`` counts the objects that a lock or a legal hold
    keeps, None if the locks may not be read. ``locked_until`` is the end of the last lock, UTC, if
    one ends.
    """

    objects: int = 0
    size: int = 0
    markers: int = 0
    locked: int | None = 0
    locked_until: datetime | None = None

    @classmethod
    def counting(cls, kept: Iterable[tuple[int, bool, datetime | None]]) -> Retained:
        """Count objects by their size, whether they are on hold, and when the last lock ends."""
        objects = size = locked = 0
        now = datetime.now(timezone.utc)
        last = now
        for bytes_, held, until in kept:
            ends = until or now
            objects, size, locked = objects + 1, size + bytes_, locked + (held or ends > now)
            last = max(last, ends)
        return cls(objects, size, 0, locked, last if last > now else None)


@dataclass(frozen=True)
class Copied:
    """A verified copy, and its etag.

    ``verified_by`` is the name of a checksum (``md5 of parts`` if each part of an upload was
    compared), or ``size`` if the two sides have no checksum in common.
    """

    etag: str
    verified_by: str


class CopyRequest(NamedTuple):
    """A copy of an object with this size and etag, to a free key or in place of an object."""

    size: int
    etag: str
    if_absent: bool


class KeyRange(NamedTuple):
    """The key range of a listing; ``key in range`` decides."""

    prefix: str = ""
    start_after: str | None = None
    end_before: str | None = None

    def __contains__(self, key: object) -> bool:
        return (
            isinstance(key, str)
            and key.startswith(self.prefix)
            and (self.start_after is None or key > self.start_after)
            and (self.end_before is None or key < self.end_before)
        )

    def may_hold_below(self, directory: str) -> bool:
        """True if a key that starts with ``directory`` can be in the range."""
        return (
            (directory.startswith(self.prefix) or self.prefix.startswith(directory))
            and (self.end_before is None or directory < self.end_before)
            and (
                self.start_after is None
                or directory > self.start_after
                or self.start_after.startswith(directory)
            )
        )


def infos_in(batch: pa.RecordBatch) -> Iterator[ObjectInfo]:
    """The objects of a batch of ``LISTING_SCHEMA``."""
    return itertools.starmap(ObjectInfo, listed_values(batch))


def listed_values(rows: pa.Table | pa.RecordBatch) -> Iterator[tuple[str, int, datetime, str]]:
    """Plain values of rows whose columns are those of ``LISTING_SCHEMA``, under any names."""
    keys, sizes, times, etags = rows.columns
    # Arrow itself takes 5 ms to convert a thousand times with a time zone.
    moments = [_EPOCH + timedelta(microseconds=n) for n in times.cast(pa.int64()).to_pylist()]
    return zip(keys.to_pylist(), sizes.to_pylist(), moments, etags.to_pylist(), strict=True)


def to_batch(objects: Sequence[ObjectInfo]) -> pa.RecordBatch:
    """One batch of ``LISTING_SCHEMA``."""
    columns = [[getattr(info, name) for info in objects] for name in LISTING_SCHEMA.names]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, LISTING_SCHEMA, strict=True)],
        schema=LISTING_SCHEMA,
    )
