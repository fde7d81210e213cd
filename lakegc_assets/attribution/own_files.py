"""Files below ``_lakefs/``, which a mark does not list: those of lakeFS and of this product."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from lakegc_assets.attribution.relations import LAKEFS, UNKNOWN
from lakegc_assets.mark.publication import OURS as OUR_FILES
from lakegc_assets.run.pins import PINS
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.trash import TRASH

OURS: Final = "ours"
_FOLDER: Final = "_lakefs/"
_TABLE: Final = re.compile(r"_lakefs/[0-9a-f]{64}")
_GC: Final = "_lakefs/retention/gc/"
_MARK: Final = re.compile(
    rf"{_GC}(?:unified|uncommitted|addresses|addresses\.text|reports)/(?:mark_id=)?([^/]+)/"
)
#: Kinds by key prefix; the first match decides.
_KINDS: Final = (
    (TRASH, OURS, "trash"),
    (PINS, OURS, "pins"),
    (f"{_GC}lakegc/", OURS, "leases and holds"),
    (_GC, LAKEFS, "its marks, and what it prepared for them"),
    ("_lakefs/retention/", LAKEFS, "rules"),
    ("_lakefs/actions/", LAKEFS, "logs of actions"),
    ("_lakefs/exported/", LAKEFS, "exports to catalogs"),
    ("_lakefs/dummy", LAKEFS, "dummy"),
    ("_lakefs/refs_manifest.json", LAKEFS, "dumps of refs"),
)


def own_files(store: ObjectStore, runs: Collection[str]) -> list[tuple[str, str, int, int]]:
    """Class, kind, objects and bytes of the files below ``_lakefs/`` now; ``runs`` are our own."""
    ours = frozenset(runs)
    found: dict[tuple[str, str], list[int]] = {}
    for page in store.list(_FOLDER):
        for key, size in zip(page["key"].to_pylist(), page["size"].to_pylist(), strict=True):
            total = found.setdefault(_kind(key, ours), [0, 0])
            total[0] += 1
            total[1] += size
    return [(name, kind, objects, size) for (name, kind), (objects, size) in sorted(found.items())]


def _kind(key: str, runs: frozenset[str]) -> tuple[str, str]:
    if _TABLE.fullmatch(key):
        return LAKEFS, "ranges and metaranges"
    mark = _MARK.match(key)
    if mark and mark[1] in runs and (OUR_FILES.fullmatch(key) or key.endswith("/deleted.csv")):
        return OURS, "marks"
    return next(
        ((name, kind) for start, name, kind in _KINDS if key.startswith(start)),
        (UNKNOWN, "below _lakefs/"),
    )
