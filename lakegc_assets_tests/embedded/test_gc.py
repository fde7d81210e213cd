"""What a collector is told: rules, active commits, and every address that is staged."""

from __future__ import annotations

import time
from typing import Any

import pytest

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets_tests.embedded.api import Api, Repo
from lakegc_assets_tests.embedded.conftest import NOW

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
        deadline = time.monotonic() + 10
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
