"""Spares what lakeFS serves since the mark, and no list names, by entries in files of the mark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lakegc_assets.embedded.faults import Fault
from lakegc_assets.mark import signatures
from lakegc_assets.mark.ranges import range_frame
from lakegc_assets.mark.served import SERVED
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
