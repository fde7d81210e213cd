"""What a restore would bring back, from where, and what is lost; nothing is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.mark.published import read_marked
from lakegc_assets.recovery.bringing_back import Copies, Present, present
from lakegc_assets.recovery.proof import Proof
from lakegc_assets.restore.choosing import Choice, chosen
from lakegc_assets.restore.restore import published, usable
from lakegc_assets.restore.task import BATCH
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.values import Lost
from lakegc_assets.sweep.lost import as_lost, copies_of, lost_objects

#: Where objects may come back from, as a restore tells them, in the order in which they are named.
SOURCES: Final = ("versions", "trash", "soft_delete", "backup")
#: Of what is lost so many are named.
_NAMED: Final = 100
_THREADS: Final = 16

Verdict = Literal["versions", "trash", "soft_delete", "backup", "lost", "not_known"]


class _Forecast(NamedTuple):
    """What would become of one object that is gone, and why it would not come back."""

    one: Lost
    verdict: Verdict
    why: str = ""


def plan(ctx: RunContext, choice: Choice) -> dict[str, Any]:
    """What a restore would do, as JSON values; it changes nothing, and needs no lease.

    Raises:
        RefusedError: a restore would be refused.
        StorageError: the store does not say what is there.
    """
    client, connections = ctx.connect()
    attempt, chain = published(ctx, connections)
    marked = read_marked(attempt, chain["deletion_candidates"])
    rows = chosen(client, ctx.repository, connections.namespace(), marked, choice)
    backup, problems = usable(ctx, attempt, chain)
    wanted = lost_objects(attempt, rows, backup)
    store, found = connections.store(), list[_Forecast]()
    kept = _source(store)
    proof = None if backup is None else Proof(backup.store)
    for at in range(0, wanted.num_rows, BATCH):
        batch = wanted.slice(at, BATCH)
        there = present(store, batch["address"].to_pylist())
        absent = pa.array([key for key, one in there.items() if one is None], pa.string())
        gone = batch.filter(pc.is_in(batch["address"], absent))
        found += _forecast(store, kept, as_lost(gone), copies_of(gone, proof))
    back = [one for one in found if one.verdict in SOURCES]
    return {
        "repository": ctx.repository,
        "run": ctx.run,
        "choice": choice.to_json(),
        "chosen": {"objects": wanted.num_rows, "bytes": pc.sum(wanted["size"]).as_py() or 0},
        "already_there": {
            "objects": wanted.num_rows - len(found),
            "bytes": (pc.sum(wanted["size"]).as_py() or 0) - sum(one.one.size for one in found),
        },
        "would_come_back": {**_total(back), "from": _by_source(back)},
        **{
            name: {**_total(some), "some": _named(some)}
            for name in ("lost", "not_known")
            for some in [[one for one in found if one.verdict == name]]
        },
        "store": store.recovery().notice,
        "warnings": problems,
    }


def _source(store: ObjectStore) -> Verdict:
    """What a store keeps objects in; versions may be left where none are made any more."""
    kind = store.recovery().kind
    return "trash" if kind == "trash" else "soft_delete" if kind == "soft_delete" else "versions"


def _forecast(
    store: ObjectStore, kept: Verdict, gone: Sequence[Lost], copies: Copies | None
) -> list[_Forecast]:
    """What would become of objects that are gone: as a restore would ask for them."""
    told = store.kept_many(gone) if gone else []
    ends = []
    for one, outcome in zip(gone, told, strict=True):
        if outcome.outcome in {"restored", "already_there"}:
            ends.append(_Forecast(one, kept))
        else:
            unclear: Verdict = "lost" if outcome.outcome == "not_kept" else "not_known"
            ends.append(_Forecast(one, unclear, outcome.detail or outcome.error_code or ""))
    return ends if copies is None else _else_in_backup(ends, copies)


def _else_in_backup(ends: Sequence[_Forecast], copies: Copies) -> list[_Forecast]:
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


def _by_copy(end: _Forecast, copy: Present | None, copies: Copies) -> _Forecast:
    """What a copy in a backup makes of an object."""
    one = end.one
    if copy is None:
        return end._replace(why="its copy in the backup is gone")
    try:
        recorded = copies.etags[one.key]
        if copy == (one.size, recorded) or copies.proof.etag(one, recorded) is not None:
            return _Forecast(one, "backup")
    except (StorageError, ConfigurationError) as error:
        return _Forecast(one, "not_known", str(error))
    return _Forecast(one, "lost", "its copy in the backup is not the one that was verified")


def _total(found: Sequence[_Forecast]) -> dict[str, int]:
    return {"objects": len(found), "bytes": sum(one.one.size for one in found)}


def _by_source(found: Sequence[_Forecast]) -> dict[str, int]:
    counts = Counter(one.verdict for one in found)
    return {source: counts[source] for source in SOURCES}


def _named(found: Sequence[_Forecast]) -> list[dict[str, str]]:
    return [{"address": one.one.key, "why": one.why} for one in found[:_NAMED]]
