"""A server that dies before any of its steps leaves the state before the call, or the one after."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets_tests.embedded.api import Repo
from lakegc_assets_tests.embedded.crashing import SETTINGS, Forks
from lakegc_assets_tests.embedded.direct import Direct
from lakegc_assets_tests.embedded.integrity import everything

Call = list[Any]
MAIN = "/repositories/repo/branches/main"
SIDE = "/repositories/repo/branches/side"


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as found:
        yield found


@pytest.fixture(scope="module")
def two_forks(forks: Forks) -> Iterator[tuple[Forks, Forks]]:
    with Forks() as other:
        yield forks, other


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``main`` has staged changes, ``side`` and ``dev`` have none."""
    data = tmp_path_factory.mktemp("template")
    with Direct.on(data, **SETTINGS) as direct:
        repo = direct.repository()
        repo.rules(3)
        for number in range(8):
            repo.put(f"{number}", f"{number}")
        repo.commit("first")
        repo.branch("side")
        repo.branch("dev")
        repo.put("3", b"of dev", "dev")
        repo.put("new of dev", b"of dev", "dev")
        repo.commit("of dev", "dev")
        repo.put("5", b"staged")
        repo.put("staged", b"staged")
        repo.remove("7")
        repo.call("POST", "/tags", 201, json={"id": "v1", "ref": "main"})
        direct.lake.close()
    return data


def link(data: Path) -> Call:
    """An address is asked for and written to; the link itself is the call."""
    with Direct.on(data, **SETTINGS) as direct:
        repo = Repo(direct, "repo")
        given = repo.call("GET", "/branches/main/staging/backing", params={"path": "linked"})
        address = given["physical_address"]
        place = data / "objects" / address.removeprefix("local://")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"linked")
        direct.lake.close()
    staging = {"staging": given, "checksum": "c", "size_bytes": 6}
    return ["PUT", f"{MAIN}/staging/backing", {"params": {"path": "linked"}, "json": staging}]


def always(method: str, path: str, **options: Any) -> Callable[[Path], Call]:
    return lambda _: [method, path, options]


CALLS: dict[str, Callable[[Path], Call]] = {
    "commit": always("POST", f"{MAIN}/commits", json={"message": "second"}),
    "merge": always("POST", "/repositories/repo/refs/dev/merge/side", json={}),
    "revert": always(
        "POST", "/repositories/repo/branches/dev/revert", json={"ref": "dev", "parent_number": 0}
    ),
    "create a repository": always(
        "POST", "/repositories", json={"name": "other", "storage_namespace": "local://other"}
    ),
    "link": link,
    "prepare commits": always("POST", "/repositories/repo/gc/prepare_commits", json={}),
}
MORE_CALLS: dict[str, Callable[[Path], Call]] = {
    "upload": always("POST", f"{MAIN}/objects", params={"path": "x"}, data="x"),
    "overwrite": always("POST", f"{MAIN}/objects", params={"path": "staged"}, data="x"),
    "delete": always("DELETE", f"{MAIN}/objects", params={"path": "1"}),
    "delete many": always("POST", f"{MAIN}/objects/delete", json={"paths": ["1", "2", "staged"]}),
    "copy what is staged": always(
        "POST", f"{MAIN}/objects/copy", params={"dest_path": "x"}, json={"src_path": "staged"}
    ),
    "copy what is committed": always(
        "POST", f"{MAIN}/objects/copy", params={"dest_path": "x"}, json={"src_path": "1"}
    ),
    "cherry-pick": always("POST", f"{SIDE}/cherry-pick", json={"ref": "dev"}),
    "hard reset": always("PUT", f"{SIDE}/hard_reset", params={"ref": "dev"}),
    "reset": always("PUT", MAIN, json={"type": "reset"}),
    "reset a path": always("PUT", MAIN, json={"type": "object", "path": "5"}),
    "create a branch": always(
        "POST", "/repositories/repo/branches", json={"name": "new", "source": "dev"}
    ),
    "delete a branch": always("DELETE", "/repositories/repo/branches/dev"),
    "create a tag": always("POST", "/repositories/repo/tags", json={"id": "v2", "ref": "dev"}),
    "delete a tag": always("DELETE", "/repositories/repo/tags/v1"),
    "set rules": always(
        "PUT",
        "/repositories/repo/settings/gc_rules",
        json={"default_retention_days": 9, "branches": []},
    ),
    "delete a repository": always("DELETE", "/repositories/repo"),
    "prepare uncommitted": always("POST", "/repositories/repo/gc/prepare_uncommited", json={}),
}
# What the repeated call may answer, where the one that died was done, or had claimed its namespace.
TWICE = {
    "commit": {400},
    "merge": {400},
    "revert": {400},
    "link": {400},
    "create a repository": {400, 409},
    "create a branch": {409},
    "delete a branch": {404},
    "create a tag": {409},
    "delete a tag": {404},
    "delete a repository": {404},
}


def dies_everywhere(forks: Forks, template: Path, tmp_path: Path, name: str) -> None:
    """Let a call die before each of its steps, and repeat it after the first and the last one."""
    make = {**CALLS, **MORE_CALLS}[name]

    def run(data: Path, *, die_at: int = 0) -> tuple[dict[str, Any] | None, object]:
        shutil.copytree(template, data)
        answer = forks.call(data, make(data), die_at=die_at)
        return answer, everything(data)

    before = everything(template)
    whole, after = run(tmp_path / "whole")
    assert whole is not None
    assert whole["status"] < 300, whole
    steps, outcomes = whole["steps"], []
    assert steps > 1
    for step in range(1, steps + 1):
        data = tmp_path / f"{step}"
        died, now = run(data, die_at=step)
        assert died is None, f"{name} has no step {step} of {steps}"
        assert now in (before, after), f"{name} died at step {step} of {steps}"
        outcomes.append(now == after)
        if step in {1, steps}:
            again = forks.call(data, make(data))
            assert again is not None
            assert again["status"] < 300 or again["status"] in TWICE.get(name, set()), again
            assert name == "create a repository" or everything(data) == after
    assert outcomes == sorted(outcomes), "what is done stays done"


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_die_are_done_or_not(
    forks: Forks, template: Path, tmp_path: Path, name: str
) -> None:
    dies_everywhere(forks, template, tmp_path, name)


@pytest.mark.conformance
@pytest.mark.parametrize("name", MORE_CALLS)
def test_more_calls_that_die_are_done_or_not(
    forks: Forks, template: Path, tmp_path: Path, name: str
) -> None:
    dies_everywhere(forks, template, tmp_path, name)


COMMIT: Call = ["POST", f"{MAIN}/commits", {"json": {"message": "first process"}}]


@pytest.mark.parametrize(
    ("other", "statuses", "left"),
    [
        (["POST", f"{MAIN}/commits", {"json": {"message": "other"}}], (201, 412), {}),
        (["PUT", MAIN, {"json": {"type": "reset"}}], (204, 412), {}),
        (
            ["POST", f"{MAIN}/objects", {"params": {"path": "staged"}, "data": "newer"}],
            (201, 201),
            {"staged": b"newer"},
        ),
        (
            ["DELETE", f"{MAIN}/objects", {"params": {"path": "staged"}}],
            (204, 201),
            {"staged": None},
        ),
        (["POST", "/repositories/repo/refs/dev/merge/main", {"json": {}}], (400, 201), {}),
    ],
)
def test_of_two_processes_on_one_branch_one_wins_and_no_write_is_lost(
    two_forks: tuple[Forks, Forks],
    template: Path,
    tmp_path: Path,
    other: Call,
    statuses: tuple[int, int],
    left: dict[str, bytes | None],
) -> None:
    """The first process has written a commit's files and waits to begin its transaction."""
    first, second = two_forks
    data = tmp_path / "data"
    shutil.copytree(template, data)
    first.start(data, COMMIT, wait_before="BEGIN IMMEDIATE")
    first.waits()
    answers = [second.call(data, other)]
    first.go_on()
    answers.append(first.result())
    assert [answer["status"] for answer in answers if answer] == list(statuses)
    if statuses[1] == 412:
        assert answers[1] == {**(answers[1] or {}), "body": '{"message":"Precondition failed"}\n'}
    found: Any = everything(data)
    assert found["repo"]["branches"]["main"]["staged"] == left
    if other[1].endswith("/commits"):
        messages = [commit.split(":")[0] for commit in found["repo"]["commits"]]
        assert sorted(messages) == ["Repository created", "first", "of dev", "other"]


@pytest.mark.parametrize("statement", ["INSERT OR IGNORE INTO commits", "COMMIT"])
def test_a_second_process_waits_for_the_transaction_of_the_first(
    two_forks: tuple[Forks, Forks], template: Path, tmp_path: Path, statement: str
) -> None:
    """The first one is in the middle of its transaction, so that the other comes too late."""
    first, second = two_forks
    data = tmp_path / "data"
    shutil.copytree(template, data)
    first.start(data, COMMIT, wait_before=statement)
    first.waits()
    second.start(data, ["POST", f"{MAIN}/commits", {"json": {"message": "second process"}}])
    first.go_on()
    won, lost = first.result(), second.result()
    assert won is not None
    assert lost is not None
    # The second one may have looked at the branch before the first one was done, or afterwards.
    assert (won["status"], lost["status"]) in {(201, 412), (201, 400)}
    found: Any = everything(data)
    assert found["repo"]["branches"]["main"]["staged"] == {}
