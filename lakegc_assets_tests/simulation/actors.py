"""Who else is there: writers of every kind, an operator, and lakeFS's own collector."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import pyarrow as pa

from lakegc_assets.run.pins import Pin, write_pin
from lakegc_assets.sweep.hold import ACCEPTED, HOLD
from lakegc_assets_tests.simulation.elsewhere import CHANGES as ELSEWHERE
from lakegc_assets_tests.simulation.lake import DAY, MAIN, Entry
from lakegc_assets_tests.simulation.world import PREFIX, World

W = TypeVar("W", bound=World)

#: Changes that one writer makes at most.
CHANGES: Final = 4


def write(world: World) -> None:
    """Change the repository a few times: anything, or one thing again and again."""
    make_changes(world, BY_NAME, [name for name, _ in _CHANGES])


def make_changes(world: W, by_name: Mapping[str, Callable[[W], str]], usual: Sequence[str]) -> None:
    """Make a few of the changes of a theme, or of the usual ones where it names none."""
    pick, named = world.choices.pick, world.changes or usual
    if pick(2):
        named = [named[pick(len(named))]]
    for _ in range(CHANGES):
        world.scheduler.step("a writer")
        name = named[pick(len(named))]
        if told := by_name[name](world):
            world.covered["writer", name] += 1
            world.say(f"{name}: {told}")
            world.changed()


def _any(world: World, some: list[str]) -> str:
    return some[world.choices.pick(len(some))]


def any_branch(world: World) -> str:
    return _any(world, sorted(world.lake.branches))


def _old(world: World) -> str:
    """One of the first commits: what they held expires, or has expired."""
    return _any(world, list(world.lake.commits)[:3])


def _dead(world: World) -> str:
    """An object that some mark names."""
    marked = sorted(key for keys in world.oracle.marked.values() for key in keys)
    return _any(world, marked)


def stage(world: World, address: str, folder: str, name: str = "", branch: str = "") -> str:
    """Stage an object that is there, as the server does once it is; by default on any branch."""
    kept = world.buckets["lake"].get(PREFIX + address)
    if kept is None:
        return ""
    branch = branch or any_branch(world)
    path = f"{folder}/{name or world.serial()}"
    world.lake.staged.setdefault(branch, {})[path] = Entry(address, kept.size, kept.etag)
    return f"{address} on {branch}"


def pin(world: World, run: str, addresses: Collection[str]) -> None:
    """Pin objects for a month, as a restore does."""
    named = Pin(world.serial(), world.store_time() + timedelta(30), run, "wanted", len(addresses))
    store: Any = SimpleNamespace(put=world.write_directly)
    write_pin(store, named, pa.array(sorted(addresses), pa.string()))
    for address in addresses:
        world.oracle.pinned.setdefault(address, world.oracle.now())


def _revert(world: World) -> str:
    branch, old = any_branch(world), _old(world)
    lake = world.lake
    head = lake.branches[branch]
    lake.branches[branch] = lake.add(
        (head,), lake.tree(old), world.epoch(), f"revert {world.serial()}"
    )
    return f"{branch} to what {old[:6]} held"


def _create(world: World) -> str:
    name, old = world.serial(), _old(world)
    world.lake.branches[name] = old
    return f"{name} from {old[:6]}"


def _delete(world: World) -> str:
    branch = any_branch(world)
    if branch == MAIN:
        return ""
    del world.lake.branches[branch]
    world.lake.staged.pop(branch, None)
    return branch


def _commit(world: World) -> str:
    branch, lake = any_branch(world), world.lake
    tree = dict(lake.tree(lake.branches[branch]))
    for path, entry in lake.staged.pop(branch, {}).items():
        tree.pop(path, None)
        if entry is not None:
            tree[path] = entry
    message = f"commit {world.serial()}"
    lake.branches[branch] = lake.add((lake.branches[branch],), tree, world.epoch(), message)
    return branch


def _set_back(world: World) -> str:
    branch, lake = any_branch(world), world.lake
    parents = lake.commits[lake.branches[branch]].parents
    if not parents:
        return ""
    lake.branches[branch] = parents[0]
    return f"{branch} to {parents[0][:6]}"


def _merge(world: World) -> str:
    branch, lake = any_branch(world), world.lake
    if branch == MAIN:
        return ""
    source, target = lake.branches[branch], lake.branches[MAIN]
    tree = {**lake.tree(target), **lake.tree(source)}
    lake.branches[MAIN] = lake.add((target, source), tree, world.epoch(), f"m {world.serial()}")
    return f"{branch} into {MAIN}"


def _link(world: World) -> str:
    """Somebody stages an object by hand."""
    address, branch = _dead(world), any_branch(world)
    return stage(world, address, "linked", branch=branch)


def _link_handed(world: World, *, again: bool = False) -> str:
    lake = world.lake
    valid = [address for address, until in lake.handed.items() if world.epoch() < until]
    if not valid:
        return ""
    address, branch = _any(world, valid), any_branch(world)
    if not again:
        del lake.handed[address]
    return stage(world, address, "handed", branch=branch)


def _upload(world: World) -> str:
    address, branch = f"data/new/{world.serial()}", any_branch(world)
    world.write_directly(address, address.encode())
    return stage(world, address, "new", address[-5:], branch)


def _reset(world: World) -> str:
    branch = any_branch(world)
    return f"{branch}" if world.lake.staged.pop(branch, None) else ""


def _rules(world: World) -> str:
    days = (100, 20, 40, 0)[world.choices.pick(4)]
    world.lake.rules = {"": days} if days else None
    return f"{days} days" if days else "none"


def _branch_rule(world: World) -> str:
    branch = any_branch(world)
    world.lake.rules = {**(world.lake.rules or {"": 20}), branch: 90}
    return f"90 days for {branch}"


def _accept_hold(world: World) -> str:
    """A person takes a hold for nothing, and restores nothing of what it names."""
    if not world.lease_and_hold()[1]:
        return ""
    world.write_directly(HOLD, json.dumps({ACCEPTED: {"id": world.serial()}}).encode())
    return "too early"


def _hold(world: World) -> str:
    """The alarm of another sweep, or a person, keeps all sweeps from starting."""
    world.write_directly(HOLD, b'{"objects": []}')
    return "by somebody else"


def _lakefs_collects(world: World) -> str:
    """The collector of lakeFS itself deletes what is dead by its rules."""
    address = _dead(world)
    if address in world.oracle.live or world.buckets["lake"].pop(PREFIX + address, None) is None:
        return ""
    return address


def _restore(world: World) -> str:
    """Somebody wants all of a mark back, and pins it first."""
    if not world.promises.versions and not world.promises.trash:
        return ""
    run, marked = next(iter(world.oracle.marked.items()))
    pin(world, run, marked)
    back = [address for address in sorted(marked) if world.bring_back(PREFIX + address)]
    return f"of {run}: {', '.join(back)}"


def _rewrite(world: World) -> str:
    """Somebody writes other content to the key of a marked object."""
    address = _dead(world)
    if PREFIX + address not in world.buckets["lake"]:
        return ""
    world.write_directly(address, world.serial().encode())
    world.oracle.rewritten[address] = world.oracle.now()
    return address


def _tag(world: World) -> str:
    name, old = world.serial(), _old(world)
    world.lake.tags[name] = old
    return f"{name} for {old[:6]}"


def _remove_tag(world: World) -> str:
    if not world.lake.tags:
        return ""
    name = _any(world, sorted(world.lake.tags))
    del world.lake.tags[name]
    return name


def _link_shadowed(world: World) -> str:
    """Somebody links an object by hand onto a path that has its content: no list shows that."""
    address, branch = _dead(world), any_branch(world)
    kept = world.buckets["lake"].get(PREFIX + address)
    served = world.lake.served(branch)
    like = [p for p, e in served.items() if kept and e[1:] == (kept.size, kept.etag)]
    if kept is None or not like:
        return ""
    world.lake.shadows[branch, like[0]] = Entry(address, kept.size, kept.etag)
    world.oracle.linked.add(address)
    return f"{address} by hand on {branch} at {like[0]}"


def _link_again(world: World) -> str:
    """An address may be linked for as long as it is valid, however often: so does real lakeFS."""
    return _link_handed(world, again=True)


def _wait(world: World) -> str:
    seconds = (30.0, 100.0, 400.0)[world.choices.pick(3)]
    world.scheduler.sleep(seconds)
    return ""


_CHANGES: Final[list[tuple[str, Callable[[World], str]]]] = [
    ("waits", _wait),
    ("revert", _revert),
    ("new branch", _create),
    ("deleted branch", _delete),
    ("commit", _commit),
    ("set back", _set_back),
    ("merge", _merge),
    ("link", _link),
    ("link", _link),
    ("link of a handed out address", _link_handed),
    ("upload", _upload),
    ("reset", _reset),
    ("rules", _rules),
    ("rule of a branch", _branch_rule),
    ("hold accepted", _accept_hold),
    ("hold", _hold),
    ("lakeFS's own collector", _lakefs_collects),
    ("restore", _restore),
    ("tag", _tag),
    ("tag removed", _remove_tag),
    ("shadowed link", _link_shadowed),
    ("link of a valid address", _link_again),
]
#: An address is handed out for so long, in seconds.
HANDED_S: Final = float(DAY)
#: All by their names, with those that are tried only where they are named.
BY_NAME: Final[dict[str, Callable[[World], str]]] = {
    **dict(_CHANGES),
    "rewritten": _rewrite,
    **ELSEWHERE,
}
CHANGES_BY_NAME: Final = {name: number for number, (name, _) in enumerate(_CHANGES)}
