"""Prunes a backup, as an operator does who comes later."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from lakegc_assets.recovery.backup_pruning import Pruning
from lakegc_assets.recovery.copies import OBJECTS, scratch_space
from lakegc_assets.recovery.liveness import needed_now
from lakegc_assets.run.clocks import Clocks
from lakegc_assets.run.context import RunContext
from lakegc_assets_tests.lake import REPOSITORY, RUN
from lakegc_assets_tests.recovery.conftest import Place

NAME = f"{REPOSITORY}/{RUN}"
MONTH = timedelta(days=30)


@dataclass(frozen=True)
class Later(Clocks):
    """This machine's clock, some days on."""

    days: float = 31

    def now(self) -> datetime:
        return super().now() + timedelta(days=self.days)


def pruning(place: Place, *names: str, **how: Any) -> Pruning:
    """A prune of all backups of a place, or of some, whatever their age, at this moment."""

    def context(_: str, run: str) -> RunContext:
        return place.context(run)

    return Pruning(context, place.root.stores, place.url, None, names, **how)


def prune(
    place: Place,
    *names: str,
    older_than: timedelta | None = MONTH,
    days: float = 31,
    dry_run: bool = False,
) -> dict[str, str]:
    """Why each backup stays; empty for those that go."""

    def context(repository: str, run: str) -> RunContext:
        ctx = replace(place.context(run), repository=repository, clocks=Later(days))
        return replace(ctx, settings=ctx.settings.changed(clock_skew_seconds=400 * 86_400))

    wanted = replace(pruning(place, *names), context=context, older_than=older_than)
    return {one.found.name: one.kept for one in replace(wanted, dry_run=dry_run).run()}


def needed(ctx: RunContext, objects: pa.Table) -> dict[str, str]:
    """Those of some objects (address, size) that are needed now, and why."""
    ctx = ctx.connect()
    with scratch_space(ctx) as space:
        asked = space.write_tables("asked", OBJECTS, [objects])
        tables = list(space.tables(needed_now(space, ctx.connections.namespace_url, asked)))
    return {row["address"]: row["why"] for table in tables for row in table.to_pylist()}


def left(place: Place) -> int:
    return sum(page.num_rows for page in place.store.list())
