"""Compares marked objects with what the store has now, just before they are deleted.

Also where deletes are conditional: the same content written again has the same etag. Where marked
objects lie close together they are listed, which is one request for many; else each is asked for.
A listing that the store ends early looks like a whole one, so what it lacks is asked for by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.values import ObjectInfo

REWRITTEN: Final = "it was written again since it was listed"
#: One object in so many is marked, where a listing costs less than asking for each of them.
_SPARSE: Final = 20
#: How many objects are listed before it shows how close together the marked ones lie.
_GLANCE: Final = 1000
#: Fewer objects are asked for one by one.
_FEW: Final = 4
_THREADS: Final = 16

State = Literal["same", "rewritten", "missing"]


class Marked(NamedTuple):
    """An object to delete; ``tries`` counts the requests that it was in."""

    address: str
    size: int
    last_modified: datetime
    etag: str
    tries: int = 0


def rows_of(objects: pa.Table) -> list[Marked]:
    """Objects (address, size, last_modified, etag) as rows."""
    columns = (objects[name].to_pylist() for name in Marked._fields[:4])
    return list(map(Marked, *columns))


def present_state(store: ObjectStore, batch: Sequence[Marked]) -> dict[str, State]:
    """What became of marked objects since they were listed.

    Args:
        store: rooted at the storage namespace.
        batch: some of them.

    Raises:
        StorageError: the store did not answer.
    """
    found = _listed(store, batch) if len(batch) > _FEW else {}
    unlisted = [marked for marked in batch if marked.address not in found]
    asked = thread_map(partial(_asked, store), unlisted, _THREADS) if unlisted else []
    return found | {m.address: state for m, state in zip(unlisted, asked, strict=True)}


def _listed(store: ObjectStore, batch: Sequence[Marked]) -> dict[str, State]:
    """What a listing of the batch's part of the store shows, as far as it is worth it."""
    marked = {one.address: one for one in batch}
    keys = sorted(marked)
    wanted = pa.array(keys, pa.string())
    # All keys in between begin like the first one.
    pages = store.list(start_after=keys[0][:-1] or None, end_before=keys[-1] + "\0")
    found: dict[str, State] = {}
    listed = 0
    for page in pages:
        listed += page.num_rows
        for row in page.filter(pc.is_in(page["key"], wanted)).to_pylist():
            one = marked[row["key"]]
            now = row["last_modified"]
            # A mark that asked for an object by its name may know whole seconds only.
            now = now if one.last_modified.microsecond else now.replace(microsecond=0)
            same = (row["size"], now, row["etag"]) == one[1:4]
            found[one.address] = "same" if same else "rewritten"
        if listed >= _GLANCE and len(found) * _SPARSE < listed:
            break
    return found


def _asked(store: ObjectStore, marked: Marked) -> State:
    try:
        info = store.head(marked.address)
    except ObjectNotFoundError:
        return "missing"
    return "same" if _same(info, marked) else "rewritten"


def _same(info: ObjectInfo, marked: Marked) -> bool:
    # Some stores answer HEAD with whole seconds only.
    now, then = (t.replace(microsecond=0) for t in (info.last_modified, marked.last_modified))
    return now == then and (info.size, info.etag) == (marked.size, marked.etag)
