"""The space of deleted objects: free now, held until a time, or unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.storage.values import FREED, HELD
from lakegc_assets.wording import counted

_UNTIL: Final = f"{HELD} until "
_NOT_KNOWN: Final = f"{HELD}, "


def space_facts(deleted: Iterable[tuple[str | None, int, int]]) -> dict[str, Any]:
    """Add up what was deleted, by what became of its space.

    Args:
        deleted: what a ledger says of the space of some objects (``DataProtection.space_of``; None
            in ledgers of old sweeps), how many these are, and their bytes.

    Returns:
        ``freed``, ``held`` and ``not_known``, each with objects and bytes; and ``until``: when the
        last of what is held is free (``2026-12-26``, ``2026-12-26 at least``), None where that is
        not known or nothing is held.
    """
    found = {name: {"objects": 0, "bytes": 0} for name in ("freed", "held", "not_known")}
    said = set()
    for space, objects, size in deleted:
        held = space is not None and space.startswith((_UNTIL, _NOT_KNOWN))
        total = found["freed" if space == FREED else "held" if held else "not_known"]
        total["objects"] += objects
        total["bytes"] += size
        if held:
            said.add(space)
    endless = any(one and one.startswith(_NOT_KNOWN) for one in said)
    until = None if endless or not said else max(map(str, said)).removeprefix(_UNTIL)
    return {**found, "until": until}


def space_in(outcomes: pa.Table) -> dict[str, Any]:
    """The same of outcomes (``SWEPT``)."""
    deleted = outcomes.filter(pc.equal(outcomes["outcome"], "deleted"))
    totals = deleted.group_by("detail").aggregate([("size", "count"), ("size", "sum")])
    rows = totals.to_pylist()
    return space_facts((one["detail"], one["size_count"], one["size_sum"]) for one in rows)


def space_lines(space: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """The nonempty states of the space, in words, with objects and bytes."""
    until = f"until {space['until']}" if space["until"] else "until when is not known"
    named = {
        "freed": "space freed",
        "held": f"space held, {until}",
        "not_known": "space freed or held, which is not known",
    }
    return [
        (words, space[name]["objects"], space[name]["bytes"])
        for name, words in named.items()
        if space[name]["objects"]
    ]


def space_sentence(space: Mapping[str, Any]) -> str:
    """The same in one sentence, without bytes."""
    parts = [f"{words}: {counted(objects, 'object')}" for words, objects, _ in space_lines(space)]
    return "; ".join(parts) or "nothing was deleted"
