"""Recorded histories made again through the API, and what is new here matched to the recording."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow.parquet as pq

from lakegc_assets.embedded.refs.merging import differences
from lakegc_assets.graveler.entry import decode_entry
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets_tests.embedded.api import Api
from lakegc_assets_tests.embedded.conftest import Clock
from lakegc_assets_tests.embedded.test_recorded_trees import (
    GOLDEN,
    bodies,
    in_order,
    recorded_commits,
    trees_of,
)

BASE = "/api/v1"
# Values under these names are made up by the server: ids and addresses.
_MADE_UP = {"id", "commit_id", "reference", "meta_range_id", "physical_address", "parents"}
# What a presigned URL holds depends on the credentials and the port of the store.
_PRESIGNED = {"presigned_url", "presigned_url_expiry", "physical_address_expiry"}


class Rebuilt:
    """One repository that is being made again.

    Args:
        api: of the server, whose objects are in the bucket of the recording.
        store: the repository's namespace, for what others than the server write.
        clock: of the server.
        repository: its name, here and in the recording.

    Attributes:
        known: what was recorded, such as a commit id or a full address, and what it is here.
    """

    def __init__(self, api: Api, store: ObjectStore, clock: Clock, repository: str) -> None:
        self.api, self.store, self.clock, self.name = api, store, clock, repository
        self.namespace = f"s3://lab/{repository}"
        self.known: dict[str, str] = {}

    def translated(self, recorded: Any) -> Any:
        """A recorded value in the terms of here."""
        if isinstance(recorded, dict):
            return {
                name: self.translated(value)
                for name, value in recorded.items()
                if name not in _PRESIGNED
            }
        if isinstance(recorded, list):
            return [self.translated(value) for value in recorded]
        if isinstance(recorded, str) and recorded.startswith("_lakefs/"):
            return "_lakefs/" + self.translated(recorded.removeprefix("_lakefs/"))
        return self.known.get(recorded, recorded) if isinstance(recorded, str) else recorded

    def send(self, call: dict[str, Any], *, learn: bool = False) -> Any:
        """Send a recorded request, and compare the answer; its JSON, as recorded and as it is here.

        Args:
            call: method, path, params, json, data and status, and the answer as JSON.
            learn: whether ids and addresses may be new.
        """
        path = "/".join(
            quote(self.translated(unquote(part)), safe="@~^$") for part in call["path"].split("/")
        )
        data = call.get("data")
        answer = self.api.send(
            call["method"],
            path,
            params=self.translated(call.get("params")),
            json=self.translated(call.get("json")),
            data=data.encode() if isinstance(data, str) else data,
            headers=call.get("headers"),
        )
        assert answer.status_code == call["status"], (call, answer.text)
        ours = json.loads(answer.content) if answer.headers.get("Content-Type") else None
        if learn:
            self.learn(call["answer"], ours)
        return ours

    def learn(self, recorded: Any, ours: Any, name: str = "") -> None:
        """Match what the server made up for the recording and for us, each time alike."""
        if isinstance(recorded, dict):
            for key in recorded.keys() & ours.keys():
                self.learn(recorded[key], ours[key], key)
        elif isinstance(recorded, list):
            for one, other in zip(recorded, ours, strict=True):
                self.learn(one, other, name)
        elif name in _MADE_UP and isinstance(recorded, str):
            assert self.known.setdefault(recorded, ours) == ours

    def assert_same(self, recorded: Any, ours: Any, ignoring: Iterable[str] = ()) -> None:
        """The same values but for what is presigned, and for the names that are ignored."""
        assert _without(ours, {*_PRESIGNED, *ignoring}) == _without(
            self.translated(recorded), set(ignoring)
        )

    def assert_answers(self, patterns: Iterable[str], ignoring: Iterable[str] = ()) -> int:
        """The recorded single calls get the same answers; how many there are."""
        count = 0
        for pattern in patterns:
            for path in sorted((GOLDEN / self.name / "api").glob(f"{pattern}.json")):
                recorded = json.loads(path.read_text())
                request = recorded["request"]
                call = {
                    "method": request["method"],
                    "path": request["path"].removeprefix(BASE),
                    "params": request["params"],
                    "status": recorded["status"],
                }
                self.assert_same(recorded["body"], self.send(call), ignoring)
                count += 1
        return count

    def put_what_others_wrote(self) -> None:
        """The objects of the recorded listing that no call wrote."""
        recorded = {
            self._relative(self.translated(f"{self.namespace}/{key}"))
            for key in self._recorded_keys()
            if not key.startswith("_lakefs/")
        }
        for key in recorded - self._keys():
            self.store.put(key, b"written by another")

    def active(self, sent_at: float) -> set[str]:
        """The commits that the server lists as active at a time."""
        self.clock.now = sent_at
        made = self.api.call("POST", f"/repositories/{self.name}/gc/prepare_commits", 201)
        data = self.store.get(self._relative(made["gc_commits_location"]))
        return {row["commit_id"] for row in csv.DictReader(io.StringIO(data.decode()))}

    def garbage(self, active: Iterable[str]) -> set[str]:
        """By the definition: what is in the store, and neither in an active commit nor staged."""
        place, live = StorageNamespace.parse(self.namespace), set(self._staged())
        for commit in active:
            for address in self._addresses(commit):
                live |= place.relatives(address)
        keys = {key for key in self._keys() if key.startswith("data/") or "/" not in key}
        return keys - live

    def expected_garbage(self) -> set[str]:
        """What the recording says may be deleted, in the terms of here."""
        lines = (GOLDEN / self.name / "expected_deleted.txt").read_text().splitlines()
        addresses = (self.translated(f"{self.namespace}/{line}") for line in lines)
        return set(map(self._relative, addresses))

    def _keys(self) -> set[str]:
        return {key for batch in self.store.list() for key in batch["key"].to_pylist()}

    def _addresses(self, ref: str) -> Iterator[str]:
        after: str | None = ""
        while after is not None:
            page = self.api.call(
                "GET",
                f"/repositories/{self.name}/refs/{ref}/objects/ls",
                params={"after": after, "amount": 1000},
            )
            yield from (item["physical_address"] for item in page["results"])
            more = page["pagination"]
            after = more["next_offset"] if more["has_more"] else None

    def _staged(self) -> Iterator[str]:
        token: str | None = ""
        while token is not None:
            page = self.api.call(
                "POST",
                f"/repositories/{self.name}/gc/prepare_uncommited",
                201,
                json={"continuation_token": token},
            )
            token = page.get("continuation_token")
            if not page["gc_uncommitted_location"]:
                continue
            for batch in self.store.list(self._relative(page["gc_uncommitted_location"])):
                for key in batch["key"].to_pylist():
                    table = pq.read_table(io.BytesIO(self.store.get(key)))
                    yield from table["physical_address"].to_pylist()

    def _recorded_keys(self) -> list[str]:
        lines = (GOLDEN / self.name / "listing_before.tsv").read_text().splitlines()[1:]
        return [line.split("\t")[0].removeprefix(f"{self.name}/") for line in lines]

    def _relative(self, address: str) -> str:
        assert address.startswith(f"{self.namespace}/")
        return address.removeprefix(f"{self.namespace}/")


def _without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without(inner, names) for name, inner in value.items() if name not in names}
    if not isinstance(value, list):
        return value
    found = [_without(inner, names) for inner in value]
    # lakeFS keeps rules in a Go map, so their order is none.
    is_rules = all(isinstance(item, dict) and "branch_id" in item for item in found)
    return sorted(found, key=lambda rule: str(rule["branch_id"])) if is_rules else found


def rebuild_from_trees(rebuilt: Rebuilt) -> None:
    """Make every recorded commit again by uploads and deletes, then branches and staged changes.

    Contents were not recorded, so each object gets one of the recorded size, made of its checksum.
    """
    commits, trees = recorded_commits(rebuilt.name), trees_of(rebuilt.name)
    first, *others = in_order(rebuilt.name)
    rebuilt.clock.now = first["creation_date"]
    body = {"name": rebuilt.name, "storage_namespace": rebuilt.namespace}
    rebuilt.api.call("POST", "/repositories", 201, json=body)
    repo = f"/repositories/{rebuilt.name}"
    rebuilt.learn(first, rebuilt.api.call("GET", f"{repo}/commits/main"))
    for commit in others:
        rebuilt.clock.now += 1
        source = rebuilt.known[commit["parents"][0]]
        body = {"name": "work", "source": source}
        rebuilt.api.call("POST", f"{repo}/branches", 201, json=body)
        before = commits[commit["parents"][0]]["meta_range_id"]
        for found in differences(trees, before, commit["meta_range_id"]):
            path = found.key.decode()
            if found.right is None:
                _remove(rebuilt, "work", path)
                continue
            entry = decode_entry(found.right.value)
            address = f"{rebuilt.namespace}/{entry.address}"
            rebuilt.known[address] = _put(rebuilt, "work", path, entry.e_tag, entry.size)
        fields = {"message": commit["message"], "metadata": commit["metadata"]}
        fields["date"] = commit["creation_date"]
        made = rebuilt.api.call("POST", f"{repo}/branches/work/commits", 201, json=fields)
        rebuilt.learn(commit, made)
        rebuilt.api.call("DELETE", f"{repo}/branches/work", 204)
    (branches,) = bodies(rebuilt.name, "branches_show_hidden")
    for branch in branches["results"]:
        head = rebuilt.known[branch["commit_id"]]
        if branch["id"] == "main":
            rebuilt.api.call("PUT", f"{repo}/branches/main/hard_reset", 204, params={"ref": head})
        else:
            body = {"name": branch["id"], "source": head}
            rebuilt.api.call("POST", f"{repo}/branches", 201, json=body)
        _stage_what_was_staged(rebuilt, branch["id"])


def _stage_what_was_staged(rebuilt: Rebuilt, branch: str) -> None:
    (diff,), (listed,) = (
        bodies(rebuilt.name, f"{kind}.{branch}") for kind in ("diff_uncommitted", "ls")
    )
    stats = {item["path"]: item for item in listed["results"]}
    for change in diff["results"]:
        if change["type"] == "removed":
            _remove(rebuilt, branch, change["path"])
            continue
        found = stats[change["path"]]
        address = _put(rebuilt, branch, found["path"], found["checksum"], found["size_bytes"])
        rebuilt.known[found["physical_address"]] = address


def _put(rebuilt: Rebuilt, branch: str, path: str, checksum: str, size: int) -> str:
    data = (checksum * (size // len(checksum) + 1))[:size]
    made = rebuilt.api.call(
        "POST",
        f"/repositories/{rebuilt.name}/branches/{branch}/objects",
        201,
        params={"path": path},
        data=data.encode(),
    )
    return str(made["physical_address"])


def _remove(rebuilt: Rebuilt, branch: str, path: str) -> None:
    repo = f"/repositories/{rebuilt.name}"
    rebuilt.api.call("DELETE", f"{repo}/branches/{branch}/objects", 204, params={"path": path})


def recorded_calls(path: Path) -> list[dict[str, Any]]:
    """The recorded calls that made a repository, in order."""
    calls = [json.loads(line) for line in path.read_text().splitlines()]
    return [{**call, "answer": _parsed(call["answer"])} for call in calls]


def _parsed(answer: str) -> Any:
    try:
        return json.loads(answer) if answer else None
    except ValueError:
        return answer
