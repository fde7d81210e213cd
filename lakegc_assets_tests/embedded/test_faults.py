"""With its faults switched on the server answers as a real lakeFS does, and else it does not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lakegc_assets.embedded import embedded
from lakegc_assets.embedded.faults import Fault
from lakegc_assets.embedded.gc import order_dependent_walk
from lakegc_assets.embedded.lake import Lake
from lakegc_assets.retention.active_commits import active_commits
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.rules import Rules
from lakegc_assets_tests.conformance.recorder import FAULTS, conforms
from lakegc_assets_tests.embedded.api import Repo
from lakegc_assets_tests.embedded.conftest import Clock
from lakegc_assets_tests.embedded.direct import Direct
from lakegc_assets_tests.embedded.scans import direct_pages, pages, rows
from lakegc_assets_tests.embedded.test_recorded_trees import GOLDEN, bodies, recorded_commits
from lakegc_assets_tests.embedded.test_uncommitted import branch, drop, make_lake, put

Start = Callable[..., Repo]


@pytest.fixture
def start(tmp_path: Path, clock: Clock) -> Iterator[Start]:
    """Starts a server with some faults, and makes a repository there."""
    running: list[Direct] = []

    def begin(*faults: Fault, **settings: Any) -> Repo:
        data = tmp_path / str(len(running))
        running.append(Direct.on(data, clock=clock, faults=frozenset(faults), **settings))
        return running[-1].repository()

    yield begin
    for direct in running:
        direct.__exit__(None, None, None)
        direct.lake.close()


def lake_of(repo: Repo) -> Lake:
    assert isinstance(repo.api, Direct)
    return repo.api.lake


def listed(repo: Repo) -> set[str]:
    return set(rows(lake_of(repo).settings.objects_dir, pages(repo)))


def upload(repo: Repo, path: str, data: bytes, branch: str = "main") -> str:
    address: str = repo.put(path, data, branch)["physical_address"]
    return address.removeprefix("local://repo/")


@conforms(
    FAULTS,
    "pages-without-location",
    client="recording, own client",
    checked="the last page has no location although others wrote files, as recorded in `paged`",
)
@pytest.mark.parametrize("steps", [None, 1, 2, 5])
def test_the_last_page_has_no_location(start: Start, steps: int | None) -> None:
    kept = []
    for faults in ((), (Fault.PAGES_WITHOUT_LOCATION,)):
        repo = start(*faults, uncommitted_page_steps=steps)
        expected = set()
        for name in ("a", "main", "z"):
            if name != "main":
                repo.branch(name)
            expected |= {upload(repo, path, b"1", name) for path in ("1", "2")}
        found = pages(repo)
        assert set(rows(lake_of(repo).settings.objects_dir, found)) == expected
        kept.append([page["gc_uncommitted_location"] for page in found])
    sound, faulty = kept
    assert all(sound[sound.index(max(sound)) :])
    assert faulty[-1] == ""
    assert any(faulty)
    answers = GOLDEN / "paged" / "prepare_interval_9ms" / "answers.json"
    recorded = [answer["body"] for answer in json.loads(answers.read_text())]
    assert recorded[-1]["gc_uncommitted_location"] == ""
    assert recorded[0]["gc_uncommitted_location"] != ""
    assert found[-1].keys() == recorded[-1].keys()


def test_a_repository_with_nothing_staged_has_one_page_in_any_case(start: Start) -> None:
    for faults in ((), tuple(Fault)):
        (page,) = pages(start(*faults))
        assert page["gc_uncommitted_location"] == ""


@conforms(
    FAULTS,
    "rows-lost-on-branch-delete",
    client="none",
    checked="a branch deleted while a page scans takes the rows that were found before it",
)
@pytest.mark.parametrize(
    ("faults", "left"), [((), "abc"), ((Fault.ROWS_LOST_ON_BRANCH_DELETE,), "c")]
)
def test_a_branch_deleted_in_the_middle_of_a_page_takes_rows_of_others(
    tmp_path: Path, clock: Clock, faults: tuple[Fault, ...], left: str
) -> None:
    deleted: list[str] = []

    def act(name: str) -> None:
        if name == "b" and not deleted:
            deleted.append(name)
            drop(lake, "b")

    lake = make_lake(tmp_path, clock, faults=frozenset(faults), at_scan_step=act)
    staged = {}
    for name in "abc":
        branch(lake, name)
        staged[name] = put(lake, name, "x")
    found = direct_pages(lake, "repo")
    assert set(rows(lake.settings.objects_dir, found)) == {staged[name] for name in left}
    assert deleted
    lake.close()


@conforms(
    FAULTS,
    "scan-ends-early",
    client="none",
    checked="of each branch half is listed, by diffs too, without an error, however pages are cut",
)
@pytest.mark.parametrize("steps", [None, 1, 2, 3])
def test_a_scan_ends_early(start: Start, steps: int | None) -> None:
    repo = start(Fault.SCAN_ENDS_EARLY, uncommitted_page_steps=steps)
    repo.branch("dev")
    repo.branch("one")
    expected = {upload(repo, path, b"1", "dev") for path in "abcde"[:4]}
    by_path = {path: upload(repo, path, b"1") for path in "vwxyz"}
    upload(repo, "lone", b"1", "one")
    late = {upload(repo, path, b"1", "dev") for path in "stuv"}
    assert listed(repo) == expected | {by_path["v"], by_path["w"]}
    assert late
    assert set(repo.staged("dev")) == set("abcd")
    assert not repo.staged("one")
    whole = repo.call("GET", "/refs/one@/diff/one$", params={"type": "two_dot"})["results"]
    assert [found["path"] for found in whole] == ["lone"]


@conforms(
    FAULTS,
    "order-dependent-walk",
    client="recording",
    checked="the recorded lists of `small`, `retention` and `orderhz`, commit by commit",
)
def test_the_walk_of_lakefs_gives_its_recorded_lists() -> None:
    lost = 0
    for repository in ("small", "retention", "orderhz"):
        commits = {
            c["id"]: Commit(c["id"], tuple(c["parents"]), c["creation_date"], c["meta_range_id"])
            for c in recorded_commits(repository).values()
        }
        (listed_branches,) = bodies(repository, "branches_show_hidden")
        heads = {b["id"]: b["commit_id"] for b in listed_branches["results"]}
        (stored,) = bodies(repository, "gc_rules_settings")
        rules = Rules.parse(stored)
        recorded, sent_at = recorded_list(repository)
        now = datetime.fromtimestamp(sent_at, tz=timezone.utc)
        assert set(order_dependent_walk(commits, heads, rules, now)) == recorded
        lost += len(active_commits(commits, heads, rules, now).active.keys() - recorded)
    # Four replaced parents in orderhz, and the first commit, younger than what came later, twice.
    assert lost == 6


def recorded_list(repository: str) -> tuple[set[str], float]:
    answers = json.loads((GOLDEN / repository / "prepare" / "answers.json").read_text())
    (found,) = [answer for answer in answers if answer["name"] == "prepare_commits_sync"]
    location = found["body"]["gc_commits_location"].removeprefix(f"s3://lab/{repository}/")
    text = (GOLDEN / repository / "prepare" / "files" / location).read_text()
    return {line.split(",")[0] for line in text.splitlines()[1:]}, found["sent_at"]


def test_the_list_over_the_api_is_that_of_the_walk(start: Start, clock: Clock) -> None:
    day = 24 * 3600
    found = {}
    for faults in ((), (Fault.ORDER_DEPENDENT_WALK,)):
        repo = start(*faults)
        repo.rules(10)
        parents = set()
        for number in range(6):
            # The same commits on both servers: their ids follow from what they hold.
            repo.branch(f"old{number}")
            date = int(clock.now - 45 * day)
            parent = repo.commit(f"P{number}", f"old{number}", allow_empty=True, date=date)["id"]
            repo.branch(f"new{number}", parent)
            for name, age in (("old", 35), ("new", 1)):
                date = int(clock.now - age * day)
                repo.commit(name, f"{name}{number}", allow_empty=True, date=date)
            parents.add(parent)
        answer = repo.call("POST", "/gc/prepare_commits", 201)
        location = answer["gc_commits_location"].removeprefix("local://")
        text = (lake_of(repo).settings.objects_dir / location).read_text()
        found[faults] = {line.split(",")[0] for line in text.splitlines()[1:]} & parents
    sound, faulty = found.values()
    assert sound == parents
    assert faulty < sound


@conforms(
    FAULTS,
    "shadowed-uploads",
    client="recording, own client",
    checked="what `identical` recorded: served, but named by neither diff nor prepare_uncommited",
)
def test_uploads_that_equal_heads_are_not_named(start: Start) -> None:
    for faults in ((), (Fault.SHADOWED_UPLOADS,)):
        repo = start(*faults)
        for path in ("same", "deleted", "twice", "committed", "empty", "other"):
            upload(repo, path, b"" if path == "empty" else path.encode())
        repo.commit()
        committed = upload(repo, "committed", b"committed")
        fresh = upload(repo, "fresh", b"fresh")
        repo.commit()
        upload(repo, "deleted", b"deleted")
        repo.remove("deleted")
        upload(repo, "twice", b"twice")
        hidden = {upload(repo, path, path.encode()) for path in ("same", "twice")}
        hidden.add(upload(repo, "empty", b""))
        named = {upload(repo, "other", b"another content"), upload(repo, "new", b"new")}
        served = {
            repo.stat(path)["physical_address"].removeprefix("local://repo/")
            for path in ("same", "twice", "empty", "other", "new")
        }
        assert served == hidden | named
        assert listed(repo) == (named if faults else named | hidden)
        changes = {"deleted": "removed", "new": "added", "other": "changed"}
        if not faults:
            changes |= dict.fromkeys(("same", "twice", "empty"), "changed")
        assert repo.staged() == changes
        assert repo.stat("committed")["physical_address"] != f"local://repo/{committed}"
        assert fresh not in listed(repo)


@conforms(
    FAULTS,
    "old-server",
    client="none",
    checked="500 for the newer calls, and the older ones work",
)
def test_an_older_server_lacks_calls(start: Start) -> None:
    repo = start(Fault.OLD_SERVER)
    rules = {"default_retention_days": 7, "branches": []}
    repo.call("POST", "/gc/rules", 204, json=rules)
    assert repo.call("GET", "/gc/rules")["default_retention_days"] == 7
    expected = {"message": "invalid API endpoint"}
    assert repo.call("POST", "/gc/prepare_commits/async", 500) == expected
    status = repo.call("GET", "/gc/prepare_commits/status", 500, params={"id": "x"})
    assert status == expected
    for method in ("GET", "PUT", "DELETE"):
        assert repo.call(method, "/settings/gc_rules", 500, json=rules) == expected
    assert repo.api.call("GET", "/config", 500) == expected
    assert repo.api.call("GET", "/config/version")["version"]
    repo.call("POST", "/gc/prepare_commits", 201)


@conforms(
    FAULTS,
    "stateless-link-tokens",
    client="none",
    checked="an address is linked a second time, also from another path",
)
def test_addresses_are_linked_more_than_once(start: Start) -> None:
    for faults, second in (((), 400), ((Fault.STATELESS_LINK_TOKENS,), 200)):
        repo = start(*faults)
        where: dict[str, Any] = {"params": {"path": "a"}}
        handed = repo.call("GET", "/branches/main/staging/backing", **where)["physical_address"]
        file = lake_of(repo).settings.objects_dir / handed.removeprefix("local://")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"1")
        body = {
            "staging": {"physical_address": handed},
            "checksum": "c4ca4238a0b923820dcc509a6f75849b",
            "size_bytes": 1,
        }
        for path, status in (("a", 200), ("a", second), ("b", second if faults else 400)):
            where = {"params": {"path": path}}
            repo.call("PUT", "/branches/main/staging/backing", status, json=body, **where)


@conforms(
    FAULTS,
    "stage-inside-namespace",
    client="none",
    checked="StageObject takes an address inside the namespace, and prepare_uncommited names it",
)
def test_objects_inside_the_namespace_are_staged(start: Start) -> None:
    for faults, status in (((), 400), ((Fault.STAGE_INSIDE_NAMESPACE,), 201)):
        repo = start(*faults)
        for number, address in enumerate(("local://repo/data/x", "LOCAL://repo/data/y")):
            body = {"physical_address": address, "checksum": "c", "size_bytes": 1}
            where = {"params": {"path": f"{number}"}}
            repo.call("PUT", "/branches/main/objects", status, json=body, **where)
        # What is not spelled as the namespace is counts as outside.
        assert listed(repo) == ({"data/x"} if faults else set())


@conforms(
    FAULTS,
    "reset-keeps-staged",
    client="none",
    checked="a hard reset of a branch with staged changes moves it, and keeps them",
)
def test_a_hard_reset_keeps_what_is_staged(start: Start) -> None:
    for faults, status in (((), 400), ((Fault.RESET_KEEPS_STAGED,), 204)):
        repo = start(*faults)
        first = repo.head()
        repo.put("a", b"1")
        repo.commit()
        repo.put("a", b"2")
        repo.call("PUT", "/branches/main/hard_reset", status, params={"ref": first})
        assert (repo.head() == first) is bool(faults)
        assert repo.staged() == {"a": "added" if faults else "changed"}
        assert repo.read("a") == b"2"


def test_all_faults_at_once_are_no_error(start: Start) -> None:
    repo = start(*Fault, uncommitted_page_steps=2)
    repo.rules(7)
    upload(repo, "a", b"1")
    repo.commit()
    upload(repo, "a", b"1")
    named = {upload(repo, "b", b"1"), upload(repo, "c", b"1")}
    repo.branch("dev")
    assert listed(repo) <= named
    repo.call("POST", "/gc/prepare_commits", 201)
    assert repo.staged() == {"b": "added"}


def test_faults_are_chosen_on_the_command_line(tmp_path: Path) -> None:
    options = ["--data", str(tmp_path), "--fault", "scan-ends-early", "--fault", "invented"]
    done = CliRunner().invoke(embedded, options)
    assert done.exit_code == 2
    assert "'invented' is not one of 'pages-without-location'" in done.output
    assert "scan-ends-early" in CliRunner().invoke(embedded, ["--help"]).output
