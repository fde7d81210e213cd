"""After a sweep that failed or raised an alarm every command says so, and what is to be done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import requests

from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.values import DeleteOutcome
from lakegc_assets.sweep.hold import HOLD
from lakegc_assets_tests.cli.calling import lakegc, say
from lakegc_assets_tests.defs.running import mark_outside
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.site import Completed, Site

_COMMAND = "lakegc sweep stopped --run m1 --set sweep_batch=1"


@pytest.fixture(scope="module")
def reported(site: Site, spark: Session) -> Completed:
    """A repository whose sweep deleted the first of two objects, and was denied the second."""
    found = site.tell("stopped")
    mark_outside(site, "stopped", "m1", spark)
    denied = max(found.expired, found.unreferenced)
    delete_many = LocalStore.delete_many

    def delete(store: LocalStore, keys: list[str], *args: Any, **more: Any) -> list[DeleteOutcome]:
        if denied in keys:
            return [DeleteOutcome(key, "failed", "AccessDenied", "not this one") for key in keys]
        return list(delete_many(store, keys, *args, **more))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "delete_many", delete)
        say(lakegc("sweep", "stopped", "--run", "m1", "--set", "sweep_batch=1"), 1, "AccessDenied")
    return found


@pytest.mark.usefixtures("reported")
def test_a_report_says_how_far_the_sweep_came_and_what_goes_on() -> None:
    result = lakegc("report", "stopped", "--run", "m1")
    say(
        result, 0, "state      stopped in its sweep: ", "1 of 2 objects are deleted", "not this one"
    )
    words = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert any(line.startswith("deleted 1 object") for line in words)
    assert f"to go on {_COMMAND}" in words
    assert "to undo lakegc restore stopped --run m1 --all" in words
    # Tries may have had other settings than the mark, trash_days say.
    preview = "`lakegc restore stopped --run m1 --all --dry-run` shows which of the deleted objects"
    (undo,) = [line for line in words if line.startswith("undo ")]
    assert undo.startswith(f"undo {preview} come back. When the mark was made: this sweep can be")
    assert not any(line.startswith("to delete") for line in words)
    found = json.loads(lakegc("report", "stopped", "--run", "m1", "--json").stdout)
    assert (found["state"], found["swept"]) == ("stopped in its sweep", False)
    assert found["to_delete"] == _COMMAND
    assert found["outcomes"]["deleted"]["objects"] == 1


@pytest.mark.usefixtures("reported")
def test_a_page_says_it_first(tmp_path: Path) -> None:
    say(lakegc("report", "stopped", "--run", "m1", "--html", str(tmp_path / "run.html")), 0)
    page = (tmp_path / "run.html").read_text()
    assert "Mark m1, stopped in its sweep" in page
    assert '<p class="warning">stopped in its sweep: the sweep of ' in page
    assert _COMMAND in page
    say(lakegc("report", "--html", str(tmp_path / "all.html")), 0)
    assert (
        '<span class="state person">stopped in its sweep</span>'
        in (tmp_path / "all.html").read_text()
    )


@pytest.mark.usefixtures("reported")
def test_repositories_name_the_run_that_deleted_something() -> None:
    assert "m1 (stopped in its sweep, 1 of 2 deleted)" in lakegc("repositories").stdout
    (entry,) = json.loads(lakegc("repositories", "--json").stdout)
    assert (entry["runs"][0]["state"], entry["on_hold"]) == ("stopped in its sweep", False)


@pytest.mark.usefixtures("reported")
def test_a_person_is_waited_for() -> None:
    (one,) = json.loads(lakegc("pending", "--json").stdout)
    assert (one["state"], one["run"], one["objects"]) == ("stopped in its sweep", "m1", 1)
    say(lakegc("pending"), 0, "stopped\tm1\tstopped in its sweep\t1 object, ")


def test_why_says_what_the_sweep_recorded(reported: Completed) -> None:
    gone, left = sorted((reported.expired, reported.unreferenced))
    say(lakegc("why", "stopped", gone, "--run", "m1"), 0, "; the sweep: deleted")
    say(lakegc("why", "stopped", left, "--run", "m1"), 0, "; the sweep: failed (not this one")


def test_what_is_on_hold_is_said_to_be_wherever_one_looks(
    site: Site, reported: Completed, tmp_path: Path
) -> None:
    gone = min(reported.expired, reported.unreferenced)
    missing = [{"address": gone, "why": "it is staged on branch 'main' at 'x'"}]
    alarm = "1 object of mark 'm1' is gone, and is needed"
    store = open_store("local://stopped", site.server.store_config)
    hold = {"run": "m1", "alarm": alarm, "objects": missing}
    store.put(HOLD, json.dumps(hold).encode())
    try:
        result = lakegc("report", "stopped", "--run", "m1")
        say(result, 0, f"state      on hold: {alarm}", "1 of 2 objects are deleted", "to undo")
        assert "to go on" not in result.stdout
        assert "stopped (on hold)\t" in lakegc("repositories").stdout
        assert "m1 (on hold, 1 of 2 deleted)" in lakegc("repositories").stdout
        say(lakegc("pending"), 0, "stopped\tm1\ton hold\t")
        say(lakegc("why", "stopped", gone, "--run", "m1"), 0, "it is needed",
            "it is staged on branch 'main' at 'x'", "`lakegc hold stopped`")  # fmt: skip
        say(lakegc("report", "stopped", "--run", "m1", "--html", str(tmp_path / "run.html")), 0)
        assert "on hold: " in (tmp_path / "run.html").read_text()
    finally:
        store.delete_many([HOLD])


@pytest.mark.usefixtures("reported")
def test_the_recorded_command_ends_the_sweep() -> None:
    say(lakegc(*_COMMAND.split()[1:]), 0, "state      swept: ")
    assert "m1 (swept)" in lakegc("repositories").stdout
    assert json.loads(lakegc("pending", "--json").stdout) == []


def test_a_repository_that_was_made_anew_elsewhere_is_not_swept_by_its_old_mark(
    site: Site, spark: Session
) -> None:
    """A sweep would refuse it, so no command for one is shown."""
    site.tell("moved")
    mark_outside(site, "moved", "m1", spark)
    answer = requests.delete(
        f"{site.server.endpoint}/api/v1/repositories/moved",
        auth=(site.server.access_key, site.server.secret_key),
        timeout=60,
    )
    answer.raise_for_status()
    say(lakegc("report", "moved", "--run", "m1"), 0, "to delete  lakegc sweep moved --run m1")
    site.client.create_repository("moved", "local://moved-elsewhere")
    shown = lakegc("report", "moved", "--run", "m1")
    say(shown, 0, "The mark is of local://moved, and 'moved' is at local://moved-elsewhere now")
    assert "to delete" not in shown.stdout
    listed = json.loads(lakegc("repositories", "--json").stdout)
    (because,) = (
        run["because"] for one in listed if one["repository"] == "moved" for run in one["runs"]
    )
    assert "no sweep takes this mark. Mark again under a new id" in because
