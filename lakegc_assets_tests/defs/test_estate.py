"""The estate: one row for each repository, from the artifacts and Dagster's schedules alone."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.scheduler.instigation import InstigatorStatus

from lakegc_assets.defs.automation_state import schedules_on
from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.estate import COLUMNS
from lakegc_assets.defs.metadata import pages
from lakegc_assets.defs.names import PLAIN
from lakegc_assets.defs.policy import Override, Policies, Policy
from lakegc_assets.defs.schedules import next_run
from lakegc_assets.estate.tables import freed_by_week, largest
from lakegc_assets.lakefs.client import utc_now
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets_tests.defs.daemon import turn_on
from lakegc_assets_tests.defs.running import own_instance, run
from lakegc_assets_tests.left import BEGAN, checked, marked, root_at, swept

_SUNDAY = datetime(2026, 3, 1, 2, tzinfo=timezone.utc)
_AFTER = _SUNDAY + timedelta(minutes=1)
_OFF = " is off: turn it on under Automation"


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with own_instance() as found:
        yield found


def test_only_schedules_that_are_on_count(instance: dg.DagsterInstance) -> None:
    turn_on(instance, "gc_schedule", ["0 2 * * 0", "0 3 * * *"])
    turn_on(instance, "gc_schedule_Europe_Berlin", "0 2 * * 0", InstigatorStatus.STOPPED)
    turn_on(instance, "elsewhere", "0 2 * * 0", location="there")
    # On from the start, by `running` of the component.
    turn_on(instance, "declared", "0 4 * * *", InstigatorStatus.DECLARED_IN_CODE)
    assert schedules_on(instance, "here") == {
        "gc_schedule": ["0 2 * * 0", "0 3 * * *"],
        "declared": ["0 4 * * *"],
    }
    assert set(schedules_on(instance)) == {"gc_schedule", "elsewhere", "declared"}


def test_a_repository_is_due_when_its_own_schedule_says() -> None:
    policies = Policies(
        exclude=["scratch"],
        overrides=[
            Override(include=["daily"], cron="0 3 * * *"),
            Override(include=["berlin"], time_zone="Europe/Berlin"),
        ],
    )
    on = {"gc_schedule": ["0 2 * * 0", "0 3 * * *"]}
    assert next_run(on, policies, PLAIN, "weekly", _SUNDAY) == _SUNDAY + timedelta(days=7)
    assert next_run(on, policies, PLAIN, "daily", _SUNDAY) == _SUNDAY + timedelta(hours=1)
    assert (
        next_run(on, policies, PLAIN, "scratch", _SUNDAY)
        == "never: `include` and `exclude` leave it out"
    )
    assert next_run(on, policies, PLAIN, "berlin", _SUNDAY) == f"gc_schedule_Europe_Berlin{_OFF}"
    assert next_run({}, policies, PLAIN, "weekly", _SUNDAY) == f"gc_schedule{_OFF}"
    # Another project's file says another cron than what is known here.
    assert (
        next_run({"gc_schedule": ["1 1 1 1 1"]}, policies, PLAIN, "x", _SUNDAY)
        == "see gc_schedule under Automation"
    )
    berlin = Policies(for_all=Policy(time_zone="Europe/Berlin", cron="30 3 * * *"))
    due = next_run({"gc_schedule": ["30 3 * * *"]}, berlin, PLAIN, "any", _AFTER)
    assert due == datetime(2026, 3, 1, 2, 30, tzinfo=timezone.utc)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactRoot:
    """Artifacts of repositories in several states, one of them damaged."""
    found = root_at(tmp_path)
    # In this week, so that the picture shows it.
    swept(found, "swept", "m1", (utc_now() - BEGAN) / timedelta(days=1))
    marked(found, "waits", "m1")
    checked(found, "refused", "m1", refused="80 of 100 objects")
    swept(found, "damaged", "m1").store().put("swept_set/manifest.json", b"{")
    for name, value in {
        "LAKEGC_ARTIFACT_ROOT": found.url,
        "LAKECTL_SERVER_ENDPOINT_URL": "https://lakefs.example.com",
        "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": "key",
        "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": "secret",
        "LAKECTL_CONFIG_FILE": str(tmp_path / "lakectl.yaml"),
    }.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "lakectl.yaml").touch()
    return found


def materialized(component: GarbageCollection, instance: dg.DagsterInstance) -> dict[str, Any]:
    result = run(component.definitions(), "gc_estate", instance)
    (event,) = result.asset_materializations_for_node("estate")
    return {name: value.value for name, value in event.metadata.items()}


def table_of(text: str) -> tuple[list[str], dict[str, dict[str, str]]]:
    """The repositories of a table in Markdown, in its order, and their cells by its columns."""
    head, _, *lines = (line[2:-2].split(" | ") for line in html.unescape(text).splitlines())
    rows = [dict(zip(head, line, strict=True)) for line in lines]
    names = [row["repository"].split(" ")[0] for row in rows]
    return names, dict(zip(names, rows, strict=True))


@pytest.mark.usefixtures("root")
def test_the_asset_has_a_row_for_each_repository(instance: dg.DagsterInstance) -> None:
    instance.add_dynamic_partitions("repository", ["new", "waits"])
    turn_on(instance, "gc_schedule", "0 2 * * 0")
    component = GarbageCollection(
        repositories=[Override(include=["waits"], owners=["team:data"], tags={"cost": "42"})]
    )
    shown = materialized(component, instance)
    order, rows = table_of(shown["estate"])
    # Those first that need a person.
    assert order == ["damaged", "refused", "waits", "swept", "new"]
    assert [one.data["repository"] for one in shown["need a person"].records] == order[:3]
    assert {name: row["state"] for name, row in rows.items()} == {
        "damaged": "unreadable",
        "new": "never run",
        "refused": "refused",
        "swept": "swept",
        "waits": "waiting for approval",
    }
    assert tuple(rows["waits"]) == COLUMNS
    assert rows["refused"]["because"] == "mark m1: candidate_share: 80 of 100 objects"
    assert "swept_set/manifest.json is damaged" in rows["damaged"]["because"]
    waits = rows["waits"]
    assert (waits["size"], waits["garbage"], waits["deleted"]) == ("9.8 KiB", "3.9 KiB", "0 B")
    assert (waits["last mark"], waits["last sweep"]) == ("2026-03-01 02:01 UTC", "never")
    assert (waits["owners"], waits["tags"]) == ("team:data", "cost=42")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d 02:00 UTC", waits["next run"])
    assert rows["new"]["size"] == "unknown"
    figures = {name: value for name, value in shown.items() if isinstance(value, (int, float))}
    assert figures["repositories"] == 5
    assert figures["repositories waiting for approval"] == figures["repositories unreadable"] == 1
    assert figures["repositories on hold"] == 0
    assert figures["bytes stored"] == 10_000 + 10_000 + 6000
    assert (figures["bytes of garbage"], figures["bytes freed"]) == (4000, 4000)
    (freed,) = (one.data for one in shown["bytes deleted by week"].records)
    assert (freed["repository"], freed["deleted"]) == ("swept", "3.9 KiB")
    assert shown["notes"] == "none"
    assert (
        "| waits [objects in lakeFS](https://lakefs.example.com/repositories/waits/objects) "
        "[rules in lakeFS](https://lakefs.example.com/repositories/waits/settings/retention) |"
    ) in shown["estate"]


def test_an_empty_estate_is_reported_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEGC_ARTIFACT_ROOT", str(tmp_path / "none"))
    # This one knows no schedules.
    with dg.DagsterInstance.ephemeral() as instance:
        shown = materialized(GarbageCollection(), instance)
    assert shown["estate"] == shown["bytes deleted by week"] == shown["need a person"] == "nothing"
    assert shown["repositories"] == 0


def test_links_lead_to_the_pages_of_the_repository_only(root: ArtifactRoot) -> None:
    assert root
    found = pages(LakeFSConfig(endpoint="http://here:8000/api/v1"), "a/../b?c#d")
    assert found["objects in lakeFS"] == "http://here:8000/repositories/a%2F..%2Fb%3Fc%23d/objects"


def test_without_a_server_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty.yaml").touch()
    for name in ("ENDPOINT_URL", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        for kind in ("SERVER", "CREDENTIALS"):
            monkeypatch.delenv(f"LAKECTL_{kind}_{name}", raising=False)
    monkeypatch.setenv("LAKECTL_CONFIG_FILE", str(tmp_path / "empty.yaml"))
    assert pages(LakeFSConfig(), "repo") == {}


def test_bytes_are_counted_by_the_week_in_utc() -> None:
    monday = date(2026, 3, 2)
    late = datetime(2026, 3, 2, 0, 30, tzinfo=timezone(timedelta(hours=1)))
    freed = [
        ("a", late, 1),
        ("a", late + timedelta(hours=1), 2),
        ("a", late + timedelta(days=6), 4),
        ("b", late + timedelta(days=7), 8),
        ("b", late + timedelta(days=8), 16),
        ("c", late + timedelta(days=1), 0),
    ]
    assert freed_by_week(
        freed, [monday - timedelta(days=7), monday, monday + timedelta(days=7)]
    ) == {
        "a": {monday - timedelta(days=7): 1, monday: 6},
        "b": {monday: 8, monday + timedelta(days=7): 16},
    }
    assert freed_by_week(freed, [monday]) == {"a": {monday: 6}, "b": {monday: 8}}


@pytest.mark.parametrize(("count", "shown"), [(0, 0), (1, 1), (8, 8), (12, 8)])
def test_those_that_freed_most_are_shown_by_themselves(count: int, shown: int) -> None:
    week = _SUNDAY.date()
    found = largest({f"r{n}": Counter({week: n + 1}) for n in range(count)})
    assert len(found) == shown
    assert sum(freed[week] for _, freed in found) == count * (count + 1) // 2
    assert [name for name, _ in found][-1:] == (
        ["5 others"] if count == 12 else ["r0"] * bool(count)
    )
