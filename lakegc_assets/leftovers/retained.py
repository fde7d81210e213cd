"""Deleted objects that the stores still hold, until when, and the rule that would end it.

A sweep of a store that keeps versions or deleted objects frees nothing before the store lets go of
them: here is how much that is. Nothing of it is ever removed here, since an undo needs it.
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

#: Days that a proposed rule keeps what was deleted: an undo is possible for so long.
_DAYS: Final = 30
_DATA: Final = "data/"
#: Locks of which neither lists nor settings tell, by the kind of the store.
NOT_COUNTED: Final = {
    "s3": "locks and legal holds of single objects, each of which takes a request",
    "azure": "policies and legal holds of the whole container",
}
#: Why no rule is proposed, by the kind of the store.
_NO_RULE: Final = {
    "azure": "no rule is proposed: Azure's count from when a version was written, and one would "
    "remove at its next run what was deleted just now and is old, and with it an undo",
}


@dataclass(frozen=True)
class RetainedObjects:
    """Deleted objects that the store of one repository still holds."""

    repository: str
    #: Of what keeps them, as ``storage.values.Recovery`` has it.
    kind: str
    #: These five as ``storage.values.Retained`` has them. Of locks see ``NOT_COUNTED``.
    objects: int
    size: int
    markers: int
    locked: int | None
    locked_until: datetime | None
    #: After which each goes; None where nothing ends it, or nobody knows.
    days: float | None
    notice: str
    #: The life-cycle rule that would end it, in the form of the store; empty where none is needed
    #: or possible, which the notice explains.
    rule: str


def retained_objects(
    server: Server, names: Sequence[str] = ()
) -> tuple[list[RetainedObjects], list[Problem]]:
    """Deleted objects that the stores of some repositories, or of all, still hold; and problems."""
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
    """The locks that keep objects from being removed even by a rule, in words."""
    if held.locked is None:
        return "nobody may read here which of it is locked"
    if not held.locked:
        return ""
    until = f", the last lock until {held.locked_until:%Y-%m-%d}" if held.locked_until else ""
    rest = f" (not counted: {NOT_COUNTED[scheme]})" if scheme in NOT_COUNTED else ""
    return f"{counted(held.locked, 'object')} locked or on legal hold{until}{rest}"


def life_cycle_rule(place: StorageNamespace, name: str) -> str:
    """A rule that ends old versions below a namespace after 30 days, as the store's tools take it.

    It is JSON, to be added to the rules that there are, and has the name of the repository; empty
    where stores have none that counts from the delete (``_NO_RULE``).
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
