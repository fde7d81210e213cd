"""The command on one repository: its marks, its sweep, and what it says of them later."""

from __future__ import annotations

import json
import shutil
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg
import pytest
from click.testing import Result

from lakegc_assets.errors import RefusedError
from lakegc_assets.mark.publication import mark_folder
from lakegc_assets_tests.cli.calling import lakegc, say
from lakegc_assets_tests.defs.running import mark_outside
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.site import Completed, Site


@pytest.fixture(scope="module")
def reported(site: Site) -> Completed:
    return site.tell("alpha")


@pytest.fixture(scope="module")
def marked(reported: Completed) -> Result:  # noqa: ARG001 - what it marks
    return lakegc("mark", "alpha", "--run", "m1", "--json")


class Finished(NamedTuple):
    """The mark once more, after it was killed between its summary and its report."""

    result: Result
    #: Of the run of Dagster.
    made: AbstractSet[dg.AssetKey] | None


@pytest.fixture(scope="module")
def finished(site: Site, marked: Result) -> Finished:
    assert marked.exit_code == 0, marked.output
    shutil.rmtree(site.root.attempt("alpha", "m1").url + "/gc_report")
    result = lakegc("mark", "alpha", "--run", "m1")
    with dg.DagsterInstance.get() as instance:
        return Finished(result, instance.get_runs(limit=1)[0].asset_selection)


@pytest.fixture(scope="module")
def swept(finished: Finished) -> Result:
    assert finished.result.exit_code == 0, finished.result.output
    return lakegc("sweep", "alpha", "--run", "m1", "--set", "sweep_batch=900")


@pytest.fixture(scope="module")
def stopped(site: Site) -> Result:
    """A run that a check stopped."""
    site.tell("beta")
    return lakegc("run", "beta", "--run", "b1", "--max-candidate-share", "0.1", "--json")


def test_a_mark_is_reported_as_json_and_its_progress_beside_it(marked: Result) -> None:
    say(marked, 0)
    found = json.loads(marked.stdout)
    assert (found["repository"], found["run"], found["swept"]) == ("alpha", "m1", False)
    assert (found["objects"], found["bytes"], found["listed"]) == (2, 35, 6)
    assert list(found["spared"].values()) == [1]
    assert (found["too_young"], found["skipped_slices"]) == (0, 1)
    # Who reads it decides by that whether to sweep.
    undo = "this sweep can be undone for 7 days: local://alpha: deleted files are moved into "
    assert found["undo"].startswith(undo)
    for step in ("store_listing", "deletion_candidates", "candidate_checks", "gc_report"):
        assert any(step in line and "started" in line for line in marked.stderr.splitlines())
        assert any(step in line and " s" in line for line in marked.stderr.splitlines())


def test_an_interrupted_publication_is_finished_by_the_same_command(
    site: Site, finished: Finished
) -> None:
    said = finished.result
    say(said, 0, "was published, but its report was not finished: this run finishes it")
    assert "gc_report" in said.stderr
    assert "store_listing" not in said.stderr
    assert len([file for file in site.published("alpha") if file.startswith("m1/")]) == 3
    assert "lakegc sweep alpha --run m1" in said.stdout
    assert "  undo       this sweep can be undone for 7 days: " in said.stdout
    assert finished.made == {dg.AssetKey("gc_report")}


def test_a_sweep_is_reported_in_words(site: Site, reported: Completed, swept: Result) -> None:
    say(swept, 0)
    words = [" ".join(line.split()) for line in swept.stdout.splitlines()]
    assert words[0] == "repository alpha, mark m1"
    assert "slices made after the cutoff, not listed: 1" in words
    assert any(line.startswith("listed 6 objects") for line in words)
    assert "garbage 2 objects 35 B" in words
    assert "expired by the rule default, 20 days 1 object 11 B" in words
    assert "unreferenced 1 object 24 B" in words
    assert any(line.startswith("its name has a line break") for line in words)
    assert "deleted 2 objects 35 B" in words
    assert f"mark local://alpha/{mark_folder('m1')}" in words
    gone = {reported.expired, reported.unreferenced}
    assert not any((site.namespace("alpha") / address).exists() for address in gone)
    assert (site.namespace("alpha") / reported.live).exists()


def test_sweeping_again_tells_the_same_and_deletes_nothing(
    site: Site, reported: Completed, swept: Result
) -> None:
    # An object of somebody else's at an address that was swept: a second sweep would delete it.
    again = site.namespace("alpha") / reported.expired
    again.parent.mkdir(parents=True, exist_ok=True)
    again.write_text("here again")
    repeated = lakegc("sweep", "alpha", "--run", "m1")
    say(repeated, 0, "swept on")
    assert repeated.stdout == swept.stdout
    assert again.read_text() == "here again"
    again.unlink()


@pytest.mark.usefixtures("swept")
def test_a_mark_of_one_mode_says_so(site: Site, spark: Session, reported: Completed) -> None:
    mark_outside(site, "alpha", "c1", spark, mode="committed")
    result = lakegc("report", "alpha", "--run", "c1")
    say(result, 0, "repository alpha, mark c1 (committed)", "looked at")
    say(lakegc("why", "alpha", reported.live, "--run", "c1"), 0, "live: the active commit ")
    say(lakegc("mark", "alpha", "--mode", "all"), 2, "--mode")


def test_the_report_says_the_same_later(swept: Result) -> None:
    assert lakegc("report", "alpha", "--run", "m1").stdout == swept.stdout
    as_json = lakegc("report", "alpha", "--run", "m1", "--json")
    found = json.loads(as_json.stdout)
    assert found["swept"]
    assert found["outcomes"] == {"deleted": {"objects": 2, "bytes": 35}}
    assert found["engine"].startswith("embedded (nothing configures Spark, and ")
    assert f"  engine     {found['engine']}\n" in swept.stdout
    until = datetime.fromisoformat(found["recovery"]["until"])
    assert timedelta(days=6, hours=23) < until - datetime.now(timezone.utc) < timedelta(days=7)
    when = f"{until:%Y-%m-%d %H:%M} UTC (trash)"
    assert found["undo"] == f"the deleted objects can be restored until {when}"
    assert f"  undo       {found['undo']}\n" in swept.stdout


@pytest.mark.usefixtures("swept", "stopped")
def test_a_run_is_written_as_one_html_file(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    priced = ("--html", str(file), "--price-per-tb-month", "23")
    say(lakegc("report", "alpha", "--run", "m1", *priced), 0, str(file))
    page = file.read_text()
    rules = "repositories/alpha/settings/retention"
    for words in ("<h1>Garbage collection of alpha</h1>", "Mark m1, swept on", "default, 20 days",
                  "Top branches", "live and committed", "Forecast", "10^12 bytes", "<svg",
                  f"{site.server.endpoint.removesuffix('/api/v1')}/{rules}"):  # fmt: skip
        assert words in page
    before = file.read_bytes()
    # What did not finish has no report, and the file stays as it was.
    say(lakegc("report", "beta", "--run", "b1", "--html", str(file)), 3, "candidate_share")
    assert file.read_bytes() == before
    say(lakegc("report", "--html", str(file)), 0, "2 repositories")
    page = file.read_text()
    for words in (">refused</span>", "candidate_share", ">35 B</span>"):
        assert words in page


@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize(
    ("kind", "verdict", "because"),
    [
        ("expired", "candidate", "held it last; the sweep: deleted"),
        ("unreferenced", "candidate", "it was never committed, and when it was marked"),
        ("live", "live", "of branch 'main' holds it (head)"),
        ("staged", "live", "it is staged on branch 'main' at 'c'"),
        ("young", "too young", "after the cutoff"),
        ("spared", "spared", "its name has a line break"),
        ("nowhere", "unknown", "the store did not hold it"),
        ("_lakefs/settings", "outside data", "belongs to lakeFS itself"),
        ("local://beta/data/a", "unknown", "it is not below local://alpha"),
    ],
)
def test_why(reported: Completed, kind: str, verdict: str, because: str) -> None:
    address = getattr(reported, kind, "data/nothing/like-it" if kind == "nowhere" else kind)
    result = lakegc("why", "alpha", address, "--run", "m1")
    say(result, 0, because)
    assert result.stdout.startswith(f"{address}: {verdict}: ")


@pytest.mark.usefixtures("swept")
def test_why_as_json_takes_full_addresses(reported: Completed) -> None:
    result = lakegc("why", "alpha", f"local://alpha/{reported.expired}", "--run", "m1", "--json")
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["address"] == reported.expired
    assert found["verdict"] == "candidate"
    assert found["facts"]["size"] == 11
    assert found["facts"]["outcome"] == "deleted"


@pytest.mark.usefixtures("swept")
def test_why_takes_a_full_address_as_written_unless_only_its_decoded_form_is_there(
    reported: Completed,
) -> None:
    found = lakegc("why", "alpha", f"local://alpha/{reported.young}%41", "--run", "m1")
    assert found.stdout.startswith(f"{reported.young}%41: too young: ")
    encoded = reported.expired.replace("d", "%64", 1)
    found = lakegc("why", "alpha", f"local://alpha/{encoded}", "--run", "m1")
    assert found.stdout.startswith(f"{reported.expired}: candidate: ")


@pytest.mark.usefixtures("swept")
def test_why_takes_a_path_of_a_branch_tag_or_commit(site: Site, reported: Completed) -> None:
    first = next(c.id for c in site.client.log("alpha", "main") if c.message == "first")
    found = lakegc("why", "alpha", "--branch", "main", "--path", "a", "--run", "m1")
    say(found, 0, f"{reported.live}: live: ")
    found = lakegc("why", "alpha", "--branch", first, "--path", "a", "--run", "m1")
    say(found, 0, f"{reported.expired}: candidate: ", "the sweep: deleted")
    for branch, path, words in (
        ("main", "no/such", "lakeFS shows nothing at 'no/such' of 'main'"),
        ("gone", "a", "has no branch, tag or commit 'gone'"),
    ):
        say(lakegc("why", "alpha", "--branch", branch, "--path", path, "--run", "m1"), 3, words)
    for of in (["--path", "a"], ["--branch", "main"], [], ["x", "--branch", "main", "--path", "a"]):
        say(lakegc("why", "alpha", *of, "--run", "m1"), 2, "ADDRESS, or --branch and --path")


@pytest.mark.usefixtures("swept", "stopped")
def test_repositories_are_listed_with_their_runs_in_the_order_of_the_marks(
    site: Site, spark: Session
) -> None:
    # What begins later is behind what its name would come before.
    mark_outside(site, "alpha", "a-later-one", spark)
    found = {
        entry["repository"]: entry for entry in json.loads(lakegc("repositories", "--json").stdout)
    }
    runs = {run["run"]: run["state"] for run in found["alpha"].pop("runs")}
    assert found["alpha"] == {
        "repository": "alpha",
        "storage_namespace": "local://alpha",
        "read_only": False,
        "on_hold": False,
    }
    assert (runs["m1"], runs["a-later-one"]) == ("swept", "marked")
    assert [*runs].index("m1") < [*runs].index("a-later-one")
    (refused,) = found["beta"]["runs"]
    assert (refused["run"], refused["state"]) == ("b1", "refused")
    assert "candidate_share" in refused["because"]
    (reported,) = [
        line
        for line in lakegc("repositories").stdout.splitlines()
        if line.startswith("alpha\tlocal://alpha\t")
    ]
    listed = reported.partition("m1 (swept), ")[2].split(", ")
    assert "a-later-one (marked)" in listed


def test_a_check_that_fails_refuses_the_run(site: Site, stopped: Result) -> None:
    say(stopped, 3, "refused: candidate_share: 2 of 6 listed objects are candidates")
    assert stopped.stdout == ""
    assert "approve this run by a higher max_candidate_share" in stopped.stderr
    assert site.published("beta") == []


def test_a_refusal_says_the_options_of_the_settings_that_it_names(
    stopped: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "a higher max_candidate_share: --max-candidate-share 0.34" in stopped.stderr
    assert "as options" not in stopped.stderr

    def refused(*_: object) -> None:
        raise RefusedError("wait for longer (lease_wait_seconds), or set protect_tags")

    monkeypatch.setattr("lakegc_assets.cli.jobs.run_job", refused)
    options = "as options: --set lease_wait_seconds=…, --protect-tags"
    say(lakegc("sweep", "alpha", "--run", "m1"), 3, options)
    # An approval has no option of its own for them.
    options = "as options: --set lease_wait_seconds=…, --set protect_tags=…"
    assert options in lakegc("approve", "alpha", "--run", "m1").output


def test_a_command_in_a_refusal_has_the_options_of_its_settings_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> None:
        raise RefusedError("first run `lakegc restore alpha --run m1 --all --set engine=embedded`")

    monkeypatch.setattr("lakegc_assets.cli.jobs.run_job", refused)
    assert "as options" not in lakegc("sweep", "alpha", "--run", "m1").stderr


@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize("command", ["report", "sweep"])
def test_a_failed_mark_is_refused_with_the_check_that_stopped_it(command: str) -> None:
    say(
        lakegc(command, "beta", "--run", "b1"),
        3,
        "'b1' of 'beta' did not finish",
        "candidate_share",
    )


@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "alpha", "--no-mark", "--no-sweep"), "nothing to do"),
        (("run", "alpha", "--no-mark"), "needs the id of a mark: give --run ID"),
        (("sweep", "alpha"), "needs the id of a mark: give --run ID"),
        (("sweep", "alpha", "--run", "unknown"), "there is no mark 'unknown'"),
        (("run", "alpha", "--no-mark", "--run", "unknown"), "there is no mark 'unknown'"),
        (("report", "alpha", "--run", "unknown"), "there is no mark 'unknown'"),
        (("why", "alpha", "data/a", "--run", "unknown"), "there is no mark 'unknown'"),
        (("mark", "alpha", "--run", "m1"), "exists already"),
    ],
)
def test_a_request_that_contradicts_what_is_there_is_refused(
    arguments: tuple[str, ...], words: str
) -> None:
    result = lakegc(*arguments)
    say(result, 3, "refused: ", words)
    assert result.stdout == ""
