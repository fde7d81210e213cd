"""Explains one object of a mark: the verdict, and its sweep, alarms and pins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakegc_assets.estate.run_state import (
    DELETED_OR_MISSING,
    Guards,
    deleted_or_missing,
    no_sweep,
    read_guards,
)
from lakegc_assets.mark.explanation import Explanation, explain_object, row_of
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.pins import among, pinned
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.alarm import MISSING
from lakegc_assets.sweep.ledger import ASSET


def explain(ctx: RunContext, address: str) -> Explanation:
    """Explain one object of the mark and the sweep of a run, by its address in any form.

    Raises:
        RefusedError: the mark is unknown, or did not finish.
        IntegrityError: its artifacts are damaged or incomplete.
    """
    found = explain_object(ctx, address)
    if found.verdict != "candidate":
        return found
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    ctx = ctx.connect()
    facts, because = dict(found.facts), [found.because]
    if (swept := _swept(ctx, attempt, found.address)) is not None:
        facts |= {"outcome": swept["outcome"], "detail": swept["detail"]}
        detail = f" ({swept['detail']})" if swept["detail"] else ""
        because.append(f"the sweep: {swept['outcome']}{detail}")
    guards = read_guards(ctx.connections.namespace_url, ctx.root.stores)
    if (needed := _needed(attempt, guards, found.address)) is not None:
        facts["needed"] = needed
        because.append(f"it is gone, and it is needed: {needed}. {no_sweep(ctx.repository)}")
    held = among(pinned(ctx.connections.store()), pa.chunked_array([[found.address]]))
    if held.num_rows:
        facts["pinned"] = held["why"][0].as_py()
        because.append(facts["pinned"])
    return replace(found, because="; ".join(because), facts=facts)


def _swept(ctx: RunContext, attempt: AttemptArtifacts, address: str) -> dict[str, Any] | None:
    """The record of an object in a sweep, finished or not; None if there is none."""
    if attempt.has(ASSET):
        row = row_of(ctx, attempt, address, ASSET)
        rows = pa.Table.from_pylist([] if row is None else [row], ledger.SWEPT)
    else:
        recorded = ledger.read(attempt)
        rows = recorded.filter(pc.equal(recorded["address"], address))
    if not rows.num_rows:
        return None
    found: dict[str, Any] = rows.slice(0, 1).to_pylist()[0]
    if not found["detail"] and deleted_or_missing(attempt, rows).num_rows:
        found["detail"] = DELETED_OR_MISSING
    return found


def _needed(attempt: AttemptArtifacts, guards: Guards, address: str) -> str | None:
    """The reason why an object is needed, as the alarm gives it; None if it does not name it."""
    if not guards.hold_is_about(attempt.run):
        return None
    return next((why for named, why in _named(attempt, guards) if named == address), None)


def _named(attempt: AttemptArtifacts, guards: Guards) -> Iterator[tuple[str, str]]:
    """Objects that an alarm names, with reasons: the first from its hold, all from artifacts."""
    objects = (guards.hold or {}).get("objects")
    for one in objects if isinstance(objects, list) else ():
        if isinstance(one, dict):
            yield str(one.get("address")), str(one.get("why"))
    store = attempt.store()
    for prefix in store.list_prefixes(f"{ASSET}/").prefixes:
        for batch in store.list(f"{prefix}{MISSING}"):
            for key in batch["key"].to_pylist():
                rows = pq.read_table(pa.BufferReader(store.get(key)))
                yield from zip(rows["address"].to_pylist(), rows["why"].to_pylist(), strict=True)
