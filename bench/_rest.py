"""A lakeFS server that answers a collector's requests from memory, with prepared bytes."""

from __future__ import annotations

import base64
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from bench._http import Asked, Told
from bench._pages import NAMESPACE
from bench._run import BUCKET
from bench._store import Store
from lakegc_assets.embedded.lake.catalog import Commit
from lakegc_assets.retention.active_commits import active_commits
from lakegc_assets.retention.commits import Commit as Walked
from lakegc_assets.retention.rules import Rules

_API = "/api/v1/"
_TASK = "prepare"
_STAGED = "staged"
_JSON = ("Content-Type", "application/json")
_GRACE_S = 86_400
#: Words of a path that identify the request, and are no names.
_CALLS = frozenset(
    ("branches", "commits", "config", "diff", "gc_rules", "healthcheck", "objects", "refs", "tags")
)
_LARGEST_PAGE = 1000

#: Returns the objects of a branch after a path, up to a limit: path, address, size and etag.
ListObjects = Callable[[str, str, int], Sequence[tuple[str, str, int, str]]]


@dataclass(frozen=True)
class Refs:
    """A history.

    Attributes:
        commits: by id.
        heads: commit of each branch.
        rules: of retention.
    """

    commits: Mapping[str, Commit]
    heads: Mapping[str, str]
    rules: Rules

    def walked(self) -> dict[str, Walked]:
        """The commits in the form of the retention rules."""
        return {
            c.id: Walked(c.id, c.parents, c.creation_date, c.metarange_id)
            for c in self.commits.values()
        }


class Rest:
    """Answers the requests of the REST API for one repository.

    Args:
        repository: its name.
        store: for the lists.
        diff: the diff of each branch, the same for all: rows as JSON.
        staged_files: number of files of staged objects in the store's ``staged`` folder.
        list_objects: returns the objects of branches.

    Attributes:
        asked: number of requests of each kind.
    """

    def __init__(
        self,
        repository: str,
        store: Store,
        diff: Sequence[str],
        staged_files: int,
        list_objects: ListObjects,
    ) -> None:
        self._name = repository
        self._store = store
        self._diff_paths = [json.loads(row)["path"] for row in diff]
        self._diff = [row.encode() for row in diff]
        self._staged_files = staged_files
        self._list_objects = list_objects
        self._prepared = 0
        self.asked: Counter[str] = Counter()

    def show(self, refs: Refs) -> None:
        """Answer with another history from now on."""
        self._refs = refs
        self._branches = sorted(refs.heads)
        self._branch_rows = [
            json.dumps({"id": name, "commit_id": refs.heads[name]}).encode()
            for name in self._branches
        ]
        self._commit_rows = {c.id: json.dumps(c.shown()).encode() for c in refs.commits.values()}

    def answer(self, asked: Asked) -> Told:
        """Answer a request."""
        path = asked.path.removeprefix(_API).split("/")
        self.asked["lakeFS " + "/".join(part for part in path if part in _CALLS)] += 1
        if path[0] == "healthcheck":
            return Told(204)
        if path[0] == "config":
            return self._config(path[1:])
        if path[0] != "repositories":
            return _missing()
        if len(path) == 1:
            return self._slice([json.dumps(self._repository()).encode()], [self._name], asked)
        if path[1] != self._name:
            return _missing()
        return self._of_repository(path[2:], asked)

    def _config(self, path: Sequence[str]) -> Told:
        if path == ["garbage-collection"]:
            return _json({"grace_period": _GRACE_S})
        version, storage = {"version": "1.84.0"}, {"blockstore_type": "s3"}
        return _json({"version_config": version, "storage_config": storage})

    def _repository(self) -> dict[str, Any]:
        return {
            "id": self._name,
            "storage_namespace": f"s3://{BUCKET}/{NAMESPACE}",
            "default_branch": "main",
            "creation_date": 0,
            "read_only": False,
        }

    def _of_repository(self, path: Sequence[str], asked: Asked) -> Told:
        if not path:
            return _json(self._repository())
        calls = {
            "branches": self._of_branches,
            "tags": lambda *_: _page([], [], more=False),
            "commits": self._of_commits,
            "refs": self._of_refs,
            "settings": lambda *_: _json(self._refs.rules.to_json()),
            "gc": self._gc,
        }
        call = calls.get(path[0])
        return _missing() if call is None else call(path[1:], asked)

    def _of_branches(self, path: Sequence[str], asked: Asked) -> Told:
        if not path:
            return self._slice(self._branch_rows, self._branches, asked)
        if path[0] not in self._refs.heads:
            return _missing()
        return _json({"id": path[0], "commit_id": self._refs.heads[path[0]]})

    def _of_commits(self, path: Sequence[str], _asked: Asked) -> Told:
        row = self._commit_rows.get(path[0])
        return _missing() if row is None else Told(200, row, [_JSON])

    def _of_refs(self, path: Sequence[str], asked: Asked) -> Told:
        branch = path[0].rstrip("@$")
        if path[1:] == ["commits"]:
            return self._log(path[0], asked)
        if path[1:] == ["diff", f"{branch}$"] and path[0] == f"{branch}@":
            return self._slice(self._diff, self._diff_paths, asked)
        if path[1:] == ["objects", "ls"]:
            return self._objects(branch, asked)
        return _missing()

    def _slice(self, rows: Sequence[bytes], keys: Sequence[str], asked: Asked) -> Told:
        """A page of a list in the order of its keys."""
        first = bisect_right(keys, asked.query.get("after", ""))
        last = first + _amount(asked)
        return _page(rows[first:last], keys[first:last], more=last < len(rows))

    def _log(self, ref: str, asked: Asked) -> Told:
        """The main ancestry of a commit or a branch."""
        commits = self._refs.commits
        after = asked.query.get("after")
        start = self._refs.heads.get(ref, ref) if not after else commits[after].parents[0]
        if start not in commits:
            return _missing()
        found: list[str] = []
        at: str | None = start
        while at is not None and len(found) < _amount(asked):
            found.append(at)
            at = next(iter(commits[at].parents), None)
        return _page([self._commit_rows[one] for one in found], found, more=at is not None)

    def _objects(self, branch: str, asked: Asked) -> Told:
        amount = _amount(asked)
        found = self._list_objects(branch, asked.query.get("after", ""), amount + 1)
        rows = [
            json.dumps(
                {
                    "path": path,
                    "path_type": "object",
                    "physical_address": f"s3://{BUCKET}/{NAMESPACE}/{address}",
                    "checksum": etag,
                    "size_bytes": size,
                    "mtime": 0,
                }
            ).encode()
            for path, address, size, etag in found[:amount]
        ]
        return _page(rows, [one[0] for one in found[:amount]], more=len(found) > amount)

    def _gc(self, call: Sequence[str], asked: Asked) -> Told:
        match call:
            case ["prepare_commits", "async"]:
                self._prepare_commits()
                return _json({"id": _TASK}, 202)
            case ["prepare_commits", "status"]:
                key = f"s3://{BUCKET}/{self._commits_key()}"
                result = {"run_id": f"run{self._prepared}", "gc_commits_location": key}
                return _json({"task_id": _TASK, "completed": True, "result": result})
            case ["prepare_uncommited"]:
                return self._prepare_uncommitted(asked)
        return _missing()

    def _commits_key(self) -> str:
        run = f"run_id=run{self._prepared}"
        return f"{NAMESPACE}/_lakefs/retention/gc/commits/{run}/commits.csv"

    def _prepare_commits(self) -> None:
        self._prepared += 1
        walked = self._refs.walked()
        moment = datetime.now(timezone.utc)
        found = active_commits(walked, dict(self._refs.heads), self._refs.rules, moment)
        rows = [f"{commit},false,{walked[commit].metarange_id}\n" for commit in found.active]
        text = "commit_id,expired,metarange_id\n" + "".join(rows)
        self._store.put(self._commits_key(), text.encode())

    def _prepare_uncommitted(self, asked: Asked) -> Told:
        """A page for each file; all files exist in one folder."""
        token = json.loads(asked.body or b"{}").get("continuation_token")
        page = json.loads(base64.b64decode(token))["page"] + 1 if token else 1
        folder = f"{NAMESPACE}/_lakefs/retention/gc/uncommitted/{_STAGED}/uncommitted/"
        told = {"run_id": _STAGED, "gc_uncommitted_location": f"s3://{BUCKET}/{folder}"}
        if page < self._staged_files:
            more = json.dumps({"page": page}).encode()
            told["continuation_token"] = base64.b64encode(more).decode()
        return _json(told)


def _amount(asked: Asked) -> int:
    return min(_LARGEST_PAGE, int(asked.query.get("amount", _LARGEST_PAGE)))


def _json(value: object, status: int = 200) -> Told:
    return Told(status, json.dumps(value).encode(), [_JSON])


def _missing() -> Told:
    return _json({"message": "not found"}, 404)


def _page(rows: Sequence[bytes], keys: Sequence[str], *, more: bool) -> Told:
    paging = {
        "has_more": more,
        "next_offset": keys[-1] if more else "",
        "results": len(rows),
        "max_per_page": _LARGEST_PAGE,
    }
    body = b'{"pagination":%s,"results":[%s]}' % (json.dumps(paging).encode(), b",".join(rows))
    return Told(200, body, [_JSON])
