"""What a collector is told: rules, active commits, and every address that is staged."""

from __future__ import annotations

import base64
import io
import json
import time
from typing import Any

import pyarrow.parquet as pq
import pytest

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets_tests.embedded.api import Api, Repo
from lakegc_assets_tests.embedded.conftest import NOW, Clock

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


def pages(repo: Repo) -> list[dict[str, str]]:
    found = [repo.call("POST", "/gc/prepare_uncommited", 201, json={})]
    while token := found[-1].get("continuation_token"):
        body = {"continuation_token": token}
        found.append(repo.call("POST", "/gc/prepare_uncommited", 201, json=body))
    return found


def uncommitted(server: EmbeddedLakeFS, found: list[dict[str, str]]) -> dict[str, int]:
    rows = {}
    for location in {page["gc_uncommitted_location"] for page in found} - {""}:
        folder = server.objects_dir / location.removeprefix("local://")
        for file in folder.iterdir():
            table = pq.read_table(io.BytesIO(file.read_bytes()))
            assert table.column_names == ["physical_address", "creation_date"]
            rows.update(dict(zip(*table.to_pydict().values(), strict=True)))
    return rows


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


def test_every_staged_address_is_on_a_page(
    repo: Repo, server: EmbeddedLakeFS, clock: Clock
) -> None:
    expected = {}

    def put(path: str, branch: str) -> None:
        clock.now += 1
        address = repo.put(path, path, branch)["physical_address"]
        expected[address.removeprefix("local://repo/")] = int(clock.now)

    repo.put("committed", b"1")
    repo.commit()
    for name in ("b-0", "b-1", "b-2", "empty-1", "empty-2", "empty-3"):
        repo.branch(name, hidden=name == "b-1")
    for name in ("b-0", "b-1", "b-2"):
        for path in ("x", "ü/y", "z"):
            put(path, name)
    repo.remove("committed", "b-2")
    external = {"physical_address": "s3://elsewhere/x", "checksum": "c", "size_bytes": 1}
    repo.call("PUT", "/branches/main/objects", 201, params={"path": "ext"}, json=external)
    found = pages(repo)
    assert len(found) > 5
    assert len({page["run_id"] for page in found}) == 1
    locations = [page["gc_uncommitted_location"] for page in found]
    assert "" in locations[:-1]
    assert locations[-1] == ""
    assert uncommitted(server, found) == expected


def test_tokens_say_where_the_next_page_starts(repo: Repo) -> None:
    repo.put("a", b"1")
    repo.put("b", b"1")
    first = repo.call("POST", "/gc/prepare_uncommited", 201)
    token = json.loads(base64.b64decode(first["continuation_token"]))
    assert token == {"branch": "main", "path": "b", "run_id": first["run_id"], "key": ""}


def test_a_branch_deleted_between_pages_loses_no_other_rows(
    repo: Repo, server: EmbeddedLakeFS
) -> None:
    for name in ("a", "b", "c"):
        repo.branch(name)
    for path in ("1", "2"):
        repo.put(path, b"", "a")
        repo.put(path, b"", "b")
    kept = [repo.put(path, b"", "c")["physical_address"] for path in ("1", "2")]
    found = [repo.call("POST", "/gc/prepare_uncommited", 201)]
    repo.call("DELETE", "/branches/a", 204)
    while token := found[-1].get("continuation_token"):
        body = {"continuation_token": token}
        found.append(repo.call("POST", "/gc/prepare_uncommited", 201, json=body))
    rows = uncommitted(server, found)
    assert {address.removeprefix("local://repo/") for address in kept} <= set(rows)
    assert len(rows) == 5


def test_a_page_has_no_limit_by_default(tmp_path: Any) -> None:
    with EmbeddedLakeFS(tmp_path) as server, Api.of(server) as api:
        repo = api.repository()
        assert pages(repo)[0]["gc_uncommitted_location"] == ""
        for number in range(20):
            repo.put(f"{number}", b"")
        found = pages(repo)
        assert len(found) == 1
        assert len(uncommitted(server, found)) == 20


@pytest.mark.parametrize("call", ["prepare_commits", "prepare_commits/async", "prepare_uncommited"])
def test_read_only_repositories_are_refused(api: Api, call: str) -> None:
    body = {"name": "frozen", "storage_namespace": "local://frozen", "read_only": True}
    api.call("POST", "/repositories", 201, json=body)
    found = api.call("POST", f"/repositories/frozen/gc/{call}", 403)
    assert found == {"message": "read-only repository"}
    where = {"params": {"path": "a"}, "data": b"1"}
    api.call("POST", "/repositories/frozen/branches/main/objects", 403, **where)
