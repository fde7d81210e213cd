"""Brings deleted objects back: from what the store kept of them, else from a backup.

Nothing that is at a key is ever touched, whatever it is, also if it is written while this runs: the
store itself is asked to write only where nothing is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.run.tasks import each
from lakegc_assets.storage.base import Lost, ObjectStore, UndeleteOutcome
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import (
    ChangedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)

#: Where an object came back from.
KEPT: Final = "store"
BACKUP: Final = "backup"
#: One object in so many came back, where a listing costs less than asking for each of them.
_SPARSE: Final = 20
#: How many objects are listed before it shows how close together they lie, and how few are asked.
_GLANCE: Final = 1000
_FEW: Final = 4
_THREADS: Final = 16
#: What these mean of a copy in a backup.
_CODES: Final[dict[type[Exception], str]] = {
    ObjectNotFoundError: "CopyMissing",
    ChangedError: "CopyChanged",
}


@dataclass(frozen=True)
class Brought:
    """What became of one object that was to come back.

    Attributes:
        key: as it was asked for.
        outcome: ``already_there`` where something is at the key, whatever it is.
        source: ``KEPT`` or ``BACKUP`` where it was restored.
        error_code: what went wrong when failed: the store's code, or a name of ours.
        detail: for people.
    """

    key: str
    outcome: Literal["restored", "already_there", "not_kept", "failed"]
    source: str | None = None
    error_code: str | None = None
    detail: str | None = None


@dataclass(frozen=True)
class Copies:
    """Verified copies of objects.

    Attributes:
        store: that keeps them under the same keys.
        etags: of the copies, by key; what has none was not copied.
    """

    store: ObjectStore
    etags: Mapping[str, str]


def bring_back(
    store: ObjectStore, objects: Sequence[Lost], copies: Copies | None = None
) -> list[Brought]:
    """Bring objects back where nothing is now. What goes wrong is an outcome, never an exception.

    Args:
        store: rooted at the storage namespace.
        objects: as they were marked, each key once.
        copies: where the store kept nothing, or cannot tell.

    Returns:
        Exactly one outcome for each object, in their order.
    """
    if not objects:
        return []
    told = store.undelete_many(objects)
    sizes = _sizes(store, [t.key for t in told if t.outcome in {"restored", "already_there"}])
    brought = [_verified(one, t, sizes) for one, t in zip(objects, told, strict=True)]
    wanting = [at for at, one in enumerate(brought) if one.outcome in {"not_kept", "failed"}]
    found = each(
        lambda at: _else_copied(store, objects[at], brought[at], copies), wanting, _THREADS
    )
    for at, one in zip(wanting, found, strict=True):
        brought[at] = one
    return brought


def _verified(one: Lost, told: UndeleteOutcome, sizes: Mapping[str, int | None] | str) -> Brought:
    """What the store says of an object, where what it gave back is what was marked."""
    if told.outcome == "already_there":
        size = None if isinstance(sizes, str) else sizes.get(one.key)
        return _found(one, one.size if size is None else size)
    if told.outcome != "restored":
        return Brought(one.key, told.outcome, None, told.error_code, told.detail)
    if isinstance(sizes, str):
        return Brought(one.key, "failed", None, "NotVerified", sizes)
    if sizes.get(one.key) != one.size:
        detail = f"it came back with {sizes.get(one.key)} bytes, and had {one.size}"
        return Brought(one.key, "failed", None, "NotVerified", detail)
    return Brought(one.key, "restored", KEPT)


def _sizes(store: ObjectStore, keys: Sequence[str]) -> Mapping[str, int | None] | str:
    """The sizes of objects, None for what is not there; or why nobody can tell."""
    try:
        return sizes_of(store, keys)
    except (StorageError, ConfigurationError) as error:
        return f"it could not be looked at: {error}"


def sizes_of(store: ObjectStore, keys: Sequence[str]) -> Mapping[str, int | None]:
    """The sizes of objects in bytes, None for what is not there.

    Args:
        store: that they may be in.
        keys: each once.

    Raises:
        StorageError: the store did not answer.
    """
    found: dict[str, int | None] = dict(_listed(store, keys)) if len(keys) > _FEW else {}
    unlisted = [key for key in keys if key not in found]
    return found | dict(zip(unlisted, each(partial(_size, store), unlisted, _THREADS), strict=True))


def _listed(store: ObjectStore, keys: Sequence[str]) -> dict[str, int]:
    """Sizes that a listing of the keys' stretch shows, as far as it is worth it."""
    wanted, listed = pa.array(keys, pa.string()), 0
    found: dict[str, int] = {}
    # All keys in between begin like the first one.
    for page in store.list(start_after=min(keys)[:-1] or None, end_before=max(keys) + "\0"):
        listed += page.num_rows
        rows = page.filter(pc.is_in(page["key"], wanted))
        found |= dict(zip(rows["key"].to_pylist(), rows["size"].to_pylist(), strict=True))
        if listed >= _GLANCE and len(found) * _SPARSE < listed:
            break
    return found


def _size(store: ObjectStore, key: str) -> int | None:
    try:
        return store.head(key).size
    except ObjectNotFoundError:
        return None


def _found(one: Lost, size: int) -> Brought:
    """An object at whose key something is already; if that is another one, it is said."""
    other = f"another object is there: it has {size} bytes, and {one.size} were marked"
    return Brought(one.key, "already_there", detail=None if size == one.size else other)


def _else_copied(store: ObjectStore, one: Lost, told: Brought, copies: Copies | None) -> Brought:
    """An object that the store did not give back: there after all, or copied from a backup."""
    try:
        # Before any of its bytes is read.
        there = _size(store, one.key)
        if there is not None:
            return told if told.error_code == "NotVerified" else _found(one, there)
        if copies is None or one.key not in copies.etags:
            return told
        copy_object(
            copies.store, one.key, store, one.key,
            size=one.size, etag=copies.etags[one.key], if_absent=True,
        )  # fmt: skip
    except PreconditionFailedError:
        return Brought(one.key, "already_there")
    except (StorageError, ConfigurationError) as error:
        code = _CODES.get(type(error)) or type(error).__name__.removesuffix("Error")
        return Brought(one.key, "failed", None, code, str(error))
    return Brought(one.key, "restored", BACKUP)
