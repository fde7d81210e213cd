"""Spares what lakeFS serves since the mark, and no list names, by entries in files of the mark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lakegc_assets.embedded.faults import Fault
from lakegc_assets.engine.datasets import read_part
from lakegc_assets.engine.session import Dataset
from lakegc_assets.mark import signatures
from lakegc_assets.mark.ranges import range_frame
from lakegc_assets.mark.reasons import CANDIDATES
from lakegc_assets.mark.signature_relations import SERVED
from lakegc_assets.sweep.delta import DeltaMarks
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, Marked, SmallLake, candidates
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.others import mark
from lakegc_assets_tests.sweep.outcomes import spared


def test_an_upload_that_equals_an_entry_of_a_range_that_is_not_read_again(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HEADs stay where they were, so the files of the mark are all that tells what looks alike."""
    dead, other, *_ = sorted(marked.groups["orphans"])
    size = (lake.objects / dead).stat().st_size
    lake.stage("main", "twin", lake.upload("main", "base", "x" * size), size)
    lake.commit("main")
    ctx = mark(lake, spark, publish=True)
    assert {dead, other} <= candidates(ctx)
    settings = replace(lake.server.lake.settings, faults=frozenset({Fault.SHADOWED_UPLOADS}))
    monkeypatch.setattr(lake.server.lake, "settings", settings)
    lake.stage("main", "twin", dead, size)
    assert not list(lake.client.diff_branch(REPOSITORY, "main"))

    read: list[str] = []

    def counted(*args: Any) -> Any:
        read.extend(args[2]["range_id"].to_pylist())
        return range_frame(*args)

    monkeypatch.setattr(signatures, "range_frame", counted)
    sweep(ctx)
    assert spared(lake, ctx.run) == {dead: SERVED}
    there = lake.keys()
    assert dead in there
    assert other not in there
    assert read == []


def test_paths_are_asked_for_anew_where_a_branch_has_moved_between_two_delta_marks(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first one asked for holds no path that looks alike since."""
    dead = min(marked.groups["orphans"])
    size = (lake.objects / dead).stat().st_size
    ctx = lake.context(spark).connect()
    attempt = ctx.root.attempt(REPOSITORY, ctx.run)
    chain = attempt.chain("gc_report", ctx.connections.namespace_url)
    deltas = DeltaMarks(ctx, chain, attempt, "x/")
    every = Dataset(attempt.store().url, chain["deletion_candidates"].parts["data"], CANDIDATES)
    assert not deltas.take(every, "first").spared.rows
    lake.stage("main", "twin", lake.upload("main", "base", "x" * size), size)
    lake.commit("main")
    settings = replace(lake.server.lake.settings, faults=frozenset({Fault.SHADOWED_UPLOADS}))
    monkeypatch.setattr(lake.server.lake, "settings", settings)
    lake.stage("main", "twin", dead, size)
    (part,) = deltas.take(every, "second").spared.parts
    (found,) = read_part(attempt.store(), part).to_pylist()
    assert (found["address"], found["why"]) == (dead, SERVED)
