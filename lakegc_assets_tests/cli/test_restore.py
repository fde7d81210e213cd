"""The page for whoever has deleted too much, word for word, and the commands of restores."""

from __future__ import annotations

import json
import re
import shlex
from datetime import datetime, timedelta, timezone
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from lakegc_assets.cli.main import main
from lakegc_assets.lakefs.errors import GoneError
from lakegc_assets.run.pins import Pin, write_pin
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.defs.running import mark_outside
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.site import Completed, Site

PAGE = (Path(__file__).parents[2] / "docs" / "undo.md").read_text()
COMMANDS = [
    line for block in re.findall(r"```\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
]
REPOSITORY = "my-repo"


def follow(command: str) -> Result:
    program, *arguments = shlex.split(command)
    assert program == "lakegc"
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def done(command: str) -> str:
    result = follow(command)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def reported(site: Site, spark: Session) -> Completed:
    found = site.tell(REPOSITORY)
    sweep(mark_outside(site, REPOSITORY, "first", spark))
    return found


def there(site: Site, reported: Completed) -> tuple[bool, bool]:
    folder = site.namespace(REPOSITORY)
    return (folder / reported.expired).exists(), (folder / reported.unreferenced).exists()


def test_the_page_has_three_commands_and_their_parts() -> None:
    assert len(COMMANDS) == 8
    assert COMMANDS[0] == "lakegc repositories"
    assert all(command.startswith("lakegc ") for command in COMMANDS)


def test_the_three_commands_of_the_page(
    site: Site, spark: Session, reported: Completed, tmp_path: Path
) -> None:
    repositories, dry, restore = COMMANDS[:3]
    first = next(c.id for c in site.client.log(REPOSITORY, "main") if c.message == "first")
    with pytest.raises(GoneError):
        site.client.get_object(REPOSITORY, first, "a")
    assert there(site, reported) == (False, False)

    assert f"{REPOSITORY}\tlocal://{REPOSITORY}\tfirst (swept)" in done(repositories)

    said = [" ".join(line.split()) for line in done(dry).splitlines()]
    assert said[0] == "would come back 2 (versions 0, trash 2, backup 0), lost 0"
    assert "would come back 2 objects 35 B" in said
    assert there(site, reported) == (False, False)
    assert done(f"lakegc pins {REPOSITORY}") == ""

    said = [" ".join(line.split()) for line in done(f"{restore} --engine embedded").splitlines()]
    assert "restored 2 objects 35 B" in said
    assert "engine embedded (engine is set to embedded)" in said
    assert "from what the store kept 2 objects 35 B" in said
    assert f"a of commit {first[:12]}: was gone (410), reads" in said
    assert there(site, reported) == (True, True)
    assert site.client.get_object(REPOSITORY, first, "a") == b"the first a"

    assert re.search(r"first \(restored 2 of 2 on 20[^)]* UTC\)", done(repositories))
    shown = done(f"lakegc report {REPOSITORY} --run first")
    assert re.search(r"undo +restored 2 of 2 on 20.* UTC\n", shown)
    assert "state      restored: mark first was swept on " in shown
    found = json.loads(done(f"lakegc report {REPOSITORY} --run first --json"))
    assert found["restored"] | {"on": "", "summary": ""} == {
        "objects": 2, "bytes": 35, "deleted": 2, "on": "", "summary": ""
    }  # fmt: skip
    page = tmp_path / "first.html"
    done(f"lakegc report {REPOSITORY} --run first --html {page}")
    assert "restored 2 of 2 on 20" in page.read_text()
    assert "be restored until" not in shown + page.read_text()
    again = follow(f"lakegc sweep {REPOSITORY} --run first")
    assert again.exit_code == 3
    assert again.stderr.startswith(
        f"refused: mark 'first' of '{REPOSITORY}' was swept already, and restored 2 of 2 on 20"
    )

    assert "2 objects\tuntil " in done(COMMANDS[-1])
    (pin,) = json.loads(done(f"{COMMANDS[-1]} --json"))
    days = (datetime.fromisoformat(pin["until"]) - datetime.now(timezone.utc)) / timedelta(days=1)
    assert (pin["run"], pin["objects"], pin["state"]) == ("first", 2, "lasting")
    assert 29.9 < days < 30.1
    mark_outside(site, REPOSITORY, "second", spark)
    because = done(f"lakegc why {REPOSITORY} {reported.expired} --run second")
    assert because.startswith(f"{reported.expired}: spared: pinned until {pin['until'][:10]}")
    assert json.loads(done(f"lakegc report {REPOSITORY} --run second --json"))["objects"] == 0
    with dg.DagsterInstance.get() as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey("restored_set"))
    assert event is not None
    assert event.asset_materialization is not None
    assert "pinned until" in event.asset_materialization.metadata
    engine = event.asset_materialization.metadata["engine"].value
    assert engine == "embedded (engine is set to embedded)"


def test_parts_of_a_run_as_the_page_says(site: Site, reported: Completed) -> None:
    """Names of the page are those of an example; here they are of what there is."""
    first = next(c.id for c in site.client.log(REPOSITORY, "main") if c.message == "first")
    site.client.create_branch(REPOSITORY, "dev", first)
    names = {"data/g0/one": reported.expired, "data/g0/two": reported.unreferenced,
             "reports/summary.html": "a", "reports/": "a"}  # fmt: skip
    counts = []
    for command in COMMANDS[3:7]:
        meant = re.sub("|".join(map(re.escape, names)), lambda match: names[match[0]], command)
        found = json.loads(done(f"{meant} --json"))
        counts.append(sum(total["objects"] for total in found["outcomes"].values()))
        assert found["repository"] == REPOSITORY
        assert found["pinned_until"]
    assert counts == [1, 1, 1, 2]


@pytest.mark.usefixtures("reported")
@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ("--run first", 3, "refused: give one of these"),
        ("--run first --all --branch main", 3, "refused: give one of these"),
        ("--run first --all --path a", 3, "add --branch"),
        ("--run nothing --all", 3, "there is no mark 'nothing'"),
        ("--run first --address data/none", 3, "1 of these objects is not named by the mark"),
        ("--run first --branch none", 3, "has no branch, tag or commit 'none'"),
        ("--run first --all --set pin_days=-1", 2, "pin_days is"),
        ("--run first --all --set no_such=1", 2, "there is no setting no_such"),
        ("--run first --all --set pin_days", 2, "write NAME=VALUE"),
    ],
)
@pytest.mark.parametrize("dry", ["", " --dry-run"])
def test_what_is_refused(arguments: str, status: int, said: str, dry: str) -> None:
    result = follow(f"lakegc restore {REPOSITORY} {arguments}{dry}")
    assert (result.exit_code, said in result.stderr) == (status, True), result.output


@pytest.mark.usefixtures("reported")
def test_a_restore_before_the_sweep_says_that_it_pins(site: Site, spark: Session) -> None:
    site.tell("early")
    marked = mark_outside(site, "early", "first", spark)
    for dry in (" --dry-run", ""):
        found = json.loads(done(f"lakegc restore early --run first --all --json{dry}"))
        assert found["warnings"][0].startswith("no sweep of 'first' has ended here")
    sweep(marked)
    report = json.loads(done("lakegc report early --run first --json"))
    ((because, objects),) = report["spared_by_sweep"].items()
    assert because.startswith("pinned until ")
    assert objects == report["outcomes"]["spared"]["objects"] == 2
    assert "pinned until " in done("lakegc report early --run first")
    again = json.loads(done("lakegc restore early --run first --all --json --dry-run"))
    assert again["warnings"] == []


@pytest.mark.parametrize("repository", ["none", "my-repo"])
@pytest.mark.usefixtures("reported")
def test_pins_of_nothing(repository: str) -> None:
    result = follow(f"lakegc pins {repository}{' --prune' if repository == 'my-repo' else ''}")
    status, words = {"none": (2, "lakegc repositories"), "my-repo": (0, "no pins that have ended")}[
        repository
    ]
    assert (result.exit_code, words in result.stderr) == (status, True), result.output


def test_pins_that_ended_are_removed_and_by_both_clocks(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.client.create_repository("short", "local://short")
    store, now = LocalStore(site.namespace("short"), "local://short"), datetime.now(timezone.utc)
    ends = {"ended": now - timedelta(minutes=1), "lasting": now + timedelta(days=1)}
    for name, until in ends.items():
        write_pin(store, Pin(name, until, "first", "restored", 1), pa.array(["data/a"]))
    found = {pin["pin"]: pin["state"] for pin in json.loads(done("lakegc pins short --json"))}
    assert found == {name: name for name in ends}
    assert "ended" in done("lakegc pins short --prune")
    # By the clock of the store alone no pin ends.
    monkeypatch.setattr(LocalStore, "server_time", lambda _: now + timedelta(days=365))
    assert "no pins that have ended" in follow("lakegc pins short --prune").stderr
    monkeypatch.undo()
    (pin,) = json.loads(done("lakegc pins short --json"))
    assert (pin["pin"], pin["state"]) == ("lasting", "lasting")


def test_what_nobody_has_is_a_failure_which_a_dry_run_names(site: Site, spark: Session) -> None:
    lost = site.tell("losing")
    sweep(mark_outside(site, "losing", "r", spark, trash_days=0))
    dry = follow("lakegc restore losing --run r --all --dry-run")
    assert dry.exit_code == 1
    said = [" ".join(line.split()) for line in dry.stdout.splitlines()]
    assert said[0] == "would come back 0 (versions 0, trash 0, backup 0), lost 2"
    why = "it is not in the trash: it was pruned, or never moved there"
    assert {f"{lost.expired}: {why}", f"{lost.unreferenced}: {why}"} <= set(said)
    found = json.loads(follow("lakegc restore losing --run r --all --dry-run --json").stdout)
    assert (found["lost"]["objects"], found["not_known"]["objects"]) == (2, 0)
    result = follow("lakegc restore losing --run r --all --json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["outcomes"] == {"not_kept": {"objects": 2, "bytes": 35}}
    assert "2 objects are neither kept" in found["warnings"][0]


def test_the_help_of_a_restore_names_the_page() -> None:
    assert "docs/undo.md" in done("lakegc restore --help")
