"""The commands of backups: what they say and where, their exit status, and what they refuse."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets_tests.cli.calling import lakegc, say
from lakegc_assets_tests.defs.running import mark_outside
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.site import Completed, Site


@pytest.fixture(scope="module")
def reported(site: Site, spark: Session) -> Completed:
    """A repository that is marked."""
    reported = site.tell("archived")
    mark_outside(site, "archived", "m1", spark)
    return reported


@pytest.fixture(scope="module")
def place(site: Site) -> Path:
    return site.folder / "backups"


@pytest.fixture(scope="module")
def backed_up(reported: Completed, place: Path) -> str:  # noqa: ARG001 - what is backed up
    """What the command has said, with every option that the job before had."""
    log = place.parent / "log"
    result = lakegc(
        *("backup", "archived", "--run", "m1", "--url", str(place), "-m", "3", "--bandwidth", "50"),
        *("--log", str(log), "--num-liststatus-threads", "2", "--strategy", "uniform"),
        *("--engine", "embedded"),
    )
    say(result, 0)
    # A sweep is made in the same step; nobody who backs up is to read that it has begun.
    assert "backup                 started" in result.stderr
    assert "swept_set" not in result.stderr
    return result.stdout


def test_a_backup_is_reported_in_words(
    site: Site, reported: Completed, place: Path, backed_up: str
) -> None:
    words = [" ".join(line.split()) for line in backed_up.splitlines()]
    assert words[0] == f"backup of archived, mark m1: file://{place}/archived/m1"
    assert words[1] == "copied 2 objects 35 B"
    assert words[2].startswith("verified by ")
    for address in (reported.expired, reported.unreferenced):
        copy = place / "archived/m1" / address
        assert copy.read_bytes() == (site.namespace("archived") / address).read_bytes()
    lines = [
        json.loads(line)
        for path in (place.parent / "log/archived/m1").iterdir()
        for line in path.read_text().splitlines()
    ]
    assert {line["address"] for line in lines} == {reported.expired, reported.unreferenced}


@pytest.mark.usefixtures("backed_up")
def test_a_finished_backup_is_reported_again_as_json(place: Path) -> None:
    result = lakegc("backup", "archived", "--run", "m1", "--url", str(place), "--json")
    say(result, 0)
    found: dict[str, Any] = json.loads(result.stdout)
    assert (found["objects"], found["bytes"]) == (2, 35)
    assert found["outcomes"] == {"copied": {"objects": 2, "bytes": 35}}


@pytest.mark.usefixtures("backed_up")
def test_one_that_is_damaged_hides_no_other(place: Path) -> None:
    begin = place / "archived/m0/_lakegc/begin.json"
    begin.parent.mkdir(parents=True)
    begin.write_text('{"version": 1, "sub')
    arguments = ("backups", "--url", str(place))
    try:
        listed, reported = lakegc(*arguments), lakegc(*arguments, "--json")
        pruned = lakegc(*arguments, "prune", "--older-than", "0s")
    finally:
        shutil.rmtree(place / "archived/m0")
    say(listed, 1, f"failed: file://{begin} is damaged")
    damaged, other = listed.stdout.splitlines()
    assert damaged == "archived/m0\tdamaged"
    assert other.startswith("archived/m1\tfinished\t0 days\t2 objects")
    assert reported.exit_code == 1
    first, second = json.loads(reported.stdout)
    assert (first["run"], first["state"], first["objects"]) == ("m0", "damaged", None)
    assert f"file://{begin} is damaged" in first["error"]
    assert (second["run"], second["state"], second["error"]) == ("m1", "finished", None)
    # Nothing goes while nobody can tell what one of them is.
    say(pruned, 1, f"failed: file://{begin} is damaged")


@pytest.mark.usefixtures("backed_up")
def test_backups_are_listed_swept_and_pruned(
    site: Site, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEGC_BACKUP_URL", str(place))
    listed = lakegc("backups")
    say(listed, 0)
    assert listed.stdout.startswith(
        "archived/m1\tfinished\t0 days\t2 objects, 35 B\tthe repository has all of them"
    )
    (found,) = json.loads(lakegc("backups", "--json").stdout)
    assert found["only_copies"] == {"objects": 0, "bytes": 0}
    old = lakegc("backups", "prune", "--older-than", "0s", "--dry-run", "--json")
    (kept,) = json.loads(old.stdout)
    assert not kept["removed"]
    assert kept["kept"].startswith("the artifacts show no finished sweep")

    swept = lakegc("sweep", "archived", "--run", "m1")
    say(swept, 0, "deleted", f"  backup     file://{place}/archived/m1\n")
    (found,) = json.loads(lakegc("backups", "--json").stdout)
    assert found["only_copies"] == {"objects": 2, "bytes": 35}
    assert (found["repository"], found["run"], found["state"]) == ("archived", "m1", "finished")
    assert found["age_days"] == 0
    say(lakegc("backups", "prune", "--older-than", "30d"), 0, "kept: it is 0 days old")
    dry = lakegc("backups", "prune", "--older-than", "0s", "--dry-run")
    assert dry.stdout == "archived/m1\twould be removed\n"
    assert (place / "archived/m1/_lakegc/manifest.json").exists()
    kept = site.namespace("archived") / "_lakefs/retention/gc/lakegc/trash"
    trash = kept / "20200101T000000Z-sweep/data/x"
    trash.parent.mkdir(parents=True)
    trash.write_text("deleted long ago")
    left = {path for path in kept.rglob("*") if path.is_file()} - {trash}
    gone = lakegc("backups", "--url", str(place), "prune", "--older-than", "0s")
    assert gone.stdout == "archived/m1\tremoved\n"
    assert not [path for path in place.rglob("*") if path.is_file()]
    assert {path for path in kept.rglob("*") if path.is_file()} == left
    assert lakegc("backups", "--json").stdout == "[]\n"
    assert site.server.endpoint


@pytest.mark.usefixtures("reported")
@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("backups",), 2, "no place of backups is set: give --url, or set LAKEGC_BACKUP_URL"),
        (("backup", "archived", "--run", "m1"), 2, "no place of backups is set"),
        (
            ("backups", "prune"),
            3,
            "choose backups: give --older-than 30d, or --backup REPOSITORY/RUN",
        ),
        (("backups", "prune", "--older-than", "30d"), 2, "no place of backups is set"),
        (("backups", "prune", "--older-than", "a month"), 2, "write 90s, 30m, 25h or 2d"),
        (("backups", "prune", "--url", "/x", "--backup", "a/b"), 3, "holds no backup a/b"),
        (("backup", "archived", "--run", "m1", "--url", "ftp://x"), 2, "scheme 'ftp' is not known"),
        (("backup", "archived", "--run", "m9", "--url", "/x"), 3, "there is no mark 'm9'"),
        (("backup", "archived", "--url", "/x"), 2, "--run"),
        (
            ("backup", "archived", "--run", "m1", "--url", "/x", "--set", "backup_url=/y"),
            2,
            "given twice",
        ),
        (
            ("backup", "archived", "--run", "m1", "--url", "/x", "--num-liststatus-threads", "41"),
            2,
            "41 is not in the range 1<=x<=40",
        ),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], status: int, words: str) -> None:
    assert "LAKEGC_BACKUP_URL" not in os.environ
    result = lakegc(*arguments)
    say(result, status, words)
    assert result.stdout == ""
