"""After a sweep: is anything gone that is needed? Then an alarm, and a hold on all sweeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame

from lakegc_assets.errors import IntegrityError, LakegcError
from lakegc_assets.mark.commits import Liveness
from lakegc_assets.mark.ranges import spread
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.context import Connections, RunContext
from lakegc_assets.sweep.delta import certainly_alive, take_delta_mark
from lakegc_assets.sweep.hold import HOLD, read_hold, write_hold
from lakegc_assets.sweep.holders import Holder, holders_of
from lakegc_assets.sweep.ledger import ASSET

#: How many objects a task looks up, at least.
_LOOKUPS_EACH = 100
#: How many objects an alarm names, and how many the message of its error.
_NAMED = 100
_SHOWN = 20


def raise_alarm_if_needed(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    chain: Mapping[str, Manifest],
    candidates: DataFrame,
    sweep: str,
) -> None:
    """Compute the live set once more, and hold all sweeps if it needs what is gone.

    All candidates are looked at, not only those that the ledger calls deleted: a sweep that was
    killed between a delete and its record may have found the object alive when it was run again.

    Args:
        ctx: the run.
        connections: how to reach lakeFS and the store.
        attempt: the artifacts of the mark, and of its sweep.
        chain: the manifests of the mark.
        candidates: what the mark names.
        sweep: short name of the sweep, for its files.

    Raises:
        IntegrityError: something is gone and needed; what, and who needs it.
    """
    folder = f"{sweep}/after"

    def keep(frame: DataFrame, part: str) -> DataFrame:
        return attempt.keep(ctx.spark, ASSET, frame, f"{folder}/{part}")

    delta = take_delta_mark(ctx, chain, attempt, candidates, keep)
    alive = certainly_alive(delta.spared)
    partitions = ctx.settings.sweep_num_partitions
    missing = spread(alive, partitions, _LOOKUPS_EACH).mapInArrow(
        partial(_missing, connections), "address string, why string"
    )
    missing = keep(missing, "missing")
    count = missing.count()
    if count == 0:
        return
    what: dict[str, object] = {
        "run": ctx.run,
        "at": ctx.clocks.now().isoformat(),
        "alarm": f"{count} objects of mark {ctx.run!r} are gone, and are needed",
        "all": attempt.data_url(ASSET, f"{folder}/missing"),
    }
    with suppress(LakegcError):
        # Of another sweep, since this one began without: what that lost is to be restored, too.
        if (earlier := read_hold(connections.store())) is not None:
            what["earlier"] = earlier
    named = {row["address"]: row["why"] for row in missing.orderBy("address").take(_NAMED)}
    # First without saying who needs them: that takes time, and may fail.
    held = _hold(connections, what | {"objects": _objects(named, {})})
    holders: dict[str, Holder] = {}
    if delta.liveness is not None:
        ranges = attempt.read(ctx.spark, ASSET, f"{folder}/new_ranges")
        holders = _holders(ctx, connections, delta.liveness, ranges, named)
    held = _hold(connections, what | {"objects": _objects(named, holders)}) or held
    url = f"{connections.namespace_url}/{HOLD}"
    then = f"No sweep of {ctx.repository!r} starts until {url} is removed"
    if not held:
        then = f"{url} COULD NOT BE WRITTEN: let nobody sweep {ctx.repository!r} until then"
    raise IntegrityError(
        f"{what['alarm']}: {_shown(named, holders)}. Restore them from a backup or from object "
        f"versions. {then}"
    )


def _hold(connections: Connections, what: Mapping[str, object]) -> bool:
    try:
        write_hold(connections.store(), what)
    except LakegcError:
        return False
    return True


def _holders(
    ctx: RunContext,
    connections: Connections,
    liveness: Liveness,
    ranges: DataFrame,
    named: Mapping[str, str],
) -> dict[str, Holder]:
    """Who needs the objects; nobody where that cannot be found out now."""
    try:
        return holders_of(ctx, connections, liveness, ranges, named)
    except Exception as error:  # noqa: BLE001 - whatever it is, the alarm is raised
        ctx.log.warning("who needs what is gone cannot be found out: %s", error)
        return {}


def _shown(named: Mapping[str, str], holders: Mapping[str, Holder]) -> list[str]:
    """The first of the objects, for the message of an error."""
    return [
        f"{address} ({why}: {holders[address]})" if address in holders else f"{address} ({why})"
        for address, why in list(named.items())[:_SHOWN]
    ]


def _objects(named: Mapping[str, str], holders: Mapping[str, Holder]) -> list[dict[str, object]]:
    return [
        {"address": address, "why": why} | (asdict(holders[address]) if address in holders else {})
        for address, why in named.items()
    ]


def _missing(
    connections: Connections, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Of some objects, those that the store does not have."""
    store = connections.store()
    for batch in batches:
        gone = [not store.exists(address) for address in batch["address"].to_pylist()]
        yield batch.filter(pa.array(gone, pa.bool_()))
