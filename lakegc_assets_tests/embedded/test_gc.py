"""What a collector is told of commits: rules, the list of active ones, and tasks that make it."""

from __future__ import annotations

import errno
import random
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.embedded import EmbeddedLakeFS, gc, tasks
from lakegc_assets.embedded.lake import Lake, catalog
from lakegc_assets.embedded.lake.settings import ServerSettings
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.naive_active_commits import naive_active_commits
from lakegc_assets.retention.rules import Rules
from lakegc_assets.storage import local
from lakegc_assets_tests.embedded.api import TIMEOUT, Api, Repo
from lakegc_assets_tests.embedded.conftest import NOW, Clock
from lakegc_assets_tests.embedded.test_uncommitted import make_lake

DAY = 24 * 3600


def stored(server: EmbeddedLakeFS, location: str) -> bytes:
    return (server.objects_dir / location.removeprefix("local://")).read_bytes()


def active(server: EmbeddedLakeFS, answer: dict[str, Any]) -> dict[str, str]:
    """Commit to metarange, as commits.csv says."""
    lines = stored(server, answer["gc_commits_location"]).decode().splitlines()
    assert lines[0] == "commit_id,expired,metarange_id"
    rows = [line.split(",") for line in lines[1:]]
    assert {expired for _, expired, _ in rows} <= {"false"}
    return {commit: metarange for commit, _, metarange in rows}


def test_rules_are_kept_as_the_server_means_them(repo: Repo) -> None:
    assert repo.call("GET", "/settings/gc_rules", 404) == {"message": "not found"}
    repo.rules(7, main=21)
    expected = {
        "default_retention_days": 7,
        "branches": [{"branch_id": "main", "retention_days": 21}],
    }
    assert repo.call("GET", "/settings/gc_rules") == expected
    assert repo.call("GET", "/gc/rules") == expected
    repo.call("DELETE", "/settings/gc_rules", 204)
    repo.call("GET", "/gc/rules", 404)
    bad = {"default_retention_days": 1, "branches": [{"branch_id": "main"}]}
    message = repo.call("PUT", "/settings/gc_rules", 400, json=bad)["message"]
    assert 'property "retention_days" is missing' in message


def test_active_commits_follow_the_definition(repo: Repo, server: EmbeddedLakeFS) -> None:
    # The first commit is as young as the server's clock says, so it is inside.
    made: dict[object, Any] = {"first": repo.call("GET", "/commits/main")}
    for age in (40, 30, 20, 2):
        repo.put(f"a{age}", f"{age}")
        made[age] = repo.commit(f"{age}", date=int(NOW - age * DAY))
    repo.branch("dev", made[30]["id"])
    repo.put("d", b"1", "dev")
    made["dev"] = repo.commit("dev", "dev", date=int(NOW - 15 * DAY))
    repo.rules(7, main=10)
    answer = repo.call("POST", "/gc/prepare_commits", 201)
    assert answer["gc_addresses_location"] == "local://repo/_lakefs/retention/gc/addresses/"
    assert active(server, answer) == {
        made[key]["id"]: made[key]["meta_range_id"] for key in ("first", 20, 2, "dev")
    }


def test_the_async_task_ends_with_the_same(repo: Repo, server: EmbeddedLakeFS) -> None:
    repo.rules(7)
    head = repo.commit("head", allow_empty=True)["id"]

    def outcome() -> dict[str, Any]:
        task = repo.call("POST", "/gc/prepare_commits/async", 202)["id"]
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            where: dict[str, Any] = {"params": {"id": task}}
            status: dict[str, Any] = repo.call("GET", "/gc/prepare_commits/status", **where)
            assert status["task_id"] == task
            if status["completed"]:
                return status
        raise AssertionError("the task did not end")

    assert head in active(server, outcome()["result"])
    repo.call("DELETE", "/settings/gc_rules", 204)
    status = outcome()
    assert status["error"] == {"message": "get gc rules: not found"}
    assert "result" not in status
    assert repo.call("POST", "/gc/prepare_commits", 404) == status["error"]


@pytest.mark.parametrize("call", ["prepare_commits", "prepare_commits/async", "prepare_uncommited"])
def test_read_only_repositories_are_refused(api: Api, call: str) -> None:
    body = {"name": "frozen", "storage_namespace": "local://frozen", "read_only": True}
    api.call("POST", "/repositories", 201, json=body)
    found = api.call("POST", f"/repositories/frozen/gc/{call}", 403)
    assert found == {"message": "read-only repository"}
    where = {"params": {"path": "a"}, "data": b"1"}
    api.call("POST", "/repositories/frozen/branches/main/objects", 403, **where)


def write_rules(server: EmbeddedLakeFS, text: str) -> None:
    with server.lake.state.write() as db:
        db.execute("UPDATE repositories SET rules = ?", (text,))


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        ('{"default_retention_days": -1, "branches": null}', "default_retention_days must be"),
        ('{"default_retention_days": 1, "bra', "set the rules again"),
        ("[]", "the rules must have keys with values"),
        (
            '{"default_retention_days": 1, "branches": [{"branch_id": "b", "retention_days": ""}]}',
            "branches[0].retention_days of branch 'b' must be a whole number",
        ),
    ],
)
def test_stored_rules_that_cannot_be_followed_are_named(
    repo: Repo, server: EmbeddedLakeFS, stored: str, told: str
) -> None:
    write_rules(server, stored)
    message = repo.call("POST", "/gc/prepare_commits", 400)["message"]
    assert message.startswith("get gc rules: ")
    assert told in message
    task = tasks.start(server.lake, "repo", gc.TASK_PREFIX)
    tasks.run(server.lake, task, lambda: gc.prepare_commits(server.lake, "repo"))
    assert tasks.status(server.lake, "repo", task)["error"] == {"message": message}


def commit_files(server: EmbeddedLakeFS) -> list[Path]:
    return list((server.objects_dir / "repo" / "_lakefs").rglob("commits.csv"))


def test_a_list_is_complete_or_not_there(
    repo: Repo, server: EmbeddedLakeFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.rules(7)
    published = []

    def die(directory: int, temporary: str, name: str) -> None:
        published.append(name)
        raise OSError(errno.ENOSPC, f"no room for {temporary} in {directory}")

    with monkeypatch.context() as patched:
        patched.setattr(local, "replace", die)
        message = repo.call("POST", "/gc/prepare_commits", 500)["message"]
        assert "No space" in message or "no room" in message
        task = tasks.start(server.lake, "repo", gc.TASK_PREFIX)
        tasks.run(server.lake, task, lambda: gc.prepare_commits(server.lake, "repo"))
        assert "error" in tasks.status(server.lake, "repo", task)
    assert published == ["commits.csv"] * 2
    assert commit_files(server) == []
    repo.call("POST", "/gc/prepare_commits", 201)
    (found,) = commit_files(server)
    assert found.read_text().endswith("\n")


def test_a_task_ends_with_its_process(tmp_path: Path, clock: Clock) -> None:
    mine, other = make_lake(tmp_path, clock), Lake(ServerSettings(tmp_path, clock=clock))
    gc.set_rules(mine, "repo", 7, {})
    done, lost = (tasks.start(other, "repo", gc.TASK_PREFIX) for _ in range(2))
    tasks.run(other, done, lambda: gc.prepare_commits(other, "repo"))
    # One that still works is left alone, whoever starts or asks.
    tasks.end_interrupted(mine)
    assert not tasks.status(mine, "repo", lost)["completed"]
    assert "result" in tasks.status(mine, "repo", done)
    other.close()
    status = tasks.status(mine, "repo", lost)
    assert status["completed"]
    assert "start the task again" in status["error"]["message"]
    assert "result" in tasks.status(mine, "repo", done)
    # What was told stays told.
    tasks.run(mine, lost, lambda: gc.prepare_commits(mine, "repo"))
    assert tasks.status(mine, "repo", lost) == status
    mine.close()


def test_a_task_of_a_killed_process_has_failed(tmp_path: Path, clock: Clock) -> None:
    lake = make_lake(tmp_path, clock)
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from lakegc_assets.embedded import tasks\n"
        "from lakegc_assets.embedded.lake import Lake\n"
        "from lakegc_assets.embedded.lake.settings import ServerSettings\n"
        "lake = Lake(ServerSettings(Path(sys.argv[1])))\n"
        "print(tasks.start(lake, 'repo', 'GCPC'), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    status = tasks.status(lake, "repo", done.stdout.strip())
    assert status["completed"]
    assert "start the task again" in status["error"]["message"]
    # Its lock is gone, too.
    assert [path.name for path in (tmp_path / "processes").iterdir()] == [lake.owner.name]
    lake.close()


def test_many_commits_on_many_branches(tmp_path: Path, clock: Clock) -> None:
    lake = make_lake(tmp_path, clock)
    rng = random.Random(4)
    with lake.state.write() as db:
        repo = catalog.repository(db, "repo")
        first = catalog.commit(db, repo, catalog.branch(db, repo, "main").commit_id)
        known = [first]
        for number in range(1500):
            made = catalog.Commit.new(
                committer="c",
                message=f"{number}",
                metarange_id=f"{number:064x}",
                creation_date=int(NOW - rng.uniform(0, 40 * DAY)),
                metadata={},
                parents=tuple(rng.sample(known[-30:], min(len(known), rng.choice((1, 1, 2))))),
            )
            known.append(made)
            catalog.insert_commit(db, repo, made)
        for number, head in enumerate(rng.sample(known, 100)):
            catalog.insert_branch(db, repo, f"b{number}", head.id, hidden=number % 7 == 0)
        heads = {branch.name: branch.commit_id for branch in catalog.branches(db, repo)}
    days = {f"b{number}": number % 25 for number in range(100)}
    gc.set_rules(lake, "repo", 10, days)
    location = gc.prepare_commits(lake, "repo")["gc_commits_location"]
    text = (lake.settings.objects_dir / location.removeprefix("local://")).read_text()
    commits = {c.id: Commit(c.id, c.parents, c.creation_date, c.metarange_id) for c in known}
    now = datetime.fromtimestamp(NOW, tz=timezone.utc)
    expected = naive_active_commits(commits, heads, Rules(10, days), now)
    assert 100 < len(expected) < 1500
    assert sorted(text.splitlines()[1:]) == sorted(
        f"{name},false,{commits[name].metarange_id}" for name in expected
    )
    lake.close()
