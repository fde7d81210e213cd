"""Lakes that were swept, and what a restore tells of them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from lakegc_assets.recovery.making import make_backup
from lakegc_assets.restore.choosing import Choice
from lakegc_assets.run.artifacts import Manifest
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, STAGES, Marked, SmallLake
from lakegc_assets_tests.recovery.conftest import Place

ALL = Choice(everything=True)


def contents(lake: SmallLake, addresses: set[str] | frozenset[str]) -> Mapping[str, bytes]:
    return {address: (lake.objects / address).read_bytes() for address in addresses}


def age(lake: SmallLake, addresses: set[str] | frozenset[str]) -> None:
    """Copies are as young as they are: let a month pass for them."""
    for address in addresses:
        path = lake.objects / address
        content = path.read_bytes()
        # Other copies of the lake have the same files under other names.
        path.unlink()
        path.write_bytes(content)
        os.utime(path, (time.time() - 30 * 86_400,) * 2)


def mark(ctx: RunContext) -> RunContext:
    for stage in STAGES:
        stage(ctx)
    return ctx


def candidates(ctx: RunContext) -> set[str]:
    found = ctx.root.attempt(REPOSITORY, ctx.run).read("deletion_candidates")
    return set(found["address"].to_pylist())


def outcomes(ctx: RunContext, manifest: Manifest) -> dict[str, tuple[str, str | None]]:
    rows = ctx.root.attempt(REPOSITORY, ctx.run).read(manifest.asset).to_pylist()
    assert len(rows) == len({row["address"] for row in rows}) == manifest.rows
    return {row["address"]: (row["outcome"], row["source"]) for row in rows}


Swept = tuple[Place, Mapping[str, bytes]]


@pytest.fixture(params=["trash", "backup"])
def swept(request: pytest.FixtureRequest, place: Place, marked: Marked) -> Swept:
    """A lake whose mark was swept, and what was swept: it is in the trash, or in the backup."""
    if request.param == "backup":
        return backed_up(place, marked)
    before = contents(place.lake, marked.candidates)
    found = replace(place, url=None)  # type: ignore[arg-type] # no backups
    sweep(found.context())
    assert place.lake.keys() == marked.live
    return found, before


def backed_up(place: Place, marked: Marked) -> Swept:
    """The same, where only the backup has anything."""
    before = contents(place.lake, marked.candidates)
    make_backup(place.context())
    sweep(place.context(trash_days=timedelta(0)))
    assert place.lake.keys() == marked.live
    return place, before
