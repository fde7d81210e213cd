"""docs/first-run.md, step by step: what it tells people to click is clicked here."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import requests

from examples.trial import REFUSED, SWEPT, WAITS
from lakegc_assets_tests.ui.browser import PATIENCE_MS, Screen
from lakegc_assets_tests.ui.conftest import Interface

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytestmark = pytest.mark.ui

_JOBS = "/locations/lakegc_assets/jobs"
_STEP_MS = 500
_RUNS = "{runsOrError{...on Runs{results{runId jobName status tags{key value}}}}}"
_RUN_ID = re.compile(r"\d{8}T\d{6}Z")


def visible(locator: Locator) -> None:
    """Wait until it is shown."""
    from playwright.sync_api import expect  # noqa: PLC0415 - see browser.py

    expect(locator).to_be_visible()


def runs(ui: Screen, job: str, repository: str, **tags: str) -> list[dict[str, Any]]:
    """Runs of a job on a repository, the last one first, as the interface knows them."""
    answer = requests.post(f"{ui.url}/graphql", json={"query": _RUNS}, timeout=60).json()
    wanted = {name.replace("__", "/"): value for name, value in tags.items()}
    found = []
    for run in answer["data"]["runsOrError"]["results"]:
        has = {tag["key"]: tag["value"] for tag in run["tags"]}
        # What waits is a partition of one dimension, which has no tag for each.
        of = has.get("dagster/partition", "").partition("|")[0]
        if (run["jobName"], of) == (job, repository) and wanted.items() <= has.items():
            found.append({"id": run["runId"], "status": run["status"], "tags": has})
    return found


def ended(ui: Screen, job: str, repository: str, **tags: str) -> dict[str, Any]:
    """The first run of a job on a repository, when it has ended."""
    for _ in range(PATIENCE_MS // _STEP_MS):
        found = runs(ui, job, repository, **tags)
        if found and found[-1]["status"] in {"SUCCESS", "FAILURE"}:
            return found[-1]
        ui.page.wait_for_timeout(_STEP_MS)
    raise AssertionError(f"{job} of {repository}: {runs(ui, job, repository)}")


def watch(ui: Screen, run: dict[str, Any], status: str) -> None:
    """Look at the page of a run until it says how it ended."""
    ui.open(f"/runs/{run['id']}")
    visible(ui.text(f"RUN_{status}").first)
    # The graph of steps moves until it has its place.
    ui.page.wait_for_load_state("networkidle")


def choose(ui: Screen, dialog: Locator, *names: str | re.Pattern[str]) -> None:
    """Tick partitions in the first list of the dialog that has none yet."""
    dialog.get_by_text("Select a partition or create one").first.click()
    for name in names:
        ui.page.get_by_role("menuitem", name=name).last.click()
    ui.page.keyboard.press("Escape")


def test_it_starts_without_warnings(interface: Interface) -> None:
    before, said, _ = interface.printed().partition("Serving dagster-webserver")
    assert said
    assert "three repositories" in before
    # With run_retries on, Dagster says once of each new instance that it has no events yet.
    before = re.sub(r".*WARNING.* - No cursor for event type .*, ignoring older events", "", before)
    assert not re.search(r"warning|deprecat|error|traceback", before, re.IGNORECASE), before


def test_everything_is_on(ui: Screen) -> None:
    ui.open("/automation")
    for name in ("gc_schedule", "gc_repositories", "gc_approvals", "gc_resume", "gc_rules"):
        visible(ui.text(name).first)

    ui.picture("first-run-automation")


def test_the_launchpad_shows_the_five_settings_that_matter_first(ui: Screen) -> None:
    choose_partition(ui, "gc", f"{WAITS}|")
    visible(ui.text("max_candidate_share"))
    # Those of this repository, not those for all.
    visible(ui.text("protect_tags: true"))
    shown = ui.page.locator(".CodeMirror-line").all_inner_texts()
    names = [line.strip().partition(":")[0] for line in shown if ":" in line]
    assert names == [
        "resources", "collector", "config",
        "clean", "max_candidate_share", "min_age_hours", "mode", "protect_tags",
    ]  # fmt: skip
    ui.picture("first-run-launchpad")


def test_one_repository_is_marked_by_hand(ui: Screen) -> None:
    """One repository, and the run that nobody has used yet."""
    ui.open(f"{_JOBS}/gc_mark")
    ui.text("Materialize all").click()
    dialog = ui.page.get_by_role("dialog").first
    choose(ui, dialog, WAITS)
    choose(ui, dialog, _RUN_ID)
    visible(dialog.get_by_text("1 partition"))
    ui.picture("first-run-materialize")
    dialog.get_by_role("button", name="Launch").click()
    run = ended(ui, "gc_mark", WAITS)
    assert run["status"] == "SUCCESS"
    assert "dagster/backfill" not in run["tags"]
    watch(ui, run, "SUCCESS")
    ui.picture("first-run-marked")


def test_the_first_wave_sweeps_one_lets_one_wait_and_refuses_one(ui: Screen) -> None:
    wave = {"dagster__schedule_name": "gc_schedule"}
    swept, waits, refused = (ended(ui, "gc", r, **wave) for r in (SWEPT, WAITS, REFUSED))
    statuses = [run["status"] for run in (swept, waits, refused)]
    assert statuses == ["SUCCESS", "SUCCESS", "FAILURE"]
    assert "waits for approval" in waits["tags"]["lakegc/waits"]
    assert "lakegc/waits" not in swept["tags"]
    ui.open("/runs")
    visible(ui.text(f"partition: {REFUSED}|").first)
    ui.picture("first-run-wave")


def test_a_refused_check_says_its_sentence_on_the_page_of_the_run(ui: Screen) -> None:
    watch(ui, ended(ui, "gc", REFUSED, dagster__schedule_name="gc_schedule"), "FAILURE")
    visible(ui.text("refused: candidate_share: 38 of 40 listed objects are candidates").first)
    visible(ui.text("approve this run by a higher max_candidate_share").first)
    # What follows are frames, with the folders of whoever runs this.
    ui.picture("first-run-refused", above="Stack Trace")


def test_what_waits_is_approved_and_then_swept(ui: Screen) -> None:
    waits = ended(ui, "gc", WAITS, dagster__schedule_name="gc_schedule")
    key = waits["tags"]["dagster/partition"]
    choose_partition(ui, "gc_approve", key)
    # The configuration of a partition comes after its choice, and replaces what was typed before.
    visible(ui.text("by: ''").first)
    ui.page.locator(".CodeMirror-line", has_text="by: ''").first.click()
    for key_of_keyboard in ("End", "Backspace", "Backspace"):
        ui.page.keyboard.press(key_of_keyboard)
    ui.page.keyboard.type("Ada", delay=50)
    visible(ui.text("by: Ada").first)
    ui.picture("first-run-approve")
    ui.page.get_by_role("button", name="Launch Run").click()
    approved = ended(ui, "gc_approve", WAITS)
    assert approved["status"] == "SUCCESS"
    assert approved["tags"]["dagster/partition"] == key
    backfilled(ui, waits["tags"]["dagster/partition/run"])
    swept = ended(ui, "gc_sweep", WAITS)
    assert swept["status"] == "SUCCESS"
    assert swept["tags"]["dagster/sensor_name"] == "gc_approvals"
    assert swept["tags"]["dagster/partition"] == key
    watch(ui, swept, "SUCCESS")
    ui.picture("first-run-swept")


def choose_partition(ui: Screen, job: str, key: str) -> None:
    """Choose a partition in the launchpad of a job, once a sensor has added it there."""
    from playwright.sync_api import TimeoutError  # noqa: A004, PLC0415 - see browser.py

    for _ in range(PATIENCE_MS // _STEP_MS):
        ui.open(f"{_JOBS}/{job}/playground")
        ui.page.get_by_placeholder("Partition").click()
        with suppress(TimeoutError):  # not yet
            ui.page.get_by_role("menuitem", name=key).first.click(timeout=10 * _STEP_MS)
            return
    raise AssertionError(f"{key} is not listed in the launchpad of {job}")


def backfilled(ui: Screen, used: str) -> None:
    """Collect two repositories at once, while the sensor looks for approvals.

    Args:
        ui: the interface.
        used: run of the wave; within a minute there is another one, which nobody has used.
    """
    for _ in range(PATIENCE_MS // _STEP_MS):
        ui.open(f"{_JOBS}/gc")
        ui.text("Materialize all").click()
        dialog = ui.page.get_by_role("dialog").first
        choose(ui, dialog, SWEPT, REFUSED)
        dialog.get_by_text("Select a partition or create one").first.click()
        last = ui.page.get_by_role("menuitem", name=_RUN_ID).last
        if used not in (last.text_content() or used):
            break
        ui.page.wait_for_timeout(_STEP_MS)
    last.click()
    ui.page.keyboard.press("Escape")
    visible(dialog.get_by_text("2 partitions"))
    ui.picture("first-run-backfill")
    dialog.get_by_role("button", name="Launch").click()
    visible(ui.text("Created backfill"))


def test_a_backfill_of_two_repositories_is_one_run_for_each(ui: Screen) -> None:
    started = []
    for repository, status in ((SWEPT, "SUCCESS"), (REFUSED, "FAILURE")):
        for _ in range(PATIENCE_MS // _STEP_MS):
            found = [r for r in runs(ui, "gc", repository) if "dagster/backfill" in r["tags"]]
            if found and found[0]["status"] in {"SUCCESS", "FAILURE"}:
                break
            ui.page.wait_for_timeout(_STEP_MS)
        assert [run["status"] for run in found] == [status]
        started += found
    assert len({run["tags"]["dagster/backfill"] for run in started}) == 1
    ui.open(f"/runs/b/{started[0]['tags']['dagster/backfill']}")
    visible(ui.text("Partition selection").first)
    ui.picture("first-run-backfilled")
