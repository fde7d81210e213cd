"""Deleted objects that the stores still hold, their end, and a rule that would end them sooner.

A store that keeps versions or deleted objects frees nothing at a sweep. It frees the bytes when it
drops these objects. This module reports their amount. It never removes them, because an undo needs
them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.leftovers.server import Problem, Server, noting
from lakegc_assets.storage.values import Retained
from lakegc_assets.wording import counted

#: Days for which a proposed rule keeps deleted objects, and for which an undo is possible.
_DAYS: Final = 30
_DATA: Final = "data/"
#: Locks that neither lists nor settings of a store show, by the kind of the store.
NOT_COUNTED: Final = {
    "s3": "locks and legal holds of single objects, each of which takes a request",
    "azure": "policies and legal holds of the whole container",
}
#: Reasons why no rule is proposed, by the kind of the store.
_NO_RULE: Final = {
    "azure": "no rule is proposed: Azure's rules count from the time at which a version was "
    "written, so a rule would soon remove old objects that were deleted just now, and with them "
    "the undo",
}


@dataclass(frozen=True)
class RetainedObjects:
    """Deleted objects that the store of one repository still holds."""

    repository: str
    #: Kind of recovery, as in ``storage.values.Recovery``.
    kind: str
    #: These five as in ``storage.values.Retained``. For locks see ``NOT_COUNTED``.
    objects: int
    size: int
    markers: int
    locked: int | None
    locked_until: datetime | None
    #: Days after which each object is dropped; None if nothing drops it, or the days are not known.
    days: float | None
    notice: str
    #: The life-cycle rule that would drop the objects, in the form of the store; empty if none is
    #: needed or possible, which the notice explains.
    rule: str


def retained_objects(
    server: Server, names: Sequence[str] = ()
) -> tuple[list[RetainedObjects], list[Problem]]:
    """Deleted objects that the stores of the given repositories, or all, hold; and problems."""
    found: list[RetainedObjects] = []
    problems: list[Problem] = []
    for one in server.chosen(names):
        with noting(problems, one.id):
            place = StorageNamespace.parse(one.storage_namespace)
            store = server.open(place.url())
            recovery, held = store.recovery(), store.retained(_DATA)
            if not (held.objects or held.markers):
                continue
            endless = recovery.kind in {"versions", "nothing"} and recovery.days is None
            rule = life_cycle_rule(place, one.id) if endless else ""
            notice = store.data_protection().notice
            unruled = _NO_RULE.get(place.scheme) if endless else None
            notice = "; ".join(filter(None, [notice, unruled, _locks(held, place.scheme)]))
            found.append(RetainedObjects(one.id, recovery.kind, *held, recovery.days, notice, rule))
    return found, problems


def _locks(held: Retained, scheme: str) -> str:
    """The locks that protect objects even from a life-cycle rule, in words."""
    if held.locked is None:
        return "these credentials may not read which of the objects are locked"
    if not held.locked:
        return ""
    until = f", the last lock until {held.locked_until:%Y-%m-%d}" if held.locked_until else ""
    rest = f" (not counted: {NOT_COUNTED[scheme]})" if scheme in NOT_COUNTED else ""
    return f"{counted(held.locked, 'object')} locked or on legal hold{until}{rest}"


def life_cycle_rule(place: StorageNamespace, name: str) -> str:
    """A rule that ends old versions below a namespace after 30 days, for the store's tools.

    It is JSON, to be added to the existing rules, and has the name of the repository. Empty for a
    store without rules that count from the delete (``_NO_RULE``).
    """
    start = place.key(_DATA)
    version_rules: dict[str, dict[str, Any]] = {
        "s3": {
            "ID": f"lakegc-{name}",
            "Status": "Enabled",
            "Filter": {"Prefix": start},
            "NoncurrentVersionExpiration": {"NoncurrentDays": _DAYS},
            "Expiration": {"ExpiredObjectDeleteMarker": True},
        },
        "gs": {
            "action": {"type": "Delete"},
            "condition": {"daysSinceNoncurrentTime": _DAYS, "matchesPrefix": [start]},
        },
    }
    return json.dumps(version_rules[place.scheme]) if place.scheme in version_rules else ""
