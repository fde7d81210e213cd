"""The demo tells its history again and again, and its proof fails where it must."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from lakegc_assets.cli import demo
from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets_tests.sessions import Session


def _file(folder: Path, repository: str, ref: str, path: str) -> Path:
    """Where the object at a path lies."""
    address = LakeFSConfig().connect().stat(repository, ref, path).physical_address
    found = list(folder.rglob(address.removeprefix(f"local://{repository}/")))
    assert len(found) == 1
    return found[0]


def _run(folder: Path, monkeypatch: pytest.MonkeyPatch, *damage: str) -> object:
    """Run the demo with a sweep that removes what is at these paths (``REF:PATH``)."""

    def sweep(repository: str) -> None:
        client = LakeFSConfig().connect()
        commits = {c.message: c.id for c in client.log(repository, "main")}
        for place in damage:
            ref, _, path = place.partition(":")
            _file(folder, repository, commits.get(ref, ref), path).unlink()

    monkeypatch.setattr(demo, "_collect", sweep)
    monkeypatch.setattr(demo, "_take_back", lambda *_: None)
    return CliRunner().invoke(demo.main, ["--folder", str(folder)], catch_exceptions=False)


_OLD = "week 10:models/forecast.bin"


def test_it_can_be_run_twice_in_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        result = _run(tmp_path, monkeypatch, _OLD)
        text = getattr(result, "output", "")
        assert getattr(result, "exit_code", 1) == 0
        assert "485 objects written, 384 live paths on 4 branches" in text
        assert "all 384 live objects on all branches read exactly as before" in text
        assert "answers 410 Gone" in text
        assert f"make ui DAGSTER_HOME={tmp_path / 'dagster'}" in text


def test_an_expired_object_that_still_reads_fails_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(IntegrityError, match="expired, but still reads"):
        _run(tmp_path, monkeypatch)


def test_a_live_object_that_is_lost_fails_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(IntegrityError, match=r"2 live objects read differently.*summary\.html"):
        _run(tmp_path, monkeypatch, _OLD, "main:reports/summary.html")


@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning")
def test_it_ends_with_an_undo(tmp_path: Path, spark: Session) -> None:  # noqa: ARG001 - its environment
    result = CliRunner().invoke(demo.main, ["--folder", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert (
        "answers 410 Gone. If that was a mistake, it all comes back: $ lakegc restore demo-" in text
    )
    assert "was gone (410), reads" in text
    assert "pinned until" in text
    assert "garbage 0 objects" in text
    assert "and the next mark names none of them: they are pinned (docs/undo.md)." in text
