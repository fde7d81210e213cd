"""Whether a store gives back what it keeps of deleted objects, found out with one of our own.

Settings say what a store keeps; whether these credentials may have it back, and whether it is the
same then, only shows when it is tried.
"""

from __future__ import annotations

import secrets
from typing import Final

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.codes import error_class
from lakegc_assets.storage.errors import (
    ObjectNotFoundError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
)
from lakegc_assets.storage.values import Lost, Recovery, UndeleteOutcome

_SILENT: Final = {StoreThrottledError, StoreUnavailableError}


def probe_recovery(store: ObjectStore, folder: str, trash: str | None) -> Recovery:
    """Find out what of deleted objects can be had back: delete one of our own, and bring it back.

    What versioned stores keep of that object stays with them, some bytes for each probe: versions
    are never removed here.

    Args:
        store: to be tried.
        folder: key prefix of our object, ending in ``/``.
        trash: as deletes will have it.

    Returns:
        What can be relied on: ``nothing`` where the object did not come back, whatever the settings
        say, and ``unknown`` where the store did not answer.

    Raises:
        StorageError: nothing can be written.
    """
    told = store.recovery()
    if told.kind == "nothing":
        return told
    key, content = f"{folder}undelete-{secrets.token_hex(8)}", secrets.token_bytes(16)
    etag, kept = store.put(key, content), None
    try:
        (deleted,) = store.delete_many([key], trash=trash)
        kept = deleted.version if told.kind == "trash" else None
        if deleted.outcome != "deleted":
            return _not_back(
                store, told, deleted.error_code, f"{deleted.outcome}: {deleted.detail}"
            )
        (back,) = store.undelete_many([Lost(key, len(content), etag, deleted.version)])
        return _judged(store, told, back, content)
    except ObjectNotFoundError as error:
        return _not_back(store, told, None, str(error))
    except StorageError as error:
        return _unknown(store, str(error))
    finally:
        store.delete_many([key] if kept is None else [key, kept])


def _judged(store: ObjectStore, told: Recovery, back: UndeleteOutcome, content: bytes) -> Recovery:
    if back.outcome != "restored":
        return _not_back(store, told, back.error_code, f"{back.outcome}: {back.detail}")
    if store.get(back.key) != content:
        return _not_back(store, told, None, "it had another content")
    if told.kind != "unknown":
        return told
    notice = f"deleted objects come back, for how long is not known ({told.notice})"
    return Recovery("versions", None, notice)


def _not_back(store: ObjectStore, told: Recovery, code: str | None, detail: str) -> Recovery:
    if error_class(code or "") in _SILENT:
        return _unknown(store, f"{code}: {detail}")
    notice = f"{store.url}: a deleted object did not come back ({detail}); {told.notice}"
    return Recovery("nothing", None, notice)


def _unknown(store: ObjectStore, why: str) -> Recovery:
    notice = f"{store.url}: whether deleted objects come back could not be found out ({why})"
    return Recovery("unknown", None, notice)
