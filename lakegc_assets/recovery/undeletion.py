"""Brings deleted objects back, or foresees it: from what the store retains, else from a backup.

Nothing that is at a key is ever touched, whatever it is, also if it is written while this runs: the
store itself is asked to write only where nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, NamedTuple

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.recovery.copy_verification import MD5, CopyVerifier
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

#: Where an object came back from.
KEPT: Final = "store"
BACKUP: Final = "backup"
#: Where objects may come back from, in the order in which a restore names them.
SOURCES: Final = ("versions", "trash", "soft_delete", "backup")
#: Objects that are looked up, or copied, at a time.
THREADS: Final = 16
#: Bytes that may be read in vain, sooner than it is asked whether something is at their key.
_SMALL: Final = 1 << 16
#: How it begins where something else is at a key than what was marked.
ANOTHER: Final = "another object is there"
_BACK: Final = frozenset({"restored", "already_there"})
#: What these mean of a copy in a backup.
_CODES: Final[dict[type[Exception], str]] = {
    ObjectNotFoundError: "CopyMissing",
    ChangedError: "CopyChanged",
}

Verdict = Literal["versions", "trash", "soft_delete", "backup", "lost", "not_known"]


@dataclass(frozen=True)
class RestoreOutcome(UndeleteOutcome):
    """The outcome of one object that was to come back, with a code of the store, or one of ours.

    ``already_there`` has a detail only where another object is there (``ANOTHER``), or nobody can
    tell, and ``restored`` only where it cannot be read yet (``ARCHIVED``).
    """

    #: ``KEPT`` or ``BACKUP`` where it was restored.
    source: str | None = None


@dataclass(frozen=True)
class BackupCopies:
    """Verified copies of objects."""

    #: Of the copies, by key; what has none was not copied.
    etags: Mapping[str, str]
    proof: CopyVerifier


def bring_back(
    store: ObjectStore, objects: Sequence[Lost], copies: BackupCopies | None = None
) -> list[RestoreOutcome]:
    """Bring objects back where nothing is now. What goes wrong is an outcome, never an exception.

    Each key once. ``copies``: where the store retains nothing, or does not answer.

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
    # What is there may be a copy that went wrong in an earlier try; or nothing, if the store lied.
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
    """Bring back what the store was not asked for (``_given_back``), and has no good copy.

    A store that keeps nothing of what is deleted today may have kept what was deleted before, and
    what is in an archive can be read some day.
    """
    codes = set(_CODES.values())
    wanted = [one for one, now in zip(objects, brought, strict=True) if now.error_code in codes]
    found = {one.key: one for one in bring_back(store, wanted) if one.outcome in _BACK}
    return [found.get(now.key, now) for now in brought]


def _given_back(
    store: ObjectStore, objects: Sequence[Lost], copies: BackupCopies | None
) -> Sequence[UndeleteOutcome]:
    """Undelete; a store that retains nothing is asked only for objects without a copy.

    To look for versions takes some servers longer than to copy. A copy is preferred to what an
    archive keeps.
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
    """The outcome of an object, after a comparison of what the store gave back with the mark."""
    if answer.outcome not in _BACK:
        return RestoreOutcome(one.key, answer.outcome, answer.error_code, answer.detail)
    found = there.get(one.key)
    if isinstance(found, str):
        return RestoreOutcome(one.key, "failed", "NotVerified", found)
    if answer.outcome == "already_there":
        # A list of versions may be older than the delete, and what is no object may be in the way.
        return _nothing_there(one) if found is None else RestoreOutcome(one.key, answer.outcome)
    if found is None or found.size != one.size:
        came = "is gone again" if found is None else f"came back with {found.size} bytes"
        detail = f"it {came}, and had {one.size}"
        return RestoreOutcome(one.key, "failed", "NotVerified", detail)
    return RestoreOutcome(one.key, "restored", detail=answer.detail, source=KEPT)


def _looked(store: ObjectStore, keys: Sequence[str]) -> Mapping[str, ObjectInfo | str | None]:
    """The objects at some keys, None for none; or why that is unknown."""
    try:
        return look_up(store, keys)
    except (StorageError, ConfigurationError):
        # One that cannot be looked at says nothing of the others.
        found = thread_map(partial(_asked_or_why, store), keys, THREADS)
        return dict(zip(keys, found, strict=True))


def _asked_or_why(store: ObjectStore, key: str) -> ObjectInfo | str | None:
    try:
        return look_up(store, [key])[key]
    except (StorageError, ConfigurationError) as error:
        return f"it could not be looked at: {error}"


def _differs(one: Lost, found: ObjectInfo | None) -> bool:
    """True if the object at a key may be another one, or is unknown."""
    return found is None or (found.size, found.etag) != (one.size, one.etag)


def _nothing_there(one: Lost) -> RestoreOutcome:
    detail = "the store says that something is at its key, and shows nothing there"
    return RestoreOutcome(one.key, "failed", "NotThere", detail)


def _compared(
    store: ObjectStore, one: Lost, found: ObjectInfo | None, copies: BackupCopies | None
) -> RestoreOutcome:
    """The outcome of an object that is said to be there: with why it is not what was marked."""
    try:
        found = found or look_up(store, [one.key])[one.key]
        if found is None:
            return _nothing_there(one)
        detail = _difference(store, one, found, copies)
    except (StorageError, ConfigurationError) as error:
        detail = f"whether it is the one that was marked could not be found out: {error}"
    return RestoreOutcome(one.key, "already_there", detail=detail)


def _difference(
    store: ObjectStore, one: Lost, found: ObjectInfo, copies: BackupCopies | None
) -> str | None:
    """Why what is at a key is not what was marked; None where nothing shows that it is not."""
    if found.size != one.size:
        return f"{ANOTHER}: it has {found.size} bytes, and {one.size} were marked"
    here, known = store.checksums(one.key), _known(one, copies)
    for name in sorted(here.keys() & known.keys()):
        if here[name] != known[name]:
            return f"{ANOTHER}: its {name} is {here[name]}, and should be {known[name]}"
    return None


def _known(one: Lost, copies: BackupCopies | None) -> Mapping[str, str]:
    """Checksums of an object that was marked, as far as anybody names them."""
    known = {"md5": one.etag} if MD5.fullmatch(one.etag) else {}
    if copies is not None and one.key in copies.etags:
        with suppress(ObjectNotFoundError):
            known |= copies.proof.store.checksums(one.key)
    return known


def _else_copied(
    store: ObjectStore, one: Lost, answer: RestoreOutcome, copies: BackupCopies | None
) -> RestoreOutcome:
    """An object that the store did not give back: there after all, or copied from a backup."""
    try:
        # Whether something is there the store says when it is put, too; a small one is read in vain
        # for less than it takes to ask.
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
    """Copy an object from a backup, by the etag that was recorded or one that is proven."""
    copied = partial(
        copy_object, copies.proof.store, one.key, store, one.key, size=one.size, if_absent=True
    )
    try:
        copied(etag=copies.etags[one.key])
    except ChangedError as error:
        etag = copies.proof.etag(one, copies.etags[one.key])
        if etag is None:
            raise ChangedError(
                f"{error}. Nothing proves that it is what was backed up. If you know it (its "
                f"backup was moved, say), copy {copies.proof.store.url}/{one.key} to "
                f"{store.url}/{one.key} by hand, then restore again"
            ) from error
        copied(etag=etag)


def _left(store: ObjectStore, one: Lost) -> str:
    """A sentence on what a failed copy may have left at the key: it is never removed here."""
    try:
        there = store.exists(one.key)
    except (StorageError, ConfigurationError):
        return ""
    text = ". Something is at its key now: restore again, which says whether it is another object"
    return text if there else ""


class Forecast(NamedTuple):
    """The expected outcome for one object that is gone, and why it would not be as it was."""

    one: Lost
    verdict: Verdict
    why: str = ""


def forecast(
    store: ObjectStore, gone: Sequence[Lost], copies: BackupCopies | None
) -> list[Forecast]:
    """Foresee the outcomes for objects that are gone, by the requests that a restore would make.

    Returns:
        One for each of them, in their order.
    """
    kind = store.recovery().kind
    # Some may be left after versioning ended.
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
    """Foresee the outcomes for objects that nobody could read from the store, by their backup."""
    asked = [
        e.one.key
        for e in ends
        if (e.verdict not in SOURCES or e.why.startswith(ARCHIVED)) and e.one.key in copies.etags
    ]
    try:
        there = look_up(copies.proof.store, asked)
    except (StorageError, ConfigurationError) as error:
        why = f"the backup could not be looked at: {error}"
        return [e._replace(verdict="not_known", why=why) if e.one.key in asked else e for e in ends]
    return thread_map(
        lambda e: _by_copy(e, there[e.one.key], copies) if e.one.key in there else e, ends, THREADS
    )


def _by_copy(end: Forecast, copy: ObjectInfo | None, copies: BackupCopies) -> Forecast:
    """Foresee the outcome for an object, by its copy in a backup."""
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
