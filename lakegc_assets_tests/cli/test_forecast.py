"""``lakegc forecast`` says what other rules would free, and what it does not know."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakegc_assets.cli import forecast as command
from lakegc_assets.cli.jobs import open_instance
from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.names import add_partition
from lakegc_assets.defs.policy import ForecastSection
from lakegc_assets.retention.rules import Rules
from lakegc_assets_tests.cli.calling import lakegc, say
from lakegc_assets_tests.defs.running import mark_outside
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.site import Completed, Site


@pytest.fixture(scope="module")
def reported(site: Site, spark: Session) -> Completed:
    """A default of 20 days; one object was overwritten 60 days ago, and one never committed."""
    reported = site.tell("thrifty")
    refused = lakegc("forecast", "thrifty")
    say(refused, 3, "refused: there is no mark of repository 'thrifty'", "`lakegc mark thrifty`")
    mark_outside(site, "thrifty", "m1", spark)
    return reported


def as_json(*options: str) -> dict[str, Any]:
    result = lakegc("forecast", "thrifty", *options, "--json")
    say(result, 0)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.usefixtures("reported")
def test_it_says_what_today_and_other_rules_free() -> None:
    found = as_json("--set-default", "70", "--set-branch", "main=30")
    sizes = len("the first a"), len("staged, and staged again")
    exact = {"objects": 2, "bytes": sum(sizes), "bound": "exact"}
    assert (found["mark"], found["today"]) == ("m1", exact)
    assert found["rules"]["forecast"] == {
        "default_retention_days": 70,
        "branches": [{"branch_id": "main", "retention_days": 30}],
    }
    # Of deleted branches lakeFS reported those within the 20 days.
    assert found["forecast"]["objects"] == 2
    assert found["forecast"]["bound"] == "at most"
    kept = as_json("--set-branch", "main=70")
    assert kept["forecast"]["objects"] == 1
    assert (kept["forecast"]["bytes"], kept["forecast"]["bound"]) == (sizes[1], "exact")


@pytest.mark.usefixtures("reported")
def test_a_file_of_rules_takes_the_place_of_todays(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("default_retention_days: 5\nbranches: [{branch_id: main, retention_days: 70}]")
    assert as_json("--rules", str(file))["forecast"]["objects"] == 1
    both = as_json("--rules", str(file), "--set-default", "6")
    assert both["rules"]["forecast"]["default_retention_days"] == 6
    file.write_text("default_retention_days: 5\nbranches:\n- {branch_id: main, retention_days: x}")
    wrong = lakegc("forecast", "thrifty", "--rules", str(file))
    say(wrong, 2, f"configuration: {file}, line 3: branches[0].retention_days of branch 'main'")


@pytest.mark.usefixtures("reported")
def test_people_read_it() -> None:
    shown = lakegc("forecast", "thrifty", "--set-branch", "main=70")
    say(shown, 0, "as of mark m1", "branch main", "no rule -> 70 days", "garbage today")
    assert "garbage under the other rules  " in shown.stdout
    assert "garbage under the other rules with another default:" in shown.stdout
    todays = lakegc("forecast", "thrifty")
    say(todays, 0, "garbage under today's rules with another default:")
    assert "other rules" not in todays.stdout


@pytest.mark.usefixtures("reported")
@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("--set-branch", "main"), 2, "write main=90"),
        (("--set-branch", "a=1", "--set-branch", "a=2"), 2, "--set-branch a: it is given twice"),
        (("--run", "m0"), 3, "there is no mark 'm0'"),
        (("--set-default", "0"), 2, "as no rules, and then keeps all that was ever committed"),
        (("--without-branch", "nobody"), 2, "the mark found no branch 'nobody'"),
    ],
)
def test_what_makes_no_sense_is_refused(options: tuple[str, ...], status: int, said: str) -> None:
    say(lakegc("forecast", "thrifty", *options), status, said)


# In Dagster


def forecast_in_dagster(component: GarbageCollection) -> dg.ExecuteInProcessResult:
    """A run of ``gc_forecast`` on the mark."""
    job = component.definitions().resolve_job_def("gc_forecast")
    with open_instance() as instance:
        return job.execute_in_process(
            instance=instance, partition_key=add_partition(instance, "thrifty", "m1")
        )


@pytest.mark.usefixtures("reported")
def test_the_asset_shows_what_the_rules_of_the_component_would_free() -> None:
    thought_of = ForecastSection(branches={"main": 70})
    found = forecast_in_dagster(GarbageCollection(forecast=thought_of))
    (made,) = found.asset_materializations_for_node("policy_forecast")
    shown = {name: value.value for name, value in made.metadata.items()}
    assert (shown["objects today"], shown["objects forecast"]) == (2, 1)
    assert shown["mark"] == "m1"
    assert "not listed 1 slice made after its cutoff" in str(shown["notes"])
    curve = made.metadata["by default days"]
    assert isinstance(curve, dg.TableMetadataValue)
    assert len(curve.records) == 365


@pytest.mark.usefixtures("reported")
def test_the_asset_is_skipped_where_no_rules_are_named() -> None:
    found = forecast_in_dagster(GarbageCollection())
    assert found.success
    assert found.get_asset_materialization_events() == []


# Setting rules


@pytest.fixture
def rules(site: Site, reported: Completed) -> Iterator[Callable[[], Rules]]:
    """The rules that hold in lakeFS; they are what they were again afterwards."""
    assert reported
    yield lambda: Rules.parse(site.client.gc_rules("thrifty"))
    site.client.set_gc_rules("thrifty", 20, {})


ASKED = ("forecast", "thrifty", "--set-branch", "main=70", "--apply")


def test_rules_are_set_when_somebody_says_yes(rules: Callable[[], Rules]) -> None:
    no = lakegc(*ASKED, answer="n\n")
    assert (no.exit_code, rules()) == (1, Rules(20))
    assert "no rule -> 70 days" in no.stdout
    yes = lakegc(*ASKED, answer="y\n")
    assert (yes.exit_code, rules()) == (0, Rules(20, {"main": 70}))
    say(lakegc(*ASKED), 0, "these are today's rules: nothing was set")


def test_rules_are_set_without_a_question(rules: Callable[[], Rules]) -> None:
    done = lakegc(*ASKED, "--yes", "--json")
    say(done, 0)
    assert json.loads(done.stdout)["applied"] is True
    assert rules() == Rules(20, {"main": 70})


def test_rules_that_were_changed_meanwhile_stay(
    site: Site, rules: Callable[[], Rules], monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm(*_: object, **__: object) -> bool:
        site.client.set_gc_rules("thrifty", 3, {})
        return True

    monkeypatch.setattr(command, "confirm", confirm)
    say(lakegc(*ASKED), 3, "rules of 'thrifty' were changed meanwhile", "nothing was set")
    assert rules() == Rules(3)


@pytest.mark.usefixtures("reported")
def test_what_cannot_be_set_is_refused(rules: Callable[[], Rules]) -> None:
    say(lakegc(*ASKED, "--without-branch", "main"), 3, "--apply sets rules and deletes no branch")
    say(lakegc(*ASKED, "--json"), 3, "--json asks for no confirmation: give --yes")
    assert rules() == Rules(20)
