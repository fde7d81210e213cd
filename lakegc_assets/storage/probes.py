"""Probes of a store's promises, made with objects of our own.

The promises: deleted objects can be restored, late deletes are refused, and a conditional delete
spares a changed object. Only a test shows that they hold for these credentials and this server.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final, Literal

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import (
    EXPIRED,
    ObjectNotFoundError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
    error_class,
)
from lakegc_assets.storage.http import seconds
from lakegc_assets.storage.values import DeleteOutcome, Lost, Recovery, UndeleteOutcome

_SILENT: Final = {StoreThrottledError, StoreUnavailableError}
#: Seconds between a probe and the end of its signature, before or after. A store whose servers'
#: clocks differ by more than this keeps no deadlines.
_MARGIN_S: Final = 30.0

#: ``bulk``: calls with many keys honour the condition; ``single``: only calls with one key do;
#: ``none``: it is ignored, so a listing must find the rewritten objects.
Condition = Literal["bulk", "single", "none"]


def probe_conditions(store: ObjectStore, folder: str) -> Condition:
    """Find out which deletes of a store honour an etag condition; the caller holds its lease.

    Everything below ``folder`` is removed, also from killed probes. Raises StorageError: no answer.
    """
    _remove_probes(store, folder)
    own = f"{folder}{secrets.token_hex(8)}/"
    try:
        if _honours(store, f"{own}bulk", singly=False):
            return "bulk"
        return "single" if _honours(store, f"{own}single", singly=True) else "none"
    finally:
        _remove_probes(store, folder)


def _honours(store: ObjectStore, key: str, *, singly: bool) -> bool:
    """Return whether a call spares an object with another etag, and deletes one with this etag."""
    changed, same = f"{key}-changed", f"{key}-same"
    etags = {changed: store.put(changed, b"first"), same: store.put(same, b"stays")}
    store.put(changed, b"second")
    outcomes = {o.key: o for o in store.delete_many(etags, etags, singly=singly)}
    for outcome in outcomes.values():
        _require_answer(store, outcome, "deletes can be conditional")
    return (
        outcomes[changed].outcome == "spared"
        and outcomes[same].outcome == "deleted"
        and store.exists(changed)
        and not store.exists(same)
    )


def _remove_probes(store: ObjectStore, folder: str) -> None:
    left = {one.key: one.etag for one in store.infos(folder)}
    refused = [one.key for one in store.delete_many(left, left) if one.refused]
    # Azure refuses a condition in a batch if the account keeps versions.
    if refused:
        store.delete_many(refused, left, singly=True)


def probe_deadlines(store: ObjectStore, folder: str, *, conditional: bool = False) -> bool:
    """Find out whether a store refuses late deletes, and accepts deletes in time.

    Our own objects below ``folder`` are gone afterwards. ``conditional`` deletes name an etag,
    which some stores refuse, or sign wrongly. Raises StorageError: no answer.
    """
    if not store.delete_deadlines():
        return False
    keys = [f"{folder}deadline-{secrets.token_hex(8)}-{number}" for number in range(2)]
    try:
        return all(
            _is_kept_by(store, keys, conditional=conditional, singly=singly)
            for singly in (False, True)
        )
    finally:
        store.delete_many(keys)


def _is_kept_by(store: ObjectStore, keys: list[str], *, conditional: bool, singly: bool) -> bool:
    """Return whether objects survive a late delete, and do not survive a delete in time."""

    def delete(expires_s: float) -> Sequence[DeleteOutcome]:
        outcomes = store.delete_many(
            keys, etags, singly=singly, expires_s=expires_s, since=store.server_time()
        )
        for outcome in outcomes:
            if outcome.error_code != EXPIRED:
                _require_answer(store, outcome, "deletes can have a deadline")
        return outcomes

    written = {key: store.put(key, b"tried") for key in keys}
    etags = written if conditional else None
    late = delete(-_MARGIN_S)
    if not all(outcome.error_code in {EXPIRED, "NotSent"} for outcome in late):
        return False
    if not all(map(store.exists, keys)):
        return False
    begun = seconds()
    in_time = delete(_MARGIN_S)
    if any(one.error_code == EXPIRED for one in in_time) and seconds() - begun >= _MARGIN_S:
        raise StorageError(
            f"{store.url}: it is not known whether deletes can have a deadline: one took longer "
            f"than {_MARGIN_S:.0f} s. Sweep again later"
        )
    return all(outcome.outcome == "deleted" for outcome in in_time)


def _require_answer(store: ObjectStore, outcome: DeleteOutcome, what: str) -> None:
    code = outcome.error_code or ""
    if error_class(code) in _SILENT:
        raise StorageError(
            f"{store.url}: it is not known whether {what}: {code} ({outcome.detail}). Sweep again "
            "later"
        )


def probe_recovery(store: ObjectStore, folder: str, trash: str | None) -> Recovery:
    """Find out whether deleted objects can be restored: delete an object of our own and restore it.

    Versioned stores retain some bytes of that object below ``folder`` for each probe. ``trash`` is
    the prefix that the deletes will use. Returns ``nothing`` if the object was not restored,
    whatever the settings say, and ``unknown`` if the store did not answer. Raises StorageError:
    nothing can be written.
    """
    settings = store.recovery()
    if settings.kind == "nothing":
        return settings
    key, content = f"{folder}undelete-{secrets.token_hex(8)}", secrets.token_hex(8).encode()
    etag, kept = store.put(key, content), None
    try:
        (deleted,) = store.delete_many([key], trash=trash)
        kept = deleted.version if settings.kind == "trash" else None
        answer: DeleteOutcome | UndeleteOutcome = deleted
        if deleted.outcome == "deleted":
            (answer,) = store.undelete_many([Lost(key, len(content), etag, deleted.version)])
        why = f"{answer.outcome}: {answer.detail}"
        if error_class(answer.error_code or "") in _SILENT:
            return Recovery.unknown(store.url, f"{answer.error_code}: {answer.detail}")
        if answer.outcome == "restored" and store.get(key) == content:
            if settings.kind != "unknown":
                return settings
            notice = f"deleted objects come back, for how long is not known ({settings.notice})"
            return Recovery("versions", None, notice)
        if answer.outcome == "restored":
            why = "it had another content"
    except ObjectNotFoundError as error:
        why = str(error)
    except StorageError as error:
        return Recovery.unknown(store.url, error)
    finally:
        store.delete_many([key] if kept is None else [key, kept])
    notice = f"{store.url}: a deleted object did not come back ({why}); {settings.notice}"
    return Recovery("nothing", None, notice)
