"""Whatever sequence of calls comes, the server does what plain dictionaries do."""

from __future__ import annotations

import io
import shutil
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest
import requests
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lakegc_assets.retention.commits import Commit as RetainedCommit
from lakegc_assets.retention.naive import naive_active_commits
from lakegc_assets.retention.rules import Rules
from lakegc_assets_tests.embedded.conftest import Clock
from lakegc_assets_tests.embedded.direct import Direct
from lakegc_assets_tests.embedded.model import (
    Branch,
    Commit,
    ConflictError,
    Metadata,
    Model,
    Object,
    Tree,
    UnknownRefError,
    differences,
    identities,
    listing,
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


class Machine(RuleBasedStateMachine):
    """Calls, each made of the server and of the model."""

    def __init__(self) -> None:
        super().__init__()
        self._no_fsync = mock.patch("os.fsync")
        self._no_fsync.start()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.api = Direct.on(
            self.folder, clock=self.clock, range_raggedness=3, uncommitted_page_steps=3
        )
        # Equal calls give equal addresses, hence equal commit ids: a failure can be repeated.
        xids = self.api.lake.xids
        xids._machine, xids._pid, xids._counter = b"abc", 1, 0
        self.models: dict[str, Model] = {}
        self.namespaces = 0
        self.name = ""
        self.touched = ""
        self.copied: dict[str, dict[str, float]] = {}

    def teardown(self) -> None:
        self.api.lake.close()
        self.api.__exit__()
        shutil.rmtree(self.folder)
        self._no_fsync.stop()

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

    # Repositories

    @initialize()
    def first_repository(self) -> None:
        """Some history, so that merges have something to do from the start."""
        self.create_repository("repo")
        for number, branch in enumerate(("main", "dev", "old")):
            if branch != "main":
                body = {"name": branch, "source": "main"}
                assert self.send("POST", "/branches", json=body).status_code == 201
                self.model.branches[branch] = Branch(self.model.branches["main"].head)
            for path in (PATHS[number], PATHS[number + 1]):
                self.put(branch, path, f"{number}".encode(), ())
            self.commit_all(branch)

    @rule(name=st.sampled_from(["repo", "other"]))
    def create_repository(self, name: str) -> None:
        self.namespaces += 1
        namespace = f"local://{name}{self.namespaces}"
        body = {"name": name, "storage_namespace": namespace, "default_branch": "main"}
        response = self.api.send("POST", "/repositories", json=body)
        assert response.status_code == (409 if name in self.models else 201), response.text
        if name not in self.models:
            self.name, self.touched = name, "main"
            head = self.get("/branches/main")["commit_id"]
            first = Commit(head, {}, (), int(self.clock()), 1)
            self.models[name] = Model({head: first}, {"main": Branch(head)})
            self.copied[name] = {}

    @precondition(lambda self: len(self.models) > 1)
    @rule(draw=data, delete=st.sampled_from([False] * 7 + [True]))
    def another_repository(self, draw: st.DataObject, *, delete: bool) -> None:
        if delete:
            assert self.send("DELETE", "").status_code == 204
            assert self.send("GET", "").status_code == 404
            del self.models[self.name]
        self.name = draw.draw(st.sampled_from(sorted(self.models)), label="repository")
        self.touched = "main"
        found = self.api.call("GET", "/repositories")["results"]
        assert [r["id"] for r in found] == sorted(self.models)

    # Branches and tags

    @rule(draw=data, name=st.sampled_from(BRANCHES))
    def create_branch(self, draw: st.DataObject, name: str) -> None:
        source = self.ref(draw)
        commit = self.resolve(source)
        response = self.send("POST", "/branches", json={"name": name, "source": source})
        if commit is None:
            assert response.status_code == 404, response.text
        elif name in self.model.branches:
            assert response.status_code == 409, response.text
        else:
            assert (response.status_code, response.text) == (201, commit.id)
            self.model.branches[name] = Branch(commit.id)
            self.touched = name

    @rule(name=st.sampled_from(BRANCHES))
    def delete_branch(self, name: str) -> None:
        response = self.send("DELETE", f"/branches/{name}")
        if name == "main":
            assert response.status_code == 400
        elif name not in self.model.branches:
            assert response.status_code == 404
        else:
            assert response.status_code == 204
            del self.model.branches[name]
        self.touched = "main"

    @rule(draw=data, name=st.sampled_from(TAGS))
    def create_or_delete_tag(self, draw: st.DataObject, name: str) -> None:
        if name in self.model.tags:
            assert self.send("DELETE", f"/tags/{name}").status_code == 204
            del self.model.tags[name]
            return
        ref = self.ref(draw)
        commit = self.resolve(ref)
        response = self.send("POST", "/tags", json={"id": name, "ref": ref})
        assert response.status_code == (201 if commit else 404), response.text
        if commit:
            self.model.tags[name] = commit.id

    @rule()
    def refs_are_listed(self) -> None:
        found = {b["id"]: b["commit_id"] for b in self.all_pages("/branches", 2)}
        assert found == {name: b.head for name, b in self.model.branches.items()}
        assert list(found) == sorted(found)
        assert {t["id"]: t["commit_id"] for t in self.all_pages("/tags", 1)} == self.model.tags

    # Objects

    @rule(draw=data, writes=st.lists(st.tuples(paths, CONTENTS, METADATA), min_size=1, max_size=4))
    def upload(self, draw: st.DataObject, writes: list[tuple[str, bytes, Metadata]]) -> None:
        branch = self.branch(draw)
        for path, content, metadata in writes:
            self.put(branch, path, content, metadata)

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

    @rule(draw=data, several=st.lists(paths, min_size=1, max_size=3))
    def delete(self, draw: st.DataObject, several: list[str]) -> None:
        branch = self.branch(draw)
        if len(several) == 1:
            where = {"path": several[0]}
            response = self.send("DELETE", f"/branches/{branch}/objects", params=where)
            assert response.status_code == 204, response.text
        else:
            body = {"paths": several}
            response = self.send("POST", f"/branches/{branch}/objects/delete", json=body)
            assert (response.status_code, response.json()) == (200, {"errors": []})
        for path in several:
            self.model.delete(branch, path)

    @rule(draw=data, source_path=paths, path=paths)
    def copy(self, draw: st.DataObject, source_path: str, path: str) -> None:
        branch = self.branch(draw)
        source_ref = self.ref(draw)
        source, at, old = None, None, None
        if self.resolve(source_ref):
            at = self.model.resolve(source_ref)[1]
            source = self.model.visible(source_ref).get(source_path)
            old = at.staged.get(source_path) if at else None
        response = self.send(
            "POST",
            f"/branches/{branch}/objects/copy",
            params={"dest_path": path},
            json={"src_path": source_path, "src_ref": source_ref},
        )
        assert response.status_code == (201 if source else 404), response.text
        if source is None:
            return
        address = response.json()["physical_address"]
        if at is self.model.branches[branch] and old is not None:
            assert address == source.address
            self.copied[self.name][address] = self.clock()
        else:
            assert address not in {o.address for o in self.every_object()}
        copied = Object(source.content, source.metadata, address)
        self.model.branches[branch].staged[path] = copied

    @rule(draw=data, path=paths)
    def read(self, draw: st.DataObject, path: str) -> None:
        ref = self.ref(draw)
        found = self.model.visible(ref).get(path) if self.resolve(ref) else None
        where = {"path": path}
        response = self.send("GET", f"/refs/{ref}/objects", params=where)
        stat = self.send("GET", f"/refs/{ref}/objects/stat", params=where)
        if found is None:
            assert response.status_code == stat.status_code == 404
            return
        assert (response.status_code, response.content) == (200, found.content)
        told = stat.json()
        assert told["physical_address"] == found.address
        assert told["metadata"] == dict(found.metadata)
        assert told["size_bytes"] == len(found.content)

    @rule(
        draw=data,
        prefix=prefixes,
        delimiter=st.sampled_from(["", "/", "/b"]),
        amount=st.integers(1, 5),
    )
    def list_pages(self, draw: st.DataObject, prefix: str, delimiter: str, amount: int) -> None:
        ref = self.ref(draw)
        if not self.resolve(ref):
            assert self.send("GET", f"/refs/{ref}/objects/ls").status_code == 404
            return
        where = {"prefix": prefix, "delimiter": delimiter}
        found = self.all_pages(f"/refs/{ref}/objects/ls", amount, **where)
        expected = listing(list(self.model.visible(ref)), prefix, delimiter)
        assert [item["path"] for item in found] == expected

    # History

    @rule(draw=data, empty=flags, days_ago=st.sampled_from([None, None, 0, 2, 9]))
    def commit(self, draw: st.DataObject, *, empty: bool, days_ago: int | None) -> None:
        branch = self.branch(draw)
        date = int(self.clock()) - (days_ago or 0) * DAY
        body = {
            "message": "m",
            "allow_empty": empty,
            **({} if days_ago is None else {"date": date}),
        }
        response = self.send("POST", f"/branches/{branch}/commits", json=body)
        old, tree = self.model.head(branch), self.model.committed(branch)
        if identities(tree) == identities(old.tree) and not empty:
            assert response.status_code == 400, response.text
            return
        assert response.status_code == 201, response.text
        self.model.add(branch, response.json()["id"], tree, (old.id,), date)

    @rule(
        draw=data,
        strategy=st.sampled_from(["", "", "source-wins", "dest-wins"]),
        squash=flags,
        empty=flags,
    )
    def merge(self, draw: st.DataObject, strategy: str, *, squash: bool, empty: bool) -> None:
        source_ref = self.ref(draw)
        source = self.resolve(source_ref)
        branch = self.clean_branch(draw, source)
        # A branch that was itself the source has moved on.
        source, dest = self.resolve(source_ref), self.model.head(branch)
        response = self.send(
            "POST",
            f"/refs/{source_ref}/merge/{branch}",
            json={"strategy": strategy, "squash_merge": squash, "allow_empty": empty},
        )
        if self.model.staged_kinds(branch):
            assert response.status_code in ({400} if source else {400, 404}), response.text
            return
        if source is None:
            assert response.status_code == 404, response.text
            return
        base = self.model.merge_base(source.id, dest.id)
        if base.id == source.id and not empty:
            assert response.status_code == 400, response.text
            return
        parents = (dest.id,) if squash else (dest.id, source.id)
        self.applied(response, branch, (base.tree, source.tree, strategy), parents, status=200)

    @rule(draw=data, number=st.integers(0, 2), empty=flags)
    def revert(self, draw: st.DataObject, number: int, *, empty: bool) -> None:
        commit = self.model.commits[draw.draw(st.sampled_from(sorted(self.model.commits)))]
        branch = self.clean_branch(draw, commit)
        body = {"ref": commit.id, "parent_number": number, "allow_empty": empty}
        response = self.send("POST", f"/branches/{branch}/revert", json=body)
        if len(commit.parents) > 1 and number == 0:
            assert response.status_code == 409, response.text
        elif number > len(commit.parents) or self.model.staged_kinds(branch):
            assert response.status_code == 400, response.text
        else:
            parent = (
                self.model.commits[commit.parents[max(number, 1) - 1]] if commit.parents else None
            )
            sides = (commit.tree, parent.tree if parent else {}, "")
            head = self.model.head(branch).id
            self.applied(response, branch, sides, (head,), status=204, may_be_empty=empty)

    @rule(draw=data, number=st.sampled_from([None, None, 1, 2]))
    def cherry_pick(self, draw: st.DataObject, number: int | None) -> None:
        commit = self.model.commits[draw.draw(st.sampled_from(sorted(self.model.commits)))]
        branch = self.clean_branch(draw, commit)
        body = {"ref": commit.id, **({} if number is None else {"parent_number": number})}
        response = self.send("POST", f"/branches/{branch}/cherry-pick", json=body)
        parents = len(commit.parents)
        if (
            (number or 1) > parents
            or (number is None and parents > 1)
            or self.model.staged_kinds(branch)
        ):
            assert response.status_code == 400, response.text
        else:
            before = self.model.commits[commit.parents[(number or 1) - 1]].tree
            head = self.model.head(branch).id
            self.applied(response, branch, (before, commit.tree, ""), (head,), status=201)

    def applied(
        self,
        response: requests.Response,
        branch: str,
        sides: tuple[Tree, Tree, str],
        parents: tuple[str, ...],
        *,
        status: int,
        may_be_empty: bool = True,
    ) -> None:
        """A three-way merge was asked for: its outcome is the model's, at one of two addresses."""
        base, source, strategy = sides
        dest = self.model.head(branch)
        try:
            expected = self.model.merged(base, source, dest.tree, strategy)
        except ConflictError:
            assert response.status_code == 409, response.text
            return
        head = self.get(f"/branches/{branch}")["commit_id"]
        if response.status_code == 400 and not may_be_empty:
            assert identities(expected) == identities(dest.tree)
            assert head == dest.id
            return
        assert response.status_code == status, response.text
        tree = {}
        for item in self.all_pages(f"/refs/{head}/objects/ls"):
            path, address = item["path"], item["physical_address"]
            told = [
                t[path] for t in (dest.tree, source) if path in t and t[path].address == address
            ]
            assert told, (path, address)
            tree[path] = told[0]
        assert identities(tree) == identities(expected)
        assert tuple(self.get(f"/commits/{head}")["parents"]) == parents
        if not may_be_empty and dest.tree:
            assert tree != dest.tree, "a commit without changes"
        self.model.add(branch, head, tree, parents, int(self.clock()))

    @rule(draw=data)
    def hard_reset(self, draw: st.DataObject) -> None:
        ref = self.ref(draw)
        branch = self.clean_branch(draw, self.resolve(ref))
        commit = self.resolve(ref)
        response = self.send("PUT", f"/branches/{branch}/hard_reset", params={"ref": ref})
        if self.model.staged_kinds(branch):
            assert response.status_code in ({400} if commit else {400, 404}), response.text
        elif commit is None:
            assert response.status_code == 404, response.text
        else:
            assert response.status_code == 204, response.text
            self.model.branches[branch] = Branch(commit.id)

    @rule(
        draw=data,
        kind=st.sampled_from(["reset", "common_prefix", "object"]),
        path=paths,
        cut=prefixes,
    )
    def reset(self, draw: st.DataObject, kind: str, path: str, cut: str) -> None:
        branch = self.branch(draw)
        where = cut if kind == "common_prefix" else path
        response = self.send("PUT", f"/branches/{branch}", json={"type": kind, "path": where})
        assert response.status_code == 204, response.text
        staged = self.model.branches[branch].staged
        for found in list(staged):
            below = kind == "common_prefix" and found.startswith(where)
            if kind == "reset" or below or found == where:
                del staged[found]

    @rule(draw=data, two_dot=flags, amount=st.integers(1, 5))
    def diff(self, draw: st.DataObject, amount: int, *, two_dot: bool) -> None:
        left_ref, right_ref = self.ref(draw), self.ref(draw)
        left, right = self.resolve(left_ref), self.resolve(right_ref)
        kind = {"type": "two_dot" if two_dot else "three_dot"}
        url = f"/refs/{left_ref}/diff/{right_ref}"
        if left is None or right is None:
            assert self.send("GET", url, params=kind).status_code == 404
            return
        base = left if two_dot else self.model.merge_base(left.id, right.id)
        expected = differences(left.tree, base.tree, right.tree)
        found = self.all_pages(url, amount, **kind)
        assert {item["path"]: item["type"] for item in found} == expected
        assert [item["path"] for item in found] == sorted(expected, key=str.encode)

    @rule(draw=data, amount=st.integers(1, 4))
    def log(self, draw: st.DataObject, amount: int) -> None:
        ref = self.ref(draw)
        commit = self.resolve(ref)
        if commit is None:
            assert self.send("GET", f"/refs/{ref}/commits").status_code == 404
            return
        first = self.all_pages(f"/refs/{ref}/commits", amount, first_parent="true")
        assert [c["id"] for c in first] == list(self.model.log(commit.id))
        whole = self.all_pages(f"/refs/{ref}/commits", amount)
        assert {c["id"] for c in whole} == self.model.ancestors(commit.id)
        assert len(whole) == len({c["id"] for c in whole})

    # What a collector asks for

    @rule(days=st.sampled_from([0.01, 0.5, 1, 3]))
    def time_passes(self, days: float) -> None:
        self.clock.now += days * DAY

    @rule()
    def uncommitted_is_what_is_staged(self) -> None:
        found: set[str] = set()
        body: dict[str, str] = {}
        runs = set()
        while True:
            response = self.send("POST", "/gc/prepare_uncommited", json=body)
            assert response.status_code == 201, response.text
            page = response.json()
            runs.add(page["run_id"])
            if page["gc_uncommitted_location"]:
                found |= self.addresses(page["gc_uncommitted_location"])
            if "continuation_token" not in page:
                break
            body = {"continuation_token": page["continuation_token"]}
        assert len(runs) == 1
        base = self.get("")["storage_namespace"] + "/"
        staged = self.model.staged_addresses()
        tracked = self.copied[self.name]
        recent = {address for address, copied in tracked.items() if copied == self.clock()}
        assert staged | recent <= {base + a for a in found} <= staged | tracked.keys()

    def addresses(self, location: str) -> set[str]:
        folder = self.api.lake.settings.objects_dir / location.removeprefix("local://")
        files = [path.read_bytes() for path in folder.iterdir()]
        tables = [pq.read_table(io.BytesIO(file)) for file in files]
        return {address for table in tables for address in table["physical_address"].to_pylist()}

    @rule(
        default=st.sampled_from([1, 3]),
        days=st.dictionaries(st.sampled_from(BRANCHES), st.sampled_from([0, 2, 5]), max_size=2),
    )
    def active_commits_are_those_of_the_definition(
        self, default: int, days: dict[str, int]
    ) -> None:
        rules = [{"branch_id": name, "retention_days": d} for name, d in days.items()]
        body = {"default_retention_days": default, "branches": rules}
        assert self.send("PUT", "/settings/gc_rules", json=body).status_code == 204
        response = self.send("POST", "/gc/prepare_commits", json={})
        assert response.status_code == 201, response.text
        location = response.json()["gc_commits_location"].removeprefix("local://")
        text = (self.api.lake.settings.objects_dir / location).read_text()
        commits = {
            c.id: RetainedCommit(c.id, c.parents, c.date, "") for c in self.model.commits.values()
        }
        heads = {name: b.head for name, b in self.model.branches.items()}
        now = datetime.fromtimestamp(self.clock(), tz=timezone.utc)
        expected = naive_active_commits(commits, heads, Rules(default, days), now)
        header, *rows = [line.split(",") for line in text.splitlines()]
        assert header == ["commit_id", "expired", "metarange_id"]
        assert {row[0] for row in rows} == expected
        assert len(rows) == len(expected)

    def every_object(self) -> list[Object]:
        committed = [
            o for m in self.models.values() for c in m.commits.values() for o in c.tree.values()
        ]
        staged = [
            o for m in self.models.values() for b in m.branches.values() for o in b.staged.values()
        ]
        return committed + [o for o in staged if o is not None]

    @invariant()
    def the_branch_shows_what_the_model_has(self) -> None:
        if not self.models:
            return
        branch = self.touched
        found = {
            i["path"]: i["physical_address"] for i in self.all_pages(f"/refs/{branch}/objects/ls")
        }
        assert found == {path: o.address for path, o in self.model.visible(branch).items()}
        kinds = {i["path"]: i["type"] for i in self.all_pages(f"/branches/{branch}/diff")}
        assert kinds == self.model.staged_kinds(branch)
        assert self.get(f"/branches/{branch}")["commit_id"] == self.model.branches[branch].head


def test_calls_do_what_dictionaries_do() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=12, stateful_step_count=40))


@pytest.mark.conformance
def test_many_calls_do_what_dictionaries_do() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=150, stateful_step_count=60))
