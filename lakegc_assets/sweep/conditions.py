"""Probes, with objects of our own, whether a store honours the condition of a delete.

Many stores ignore ``If-Match`` on a delete without a word, some honour it for single deletes only.
So before a sweep relies on it, objects below ``_lakefs/retention/gc/lakegc/`` are deleted with an
etag that they have no more: if they go, the condition means nothing there.
"""

from __future__ import annotations

import secrets
from typing import Literal

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import (
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
    error_class,
)
from lakegc_assets.storage.values import DeleteOutcome
from lakegc_assets.sweep.lease_record import PROBES

#: ``bulk``: calls with many keys honour it; ``single``: only those with one; ``none``: it is
#: ignored, so what was rewritten must be found by a listing.
Condition = Literal["bulk", "single", "none"]


def probe_conditions(store: ObjectStore) -> Condition:
    """Find out which calls of a store honour the etag that a key must still have.

    Args:
        store: rooted at the storage namespace, whose lease is held.

    Raises:
        StorageError: the store did not answer, so that nothing is known.
    """
    _remove_probes(store)
    folder = f"{PROBES}{secrets.token_hex(8)}/"
    try:
        if _honoured(store, f"{folder}bulk", singly=False):
            return "bulk"
        return "single" if _honoured(store, f"{folder}single", singly=True) else "none"
    finally:
        _remove_probes(store)


def _honoured(store: ObjectStore, key: str, *, singly: bool) -> bool:
    """Return whether one call spares an object with another etag, and deletes one with this."""
    changed, same = f"{key}-changed", f"{key}-same"
    etags = {changed: store.put(changed, b"first"), same: store.put(same, b"stays")}
    store.put(changed, b"second")
    outcomes = {o.key: o for o in store.delete_many(etags, etags, singly=singly)}
    for outcome in outcomes.values():
        _require_answer(store, outcome)
    return (
        outcomes[changed].outcome == "spared"
        and outcomes[same].outcome == "deleted"
        and store.exists(changed)
        and not store.exists(same)
    )


def _require_answer(store: ObjectStore, outcome: DeleteOutcome) -> None:
    code = outcome.error_code or ""
    if error_class(code) in {StoreThrottledError, StoreUnavailableError}:
        raise StorageError(
            f"{store.url}: whether deletes can be conditional cannot be found out: {code} "
            f"({outcome.detail}). Sweep again later",
        )


def _remove_probes(store: ObjectStore) -> None:
    """Remove what this probe, and any that was killed, left behind; it harms nobody if it stays."""
    left = {
        key: etag
        for batch in store.list(PROBES)
        for key, etag in zip(batch["key"].to_pylist(), batch["etag"].to_pylist(), strict=True)
    }
    store.delete_many(left, left)
