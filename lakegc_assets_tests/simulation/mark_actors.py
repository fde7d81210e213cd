"""Writers who matter to a mark: uploads in two steps and in parts, late ones, and old objects.

What they stage, commit and delete besides is as in ``actors``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final

from lakegc_assets_tests.simulation.actors import BY_NAME, any_branch, make_changes, pin, stage
from lakegc_assets_tests.simulation.lake import Entry
from lakegc_assets_tests.simulation.mark_world import HANDED_S, MarkWorld
from lakegc_assets_tests.simulation.world import PREFIX

#: When an upload in parts may have been begun before it is complete, in seconds.
_BEGUN: Final = (0.0, 3600.0, 120_000.0)
#: How long a writer may take between two steps, in seconds.
_MEANWHILE: Final = (0.0, 5.0, 600.0)


def write(world: MarkWorld) -> None:
    """Change the repository a few times."""
    make_changes(world, _BY_NAME, list(_CHANGES))


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
    return stage(world, address, "new", address[-5:])


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
    staged = stage(world, address, "parts", address[-5:])
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
    return stage(world, address, "late", address[-5:]) if world.choices.pick(2) else address


def _link(world: MarkWorld) -> str:
    """Somebody stages an old object by hand."""
    dead = sorted(
        key.removeprefix(PREFIX)
        for key in world.buckets["lake"]
        if key.startswith(f"{PREFIX}data/") and key.removeprefix(PREFIX) not in world.oracle.live
    )
    if not dead:
        return ""
    return stage(world, dead[world.choices.pick(len(dead))], "linked")


def _come_back(world: MarkWorld) -> str:
    """What a sweep deleted is in the store again: it was restored, and pinned or not."""
    swept = sorted(world.oracle.deletes)
    back = [key for key in swept if world.bring_back(PREFIX + key)]
    if not back:
        return ""
    if world.choices.pick(2):
        pin(world, "mark-1", back)
    return ", ".join(back)


def _upload_shadowed(world: MarkWorld) -> str:
    """An upload of what is at a path already: it is served from its new address, and unlisted."""
    branch = any_branch(world)
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
#: With those that are tried only where they are named.
_BY_NAME: Final[Mapping[str, Callable[[MarkWorld], str]]] = {**BY_NAME, **_CHANGES}
