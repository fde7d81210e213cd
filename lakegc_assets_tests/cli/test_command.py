"""The command: what it says and where, its exit status, and what it refuses."""

from __future__ import annotations

import json
import pkgutil
import shutil
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NoReturn

import click
import dagster as dg
import pytest
from click.testing import CliRunner, Result

from lakegc_assets.cli import options
from lakegc_assets.cli.jobs import checked, open_instance
from lakegc_assets.cli.main import Commands, main
from lakegc_assets.cli.output import near
from lakegc_assets.errors import RefusedError
from lakegc_assets.mark.publication import mark_folder
from lakegc_assets_tests.cli.calling import lakegc, say
from lakegc_assets_tests.site import Completed, Site


@pytest.fixture(scope="module")
def reported(site: Site) -> Completed:
    return site.tell("alpha")


@pytest.fixture(scope="module")
def marked(reported: Completed) -> Result:  # noqa: ARG001 - what it marks
    return lakegc("mark", "alpha", "--run", "m1", "--json")


@pytest.fixture(scope="module")
def finished(site: Site, marked: Result) -> Result:
    """The mark once more, after it was killed between its summary and its report."""
    assert marked.exit_code == 0, marked.output
    shutil.rmtree(site.root.attempt("alpha", "m1").url + "/gc_report")
    return lakegc("mark", "alpha", "--run", "m1")


@pytest.fixture(scope="module")
def swept(finished: Result) -> Result:
    assert finished.exit_code == 0, finished.output
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
    site: Site, finished: Result
) -> None:
    say(finished, 0, "was published, but not reported: this finishes it")
    assert "gc_report" in finished.stderr
    assert "store_listing" not in finished.stderr
    assert len(site.published("alpha")) == 3
    assert "lakegc sweep alpha --run m1" in finished.stdout
    assert "  undo       this sweep can be undone for 7 days: " in finished.stdout
    with dg.DagsterInstance.get() as instance:
        last = instance.get_run_records(limit=1)[0].dagster_run
    assert last.asset_selection == {dg.AssetKey("gc_report")}


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
def test_a_mark_of_one_mode_says_so(reported: Completed) -> None:
    result = lakegc("mark", "alpha", "--run", "c1", "--mode", "committed")
    say(result, 0, "repository alpha, mark c1 (committed)", "looked at")
    say(lakegc("why", "alpha", reported.live, "--run", "c1"), 0, "it was not looked at")
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
    assert found["undo"] == f"what was deleted can be had back until {when}"
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


def test_the_readme_has_all_commands_in_the_order_of_the_help() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    block = readme.partition("## The command")[2].split("```")[1]
    reported = dict.fromkeys(line.split()[1] for line in block.split("\n") if line)
    shown = lakegc("--help").stdout.partition("Commands:")[2]
    assert list(reported) == [line.split()[0] for line in shown.splitlines() if line]
    assert "..." not in shown


@pytest.mark.usefixtures("swept", "stopped")
def test_repositories_are_listed_with_their_runs_in_the_order_of_the_marks() -> None:
    say(lakegc("mark", "alpha", "--run", "a-later-one"), 0)
    found = {
        entry["repository"]: entry for entry in json.loads(lakegc("repositories", "--json").stdout)
    }
    runs = found["alpha"].pop("runs")
    assert found["alpha"] == {
        "repository": "alpha",
        "storage_namespace": "local://alpha",
        "read_only": False,
        "on_hold": False,
    }
    assert (runs[0]["run"], runs[0]["state"]) == ("m1", "swept")
    assert (runs[-1]["run"], runs[-1]["state"]) == ("a-later-one", "marked")
    (refused,) = found["beta"]["runs"]
    assert (refused["run"], refused["state"]) == ("b1", "refused")
    assert "candidate_share" in refused["because"]
    (reported,) = [
        line
        for line in lakegc("repositories").stdout.splitlines()
        if line.startswith("alpha\tlocal://alpha\tm1 (swept), ")
    ]
    assert reported.endswith(", a-later-one (marked)")


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


def test_a_command_below_a_group_of_commands_says_its_own_options() -> None:
    @click.group()
    def above() -> None:
        """A group."""

    @above.command()
    @click.option("--protect-tags")
    def below(**_: object) -> None:
        raise RefusedError("set protect_tags")

    lakegc_of = Commands()
    lakegc_of.add_command(above)
    said = CliRunner().invoke(lakegc_of, ["above", "below"])
    assert said.exit_code == 3
    assert said.stderr == "refused: set protect_tags\n  as options: --protect-tags\n"


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
        (("run", "alpha", "--no-mark"), "needs the mark id: --run ID"),
        (("sweep", "alpha"), "needs the mark id: --run ID"),
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


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mark", "alpha", "--min-age", "5 parsecs"), "write 90s, 30m, 25h or 2d"),
        (("mark", "alpha", "--min-age", "-2h"), "write 90s, 30m, 25h or 2d"),
        (("mark", "alpha", "--min-age", "99999999999d"), "is longer than any time can be"),
        (("mark", "alpha", "--min-age", "23h"), "below 1 day: "),
        (("mark", "alpha", "--max-candidate-share", "1.5"), "--max-candidate-share"),
        (("mark", "alpha", "--set", "sweep_batch"), "write NAME=VALUE"),
        (("mark", "alpha", "--set", "sweep_batch=many"), "sweep_batch is 'many': Input should be"),
        (("mark", "alpha", "--set", "sweep_batch=1001"), "1001 is not from 1 to 1,000"),
        (
            ("mark", "alpha", "--set", "speed=9"),
            "no setting speed: docs/operations.md has all",
        ),
        (("mark", "alpha", "--set", "min_age_hour=30"), "did you mean min_age_hours? docs/"),
        (("mark", "alpha", "--set", "artifact_root=/else"), "is set by LAKEGC_ARTIFACT_ROOT"),
        (("mark", "alpha", "--set", "sweep_batch=1", "--set", "sweep_batch=2"), "given twice"),
        (("mark", "alpha", "--min-age", "2d", "--set", "min_age_hours=25"), "given twice"),
        (("mark", "alpha", "--run", "a|b"), "cannot be the id of a run"),
        (("mark", "NO_SUCH_NAME"), "there is no repository 'NO_SUCH_NAME'"),
        (("mark", "NO_SUCH_NAME!"), "cannot be the name of a repository"),
        (("mark", "al|pha"), "cannot be the name of a repository"),
        (("report", "../alpha", "--run", "m1"), "cannot be the name of a repository"),
        (("mark", "no-such-repository"), "there is no repository 'no-such-repository'"),
        (("report", "alpha"), "--run"),
        (("collect", "alpha"), "No such command"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    result = lakegc(*arguments)
    say(result, 2, words)
    assert result.stdout == ""


def test_durations_and_flags_reach_the_run(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Any] = []
    kept, broken = tmp_path / "kept.yaml", tmp_path / "broken.yaml"
    kept.write_text("tags: ['v*']")
    broken.write_text("tags: ['v*']\nbranch: {}")
    monkeypatch.setattr("lakegc_assets.cli.jobs.run_job", lambda *given: seen.append(given))
    lakegc("run", "alpha", "--run", "r", "--min-age", "1.5h", "--allow-unsafe-min-age")
    lakegc("mark", "alpha", "--run", "r", "--min-age", "2d", "--protect-tags")
    lakegc("sweep", "alpha", "--run", "r", "--max-candidate-share", "0", "--accept-missing", "1-a")
    lakegc("run", "alpha", "--run", "r", "--no-sweep", "--engine", "spark")
    lakegc("sweep", "alpha", "--run", "r", "--set", "lease_wait_seconds=60")
    lakegc("mark", "alpha", "--run", "r", "--mode", "committed")
    lakegc("sweep", "alpha", "--run", "r", "--retain", str(kept))
    say(
        lakegc("mark", "alpha", "--retain", str(broken)),
        2,
        f"{broken}, line 2: retain: unknown key 'branch'",
    )
    assert seen == [
        ("gc", "alpha", "r", {"min_age_hours": 1.5, "allow_unsafe_min_age": True}),
        ("gc_mark", "alpha", "r", {"min_age_hours": 48.0, "protect_tags": True}),
        ("gc_sweep", "alpha", "r", {"max_candidate_share": 0.0, "accept_missing": "1-a"}),
        ("gc_mark", "alpha", "r", {"engine": "spark"}),
        ("gc_sweep", "alpha", "r", {"lease_wait_seconds": "60"}),
        ("gc_mark", "alpha", "r", {"mode": "committed"}),
        ("gc_sweep", "alpha", "r", {"retain": {"tags": ["v*"]}}),
    ]
    assert site.server.endpoint


@pytest.mark.usefixtures("site")
def test_a_server_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKECTL_SERVER_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("lakegc_assets.lakefs.transport.sleep", lambda _: None)
    say(lakegc("repositories"), 1, "failed: ", "127.0.0.1:9")


@pytest.mark.usefixtures("site")
def test_keys_that_the_server_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY", "wrong")
    say(lakegc("mark", "alpha"), 1, "failed: ", "401")


@pytest.mark.usefixtures("site")
def test_no_keys_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LAKECTL_CREDENTIALS_ACCESS_KEY_ID")
    monkeypatch.delenv("LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    say(lakegc("mark", "alpha"), 2, "configuration: no lakeFS credentials: set LAKECTL_")


def test_a_read_only_repository(site: Site) -> None:
    site.client.create_repository("mirror", "local://mirror", read_only=True)
    say(lakegc("mark", "mirror"), 3, "refused: ", "read-only")


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("LAKEGC_SPARK_CONF", "LAKEGC_SPARK_CONF: {here}/file/below cannot be read"),
        ("DAGSTER_HOME", "no Dagster instance can be made at {here}/file/below"),
    ],
)
def test_a_path_in_the_environment_that_cannot_be_used(
    variable: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(variable, str(tmp_path / "file/below"))
    say(lakegc("mark", "alpha"), 2, "configuration: ", words.format(here=tmp_path))


def test_records_that_cannot_be_written_are_reported_in_a_sentence(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A damaged file stands for a full disk: the database of the records says both."""
    site.tell("recorded")
    (tmp_path / "history").mkdir()
    (tmp_path / "history/runs.db").write_bytes(b"no database" * 1000)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    said = f"failed: Dagster cannot record runs in {tmp_path} (file is not a database): make room"
    say(lakegc("mark", "recorded"), 1, said)


def test_interrupts_are_reported_in_a_sentence(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lakegc_assets.cli.jobs.run_job", interrupted)
    say(lakegc("mark", "alpha", "--run", "m9"), 1, "interrupted: ")
    assert site.server.endpoint


def test_what_is_installed_as_lakegc_is_this_command() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    place = project.partition('\nlakegc = "')[2].partition('"')[0]
    assert pkgutil.resolve_name(place) is main


def test_paths_are_told_from_where_the_user_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert near(tmp_path / "a/b") == "a/b"
    assert near("/elsewhere") == "/elsewhere"
    assert near("s3://bucket/a") == "s3://bucket/a"


def test_a_setting_that_is_a_list_is_given_in_one_option() -> None:
    for text in ("one,two", "one, two", " one two,"):
        assert checked({"ignored_repositories": text}) == {"ignored_repositories": ["one", "two"]}


def test_no_command_makes_an_instance_of_dagster_in_memory(reported: Completed) -> None:
    """It takes half a second to make the tables of one."""
    assert reported
    opened: list[str] = []
    listening = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if listening and event == "sqlite3.connect":
            opened.append(str(arguments[0]))

    sys.addaudithook(hook)
    say(lakegc("mark", "alpha", "--run", "memory", "--json"), 0)
    say(lakegc("report", "alpha", "--run", "memory"), 0)
    listening = False
    assert opened
    assert [name for name in opened if "memory" in name.partition("?")[2]] == []


def test_who_decides_is_asked_for_where_the_user_has_no_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a container whose user is a number."""

    def nobody() -> NoReturn:
        raise KeyError("getpwuid(): uid not found: 1000660000")

    monkeypatch.setattr(options, "getuser", nobody)
    say(lakegc("approve", "alpha", "--run", "m1"), 3, "nobody knows who does this", "give --by")


def test_an_empty_name_is_not_that_of_the_user() -> None:
    """``--by "$APPROVER"``, where that is not set, would record somebody else's approval."""
    say(lakegc("approve", "alpha", "--run", "m1", "--by", " "), 3, "--by is empty")


def test_a_terminal_that_lacks_a_character_shows_it_in_other_words() -> None:
    group = Commands("any")
    group.add_command(click.Command("say", callback=lambda: click.echo("ä → 日")))
    found = CliRunner(charset="latin-1").invoke(group, ["say"])
    assert (found.exit_code, found.stdout) == (0, "ä \\u2192 \\u65e5\n")


def test_an_instance_with_dagsters_defaults_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours let two runs at a time, and end a run after a day."""
    (tmp_path / "used/history").mkdir(parents=True)
    for name, ours in (("new", True), ("used", False)):
        monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / name))
        with open_instance() as instance:
            assert instance.run_retries_enabled is ours
        assert (tmp_path / name / "dagster.yaml").exists() is ours
