"""Other repositories of the server, which name objects of the one that is collected in full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from lakegc_assets_tests.simulation.client import NAMESPACE, namespace_of
from lakegc_assets_tests.simulation.lake import DAY, MAIN, Entry, Lake, Tree
from lakegc_assets_tests.simulation.oracle import START

if TYPE_CHECKING:
    from lakegc_assets_tests.simulation.world import World

_FIRST: Final = "other"


def begin(world: World) -> None:
    """Let there be a repository whose expired commit names what the mark names, and no other."""
    lake = world.others[_FIRST] = Lake()
    named = {f"n{number}": _entry(world, one) for number, one in enumerate(_all_dead(world))}
    lake.rules = {"": 20}
    one = _commit(world, _FIRST, (), named, START - 60 * DAY)
    two = _commit(world, _FIRST, (one,), {}, START - 50 * DAY)
    lake.branches[MAIN] = _commit(world, _FIRST, (two,), {}, START - 5 * DAY)


def _entry(world: World, address: str) -> Entry:
    kept = world.buckets["lake"][f"repo/{address}"]
    return Entry(f"{NAMESPACE}/{address}", kept.size, kept.etag)


def _commit(world: World, name: str, parents: tuple[str, ...], tree: Tree, date: float) -> str:
    """As lakeFS does: a table first."""
    lake = world.others[name]
    made = lake.add(parents, tree, date, f"elsewhere {world.serial()}")
    folder = namespace_of(name).removeprefix("s3://lake/")
    table = f"{folder}/_lakefs/{lake.commits[made].meta_range_id}"
    world.buckets["lake"][table] = world.buckets["lake"][next(iter(world.buckets["lake"]))]
    return made


# Writers


def _some(world: World, some: Sequence[str]) -> str:
    return some[world.choices.pick(len(some))] if some else ""


def _all_dead(world: World) -> list[str]:
    """What is marked, and there; or what nothing holds, where there is no mark yet."""
    bucket = world.buckets["lake"]
    marked = {key for keys in world.oracle.marked.values() for key in keys}
    own = {key.removeprefix("repo/") for key in bucket if key.startswith("repo/data/")}
    return sorted(marked & own or own - world.oracle.live.keys())


def _dead(world: World) -> str:
    return _some(world, _all_dead(world))


def _stage(world: World) -> str:
    name, address = _some(world, sorted(world.others)), _dead(world)
    if not name or not address:
        return ""
    staged = world.others[name].staged.setdefault(MAIN, {})
    staged[f"s{world.serial()}"] = _entry(world, address)
    return f"{address} in {name}"


def _import(world: World) -> str:
    name, address = _some(world, sorted(world.others)), _dead(world)
    if not name or not address:
        return ""
    lake = world.others[name]
    head = lake.branches[MAIN]
    tree = {**lake.tree(head), f"i{world.serial()}": _entry(world, address)}
    lake.branches[MAIN] = _commit(world, name, (head,), tree, world.epoch())
    return f"{address} in {name}"


def _commit_staged(world: World) -> str:
    name = _some(world, sorted(n for n, lake in world.others.items() if lake.staged.get(MAIN)))
    if not name:
        return ""
    lake = world.others[name]
    head = lake.branches[MAIN]
    staged = {path: one for path, one in lake.staged.pop(MAIN).items() if one is not None}
    tree = {**lake.tree(head), **staged}
    lake.branches[MAIN] = _commit(world, name, (head,), tree, world.epoch())
    return name


def _reset(world: World) -> str:
    name = _some(world, sorted(n for n, lake in world.others.items() if MAIN in lake.staged))
    if name:
        del world.others[name].staged[MAIN]
    return name


def _branch(world: World) -> str:
    """Of the oldest commit, which names what expired."""
    name = _some(world, sorted(world.others))
    if not name:
        return ""
    lake = world.others[name]
    branch = world.serial()
    lake.branches[branch] = next(iter(lake.commits))
    return f"{branch} in {name}"


def _rules(world: World) -> str:
    name = _some(world, sorted(world.others))
    if not name:
        return ""
    days = (100, 20, 0)[world.choices.pick(3)]
    world.others[name].rules = {"": days} if days else None
    return f"{days} days in {name}"


def _make(world: World) -> str:
    """A repository is made, and has its first commit; an import follows, or not."""
    name = f"repo-{world.serial()}"
    world.others[name] = Lake()
    world.others[name].branches[MAIN] = _commit(world, name, (), {}, world.epoch())
    world.changed()
    world.scheduler.step("a writer")
    address = _dead(world)
    if name in world.others and address:
        world.others[name].staged[MAIN] = {"first": _entry(world, address)}
    return name


def _delete(world: World) -> str:
    name = _some(world, sorted(world.others))
    if name:
        del world.others[name]
    return name


CHANGES: Final[dict[str, Callable[[World], str]]] = {
    "staged elsewhere": _stage,
    "imported elsewhere": _import,
    "committed elsewhere": _commit_staged,
    "reset elsewhere": _reset,
    "branch elsewhere": _branch,
    "rules elsewhere": _rules,
    "repository made": _make,
    "repository deleted": _delete,
}
