"""The commands about lakeFS's own marks: what they say, and what they refuse."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from lakegc_assets.defs.metadata import of_report
from lakegc_assets.estate.metrics import repository_metrics
from lakegc_assets_tests.cli.calling import lakegc, say
from lakegc_assets_tests.defs.running import mark_outside
from lakegc_assets_tests.mark import foreign
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.site import Completed, Site

NOWHERE = "data/no where\n|é"


def lines(result: Result) -> list[str]:
    """What it printed, with single spaces."""
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def reported(site: Site) -> Completed:
    """A repository with a mark of lakeFS's that names one dead object, and four that are needed."""
    reported = site.tell("alpha")

    def put(key: str, body: bytes) -> None:
        path: Path = site.namespace("alpha") / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    named = [reported.expired, reported.live, reported.staged, reported.young, NOWHERE]
    foreign.with_summary(put, named, "theirs", files=1)
    foreign.without_summary(put, [reported.expired], "theirs-too")
    foreign.standalone(put, named, "standalone")
    return reported


@pytest.fixture(scope="module")
def adopted(site: Site, spark: Session, reported: Completed) -> Result:  # noqa: ARG001 - what it adopts from
    mark_outside(site, "alpha", "ours", spark)
    return lakegc("adopt", "alpha", "--mark", "theirs", "--run", "adopted")


def test_a_run_is_made_and_says_what_it_spared(reported: Completed, adopted: Result) -> None:
    say(adopted, 0, "lakegc sweep alpha --run adopted")
    said = lines(adopted)
    assert "garbage 1 object 11 B" in said
    assert "an active commit holds it 1 object" in said
    assert "it is staged on a branch 1 object" in said
    assert "it was written after the cutoff 1 object" in said
    assert "the store does not hold it 1 object" in said
    assert "not named by mark theirs 1 object" in said
    found = json.loads(lakegc("report", "alpha", "--run", "adopted", "--json").stdout)
    assert found["adopted"]["mark"] == "theirs"
    assert found["adopted"]["objects"] == 5
    assert found["adopted"]["not_named"] == {"objects": 1, "bytes": 24}
    assert found["objects"] == 1
    assert reported.expired in {row[0] for row in found["largest"]}


@pytest.mark.usefixtures("reported")
@pytest.mark.parametrize("command", ["sweep", "report", "why", "backup"])
def test_an_id_of_a_mark_of_lakefs_is_recognized(command: str) -> None:
    object_ = ("data/a",) if command == "why" else ()
    url = ("--url", "/nowhere") if command == "backup" else ()
    say(
        lakegc(command, "alpha", *object_, "--run", "theirs", *url),
        3,
        "refused: there is no mark 'theirs'",
        "unified/theirs/deleted/ is a mark of lakeFS's own collector",
        "`lakegc adopt alpha --mark theirs`",
    )


def test_a_mark_with_artifacts_at_another_place_is_recognized(
    adopted: Result, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert adopted.exit_code == 0
    monkeypatch.setenv("LAKEGC_ARTIFACT_ROOT", str(tmp_path))
    words = ("there is no mark 'ours'", "set LAKEGC_ARTIFACT_ROOT to the same")
    say(lakegc("report", "alpha", "--run", "ours"), 3, *words)


def test_an_id_of_no_mark_at_all_is_only_unknown(reported: Completed) -> None:
    result = lakegc("report", "alpha", "--run", "nobodys")
    say(result, 3, "there is no mark 'nobodys'")
    assert "adopt" not in result.output
    assert reported.live


@pytest.mark.usefixtures("adopted")
@pytest.mark.parametrize(
    ("kind", "verdict", "because"),
    [
        ("expired", "candidate", "held it last"),
        ("live", "spared", "which this run adopted, names it, but the active commit "),
        ("staged", "spared", "names it, but it is staged on branch 'main' at 'c'"),
        ("young", "spared", "names it, but it was written after the cutoff"),
        ("unreferenced", "not adopted", "mark 'theirs', which this run adopted, does not name it"),
        ("spared", "spared", "its name has a line break"),
    ],
)
def test_why(reported: Completed, kind: str, verdict: str, because: str) -> None:
    result = lakegc("why", "alpha", getattr(reported, kind), "--run", "adopted")
    say(result, 0, f": {verdict}: ", because)


@pytest.mark.usefixtures("adopted")
def test_a_comparison_in_words(reported: Completed) -> None:
    result = lakegc("compare", "alpha", "ours", "theirs")
    say(result, 0, "note: run 'ours' (", " is younger than mark 'theirs' (2026-11-21 04:43:14 UTC)")
    said = lines(result)
    assert said[0] == "repository alpha"
    assert "both name 1 object 11 B" in said
    assert "only ours names 1 object 24 B" in said
    assert "marked: unreferenced 1 object 24 B" in said
    assert "only theirs names 4 objects" in " ".join(said)
    assert any(s.startswith("kept by ours: an active commit holds it 1 object") for s in said)
    assert "only theirs names (4 of 4, the largest first):" in said
    assert f"{reported.staged}, 26 B: kept: it is staged on branch 'main' at 'c'" in said
    assert "'data/no where\\n|é': kept: the store does not hold it" in said


@pytest.mark.usefixtures("adopted")
def test_a_comparison_as_json(reported: Completed) -> None:
    found: dict[str, Any] = json.loads(
        lakegc("compare", "alpha", "ours", "unified/theirs", "--json", "--list", "1").stdout
    )
    assert found["both"] == {"objects": 1, "bytes": 11}
    assert (found["run"]["kind"], found["run"]["objects"]) == ("run", 2)
    assert found["other"]["kind"] == "unified mark of lakeFS's collector"
    (one,) = found["only_run"]["objects"]
    assert one == {
        "address": reported.unreferenced,
        "size": 24,
        "marked": "unreferenced",
        "kept": None,
    }
    assert found["only_other"]["total"]["objects"] == 4
    assert len(found["only_other"]["objects"]) == 1
    assert json.loads(lakegc("compare", "alpha", "ours", "ours", "--json").stdout)["both"] == {
        "objects": 2,
        "bytes": 35,
    }


@pytest.mark.usefixtures("adopted")
def test_a_form_may_be_named_and_is_adopted(
    site: Site, spark: Session, reported: Completed
) -> None:
    named = "reports/standalone"
    mark_outside(site, "alpha", "again", spark, adopt=named)
    found = json.loads(lakegc("report", "alpha", "--run", "again", "--json").stdout)
    assert found["adopted"]["form"] == "standalone"
    assert named.endswith(found["adopted"]["mark"])
    assert found["adopted"]["objects"] == 5
    # Whatever the list names, only what is dead is a candidate.
    assert [row[0] for row in found["largest"]] == [reported.expired]


def test_the_run_is_swept_like_any_other(site: Site, reported: Completed, adopted: Result) -> None:
    assert adopted.exit_code == 0
    say(lakegc("sweep", "alpha", "--run", "adopted"), 0, "deleted")
    there = {
        kind: (site.namespace("alpha") / getattr(reported, kind)).exists()
        for kind in ("expired", "unreferenced", "live", "staged", "young", "spared")
    }
    assert there == dict.fromkeys(there, True) | {"expired": False}


@pytest.mark.usefixtures("reported", "adopted")
@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("adopt", "alpha"), 2, "--mark"),
        (("adopt", "alpha", "--mark", "nowhere"), 3, "refused: there is no mark 'nowhere'"),
        (("adopt", "alpha", "--mark", "ours"), 3, "Sweep it: `lakegc sweep alpha --run ours`"),
        (("adopt", "alpha", "--mark", "theirs", "--run", "theirs"), 3, "another id for the run"),
        (("adopt", "alpha", "--mark", "theirs", "--run", "ours"), 3, "exists already"),
        (("adopt", "alpha", "--mark", "a/b"), 2, "cannot be a mark id"),
        (("adopt", "alpha", "--mark", "theirs", "--run", "a|b"), 2, "cannot be the id of a run"),
        (
            ("adopt", "alpha", "--mark", "theirs", "--set", "adopt=x"),
            2,
            "give the mark id as --mark",
        ),
        (("adopt", "nowhere", "--mark", "theirs"), 2, "there is no repository 'nowhere'"),
        (("compare", "alpha", "ours"), 2, "OTHER"),
        (("compare", "alpha", "ours", "nowhere"), 3, "there is no mark 'nowhere'"),
        (("compare", "alpha", "ours", "theirs", "--list", "-1"), 2, "--list"),
        (("compare", "al|pha", "ours", "theirs"), 2, "cannot be the name of a repository"),
        (("compare", "nowhere", "ours", "theirs"), 2, "there is no repository 'nowhere'"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], status: int, words: str) -> None:
    result = lakegc(*arguments)
    say(result, status, words)
    assert result.stdout == ""


def test_a_mark_of_the_standalone_collector_is_compared_as_any_other(adopted: Result) -> None:
    say(adopted, 0)
    beside = [
        json.loads(lakegc("compare", "alpha", "ours", other, "--json").stdout)
        for other in ("theirs", "standalone")
    ]
    expected, compared = ([one[name] for name in ("both", "only_other")] for one in beside)
    assert compared == expected
    assert beside[1]["other"]["kind"] != beside[0]["other"]["kind"]


@pytest.mark.usefixtures("adopted")
def test_each_mark_is_compared_in_shadow_mode(site: Site, spark: Session) -> None:
    mark_outside(site, "alpha", "shadow", spark, publish="sgc", compare_with="sgc")
    found = site.root.attempt("alpha", "shadow").manifest("gc_report")
    by_hand = lakegc("compare", "alpha", "shadow", "reports/standalone", "--json").stdout
    assert found.facts["compared"] == json.loads(by_hand)
    assert found.facts["compared"]["only_other"]["total"]["objects"]
    shown = of_report(found)["beside lakeFS's collector"]
    assert "standalone alone" in {row.data["named by"] for row in shown.records}
    counted = repository_metrics(site.root, "alpha", "approved", datetime.now(timezone.utc))
    theirs = found.facts["compared"]["only_other"]["total"]["objects"]
    assert counted.compared["theirs"] == theirs
    line = f'lakegc_compared_objects{{named_by="theirs",repository="alpha"}} {theirs:.1f}'
    assert line in lakegc("metrics").stdout


@pytest.mark.usefixtures("adopted")
def test_shadow_mode_stops_no_mark(site: Site, spark: Session) -> None:
    site.tell("lonely")
    mark_outside(site, "lonely", "alone", spark, compare_with="sgc")
    found = site.root.attempt("lonely", "alone").manifest("gc_report")
    problem = "lakeFS's collector has finished no mark of the repository yet (compare_with is sgc)"
    assert found.facts["compared"] == {"problem": problem}
    assert of_report(found)["beside lakeFS's collector"] == problem
    assert not repository_metrics(
        site.root, "lonely", "approved", datetime.now(timezone.utc)
    ).compared
