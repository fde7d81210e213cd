"""Odd calls and errors get the status, the words and the fields that a real lakeFS answered."""

from __future__ import annotations

import ast
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets_tests.conformance.recorder import RECORDED, conforms
from lakegc_assets_tests.embedded.api import TIMEOUT, Api
from lakegc_assets_tests.recorded import set_aside

GOLDEN = Path(__file__).parents[1] / "golden"
BUCKET = "lab"
# Recorded without the keys that were sent.
LOGIN = "/api/v1/auth/login"
# Kinds of single calls, by the start of their files' names, and which tests compare their answers:
# every value in test_rebuilt.py, or status and fields, and the words of errors, here.
BY_VALUE = {
    *("branch", "branches", "branches_page1", "branches_page2", "branches_show_hidden", "commit"),
    *("diff_uncommitted", "gc_rules_old", "gc_rules_set_allowed", "gc_rules_settings", "log"),
    *("log_first_parent", "log_page1", "ls", "meta_range", "range", "repository"),
    *("repository_metadata", "stat", "tags"),
}
BY_FIELDS = {
    *("config", "config_garbage-collection", "config_storage", "config_version", "err"),
    *("healthcheck", "repositories"),
}


@pytest.fixture
def on_s3(s3_server: str, tmp_path: Path) -> Iterator[Api]:
    """A server whose objects are in the bucket that the recording used."""
    with (
        set_aside(),
        EmbeddedLakeFS(
            tmp_path, f"s3://{BUCKET}", store_config=StoreConfig(endpoint_url=s3_server)
        ) as server,
        Api.of(server) as api,
    ):
        yield api


@conforms(
    RECORDED,
    "Odd calls",
    client="recording",
    checked="edge_answers.json: status, content type, fields, words of errors",
)
def test_odd_calls_are_answered_as_recorded(on_s3: Api) -> None:
    on_s3.repository("emptyrepo", "s3://lab/emptyrepo")
    calls = json.loads((GOLDEN / "edge_answers.json").read_text())
    keys = dict(zip(("access_key_id", "secret_access_key"), on_s3.keys, strict=True))
    for call in calls:
        options = {name: ast.literal_eval(value) for name, value in call["args"].items()}
        if call["path"] == LOGIN:
            options["json"] = keys
        answer = on_s3.send(call["method"], call["path"].removeprefix("/api/v1"), **options)
        assert answer.status_code == call["status"], (call, answer.text)
        if call["ct"]:
            assert answer.headers["Content-Type"] == call["ct"], call
        # Here the recording says what kind of value was left out.
        body = call["body"].replace('"<jwt>"', '""').replace("<epoch>", "0")
        assert_alike(answer.text, body)
    assert len(calls) > 30


def assert_alike(ours: str, recorded: str) -> None:
    """The same JSON fields, and the same first line of a message; recordings are cut short."""
    try:
        expected = json.loads(recorded) if recorded else None
    except ValueError:
        expected = None
        if recorded.startswith('{"message"'):
            assert json.loads(ours)["message"] in recorded.replace('\\"', '"')
            return
    if isinstance(expected, dict) and "message" in expected:
        assert json.loads(ours)["message"] == expected["message"].split("\nSchema:")[0]
    elif isinstance(expected, dict):
        assert fields(json.loads(ours)) == fields(expected)
    else:
        assert bool(ours) == bool(recorded)


def fields(value: Any) -> Any:
    """The names and types of all that a JSON value holds; lists by their first element."""
    if isinstance(value, dict):
        return {name: fields(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [fields(inner) for inner in value[:1]]
    return type(value).__name__


def recorded_calls(repository: str) -> dict[str, dict[str, Any]]:
    """Single calls by the names of their files, with the repository's own name taken out."""
    return {
        path.stem: json.loads(path.read_text().replace(repository, "REPOSITORY"))
        for path in (GOLDEN / repository / "api").glob("*.json")
    }


def kind_of(name: str) -> str:
    return name.split(".", maxsplit=1)[0]


def test_every_recorded_call_is_compared() -> None:
    """Those of repositories that are not rebuilt add nothing to those that are."""
    rebuilt = {name: recorded_calls(name) for name in ("retention", "small", "orderhz")}
    others = {name: recorded_calls(name) for name in ("emptyrepo", "identical", "norules", "paged")}

    def shapes(calls: dict[str, dict[str, Any]]) -> set[tuple[str, int, str]]:
        """What is to be compared of each kind; of errors all, for they name no more than that."""
        return {
            (name, call["status"], json.dumps(call["body"]))
            if name.startswith("err.")
            else (kind_of(name), call["status"], str(sorted(call["body"] or ())))
            for name, call in calls.items()
        }

    compared = set().union(*map(shapes, rebuilt.values()))
    for name, calls in {**rebuilt, **others}.items():
        assert {kind_of(each) for each in calls} <= BY_VALUE | BY_FIELDS, name
        # Without rules: as in edge_answers.json.
        known = {(f"gc_rules_{kind}", 404, "['message']") for kind in ("old", "settings")}
        assert shapes(calls) - compared <= known, name


def recorded_gets() -> list[str]:
    folder = GOLDEN / "retention" / "api"
    names = [path.stem for path in sorted(folder.glob("*.json"))]
    wanted = ("config", "err.", "gc_rules", "healthcheck", "repositor", "tags", "branch", "stat.0")
    return [name for name in names if name.startswith(wanted)]


@conforms(
    RECORDED,
    "Single calls and errors",
    client="recording",
    checked="status, headers, fields, and the words of each recorded error",
)
@pytest.mark.parametrize("name", ["log.main", "diff_uncommitted.main", "ls.main", *recorded_gets()])
def test_recorded_requests_are_answered_alike(shaped: Api, name: str) -> None:
    recorded = json.loads((GOLDEN / "retention" / "api" / f"{name}.json").read_text())
    request = recorded["request"]
    path, params = request["path"].removeprefix("/api/v1"), dict(request["params"] or {})
    if "err.repo" in name and "401" in name:
        session: Any = requests
        auth = None if "no_auth" in name else ("someone", "something")
        base = shaped.send("GET", "/config").url.removesuffix("/config")
        answer = session.get(base + path, auth=auth, timeout=TIMEOUT)
    else:
        options = {} if request["body"] is None else {"json": request["body"]}
        answer = shaped.send(request["method"], path, params=params, **options)
    assert answer.status_code == recorded["status"], answer.text
    if recorded["body"] is None:
        assert answer.content == b""
    elif "message" in recorded["body"]:
        assert answer.json() == recorded["body"]
    else:
        assert fields(answer.json()) == fields(recorded["body"])
    for header in ("Content-Type", "Location"):
        assert answer.headers.get(header) == recorded["headers"].get(header)


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server with a repository whose answers have all the fields of the recorded one."""
    with EmbeddedLakeFS(tmp_path_factory.mktemp("shaped")) as server, Api.of(server) as api:
        repo = api.repository("retention")
        for path in ("a/02", "a/07", "a/08", "a/09", "a/10", "a/20", "m5/x", "m6/x"):
            repo.put(path, path)
        ids = json.loads((GOLDEN / "retention/api/stat.00.json").read_text())
        assert ids["request"]["params"]["path"] == "a/02"
        for recorded in sorted((GOLDEN / "retention/api").glob("stat.0*.json")):
            request = json.loads(recorded.read_text())["request"]
            if request["params"]["path"] not in repo.list():
                repo.put(request["params"]["path"], "x")
        repo.commit("M1", date=1_786_596_036)
        for branch in ("dev", "fromold", "long", "sq", "stale"):
            repo.branch(branch)
        repo.branch("hidden", hidden=True)
        repo.put("a/00", b"staged")
        repo.remove("a/20")
        repo.call("POST", "/tags", 201, json={"id": "v1", "ref": "main"})
        repo.rules(10, main=20, dev=5)
        yield api


def test_credentials_are_needed_everywhere_but_for_the_healthcheck(shaped: Api) -> None:
    base = shaped.send("GET", "/config").url.removesuffix("/config")
    broken = "Basic " + base64.b64encode(b"no colon").decode()
    for headers in ({}, {"Authorization": "Basic %%%"}, {"Authorization": broken}):
        for path in ("/config", "/repositories", "/repositories/retention/branches/main"):
            answer = requests.get(base + path, headers=headers, timeout=TIMEOUT)
            assert answer.status_code == 401
            assert answer.json() == {"message": "error authenticating request"}
    assert requests.get(base + "/healthcheck", timeout=TIMEOUT).status_code == 204


def test_a_body_that_is_not_json_is_a_bad_request(shaped: Api) -> None:
    for body in (b"", b"not json", b"[1]", b"\xff"):
        answer = shaped.send("POST", "/repositories", data=body)
        assert answer.status_code == 400
        assert "schemas/RepositoryCreation" in answer.json()["message"]
    answer = shaped.send("POST", "/repositories", json={"name": 3, "storage_namespace": "x"})
    assert 'Error at "/name": value must be a string' in answer.json()["message"]
