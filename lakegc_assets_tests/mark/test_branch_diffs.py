"""What a branch has staged by its diff, and where lakeFS must be asked for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest

from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import EndpointNotFoundError, NotFoundError
from lakegc_assets.lakefs.models import Change
from lakegc_assets.mark import branch_diffs


class Diffing:
    """A server with one branch, whose diff may end with an error."""

    def __init__(
        self, changes: Sequence[tuple[str, str, int | None]], *, lost: bool = False
    ) -> None:
        self.told = changes
        self.lost = lost
        self.names = ["main", "dev"]
        self.repository_lost = False

    def changes(self, _repository: str, _branch: str) -> Iterator[list[Change]]:
        """A page for each change; what is null is null, or not there."""
        for path, kind, size in self.told:
            change = {"path": path, "path_type": "object", "type": kind, "size_bytes": size}
            null = {"path": path, "path_type": "object", "type": kind}
            yield [cast("Change", change if size is not None or path < "m" else null)]
        if self.lost:
            raise NotFoundError("branch not found")

    def repository(self, repository: str) -> SimpleNamespace:
        if self.repository_lost:
            raise NotFoundError("repository not found")
        return SimpleNamespace(id=repository)

    def branch(self, _repository: str, branch: str) -> SimpleNamespace:
        if branch not in self.names:
            raise NotFoundError("branch not found")
        return SimpleNamespace(id=branch)


def asked(server: Diffing, sizes: Sequence[int] = ()) -> set[str]:
    """Where the branch may have staged an object of one of some sizes."""
    of_candidates = pa.array(sizes, pa.int64())
    found = branch_diffs.staged_paths(cast("LakeFSClient", server), "repo", "dev", of_candidates)
    assert found.changes == len(changed(server))
    return found.paths


def changed(server: Diffing) -> list[str]:
    return list(branch_diffs.changed_paths(cast("LakeFSClient", server), "repo", "dev"))


def test_what_is_added_may_be_told_by_its_size() -> None:
    server = Diffing([("a|b\n", "added", 0), ("c", "added", None), ("d", "added", 3)])
    assert asked(server) == {"c"}
    assert asked(server, [0]) == {"a|b\n", "c"}
    assert changed(server) == ["a|b\n", "c", "d"]


def test_where_sizes_say_nothing_all_that_is_staged_counts() -> None:
    server = Diffing([("a", "added", 0), ("b", "changed", 7), ("c", "removed", 7)])
    found = branch_diffs.staged_paths(cast("LakeFSClient", server), "repo", "dev", None)
    assert found == ({"a", "b"}, 2)


@pytest.mark.parametrize("size", [None, -1, -7])
def test_a_size_that_is_none_does_not_count(size: int | None) -> None:
    assert asked(Diffing([("a", "added", size), ("z", "added", size)])) == {"a", "z"}


def test_of_what_is_replaced_the_size_does_not_count() -> None:
    """It may be that of what was there before."""
    server = Diffing([("a", "changed", 7), ("b", "conflict", 7), ("c", "prefix_changed", 7)])
    assert asked(server) == {"a", "b", "c"}
    assert changed(server) == ["a", "b", "c"]


def test_what_is_removed_is_not_staged() -> None:
    server = Diffing([("a", "removed", 7)])
    assert asked(server, [7]) == set()
    assert changed(server) == []


@pytest.mark.parametrize("told", [[], [("a", "added", 7)]], ids=["at once", "in the middle"])
def test_a_branch_that_is_gone_has_nothing_more_staged(told: list[tuple[str, str, int]]) -> None:
    server = Diffing(told, lost=True)
    server.names = ["main"]
    assert changed(server) == [path for path, _, _ in told]
    assert asked(server, [7]) == {path for path, _, _ in told}


def test_of_a_repository_that_is_not_found_no_branch_counts_as_gone() -> None:
    server = Diffing([], lost=True)
    server.names, server.repository_lost = [], True
    with pytest.raises(NotFoundError, match="repository not found"):
        changed(server)


def test_an_endpoint_that_is_not_found_is_no_proof_that_a_branch_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Something in front of lakeFS may answer so for some paths."""
    server = Diffing([], lost=True)

    def nowhere(_repository: str, branch: str) -> SimpleNamespace:
        raise EndpointNotFoundError(f"invalid API endpoint: {branch}")

    monkeypatch.setattr(server, "branch", nowhere)
    with pytest.raises(EndpointNotFoundError):
        changed(server)


@pytest.mark.parametrize("told", [[], [("a", "added", 7)]], ids=["at once", "in the middle"])
def test_not_found_from_a_branch_that_exists_stops_the_run(
    told: list[tuple[str, str, int]],
) -> None:
    with pytest.raises(IntegrityError, match="exists, but its diff says not found"):
        asked(Diffing(told, lost=True), [7])


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_asked_for_is_what_has_the_size_of_a_candidate_or_none(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branch_diffs, "CHANGES_AT_ONCE", at_once)
    added = [(f"{size}", "added", size) for size in range(5)]
    server = Diffing([*added, ("changed", "changed", 7), ("gone", "removed", 3)])
    assert asked(server, [0, 3, 4, 9]) == {"0", "3", "4", "changed"}
