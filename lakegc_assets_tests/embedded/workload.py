"""Clients that write at random, and know what of it was acknowledged."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import requests

from lakegc_assets_tests.embedded.api import Api, Repo

TAGGING = 0.05
LOST = (requests.ConnectionError, requests.exceptions.ChunkedEncodingError, requests.Timeout)


class RefusedError(Exception):
    """The server answered with an error that the call can meet."""


@dataclass
class Seen:
    """A branch as its one writer knows it."""

    committed: dict[str, bytes] = field(default_factory=dict)
    staged: dict[str, bytes | None] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    @property
    def visible(self) -> dict[str, bytes]:
        both = {**self.committed, **self.staged}
        return {path: content for path, content in both.items() if content is not None}


State = dict[str, Seen]


@dataclass
class Client:
    """One writer, with branches, tags and a folder of ``main`` of its own.

    Attributes:
        number: of the client.
        seed: of all that it does.
        state: what was acknowledged, by branch; of ``main`` the client's folder, as it is visible.
        tags: acknowledged tags, and the messages of their commits.
        doubtful: what the state is if the call that was not answered was done nevertheless.
        acknowledged: how many calls were.
    """

    number: int
    seed: int
    state: State = field(default_factory=lambda: {"main": Seen()})
    tags: dict[str, str] = field(default_factory=dict)
    doubtful: tuple[State, dict[str, str]] | None = None
    acknowledged: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed * 1000 + self.number)
        self._counter = 0

    def work(self, api: Api, objects: Path, progress: Callable[[], None], stop: Event) -> None:
        """Make calls until the server is gone or a test says so."""
        self._repo, self._objects = Repo(api, "repo"), objects
        while not stop.is_set():
            state, tags = copy.deepcopy(self.state), dict(self.tags)
            self.doubtful = (state, tags)
            try:
                self._step(state, tags)
            except RefusedError:
                self.doubtful = None
                continue
            except LOST:
                return
            self.state, self.tags, self.doubtful = state, tags, None
            self.acknowledged += 1
            progress()

    def _call(self, method: str, path: str, **options: Any) -> Any:
        response = self._repo.api.send(method, self._repo.path + path, **options)
        if response.status_code in {400, 404, 409, 412}:
            raise RefusedError(response.text)
        assert response.status_code < 300, (self.seed, method, path, response.text)
        is_json = response.headers.get("Content-Type") == "application/json"
        return response.json() if is_json else None

    def _name(self, kind: str) -> str:
        self._counter += 1
        return f"{kind}-{self.number}-{self._counter}-{self.acknowledged}"

    def _path(self, branch: str) -> str:
        folder = f"{self.number}/" if branch == "main" else ""
        return f"{folder}{self.random.randrange(12)}"

    def _step(self, state: State, tags: dict[str, str]) -> None:
        branch = self.random.choice(sorted(state))
        weights: dict[Callable[[State, str], None], int] = {
            self._upload: 8,
            self._delete: 3,
            self._link: 3,
            self._copy: 3,
            self._commit: 4,
            self._merge: 2,
            self._reset: 1,
            self._create_branch: 2,
            self._delete_branch: 1,
        }
        if branch != "main" and self.random.random() < TAGGING:
            self._tag(state, tags, branch)
        else:
            self.random.choices(list(weights), list(weights.values()))[0](state, branch)

    def _upload(self, state: State, branch: str) -> None:
        path, content = self._path(branch), self._name("content").encode()
        state[branch].staged[path] = content
        self._call("POST", f"/branches/{branch}/objects", params={"path": path}, data=content)

    def _delete(self, state: State, branch: str) -> None:
        path = self._path(branch)
        if path in state[branch].visible:
            state[branch].staged[path] = None
        self._call("DELETE", f"/branches/{branch}/objects", params={"path": path})

    def _link(self, state: State, branch: str) -> None:
        path, content = self._path(branch), self._name("linked").encode()
        where = {"path": path}
        given = self._call("GET", f"/branches/{branch}/staging/backing", params=where)
        place = self._objects / given["physical_address"].removeprefix("local://")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        # Equal checksums and sizes would be the same content to lakeFS.
        checksum = hashlib.md5(content).hexdigest()
        body = {"staging": given, "checksum": checksum, "size_bytes": len(content)}
        state[branch].staged[path] = content
        self._call("PUT", f"/branches/{branch}/staging/backing", params=where, json=body)

    def _copy(self, state: State, branch: str) -> None:
        source, path = self._path(branch), self._path(branch)
        content = state[branch].visible.get(source)
        if content is not None:
            state[branch].staged[path] = content
        self._call(
            "POST",
            f"/branches/{branch}/objects/copy",
            params={"dest_path": path},
            json={"src_path": source, "src_ref": branch},
        )

    def _commit(self, state: State, branch: str) -> None:
        message = self._name("commit")
        seen = state[branch]
        state[branch] = Seen(seen.visible, {}, [message, *seen.messages])
        self._call("POST", f"/branches/{branch}/commits", json={"message": message})

    def _merge(self, state: State, branch: str) -> None:
        """Merge a branch that was made from this one, and went on alone."""
        source = self.random.choice(sorted(state))
        if "main" in {source, branch} or source == branch:
            raise RefusedError
        message = self._name("merge")
        ours, theirs = state[branch], state[source]
        known = len(theirs.messages) - len(ours.messages)
        if known <= 0 or theirs.messages[known:] != ours.messages:
            raise RefusedError
        if ours.visible != ours.committed:
            raise RefusedError
        state[branch] = Seen(dict(theirs.committed), {}, [message, *theirs.messages])
        self._call("POST", f"/refs/{source}/merge/{branch}", json={"message": message})

    def _reset(self, state: State, branch: str) -> None:
        if branch == "main":
            raise RefusedError
        state[branch].staged = {}
        self._call("PUT", f"/branches/{branch}", json={"type": "reset"})

    def _create_branch(self, state: State, source: str) -> None:
        """From a branch of this client, or the first time from a tag on the first commit."""
        name = self._name("branch")
        if source == "main":
            source, seen = "empty", Seen({}, {}, ["Repository created"])
        else:
            seen = state[source]
        state[name] = Seen(dict(seen.committed), {}, list(seen.messages))
        self._call("POST", "/branches", json={"name": name, "source": source})

    def _delete_branch(self, state: State, branch: str) -> None:
        if len(state) < 4 or branch == "main":
            raise RefusedError
        del state[branch]
        self._call("DELETE", f"/branches/{branch}")

    def _tag(self, state: State, tags: dict[str, str], branch: str) -> None:
        name = self._name("tag")
        tags[name] = state[branch].messages[0]
        self._call("POST", "/tags", json={"id": name, "ref": branch})

    def settle(self, api: Api) -> None:
        """What was acknowledged is there, and the last call was done or was not."""
        found = self.found(api)
        expected = [self.shown(self.state, self.tags)]
        if self.doubtful:
            expected.append(self.shown(*self.doubtful))
        assert found in expected, (
            f"seed {self.seed}, client {self.number} after {self.acknowledged} calls:\n"
            f"{found}\nis none of\n" + "\n".join(map(str, expected))
        )
        if found != expected[0] and self.doubtful:
            self.state, self.tags = self.doubtful
        self.doubtful = None

    def shown(self, state: State, tags: dict[str, str]) -> dict[str, object]:
        branches = {
            name: (seen.visible, sorted(seen.messages) if name != "main" else None)
            for name, seen in state.items()
        }
        return {"branches": branches, "tags": tags}

    def found(self, api: Api) -> dict[str, object]:
        """The same as the server tells it."""
        repo = Repo(api, "repo")
        listed = repo.call("GET", "/branches", params={"amount": 1000})["results"]
        own = [b["id"] for b in listed if b["id"].startswith(f"branch-{self.number}-")]
        branches: dict[str, object] = {}
        for name in ["main", *own]:
            prefix = f"{self.number}/" if name == "main" else ""
            paths = repo.list(name, amount=1000, prefix=prefix)
            log = sorted(repo.log(name, amount=1000)) if name != "main" else None
            branches[name] = ({path: repo.read(path, name) for path in paths}, log)
        tags = {}
        for tag in repo.call("GET", "/tags", params={"amount": 1000})["results"]:
            if tag["id"].startswith(f"tag-{self.number}-"):
                tags[tag["id"]] = repo.call("GET", f"/commits/{tag['id']}")["message"]
        return {"branches": branches, "tags": tags}
