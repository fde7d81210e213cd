"""Rules of the comparison with the model: repositories, branches, tags, objects."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    precondition,
    rule,
)

from lakegc_assets_tests.embedded.machine import (
    BRANCHES,
    CONTENTS,
    METADATA,
    PATHS,
    TAGS,
    Driven,
    data,
    paths,
    prefixes,
)
from lakegc_assets_tests.embedded.model import (
    Branch,
    Commit,
    Metadata,
    Model,
    Object,
    listing,
)


class Refs(Driven):
    """Repositories, branches and tags."""

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


class Objects(Driven):
    """Objects, and what of them is staged."""

    @rule(draw=data, writes=st.lists(st.tuples(paths, CONTENTS, METADATA), min_size=1, max_size=4))
    def upload(self, draw: st.DataObject, writes: list[tuple[str, bytes, Metadata]]) -> None:
        branch = self.branch(draw)
        for path, content, metadata in writes:
            self.put(branch, path, content, metadata)

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
