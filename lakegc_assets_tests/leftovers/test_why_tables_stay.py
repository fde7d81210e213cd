"""Why no range and no metarange is removed beside a server: every order in which steps can happen.

A removal lists an old table, lets lakeFS dump its commits, looks at the table once more, and
deletes it. Meanwhile lakeFS makes a commit that has the very same table: it writes it again, as its
commits and merges do, or it takes it as it is, as a commit with ``source_metarange`` and the
records of commits do that a client creates. A commit whose table is not there is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from lakegc_assets.graveler.ranges import read_metarange
from lakegc_assets.leftovers.metadata import unreferenced_tables
from lakegc_assets.leftovers.server import Server
from lakegc_assets_tests.files import age
from lakegc_assets_tests.lake import REPOSITORY, SmallLake
from lakegc_assets_tests.leftovers.conftest import orphan


@dataclass(frozen=True)
class World:
    """One table, and what each side knows of it.

    Attributes:
        stored: version of the table that the store has; None where it has none.
        committed: whether a commit has the table.
        goes: version that the removal is about; None once something has spoken against it.
        copy: whether a copy is kept that can be put back.
    """

    stored: int | None = 1
    committed: bool = False
    goes: int | None = 1
    copy: bool = False


Step = Callable[[World], World]


def listed(world: World) -> World:
    """Only version 1 is old; what lakeFS writes now is young."""
    return replace(world, goes=1 if world.stored == 1 else None)


def dumped(world: World) -> World:
    return replace(world, goes=None if world.committed else world.goes)


def looked_at(world: World) -> World:
    return replace(world, goes=world.goes if world.stored == world.goes else None)


def deleted(world: World) -> World:
    return replace(world, stored=None, copy=True) if world.goes else world


def deleted_if_unchanged(world: World) -> World:
    """By its version (S3), its generation (Google) or its etag (Azure)."""
    return deleted(world) if world.stored == world.goes else world


def put_back(world: World) -> World:
    """The look of a later run, which knows what was removed and still has the copy."""
    lost = world.committed and world.stored is None and world.copy
    return replace(world, stored=1) if lost else world


def written(world: World) -> World:
    return replace(world, stored=2)


def committed(world: World) -> World:
    return replace(world, committed=True)


def committed_if_there(world: World) -> World:
    """Today's server does not even look."""
    return replace(world, committed=world.stored is not None)


def orders(one: Sequence[Step], other: Sequence[Step]) -> Iterator[tuple[Step, ...]]:
    """All orders of two sequences, each in its own order."""
    if not one or not other:
        yield (*one, *other)
        return
    yield from ((one[0], *rest) for rest in orders(one[1:], other))
    yield from ((other[0], *rest) for rest in orders(one, other[1:]))


def losing(removal: Sequence[Step], server: Sequence[Step]) -> list[tuple[Step, ...]]:
    """The orders that end with a commit whose table is not there."""
    found = []
    for order in orders(removal, server):
        world = World()
        for step in order:
            world = step(world)
        if world.committed and world.stored is None:
            found.append(order)
    return found


LOOKS = (listed, dumped, looked_at, dumped)
REWRITES = (written, committed)
TAKES = (committed,)
TAKES_IF_THERE = (committed_if_there,)


@pytest.mark.parametrize(
    ("removal", "server", "loses"),
    [
        ((*LOOKS, deleted), REWRITES, True),
        # Against who writes first, a delete of one version alone is enough.
        ((*LOOKS, deleted_if_unchanged), REWRITES, False),
        # Against who does not write nothing is: its commit may come behind every look.
        ((*LOOKS, deleted_if_unchanged), TAKES, True),
        ((*LOOKS, *LOOKS, deleted_if_unchanged), TAKES, True),
        # A copy and a later look help until that look is over.
        ((*LOOKS, deleted_if_unchanged, put_back), TAKES, True),
        # Were lakeFS to look whether the table is there, copies would do, and a look afterwards.
        ((*LOOKS, deleted_if_unchanged), TAKES_IF_THERE, True),
        ((*LOOKS, deleted_if_unchanged, put_back), TAKES_IF_THERE, False),
    ],
)
def test_which_removal_loses_a_commit(
    removal: Sequence[Step],
    server: Sequence[Step],
    loses: bool,  # noqa: FBT001 - a parameter
) -> None:
    assert bool(losing(removal, server)) is loses


def test_lakefs_takes_an_old_table_as_it_is(lake: SmallLake, server: Server) -> None:
    """Nothing about the files tells, neither before the commit nor after it."""
    lost = orphan(lake.objects, "lost")
    age(lake.objects / "_lakefs", 31)
    ctx = server.context(REPOSITORY).connect()
    found = unreferenced_tables(ctx)
    assert set(found.tables["key"].to_pylist()) == {*lost}
    store = ctx.connections.store()
    before = [store.head(key) for key in lost]
    ctx.client.call(
        "POST", "repositories", REPOSITORY, "branches", "main", "commits",
        params={"source_metarange": lost.metarange.removeprefix("_lakefs/")},
        json={"message": "of a tree that is there"},
    )  # fmt: skip
    assert [store.head(key) for key in lost] == before
    tree = ctx.client.commit(REPOSITORY, lake.head("main")).meta_range_id
    (only,) = read_metarange(store.get(f"_lakefs/{tree}"), tree)
    assert (f"_lakefs/{only.id}", f"_lakefs/{tree}") == lost
    assert unreferenced_tables(ctx).tables.num_rows == 0
