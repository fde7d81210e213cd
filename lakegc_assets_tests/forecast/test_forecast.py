"""A forecast of rules is what a mark under these rules names, object for object."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakegc_assets.checks.logged_commits import main_ancestries
from lakegc_assets.errors import ConfigurationError, RefusedError
from lakegc_assets.forecast import forecast as forecasts
from lakegc_assets.forecast.forecast import (
    ABOUT,
    AT_LEAST,
    AT_MOST,
    EXACT,
    Amount,
    Forecast,
)
from lakegc_assets.forecast.outlook import OUTLOOK, Outlook, look_out
from lakegc_assets.forecast.proposed_rules import Change
from lakegc_assets.retention.naive_active_commits import naive_active_commits
from lakegc_assets.retention.retain_rules import FOREVER, OfBranches, Retain, prefix_of
from lakegc_assets.retention.rules import MAX_DAYS, Rules
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked, SmallLake, running
from lakegc_assets_tests.mark.histories import History, candidates, mark
from lakegc_assets_tests.sessions import Session


def forecast(
    ctx: RunContext, change: Change, run: str | None = None
) -> tuple[Forecast, list[dict[str, Any]]]:
    """A forecast, and the outlook that it was made of."""
    rows: list[dict[str, Any]] = []

    def looking(*args: Any) -> Outlook:
        found = look_out(*args)
        frames = args[0].frames
        rows.extend(frames.collect(frames.read(found.objects), OUTLOOK, "a test").to_pylist())
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecasts, look_out.__name__, looking)
        found = forecasts.forecast(ctx, change, run)
    return found, rows


def named(rows: Sequence[dict[str, Any]], default: int, ctx: RunContext) -> set[str]:
    """What an outlook says that a mark with this default names."""
    attempt = ctx.root.attempt(REPOSITORY, ctx.run)
    cutoff = attempt.manifest("store_listing").cutoff
    return {
        row["address"]
        for row in rows
        if row["days"] > default and not row["unseen"] and row["last_modified"] < cutoff
    }


def test_without_a_change_it_is_what_the_mark_named(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    ctx = lake.context(spark)
    found, rows = forecast(ctx, Change())
    assert named(rows, 20, ctx) == marked.candidates
    size = sum(lake.objects.joinpath(one).stat().st_size for one in marked.candidates)
    assert (found.today.objects, found.today.bytes) == (len(marked.candidates), size)
    assert found.today == found.forecast == found.curve[20]
    assert (found.today.bound, found.notes, found.unverified.objects) == (EXACT, [], 0)
    assert (found.mark, found.rules) == (RUN, Rules(20, {"main": 10}))


def test_other_rules_keep_what_they_keep(lake: SmallLake, marked: Marked, spark: Session) -> None:
    """Of main the first commit was replaced 90 days ago, and the second 80."""
    ctx = lake.context(spark)
    found, rows = forecast(ctx, Change(branches={"main": 85}))
    groups = marked.groups
    assert named(rows, 20, ctx) == (groups["orphans"] | groups["given up"] | groups["replaced"])
    assert found.forecast.bound == EXACT
    longer, rows = forecast(ctx, Change(default=95))
    # Branches of main keep its commits. Of the deleted branch the mark was not told, and a longer
    # default would keep its commit.
    assert named(rows, 95, ctx) == groups["orphans"] | groups["given up"]
    assert longer.forecast.bound == AT_MOST
    assert "the mark was made with 20 days by default" in longer.notes[0]
    assert longer.today.bound == EXACT


@pytest.mark.usefixtures("marked")
def test_a_rule_of_a_branch_that_is_not_there_is_noted(lake: SmallLake, spark: Session) -> None:
    """A misspelt name would leave the branch that was meant to the shorter default."""
    found, _ = forecast(lake.context(spark), Change(branches={"mian": 85, "main": 85}))
    (note,) = found.notes
    assert note == "the mark found no branch 'mian': its rule keeps nothing while there is none"


def test_what_was_swept_is_not_there_any_more(lake: SmallLake, spark: Session) -> None:
    ctx = lake.context(spark)
    sweep(ctx)
    found, rows = forecast(ctx, Change())
    assert (found.today.objects, rows) == (0, [])


def test_of_a_branch_that_is_deleted_the_default_holds(lake: SmallLake, spark: Session) -> None:
    client, ctx = lake.client, lake.context(spark, "again")
    lake.calendar.days_ago = 50
    client.create_branch(REPOSITORY, "exp-7", "main")
    of_branch = lake.upload("exp-7", "x", "tried on a branch")
    lake.commit("exp-7")
    lake.calendar.days_ago = 0
    mark(lake, spark, "again")
    before = candidates(ctx)
    found, rows = forecast(ctx, Change(without=["exp-7"]))
    assert named(rows, 20, ctx) == before | {of_branch}
    assert (found.forecast.bound, found.unverified.objects) == (EXACT, 1)
    lake.upload("exp-7", "y", "staged")
    assert forecast(ctx, Change(without=["exp-7"]))[0].forecast.bound == AT_LEAST
    assert forecast(ctx, Change(without=["exp-7"], default=30))[0].forecast.bound == ABOUT
    with pytest.raises(ConfigurationError, match="no branch 'exp-8'"):
        forecast(ctx, Change(without=["exp-8"]))


def test_what_was_not_decoded_makes_it_a_bound(lake: SmallLake, spark: Session) -> None:
    ctx = lake.context(spark).connect()
    cache = ctx.connections.cache()
    for key in [k for batch in cache.list("ranges/") for k in batch["key"].to_pylist()]:
        cache.delete_many([key])
    found, _ = forecast(ctx, Change())
    assert found.forecast.bound == AT_MOST
    assert any("whose content is not known" in note for note in found.notes)
    # Nothing was read to make it.
    assert not [key for batch in cache.list("ranges/") for key in batch["key"].to_pylist()]


def test_of_a_mark_without_rules_it_is_a_bound(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    lake.client.delete_gc_rules(REPOSITORY)
    ctx = mark(lake, spark, "unruled")
    with pytest.raises(ConfigurationError, match="--set-default 14"):
        forecast(ctx, Change())
    found, rows = forecast(ctx, Change(default=20, branches={"main": 10}))
    assert found.today == Amount(len(marked.groups["orphans"]), found.today.bytes)
    assert (found.forecast.bound, found.todays_rules) == (AT_MOST, None)
    assert named(rows, 20, ctx) == marked.candidates


def test_commits_that_tags_protect_stay(lake: SmallLake, marked: Marked, spark: Session) -> None:
    lake.client.create_tag(REPOSITORY, "v1", marked.commits["first"])
    ctx = mark(lake, spark, "tagged", protect_tags=True)
    found, rows = forecast(ctx, Change(default=0, branches={"main": 0}))
    assert not named(rows, 0, ctx) & marked.groups["replaced"]
    assert found.forecast.objects == len(marked.candidates - marked.groups["replaced"])


def test_without_a_mark_it_says_how_to_make_one(
    lake: SmallLake, spark: Session, tmp_path: Path
) -> None:
    ctx = lake.context(spark)
    with pytest.raises(RefusedError, match=f"`lakegc mark {REPOSITORY}` makes one"):
        forecast(ctx, Change(), "no such")
    elsewhere = ArtifactRoot(str(tmp_path / "elsewhere"), ctx.root.stores)
    with pytest.raises(RefusedError, match=f"`lakegc mark {REPOSITORY}` makes one"):
        forecasts.forecast(replace(ctx, root=elsewhere), Change())


# Any history, and any rules


@dataclass
class Forecasts(History):
    """A history of which marks are made, forecasts by them, and marks under the rules of these.

    Attributes:
        exact: forecasts that are no bounds.
        without: of these, those that leave branches out.
        freed: objects that other rules freed in these, and today's did not.
        kept: objects that rules of ``retain`` keep, and that other rules freed.
    """

    exact: int = 0
    without: int = 0
    freed: int = 0
    kept: int = 0

    def path(self) -> str:
        return self.chance.choice(["p/", "p/q/", "r/"]) + str(self.chance.randrange(2))

    def commit(self) -> None:
        """Commits on legal hold, and tagged ones, are among them."""
        held = {"hold": "yes"} if self.chance.random() < 0.2 else {}
        client, branch = self.lake.client, self.branch()
        made = client.commit_branch(REPOSITORY, branch, "a commit", metadata=held, allow_empty=True)
        if self.chance.random() < 0.2:
            client.create_tag(REPOSITORY, f"v{self.chance.randrange(10_000)}", made.id)

    def _collect(self) -> None:
        self.runs += 1
        ctx = mark(self.lake, self.spark, f"run-{self.runs}", clean=self.chance.random() < 0.3)
        today = self.lake.client.gc_rules(REPOSITORY)
        found, _ = forecast(ctx, Change(), ctx.run)
        assert found.today.objects == found.forecast.objects == len(candidates(ctx))
        for number in range(2):
            self._compare(ctx, f"{ctx.run}-{number}")
        assert today is not None
        before = Rules.parse(today)
        self.lake.rules(before.default_retention_days, **before.branches)
        if self.chance.random() < 0.6:
            sweep(mark(self.lake, self.spark, f"swept-{self.runs}"))

    def _compare(self, ctx: RunContext, run: str) -> None:
        """A forecast beside a mark under its rules."""
        days = [0, 1, 10, 25, 45, 80]
        default = self.chance.choice(days)
        some = self.chance.sample(self.branches, self.chance.randrange(len(self.branches) + 1))
        branches = {name: self.chance.choice(days) for name in some}
        # A default of 0 alone is no rules.
        default = default or int(not branches)
        retain, without = self._retain(), self._without()
        change = Change(Rules(default, branches), without=without, retain=retain)
        found, rows = forecast(ctx, change, ctx.run)
        client = self.lake.client
        heads = {one.id: one.commit_id for one in client.branches(REPOSITORY)}
        for name in without:
            client.delete_branch(REPOSITORY, name)
        self.lake.rules(default, **branches)
        other = candidates(mark(self.lake, self.spark, run, retain=retain.to_json()))
        assert not other & self._held_below(retain, Rules(default, branches))
        for name in without:
            client.create_branch(REPOSITORY, name, heads[name])
        # The next mark would keep what this one has seen.
        shutil.rmtree(Path(ctx.root.url) / REPOSITORY / run)
        expected = named(rows, default, ctx)
        if found.forecast.bound == EXACT:
            assert expected == other
            self.exact += 1
            self.without += bool(without)
            self.freed += found.unverified.objects
            plain = forecast(ctx, replace(change, retain=Retain()), ctx.run)[1]
            assert expected <= named(plain, default, ctx)
            self.kept += len(named(plain, default, ctx) - expected)
        else:
            assert (found.forecast.bound, expected >= other) == (AT_MOST, True)
        sizes = sum(row["size"] for row in rows if row["address"] in expected)
        assert (found.forecast.objects, found.forecast.bytes) == (len(expected), sizes)

    def _retain(self) -> Retain:
        """Rules of any kind that keep more."""

        def sometimes(rule: Any) -> Any:
            return rule if self.chance.random() < 0.3 else type(rule)()

        patterns = self.chance.sample(["p/**", "p/q/**", "r/**"], self.chance.randrange(3))
        of_branches = OfBranches(self.chance.choice([None, 30]), self.chance.choice([1, 3]))
        return Retain(
            sometimes(("v*",)),
            sometimes({self.chance.choice(["*", "b*", "main"]): of_branches}),
            sometimes({"hold": ("yes",)}),
            {one: self.chance.choice([5, 30, FOREVER]) for one in patterns},
        )

    def _without(self) -> list[str]:
        """Some branches on which nothing is staged: that would be lost with them."""
        client = self.lake.client
        clean = [
            name
            for name in self.branches
            if name != "main" and not any(True for _ in client.diff_branch(REPOSITORY, name))
        ]
        return self.chance.sample(clean, min(len(clean), self.chance.randrange(3)))

    def _held_below(self, retain: Retain, rules: Rules) -> set[str]:
        """What lies below paths in the commits of branches, word for word."""
        client = self.lake.client
        heads = {one.id: one.commit_id for one in client.branches(REPOSITORY)}
        commits = main_ancestries(client, REPOSITORY, heads.values())
        found: set[str] = set()
        for pattern, days in retain.paths.items():
            least = min(days, MAX_DAYS)
            longer = Rules(
                max(rules.default_retention_days, least),
                {name: max(of, least) for name, of in rules.branches.items()},
            )
            now = datetime.now(timezone.utc)
            for commit in naive_active_commits(commits, heads, longer, now):
                objects, _ = client.objects_page(REPOSITORY, commit)
                found |= {
                    one.physical_address.removeprefix(f"local://{REPOSITORY}/")
                    for one in objects
                    if one.path.startswith(prefix_of(pattern))
                }
        return found


def tell(folder: Path, spark: Session, chance: random.Random, marks: int) -> Forecasts:
    with running(folder, slice_max_objects=4) as lake:
        lake.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        lake.rules(60, main=10)
        lake.calendar.days_ago = 45
        history = Forecasts(lake, spark, chance)
        for _ in range(marks):
            for _ in range(chance.randrange(20, 60)):
                history.step()
            history.collect()
        return history


@pytest.mark.conformance
def test_the_histories_have_something_to_forecast(tmp_path: Path, spark: Session) -> None:
    told = tell(tmp_path, spark, random.Random(4), 1)
    assert told.exact > 0
    assert told.without > 0
    assert told.freed > 0
    assert told.kept > 0


@pytest.mark.conformance
@given(st.randoms(use_true_random=False))
@settings(max_examples=4, suppress_health_check=list(HealthCheck))
def test_a_forecast_of_rules_is_the_mark_under_them(
    tmp_path_factory: pytest.TempPathFactory, spark: Session, chance: random.Random
) -> None:
    tell(tmp_path_factory.mktemp("history"), spark, chance, 1)
