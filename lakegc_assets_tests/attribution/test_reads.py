"""Attribution and forecast read no range, and attribution plans and computes little: counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lakegc_assets.attribution.attribution import ASSET, attribute
from lakegc_assets.engine.database import Database
from lakegc_assets.engine.embedded import EmbeddedSession
from lakegc_assets.forecast.forecast import forecast
from lakegc_assets.forecast.proposed_rules import Change
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.errors import StoreUnavailableError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets_tests.lake import STAGES, SmallLake
from lakegc_assets_tests.marked import few_tasks, lake
from lakegc_assets_tests.sessions import Session

__all__ = ["few_tasks", "lake"]


def _recorded(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[Any]:
    """The first argument of each call of a method, which goes on as it is."""
    calls: list[Any] = []
    original = getattr(owner, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(args[0])
        return original(self, *args, **kwargs)

    monkeypatch.setattr(owner, name, method)
    return calls


def _planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the relations whose SQL is made, each as often as it is."""
    planned: list[str] = []
    original = Database.apply

    def apply(self: Database, rule: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        def noted(*some: Any, **more: Any) -> Any:
            planned.append(rule.__name__)
            return rule(*some, **more)

        return original(self, noted_as(rule, noted), args, kwargs)

    known: dict[Callable[..., Any], Callable[..., Any]] = {}

    def noted_as(rule: Callable[..., Any], noted: Callable[..., Any]) -> Callable[..., Any]:
        # What is planned is known by the relation: one stand-in for each of them.
        return known.setdefault(rule, noted)

    monkeypatch.setattr(Database, "apply", apply)
    return planned


def test_an_attribution_takes_eight_queries_and_plans_each_relation_once(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = lake.context(spark)
    again = replace(ctx, run="again")
    for stage in STAGES:
        stage(again)
    planned = _planned(monkeypatch)
    computed = _recorded(monkeypatch, EmbeddedSession, "compute")
    attribute(ctx)
    # The groups of ranges, folders, what entries name, the cells without holders, the ranges that
    # hold one object of each, the cells with holders, totals of their classes, sizes of commits.
    assert len(computed) == 8
    # Totals are made by the columns of a cell, by class and by metarange; ranges and metaranges are
    # united.
    assert Counter(planned) == {"totals": 3, "union_all": 2} | dict.fromkeys(
        ("range_groups", "numbered_folders", "named_objects", "needs", "exceptions", "classified",
         "with_reasons", "without_needs", "with_needs", "of_one_class", "cells",
         "holding_ranges", "holders", "with_holders", "commit_sizes"),
        1,
    )  # fmt: skip
    planned.clear()
    attribute(again)
    # No time of a run is a part of a plan.
    assert planned == []


def test_files_between_its_steps_are_gone_when_it_ends_and_when_it_fails(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = lake.context(spark)
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    written: list[str] = []
    original = EmbeddedSession.write

    def write(self: EmbeddedSession, frame: Any, url: str, folder: str, *more: Any) -> Any:
        written.append(folder)
        if folder == f"{ASSET}/data/" and len(written) == 5:
            raise StoreUnavailableError("it does not answer")
        return original(self, frame, url, folder, *more)

    monkeypatch.setattr(EmbeddedSession, "write", write)
    with pytest.raises(StoreUnavailableError):
        attribute(ctx)
    assert [*attempt.store().infos(f"{ASSET}/")] == []
    assert len(attribute(ctx).parts["data"]) == 1
    assert len({folder for folder in written if "/working-" in folder}) == 8
    assert not [one.key for one in attempt.store().infos(f"{ASSET}/working-")]


@pytest.mark.parametrize("work", [attribute, lambda ctx: forecast(ctx, Change(default=1))])
def test_no_table_of_the_repository_is_read_for_it(
    lake: SmallLake,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[RunContext], object],
) -> None:
    got = _recorded(monkeypatch, LocalStore, "get")
    streamed = _recorded(monkeypatch, LocalStore, "stream")
    work(lake.context(spark))
    assert got
    assert not [
        key for key in [*got, *streamed] if key.startswith("_lakefs/") and "/" not in key[8:]
    ]
