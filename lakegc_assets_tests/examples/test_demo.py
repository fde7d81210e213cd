"""The demo tells its history again and again, and its proof fails where it must."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
from click.testing import CliRunner

from examples import demo
from examples.team import Calendar, Team, variables
from lakegc_assets.cli.main import main as command
from lakegc_assets.embedded.server import EmbeddedLakeFS
from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets_tests.sessions import Session

_REPOSITORY = "demo-told"


@dataclass(frozen=True)
class Completed:
    """The repository of a demo, before anything is collected."""

    folder: Path
    old_commit: str
    live: dict[tuple[str, str], str]

    def prove(self) -> None:
        demo.prove(LakeFSConfig().connect_writer(), _REPOSITORY, self.live, self.old_commit)

    @contextmanager
    def without(self, ref: str, path: str) -> Iterator[None]:
        """Let the object at a path be lost for a while."""
        file = _file(self.folder, _REPOSITORY, ref, path)
        aside = file.rename(self.folder / file.name)
        yield
        aside.rename(file)


def _file(folder: Path, repository: str, ref: str, path: str) -> Path:
    """Where the object at a path lies."""
    address = LakeFSConfig().connect().stat(repository, ref, path).physical_address
    found = list(folder.rglob(address.removeprefix(f"local://{repository}/")))
    assert len(found) == 1
    return found[0]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Completed]:
    folder, calendar = tmp_path_factory.mktemp("told"), Calendar()
    (folder / "lakefs").mkdir()
    with (
        EmbeddedLakeFS(folder / "lakefs", clock=calendar) as server,
        patch.dict(os.environ, variables(folder, server)),
    ):
        client = LakeFSConfig().connect_writer()
        client.create_repository(_REPOSITORY, f"local://{_REPOSITORY}")
        old_commit = demo.tell_history(Team(client, _REPOSITORY, calendar))
        yield Completed(folder, old_commit, demo.live_objects(client, _REPOSITORY))


@pytest.fixture(scope="module")
def ran(
    tmp_path_factory: pytest.TempPathFactory,
    spark: Session,  # noqa: ARG001 - its environment
) -> tuple[Path, str]:
    """The folder of a demo, and what it said."""
    folder = tmp_path_factory.mktemp("demo")
    result = CliRunner().invoke(demo.main, ["--folder", str(folder)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return folder, result.output


def test_what_is_live_and_what_expired_is_proven(
    told: Completed, capsys: pytest.CaptureFixture[str]
) -> None:
    with told.without(told.old_commit, demo.MODEL):
        told.prove()
    assert "all 384 live objects on all branches read exactly as before" in capsys.readouterr().out


def test_an_expired_object_that_still_reads_fails_it(told: Completed) -> None:
    with pytest.raises(IntegrityError, match="expired, but still reads"):
        told.prove()


def test_a_live_object_that_is_lost_fails_it(told: Completed) -> None:
    with (
        told.without(told.old_commit, demo.MODEL),
        told.without("main", "reports/summary.html"),
        pytest.raises(IntegrityError, match=r"2 live objects read differently.*summary\.html"),
    ):
        told.prove()


def test_it_ends_with_an_undo(ran: tuple[Path, str]) -> None:
    text = " ".join(ran[1].split())
    assert "answers 410 Gone." in text
    assert "If that was a mistake, it all comes back: $ lakegc restore demo-" in text
    assert "was gone (410), reads" in text
    assert "pinned until" in text
    assert "garbage 0 objects" in text
    assert "485 objects written, 384 live paths on 4 branches" in text
    assert "all 384 live objects on all branches read exactly as before" in text
    assert f"make ui DAGSTER_HOME={ran[0] / 'dagster'}" in text
    assert "and the next mark names none of them: they are pinned (docs/undo.md)." in text


def test_it_shows_who_holds_the_storage_and_what_other_rules_would_free(
    ran: tuple[Path, str],
) -> None:
    text = " ".join(ran[1].split())
    assert "live and committed, by branch only this one shared deleting it frees audit" in text
    assert "branch main 60 days -> 30 days garbage today 0 objects 0 B" in text
    # As docs/cost.md shows it.
    assert "garbage under the other rules 26 objects 99.2 KiB" in text
    assert "in 7 days 21 objects 65.2 KiB (at least)" in text


@pytest.mark.conformance
def test_it_can_be_run_twice_in_a_row(
    ran: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, first = ran

    def sweep(repository: str, _engine: str) -> None:
        commits = {c.message: c.id for c in LakeFSConfig().connect().log(repository, "main")}
        _file(folder, repository, commits["week 10"], demo.MODEL).unlink()

    monkeypatch.setattr(demo, "collect", sweep)
    monkeypatch.setattr(demo, "show_cost", lambda _: None)
    monkeypatch.setattr(demo, "take_back", lambda *_: None)
    second = CliRunner().invoke(demo.main, ["--folder", str(folder)], catch_exceptions=False)
    assert second.exit_code == 0
    for text in (first, second.output):
        assert "485 objects written, 384 live paths on 4 branches" in text
        assert "all 384 live objects on all branches read exactly as before" in text
        assert "answers 410 Gone" in text
        assert f"make ui DAGSTER_HOME={folder / 'dagster'}" in text


def test_every_command_shows_and_has_the_engine_that_was_asked_for(
    told: Completed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(command, "main", lambda arguments, **_: ran.append(arguments))
    monkeypatch.setattr(
        demo, "outcome", lambda *_: {"outcomes": {"deleted": {"objects": 1}}, "objects": 0}
    )
    monkeypatch.setattr(demo, "last_restore", lambda *_: {"outcomes": {"restored": {"objects": 1}}})
    client = LakeFSConfig().connect_writer()
    demo.collect(_REPOSITORY, "spark")
    demo.take_back(client, _REPOSITORY, told.live, told.old_commit, "spark")
    assert [one[0] for one in ran] == ["run", "restore", "mark"]
    shown = capsys.readouterr().out
    for one in ran:
        assert one[-2:] == ["--engine", "spark"] or one[-1] == "--set=engine=spark"
        assert f"$ lakegc {' '.join(one)}\n" in shown


def test_a_proof_that_fails_fails_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "tell_history", lambda _: "c" * 64)
    monkeypatch.setattr(demo, "collect", lambda *_: None)
    with pytest.raises(IntegrityError, match="should be known and gone"):
        CliRunner().invoke(demo.main, ["--folder", str(tmp_path)], catch_exceptions=False)
