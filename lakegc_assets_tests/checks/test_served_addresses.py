"""What lakeFS serves at many places, asked for by single paths and by pages in between."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import cast

from hypothesis import example, given
from hypothesis import strategies as st

from lakegc_assets.checks.served_addresses import served_addresses
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.lakefs.models import ObjectStats
from lakegc_assets.run.connections import Connections

_NUMBERS = st.integers(0, 300)


def shown(branch: str, path: str) -> ObjectStats:
    return ObjectStats.model_validate(
        {
            "path": path,
            "path_type": "object",
            "physical_address": f"s3://bucket/ns/data/{branch}/{path}",
            "checksum": "",
            "mtime": 0,
            "size_bytes": 1,
        }
    )


@dataclass
class Server:
    """Serves some paths on each branch, and counts what it is asked."""

    branches: dict[str, list[str]]
    unlisted: frozenset[str] = frozenset()
    ends_early: bool = False
    calls: int = 0

    def stat(self, _: str, branch: str, path: str) -> ObjectStats:
        self.calls += 1
        if path not in self.branches.get(branch, []):
            raise NotFoundError("no such path")
        return shown(branch, path)

    def objects_page(
        self, _: str, branch: str, *, after: str, amount: int
    ) -> tuple[list[ObjectStats], bool]:
        self.calls += 1
        if branch not in self.branches:
            raise NotFoundError("no such branch")
        paths = self.branches[branch]
        first = bisect_right(paths, after)
        page = [path for path in paths[first : first + amount] if path not in self.unlisted]
        more = first + amount < len(paths) and not self.ends_early
        return [shown(branch, path) for path in page], more


@dataclass
class Reached:
    """Stands in for the connections of a task."""

    server: Server

    def client(self) -> LakeFSClient:
        return cast("LakeFSClient", self.server)

    def namespace(self) -> StorageNamespace:
        return StorageNamespace.parse("s3://bucket/ns")


def ask(server: Server, places: list[tuple[str, str]]) -> set[str]:
    connections = cast("Connections", Reached(server))
    return set(served_addresses(connections, "repo", places))


def names(numbers: set[int]) -> list[str]:
    return sorted(f"{number:04d}é" for number in numbers)


# What one branch serves says nothing of another one.
@example({"dev": {1, 2}, "main": {1, 2}}, {"dev": {1}, "main": {1, 2}})
@given(
    st.dictionaries(st.sampled_from(["dev", "main"]), st.sets(_NUMBERS)),
    st.dictionaries(st.sampled_from(["deleted", "dev", "main"]), st.sets(_NUMBERS)),
)
def test_each_place_gets_what_is_served_there(
    served: dict[str, set[int]], wanted: dict[str, set[int]]
) -> None:
    server = Server({branch: names(numbers) for branch, numbers in served.items()})
    places = [(branch, path) for branch in sorted(wanted) for path in names(wanted[branch])]
    expected = {
        spelling.format(f"data/{branch}/{path}")
        for branch, path in places
        if path in server.branches.get(branch, [])
        for spelling in ("{}", "s3://bucket/ns/{}")
    }
    assert ask(server, places) == expected


@given(served=st.sets(_NUMBERS), unlisted=st.sets(_NUMBERS), ends_early=st.booleans())
def test_what_a_listing_leaves_out_is_found_all_the_same(
    *, served: set[int], unlisted: set[int], ends_early: bool
) -> None:
    paths = names(served)
    server = Server({"main": paths}, frozenset(names(unlisted)), ends_early)
    expected = {
        spelling.format(f"data/main/{path}")
        for path in paths
        for spelling in ("{}", "s3://bucket/ns/{}")
    }
    assert ask(server, [("main", path) for path in paths]) == expected


def test_many_neighbours_take_few_calls() -> None:
    server = Server({"main": names(set(range(9000)))})
    found = ask(server, [("main", path) for path in server.branches["main"]])
    assert len(found) == 18_000
    assert server.calls < 60


def test_a_branch_with_the_name_of_a_commit_is_asked_for_as_a_branch() -> None:
    """To lakeFS ``20240115`` is the commit whose id begins so; ``20240115$`` is not."""
    server = Server({"20240115": [], "20240115$": names({1, 2})})
    found = ask(server, [("20240115", path) for path in names({1, 2})])
    assert {address for address in found if "://" not in address} == {
        f"data/20240115$/{path}" for path in names({1, 2})
    }
