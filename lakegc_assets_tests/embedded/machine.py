"""A server and a model that get the same calls: what all rules of the comparison need."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import requests
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
)

from lakegc_assets_tests.embedded.conftest import Clock
from lakegc_assets_tests.embedded.direct import Direct
from lakegc_assets_tests.embedded.model import (
    Commit,
    Metadata,
    Model,
    Object,
    UnknownRefError,
)

PATHS = [
    "a",
    "a/b",
    "a/b/c",
    "a/d",
    "a!",
    "b",
    "b/é",
    "b//x",
    "c d|%2F",
    "e/",
    "e/..",
    "\U0001f600",
]
CONTENTS = st.sampled_from([b"", b"1", b"2"])
METADATA = st.sampled_from([(), (("k", "ü"),)])
BRANCHES = ["main", "dev", "old", "x-1"]
TAGS = ["v1", "v2"]
MODIFIERS = [*[""] * 12, "@", "~1", "~", "^", "^2", "~2^1"]
DAY = 24 * 3600

paths = st.sampled_from(PATHS)
prefixes = st.sampled_from(["", "a", "a/", "b", "b/", "b//", "e/", "zz"])
flags = st.booleans()
MOSTLY = st.sampled_from([True, True, True, False])
data = st.data()


class Driven(RuleBasedStateMachine):
    """A server, its model, and calls that every rule needs."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.api = Direct.on(
            self.folder, clock=self.clock, range_raggedness=3, uncommitted_page_steps=3
        )
        # Equal calls give equal addresses, hence equal commit ids: a failure can be repeated.
        xids = self.api.lake.xids
        xids.machine, xids.pid, xids.counter = b"abc", 1, 0
        self.models: dict[str, Model] = {}
        self.namespaces = 0
        self.name = ""
        self.touched = ""
        self.copied: dict[str, dict[str, float]] = {}

    def teardown(self) -> None:
        self.api.lake.close()
        self.api.__exit__()
        shutil.rmtree(self.folder)

    @property
    def model(self) -> Model:
        return self.models[self.name]

    def send(self, method: str, path: str, **options: Any) -> requests.Response:
        return self.api.send(method, f"/repositories/{self.name}{path}", **options)

    def get(self, path: str, **params: Any) -> Any:
        response = self.send("GET", path, params=params)
        assert response.status_code == 200, (path, params, response.text)
        return response.json()

    def all_pages(self, path: str, amount: int = 1000, **params: Any) -> list[Any]:
        """The results of every page, one after the other."""
        found: list[Any] = []
        after = ""
        while True:
            page = self.get(path, amount=amount, after=after, **params)
            found += page["results"]
            assert len(page["results"]) <= amount
            if not page["pagination"]["has_more"]:
                return found
            after = page["pagination"]["next_offset"]

    def branch(self, draw: st.DataObject) -> str:
        """A branch, mostly one that is there."""
        self.touched = draw.draw(st.sampled_from(sorted(self.model.branches)), label="branch")
        return self.touched

    def ref(self, draw: st.DataObject) -> str:
        """A reference: a branch, a tag or a commit, and ancestors of these."""
        names = [*sorted(self.model.branches), *sorted(self.model.tags)]
        known = [*names, *names, *self.model.commits, "nothing"]
        base = draw.draw(st.sampled_from(known), label="ref")
        return base + draw.draw(st.sampled_from(MODIFIERS), label="modifier")

    def clean_branch(self, draw: st.DataObject, bringing: Commit | None) -> str:
        """A branch, mostly without staged changes, which merges and the like ask for.

        What HEAD does not have and was written and deleted leaves a tombstone that is no change,
        here of something that the branch may be given next.
        """
        branch = self.branch(draw)
        if self.model.staged_kinds(branch) != {} and draw.draw(MOSTLY, label="clean"):
            self.commit_all(branch)
        new = sorted(set(bringing.tree if bringing else ()) - self.model.visible(branch).keys())
        if len(new) > 0 and draw.draw(flags, label="idle tombstone"):
            idle = draw.draw(st.sampled_from(new))
            self.put(branch, idle, b"1", ())
            where = {"path": idle}
            response = self.send("DELETE", f"/branches/{branch}/objects", params=where)
            assert response.status_code == 204, response.text
            self.model.delete(branch, idle)
        return branch

    def commit_all(self, branch: str) -> None:
        body = {"message": "m", "allow_empty": True}
        response = self.send("POST", f"/branches/{branch}/commits", json=body)
        assert response.status_code == 201, response.text
        head, tree = self.model.head(branch), self.model.committed(branch)
        self.model.add(branch, response.json()["id"], tree, (head.id,), int(self.clock()))

    def resolve(self, ref: str) -> Commit | None:
        try:
            return self.model.resolve(ref)[0]
        except UnknownRefError:
            return None

    def put(self, branch: str, path: str, content: bytes, metadata: Metadata) -> None:
        response = self.send(
            "POST",
            f"/branches/{branch}/objects",
            params={"path": path},
            data=content,
            headers={f"x-lakefs-meta-{name}": value.encode() for name, value in metadata},
        )
        assert response.status_code == 201, response.text
        address = response.json()["physical_address"]
        assert address not in {o.address for o in self.every_object()}
        self.model.branches[branch].staged[path] = Object(content, metadata, address)

    def every_object(self) -> list[Object]:
        committed = [
            o for m in self.models.values() for c in m.commits.values() for o in c.tree.values()
        ]
        staged = [
            o for m in self.models.values() for b in m.branches.values() for o in b.staged.values()
        ]
        return committed + [o for o in staged if o is not None]
