"""Options of the command, and what it says where they or the environment are wrong."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Any, NoReturn

import click
import pytest
from click.testing import CliRunner

from lakegc_assets.cli import options
from lakegc_assets.cli.jobs import checked, open_instance
from lakegc_assets.cli.main import Commands, main
from lakegc_assets.cli.output import near
from lakegc_assets.errors import RefusedError
from lakegc_assets_tests.cli.calling import lakegc, say
from lakegc_assets_tests.site import Site


def test_the_readme_has_all_commands_in_the_order_of_the_help() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    block = readme.partition("## The command")[2].split("```")[1]
    reported = dict.fromkeys(line.split()[1] for line in block.split("\n") if line)
    shown = lakegc("--help").stdout.partition("Commands:")[2]
    assert list(reported) == [line.split()[0] for line in shown.splitlines() if line]
    assert "..." not in shown


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


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mark", "alpha", "--min-age", "5 parsecs"), "write 90s, 30m, 25h or 2d"),
        (("mark", "alpha", "--min-age", "-2h"), "write 90s, 30m, 25h or 2d"),
        (("mark", "alpha", "--min-age", "99999999999d"), "is too long: give a shorter time"),
        (("mark", "alpha", "--min-age", "23h"), "below 1 day: "),
        (("mark", "alpha", "--max-candidate-share", "1.5"), "--max-candidate-share"),
        (("mark", "alpha", "--set", "sweep_batch"), "write NAME=VALUE"),
        (("mark", "alpha", "--set", "sweep_batch=many"), "sweep_batch is 'many': Input should be"),
        (("mark", "alpha", "--set", "sweep_batch=1001"), "1001 is not from 1 to 1,000"),
        (
            ("mark", "alpha", "--set", "speed=9"),
            "no setting speed: docs/operations.md lists all",
        ),
        (("mark", "alpha", "--set", "min_age_hour=30"), "did you mean min_age_hours? docs/"),
        (("mark", "alpha", "--set", "artifact_root=/else"), "set LAKEGC_ARTIFACT_ROOT"),
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


@pytest.fixture(scope="module")
def alpha(site: Site) -> str:
    """A repository that is there."""
    return site.client.create_repository("alpha", "local://alpha").id


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("LAKEGC_SPARK_CONF", "LAKEGC_SPARK_CONF: {here}/file/below cannot be read"),
        ("DAGSTER_HOME", "no Dagster instance can be made at {here}/file/below"),
    ],
)
def test_a_path_in_the_environment_that_cannot_be_used(
    alpha: str, variable: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(variable, str(tmp_path / "file/below"))
    say(lakegc("mark", alpha), 2, "configuration: ", words.format(here=tmp_path))


@pytest.mark.parametrize("name", ["what?", "a%20b"])
def test_a_folder_that_dagster_cannot_name_is_refused_before_anything_is_made_there(
    alpha: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / name))
    words = f"no Dagster instance can be made at {tmp_path / name}"
    say(lakegc("mark", alpha), 2, "configuration: ", words, "Set DAGSTER_HOME")
    assert not list(tmp_path.iterdir())


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


def test_who_decides_is_asked_for_where_the_user_has_no_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a container whose user is a number."""

    def nobody() -> NoReturn:
        raise KeyError("getpwuid(): uid not found: 1000660000")

    monkeypatch.setattr(options, "getuser", nobody)
    say(lakegc("approve", "alpha", "--run", "m1"), 3, "has no name", "give --by NAME")


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
