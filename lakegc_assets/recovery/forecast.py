"""What would come back of objects that are gone, and from where; nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.recovery.undeletion import Copies, Present, present
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.values import Lost

#: Where objects may come back from, as a restore tells them, in the order in which they are named.
SOURCES: Final = ("versions", "trash", "soft_delete", "backup")
_THREADS: Final = 16

Verdict = Literal["versions", "trash", "soft_delete", "backup", "lost", "not_known"]


class Forecast(NamedTuple):
    """What would become of one object that is gone, and why it would not come back."""

    one: Lost
    verdict: Verdict
    why: str = ""


def _source(store: ObjectStore) -> Verdict:
    """What a store keeps objects in; versions may be left where none are made any more."""
    kind = store.recovery().kind
    return "trash" if kind == "trash" else "soft_delete" if kind == "soft_delete" else "versions"


def forecast(store: ObjectStore, gone: Sequence[Lost], copies: Copies | None) -> list[Forecast]:
    """What would become of objects that are gone: as a restore would ask for them.

    Args:
        store: rooted at the storage namespace.
        gone: each key once.
        copies: of the backup of their mark, where there is one.

    Returns:
        One for each of them, in their order.
    """
    kept = _source(store)
    told = store.kept_many(gone) if gone else []
    ends = []
    for one, outcome in zip(gone, told, strict=True):
        if outcome.outcome in {"restored", "already_there"}:
            ends.append(Forecast(one, kept))
        else:
            unclear: Verdict = "lost" if outcome.outcome == "not_kept" else "not_known"
            ends.append(Forecast(one, unclear, outcome.detail or outcome.error_code or ""))
    return ends if copies is None else _else_in_backup(ends, copies)


def _else_in_backup(ends: Sequence[Forecast], copies: Copies) -> list[Forecast]:
    """What the backup makes of objects that the store does not give back."""
    asked = [e.one.key for e in ends if e.verdict not in SOURCES and e.one.key in copies.etags]
    try:
        there = present(copies.store, asked) if asked else {}
    except (StorageError, ConfigurationError) as error:
        why = f"the backup could not be looked at: {error}"
        return [e._replace(verdict="not_known", why=why) if e.one.key in asked else e for e in ends]
    return thread_map(
        lambda e: _by_copy(e, there[e.one.key], copies) if e.one.key in there else e, ends, _THREADS
    )


def _by_copy(end: Forecast, copy: Present | None, copies: Copies) -> Forecast:
    """What a copy in a backup makes of an object."""
    one = end.one
    if copy is None:
        return end._replace(why="its copy in the backup is gone")
    try:
        recorded = copies.etags[one.key]
        if copy == (one.size, recorded) or copies.proof.etag(one, recorded) is not None:
            return Forecast(one, "backup")
    except (StorageError, ConfigurationError) as error:
        return Forecast(one, "not_known", str(error))
    return Forecast(one, "lost", "its copy in the backup is not the one that was verified")
