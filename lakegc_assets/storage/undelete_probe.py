"""A probe that a store gives back a deleted object, made with one of our own.

Its settings say what a store keeps; only a try shows that these credentials may have it back, and
that it is the same then.
"""

from __future__ import annotations

import secrets
from typing import Final

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import (
    ObjectNotFoundError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
    error_class,
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
    settings = store.recovery()
    if settings.kind == "nothing":
        return settings
    key, content = f"{folder}undelete-{secrets.token_hex(8)}", secrets.token_bytes(16)
    etag, kept = store.put(key, content), None
    try:
        (deleted,) = store.delete_many([key], trash=trash)
        kept = deleted.version if settings.kind == "trash" else None
        if deleted.outcome != "deleted":
            return _not_back(
                store, settings, deleted.error_code, f"{deleted.outcome}: {deleted.detail}"
            )
        (back,) = store.undelete_many([Lost(key, len(content), etag, deleted.version)])
        return _judged(store, settings, back, content)
    except ObjectNotFoundError as error:
        return _not_back(store, settings, None, str(error))
    except StorageError as error:
        return _unknown(store, str(error))
    finally:
        store.delete_many([key] if kept is None else [key, kept])


def _judged(
    store: ObjectStore, settings: Recovery, back: UndeleteOutcome, content: bytes
) -> Recovery:
    if back.outcome != "restored":
        return _not_back(store, settings, back.error_code, f"{back.outcome}: {back.detail}")
    if store.get(back.key) != content:
        return _not_back(store, settings, None, "it had another content")
    if settings.kind != "unknown":
        return settings
    notice = f"deleted objects come back, for how long is not known ({settings.notice})"
    return Recovery("versions", None, notice)


def _not_back(store: ObjectStore, settings: Recovery, code: str | None, detail: str) -> Recovery:
    if error_class(code or "") in _SILENT:
        return _unknown(store, f"{code}: {detail}")
    notice = f"{store.url}: a deleted object did not come back ({detail}); {settings.notice}"
    return Recovery("nothing", None, notice)


def _unknown(store: ObjectStore, why: str) -> Recovery:
    notice = f"{store.url}: whether deleted objects come back could not be found out ({why})"
    return Recovery("unknown", None, notice)
