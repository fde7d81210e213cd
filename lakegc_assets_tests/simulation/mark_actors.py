"""Writers who matter to a mark: uploads in two steps and in parts, late ones, and old objects.

What they stage, commit and delete besides is as in ``actors``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa

from lakegc_assets.run.pins import Pin, write_pin
from lakegc_assets_tests.simulation.actors import BY_NAME, CHANGES
from lakegc_assets_tests.simulation.lake import Entry
from lakegc_assets_tests.simulation.mark_world import HANDED_S, MarkWorld
from lakegc_assets_tests.simulation.world import PREFIX

#: When an upload in parts may have been begun before it is complete, in seconds.
_BEGUN: Final = (0.0, 3600.0, 120_000.0)
#: How long a writer may take between two steps, in seconds.
_MEANWHILE: Final = (0.0, 5.0, 600.0)


def write(world: MarkWorld) -> None:
    """Change the repository a few times."""
    pick = world.choices.pick
    named = list(world.changes) or list(_CHANGES)
    if pick(2):
        named = [named[pick(len(named))]]
    for _ in range(CHANGES):
        world.scheduler.step("a writer")
        name = named[pick(len(named))]
        change = _CHANGES.get(name) or BY_NAME[name]
        if told := change(world):
            world.covered["writer", name] += 1
            world.say(f"{name}: {told}")
            world.changed()


def _branch(world: MarkWorld) -> str:
    some = sorted(world.lake.branches)
    return some[world.choices.pick(len(some))]


def _stage(world: MarkWorld, address: str, path: str) -> str:
    """Stage an object that is there, as the server does once it is."""
    kept = world.buckets["lake"].get(PREFIX + address)
    if kept is None:
        return ""
    branch = _branch(world)
    world.lake.staged.setdefault(branch, {})[path] = Entry(address, kept.size, kept.etag)
    return f"{address} on {branch}"


def _pause(world: MarkWorld) -> None:
    """Another may go on between the steps of a writer."""
    world.changed()
    world.scheduler.step("a writer")
    world.scheduler.sleep(_MEANWHILE[world.choices.pick(len(_MEANWHILE))])


def _upload(world: MarkWorld) -> str:
    """The server writes the object, and stages it then."""
    address = world.address()
    world.write_directly(address, address.encode())
    _pause(world)
    return _stage(world, address, f"new/{address[-5:]}")


def _upload_in_parts(world: MarkWorld) -> str:
    """An upload whose object has the time of its beginning, and is staged when it is complete."""
    ago = _BEGUN[world.choices.pick(len(_BEGUN))]
    address = world.address()
    data = address.encode()
    kept = world.write_directly(address, data, world.store_time() - timedelta(seconds=ago))
    world.buckets["lake"][PREFIX + address] = kept._replace(etag=f"{kept.etag}-2")
    # Between these two steps nothing but the request itself knows of it.
    world.lake.handed[address] = world.epoch() + HANDED_S
    world.say(f"an upload in parts is complete: {address}")
    _pause(world)
    staged = _stage(world, address, f"parts/{address[-5:]}")
    world.lake.handed.pop(address, None)
    return staged


def _hand_out(world: MarkWorld) -> str:
    """An address is handed out, its object is written, and linked by whoever, or not."""
    address = world.address()
    world.lake.handed[address] = world.epoch() + HANDED_S
    world.changed()
    world.scheduler.sleep((0.0, 3600.0, HANDED_S - 60.0)[world.choices.pick(3)])
    world.write_directly(address, address.encode())
    return address


def _give_up(world: MarkWorld) -> str:
    """An upload that nobody ever stages."""
    address = world.address()
    world.write_directly(address, address.encode())
    return address


def _keep_promise(world: MarkWorld) -> str:
    """The object of an address that was given out hours ago is written, and nobody stages it."""
    if not world.promised:
        return ""
    address = world.promised.pop()
    world.write_directly(address, address.encode())
    return address


def _write_late(world: MarkWorld) -> str:
    """Somebody writes to an old slice by other means than lakeFS's, and stages that."""
    slices = sorted({key.split("/")[2] for key in world.buckets["lake"] if "/data/" in key})
    address = f"data/{slices[world.choices.pick(len(slices))]}/{world.serial()}"
    world.write_directly(address, address.encode())
    return _stage(world, address, f"late/{address[-5:]}") if world.choices.pick(2) else address


def _link(world: MarkWorld) -> str:
    """Somebody stages an old object by hand."""
    dead = sorted(
        key.removeprefix(PREFIX)
        for key in world.buckets["lake"]
        if key.startswith(f"{PREFIX}data/") and key.removeprefix(PREFIX) not in world.oracle.live
    )
    if not dead:
        return ""
    return _stage(world, dead[world.choices.pick(len(dead))], f"linked/{world.serial()}")


def _come_back(world: MarkWorld) -> str:
    """What a sweep deleted is in the store again: it was restored, and pinned or not."""
    swept = sorted(world.oracle.deletes)
    back = [key for key in swept if world.bring_back(PREFIX + key)]
    if not back:
        return ""
    if world.choices.pick(2):
        until = world.store_time() + timedelta(days=30)
        pin = Pin(world.serial(), until, "mark-1", "wanted", len(back))
        store: Any = SimpleNamespace(put=world.write_directly)
        write_pin(store, pin, pa.array(back, pa.string()))
        for key in back:
            world.oracle.pinned.setdefault(key, world.oracle.now())
    return ", ".join(back)


def _upload_shadowed(world: MarkWorld) -> str:
    """An upload of what is at a path already: it is served from its new address, and unlisted."""
    branch = _branch(world)
    tree = world.lake.tree(world.lake.branches[branch])
    there = world.buckets["lake"]
    paths = [path for path, entry in sorted(tree.items()) if PREFIX + entry.address in there]
    if not paths:
        return ""
    path = paths[world.choices.pick(len(paths))]
    data = there[PREFIX + tree[path].address].data
    address = world.address()
    kept = world.write_directly(address, data)
    _pause(world)
    world.lake.shadows[branch, path] = Entry(address, kept.size, kept.etag)
    return f"{address} on {branch} at {path}"


def _wait(world: MarkWorld) -> str:
    world.scheduler.sleep((30.0, 4000.0, 100_000.0)[world.choices.pick(3)])
    return ""


#: By their names, besides those of ``actors``.
_CHANGES: Final[dict[str, Callable[[MarkWorld], str]]] = {
    "waits": _wait,
    "upload": _upload,
    "upload in parts": _upload_in_parts,
    "handed out": _hand_out,
    "upload given up": _give_up,
    "written hours later": _keep_promise,
    "written to an old slice": _write_late,
    "link": _link,
    "came back": _come_back,
    **{
        name: BY_NAME[name]
        for name in (
            "commit", "revert", "new branch", "deleted branch", "set back", "merge", "reset",
            "rules", "rule of a branch", "link of a handed out address",
        )
    },
    "shadowed upload": _upload_shadowed,
}  # fmt: skip
