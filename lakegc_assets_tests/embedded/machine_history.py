"""Rules of the comparison with the model: commits, merges, resets, and what these changed."""

from __future__ import annotations

import requests
from hypothesis import strategies as st
from hypothesis.stateful import (
    rule,
)

from lakegc_assets_tests.embedded.machine import (
    DAY,
    Driven,
    data,
    flags,
)
from lakegc_assets_tests.embedded.model import (
    Branch,
    ConflictError,
    Tree,
    differences,
    identities,
)


class History(Driven):
    """Commits, and what is made of them."""

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
            if response.status_code == 400 and identities(before) == identities(commit.tree):
                assert response.json() == {"message": "no changes"}
                return
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
        if not may_be_empty and dest.tree and tree == dest.tree:
            # A merge may cut the same entries into other ranges, which is a change to lakeFS.
            made, before = (self.get(f"/commits/{one}")["meta_range_id"] for one in (head, dest.id))
            assert made != before, "a commit without changes"
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
