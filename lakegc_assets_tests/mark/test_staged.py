"""What a branch has staged by its diff, and where lakeFS must be asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.lakefs.models import DiffEntry
from lakegc_assets.mark import staged


class Diffing:
    """A server with one branch, whose diff may end with an error."""

    def __init__(
        self, changes: Sequence[tuple[str, str, int | None]], *, lost: bool = False
    ) -> None:
        self.changes = changes
        self.lost = lost
        self.names = ["main", "dev"]

    def diff_branch(self, _repository: str, _branch: str) -> list[DiffEntry]:
        if self.lost:
            raise NotFoundError("branch not found")
        return [
            DiffEntry.model_validate(
                {"path": path, "path_type": "object", "type": kind, "size_bytes": size}
            )
            for path, kind, size in self.changes
        ]

    def branches(self, _repository: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(id=name) for name in self.names]


def diff(server: Diffing) -> list[tuple[str, int | None]]:
    return list(staged._diff(cast("LakeFSClient", server), "repo", "dev"))


def test_what_is_added_may_be_told_by_its_size() -> None:
    assert diff(Diffing([("a|b\n", "added", 0), ("c", "added", None)])) == [
        ("a|b\n", 0),
        ("c", None),
    ]


def test_of_what_is_replaced_the_size_does_not_count() -> None:
    """It may be that of what was there before."""
    assert diff(Diffing([("a", "changed", 7), ("b", "conflict", 7)])) == [("a", None), ("b", None)]


def test_what_is_removed_is_not_staged() -> None:
    assert diff(Diffing([("a", "removed", 7)])) == []


def test_a_branch_that_is_gone_has_nothing_staged() -> None:
    server = Diffing([], lost=True)
    server.names = ["main"]
    assert diff(server) == []


def test_not_found_from_a_branch_that_exists_stops_the_run() -> None:
    with pytest.raises(IntegrityError, match="exists, but its diff says not found"):
        diff(Diffing([], lost=True))


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_asked_for_is_what_has_the_size_of_a_candidate_or_none(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "_AT_ONCE", at_once)
    added = [(f"{size}", "added", size) for size in range(5)]
    server = Diffing([*added, ("changed", "changed", 7), ("gone", "removed", 3)])
    sizes = [np.array([0, 3], np.uint64), np.array([4, 9], np.uint64)]
    found = staged.staged_paths(cast("LakeFSClient", server), "repo", "dev", sizes)
    assert found == {"0", "3", "4", "changed"}
