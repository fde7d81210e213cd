"""Restores deleted objects from the store's own copies, else from a backup; or forecasts this.

An object at a key is never touched, whatever it is, even if it is written at the same time: every
copy is a conditional write, which fails if the key exists, and the stores undelete an object only
while its key has no other object (S3 removes delete markers, which changes no object).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, NamedTuple

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.recovery.journal import MD5, CopyVerifier
from lakegc_assets.run.object_lookup import look_up
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import (
    ChangedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from lakegc_assets.storage.values import ARCHIVED, Lost, ObjectInfo, UndeleteOutcome

#: Source of a restored object: the store's own copies, or a backup.
KEPT: Final = "store"
BACKUP: Final = "backup"
#: Sources of objects, in the order of a restore's report.
SOURCES: Final = ("versions", "trash", "soft_delete", "backup")
#: Objects that are looked up, or copied, in parallel.
THREADS: Final = 16
#: Largest object in bytes that is copied without asking first if its key exists.
_SMALL: Final = 1 << 16
#: Prefix of the detail if the key holds another object than the marked one.
ANOTHER: Final = "another object is there"
#: What may explain a difference from the etag in the mark.
_NO_MD5: Final = (
    ", if the etag in the mark is an MD5: it is none if the marked object was encrypted with a key "
    "of KMS or of a client. Then compare the content with a copy"
)
_BACK: Final = frozenset({"restored", "already_there"})
#: Error codes for failures to read a copy in a backup.
_CODES: Final[dict[type[Exception], str]] = {
    ObjectNotFoundError: "CopyMissing",
    ChangedError: "CopyChanged",
}

Verdict = Literal["versions", "trash", "soft_delete", "backup", "lost", "not_known"]


@dataclass(frozen=True)
class RestoreOutcome(UndeleteOutcome):
    """The outcome of one object of a restore, with an error code of the store or of ours.

    ``already_there`` has a detail only if another object is there (``ANOTHER``), or if this is
    unknown. ``restored`` has one only if the object cannot be read yet (``ARCHIVED``).
    """

    #: ``KEPT`` or ``BACKUP`` if it was restored.
    source: str | None = None


@dataclass(frozen=True)
class BackupCopies:
    """Verified copies of objects."""

    #: Etags of the copies by key; an object without a copy is absent.
    etags: Mapping[str, str]
    proof: CopyVerifier


def bring_back(
    store: ObjectStore, objects: Sequence[Lost], copies: BackupCopies | None = None
) -> list[RestoreOutcome]:
    """Restore objects to empty keys. A failure is an outcome, never an exception.

    ``objects``: each key once. ``copies``: used if the store has no copy, or does not answer.

    Returns:
        Exactly one outcome for each object, in their order.
    """
    if not objects:
        return []
    answers = _given_back(store, objects, copies)
    there = _looked(store, [t.key for t in answers if t.outcome in _BACK])
    brought = [_verified(one, t, there) for one, t in zip(objects, answers, strict=True)]

    def settle(which: Sequence[int], function: Callable[[int], RestoreOutcome]) -> None:
        for at, one in zip(which, thread_map(function, which, THREADS), strict=True):
            brought[at] = one

    wanting = [at for at, one in enumerate(brought) if one.outcome in {"not_kept", "failed"}]
    settle(wanting, lambda at: _else_copied(store, objects[at], brought[at], copies))
    seen = {key: one for key, one in there.items() if isinstance(one, ObjectInfo)}
    # The object there may be a bad copy of an earlier try; or it is absent, and the answer false.
    odd = [
        at
        for at, (one, now) in enumerate(zip(objects, brought, strict=True))
        if now.outcome == "already_there" and _differs(one, seen.get(one.key))
    ]
    settle(odd, lambda at: _compared(store, objects[at], seen.get(objects[at].key), copies))
    return brought if copies is None else _without_copies(store, objects, brought)


def _without_copies(
    store: ObjectStore, objects: Sequence[Lost], brought: Sequence[RestoreOutcome]
) -> list[RestoreOutcome]:
    """Restore the objects without a good copy that the store was not asked for (``_given_back``).

    A store that keeps no deleted objects today may have kept them earlier, and an archived object
    can be read some day.
    """
    codes = set(_CODES.values())
    wanted = [one for one, now in zip(objects, brought, strict=True) if now.error_code in codes]
    found = {one.key: one for one in bring_back(store, wanted) if one.outcome in _BACK}
    return [found.get(now.key, now) for now in brought]


def _given_back(
    store: ObjectStore, objects: Sequence[Lost], copies: BackupCopies | None
) -> Sequence[UndeleteOutcome]:
    """Undelete objects; ask a store that keeps no deleted objects only for those without a copy.

    On some servers a search for versions takes longer than a copy. A copy in a backup is preferred
    to an archived version.
    """
    if copies is None:
        return store.undelete_many(objects)
    if store.recovery().kind != "nothing":
        return store.undelete_many([o._replace(copied=o.key in copies.etags) for o in objects])
    asked = [one for one in objects if one.key not in copies.etags]
    answers = {one.key: one for one in store.undelete_many(asked)} if asked else {}
    return [answers.get(one.key) or UndeleteOutcome(one.key, "not_kept") for one in objects]


def _verified(
    one: Lost, answer: UndeleteOutcome, there: Mapping[str, ObjectInfo | str | None]
) -> RestoreOutcome:
    """Return the outcome of an object, after comparing the undeleted object with the mark."""
    if answer.outcome not in _BACK:
        return RestoreOutcome(one.key, answer.outcome, answer.error_code, answer.detail)
    found = there.get(one.key)
    if isinstance(found, str):
        return RestoreOutcome(one.key, "failed", "NotVerified", found)
    if answer.outcome == "already_there":
        # A list of versions may be older than the delete, or the key is no object (a folder).
        return _nothing_there(one) if found is None else RestoreOutcome(one.key, answer.outcome)
    if found is None or found.size != one.size:
        came = "is missing again" if found is None else f"came back with {found.size} bytes"
        detail = f"it {came}, and had {one.size}"
        return RestoreOutcome(one.key, "failed", "NotVerified", detail)
    return RestoreOutcome(one.key, "restored", detail=answer.detail, source=KEPT)


def _looked(store: ObjectStore, keys: Sequence[str]) -> Mapping[str, ObjectInfo | str | None]:
    """Return the objects at given keys, None for none; or the reason why that is unknown."""
    try:
        return look_up(store, keys)
    except (StorageError, ConfigurationError):
        # The look-up of one object may fail while all others can be read.
        found = thread_map(partial(_asked_or_why, store), keys, THREADS)
        return dict(zip(keys, found, strict=True))


def _asked_or_why(store: ObjectStore, key: str) -> ObjectInfo | str | None:
    try:
        return look_up(store, [key])[key]
    except (StorageError, ConfigurationError) as error:
        return f"it is not known whether it is back: {error}"


def _differs(one: Lost, found: ObjectInfo | None) -> bool:
    """Return True if the object at a key may be another one, or is unknown."""
    return found is None or (found.size, found.etag) != (one.size, one.etag)


def _nothing_there(one: Lost) -> RestoreOutcome:
    detail = (
        "the store reports an object at its key, but a read finds none. Restore again; on a local "
        "store, look for a symbolic link at this path first"
    )
    return RestoreOutcome(one.key, "failed", "NotThere", detail)


def _compared(
    store: ObjectStore, one: Lost, found: ObjectInfo | None, copies: BackupCopies | None
) -> RestoreOutcome:
    """Return the outcome of an object reported as there, with its difference from the mark."""
    try:
        found = found or look_up(store, [one.key])[one.key]
        if found is None:
            return _nothing_there(one)
        detail = _difference(store, one, found, copies)
    except (StorageError, ConfigurationError) as error:
        detail = f"it is not known whether it is the marked object: {error}"
    return RestoreOutcome(one.key, "already_there", detail=detail)


def _difference(
    store: ObjectStore, one: Lost, found: ObjectInfo, copies: BackupCopies | None
) -> str | None:
    """Return why the object at a key is not the marked one; None if no difference is known."""
    if found.size != one.size:
        return f"{ANOTHER}: it has {found.size} bytes, and {one.size} were marked"
    here, known = store.checksums(one.key), _known(one, copies)
    for name in sorted(here.keys() & known.keys()):
        if here[name] != known[name]:
            by_etag = known[name] == one.etag
            if by_etag and _is_md5_of_copy(here[name], one, copies):
                return None
            differs = f"{ANOTHER}: its {name} is {here[name]}, and should be {known[name]}"
            return f"{differs}{_NO_MD5 if by_etag else ''}"
    return None


def _is_md5_of_copy(md5: str, one: Lost, copies: BackupCopies | None) -> bool:
    """Return True if the verified copy of an object has this MD5.

    The etag of an encrypted object may look like an MD5 and be none.
    """
    if copies is None or one.key not in copies.etags:
        return False
    with suppress(ObjectNotFoundError, ChangedError):
        return copies.proof.computed_md5(one.key, copies.etags[one.key]) == md5
    return False


def _known(one: Lost, copies: BackupCopies | None) -> Mapping[str, str]:
    """Return the known checksums of a marked object."""
    known = {"md5": one.etag} if MD5.fullmatch(one.etag) else {}
    if copies is not None and one.key in copies.etags:
        with suppress(ObjectNotFoundError):
            known |= copies.proof.store.checksums(one.key)
    return known


def _else_copied(
    store: ObjectStore, one: Lost, answer: RestoreOutcome, copies: BackupCopies | None
) -> RestoreOutcome:
    """Copy an object that the store did not give back, unless its key exists after all."""
    try:
        # A conditional write also tells if the key exists. For a small object it costs less to read
        # the copy in vain than to ask first.
        small = answer.outcome == "not_kept" and one.size <= _SMALL
        copied = copies is not None and one.key in copies.etags
        if not (small and copied) and store.exists(one.key):
            return (
                answer
                if answer.error_code == "NotVerified"
                else RestoreOutcome(one.key, "already_there")
            )
        if copies is None or one.key not in copies.etags:
            return answer
        _copy(store, one, copies)
    except PreconditionFailedError:
        return RestoreOutcome(one.key, "already_there")
    except (StorageError, ConfigurationError) as error:
        code = _CODES.get(type(error)) or type(error).__name__.removesuffix("Error")
        return RestoreOutcome(one.key, "failed", code, f"{error}{_left(store, one)}")
    return RestoreOutcome(one.key, "restored", source=BACKUP)


def _copy(store: ObjectStore, one: Lost, copies: BackupCopies) -> None:
    """Copy an object from a backup, by the recorded etag or by an etag that is proven."""
    copied = partial(
        copy_object, copies.proof.store, one.key, store, one.key, size=one.size, if_absent=True
    )
    try:
        copied(etag=copies.etags[one.key])
    except ChangedError as error:
        etag = copies.proof.etag(one, copies.etags[one.key])
        if etag is None:
            raise ChangedError(
                f"{error}. Nothing proves that it is the verified copy. If you know that it is "
                "right, for example since its backup was moved to another disk, copy "
                f"{copies.proof.store.url}/{one.key} to {store.url}/{one.key} by hand, then "
                "restore again"
            ) from error
        copied(etag=etag)


def _left(store: ObjectStore, one: Lost) -> str:
    """Return a hint at the object a failed copy may have left; a restore never removes it."""
    try:
        there = store.exists(one.key)
    except (StorageError, ConfigurationError):
        return ""
    text = ". An object is at its key now: restore again to see whether it is another object"
    return text if there else ""


class Forecast(NamedTuple):
    """The expected outcome for a missing object, and why it would not come back as it was."""

    one: Lost
    verdict: Verdict
    why: str = ""


def forecast(
    store: ObjectStore, gone: Sequence[Lost], copies: BackupCopies | None
) -> list[Forecast]:
    """Forecast the outcomes of missing objects, by the same read requests as a restore.

    Returns:
        One forecast for each object, in their order.
    """
    kind = store.recovery().kind
    # Versions may remain after versioning was disabled.
    source: Verdict = kind if kind in {"trash", "soft_delete"} else "versions"
    answers = store.kept_many(gone) if gone else []
    ends = []
    for one, outcome in zip(gone, answers, strict=True):
        if outcome.outcome in _BACK:
            ends.append(Forecast(one, source, outcome.detail or ""))
        else:
            unclear: Verdict = "lost" if outcome.outcome == "not_kept" else "not_known"
            ends.append(Forecast(one, unclear, outcome.detail or outcome.error_code or ""))
    if copies is None:
        return ends
    return [
        end if end.verdict in SOURCES and now.verdict != BACKUP else now
        for end, now in zip(ends, _else_in_backup(ends, copies), strict=True)
    ]


def _else_in_backup(ends: Sequence[Forecast], copies: BackupCopies) -> list[Forecast]:
    """Forecast, by their backup, the outcomes of objects that the store cannot give back."""
    asked = [
        e.one.key
        for e in ends
        if (e.verdict not in SOURCES or e.why.startswith(ARCHIVED)) and e.one.key in copies.etags
    ]
    try:
        there = look_up(copies.proof.store, asked)
    except (StorageError, ConfigurationError) as error:
        why = f"the backup could not be read: {error}"
        return [e._replace(verdict="not_known", why=why) if e.one.key in asked else e for e in ends]
    return thread_map(
        lambda e: _by_copy(e, there[e.one.key], copies) if e.one.key in there else e, ends, THREADS
    )


def _by_copy(end: Forecast, copy: ObjectInfo | None, copies: BackupCopies) -> Forecast:
    """Forecast the outcome of an object by its copy in a backup."""
    one = end.one
    if copy is None:
        return end._replace(why="its copy in the backup is gone")
    try:
        recorded = copies.etags[one.key]
        if (copy.size, copy.etag) == (one.size, recorded) or copies.proof.etag(
            one, recorded
        ) is not None:
            return Forecast(one, "backup")
    except (StorageError, ConfigurationError) as error:
        return Forecast(one, "not_known", str(error))
    return Forecast(one, "lost", "its copy in the backup is not the one that was verified")
