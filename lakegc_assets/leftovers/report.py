"""All leftovers of a server, of every kind, and the places that could not be read.

A store that keeps versions or deleted objects frees nothing at a sweep. It frees the bytes when it
drops these objects. The report has their amount, and a rule that would end them sooner. They are
never removed here, because an undo needs them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from lakegc_assets.estate.tables import Table
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.leftovers.metadata import (
    UnreferencedTables,
    is_accounted_for,
    unreferenced_tables,
)
from lakegc_assets.leftovers.namespaces import (
    NOBODY_KNOWS,
    LeftoverNamespace,
    leftover_namespaces,
)
from lakegc_assets.leftovers.removal import Removal, unfinished
from lakegc_assets.leftovers.server import Problem, Server, noting
from lakegc_assets.leftovers.uploads import (
    LeftoverUploads,
    leftover_uploads,
    uncommitted_blobs,
)
from lakegc_assets.storage.values import MultipartUpload, Retained, UncommittedBlob
from lakegc_assets.wording import counted, human_bytes

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
class Leftovers:
    """The leftovers of a server; nothing was changed."""

    #: Namespaces that no repository has.
    namespaces: Sequence[LeftoverNamespace]
    #: Multipart uploads that were neither completed nor aborted.
    uploads: Sequence[LeftoverUploads[MultipartUpload]]
    #: Blobs with uncommitted blocks only.
    blocks: Sequence[LeftoverUploads[UncommittedBlob]]
    #: Tables that nothing names, of each repository that has such tables.
    metadata: Sequence[UnreferencedTables]
    #: Deleted objects that the stores still hold.
    retained: Sequence[RetainedObjects]
    #: Removals that have begun and not ended.
    removals: Sequence[Removal]
    #: Places that could not be read.
    problems: Sequence[Problem]

    def figures(self) -> dict[str, int]:
        """Bytes and numbers, under stable names."""
        return {
            "leftover namespaces": len(self.namespaces),
            "bytes in leftover namespaces": sum(one.size for one in self.namespaces),
            "unfinished uploads": sum(len(one.uploads) for one in self.uploads),
            "bytes of unfinished uploads": sum(one.size for one in self.uploads),
            "uncommitted blobs": sum(len(one.uploads) for one in self.blocks),
            "bytes of uncommitted blobs": sum(one.size for one in self.blocks),
            "unreferenced tables": sum(one.tables.num_rows for one in self.metadata),
            "bytes of unreferenced tables": sum(one.size for one in self.metadata),
            "retained objects": sum(one.objects for one in self.retained),
            "bytes of retained objects": sum(one.size for one in self.retained),
            "places that could not be looked at": len(self.problems),
        }

    def tables(self) -> dict[str, Table]:
        """The leftovers of each kind for people, by the name of the kind, the largest first."""
        return {
            "namespaces": _table(
                ("namespace", "repository", "of", "objects", "size", "newest", "stays"),
                self.namespaces,
                lambda one: (
                    *(one.url, one.repository or NOBODY_KNOWS, one.server, one.objects),
                    *(human_bytes(one.size), f"{one.newest:%Y-%m-%d}" if one.newest else "never"),
                    one.stays or "may be removed",
                ),
            ),
            "uploads that never ended": _table(
                ("where", "uploads", "size", "oldest"),
                self.uploads,
                lambda one: (
                    *(one.where, len(one.uploads), human_bytes(one.size)),
                    f"{one.uploads[0].begun:%Y-%m-%d}",
                ),
            ),
            "blocks that nobody has committed": _table(
                ("where", "blobs", "size"),
                self.blocks,
                lambda one: (one.where, len(one.uploads), human_bytes(one.size)),
                "the store drops them a week after the last block of each blob",
            ),
            "ranges and metaranges that nothing names": _table(
                ("repository", "metaranges", "ranges", "of", "size"),
                self.metadata,
                lambda one: (
                    *(one.repository, one.metaranges, one.tables.num_rows - one.metaranges),
                    *(one.listed, human_bytes(one.size)),
                ),
                "never removed here, since lakeFS may commit them again as they are; what you can "
                "do: docs/safety.md#tables-that-nothing-names",
            ),
            "retained by the stores": _table(
                ("repository", "objects", "size", "delete markers", "notice", "rule to add"),
                self.retained,
                lambda one: (
                    *(one.repository, one.objects, human_bytes(one.size), one.markers),
                    *(one.notice, one.rule or "none"),
                ),
            ),
            "removals that did not end": Table(
                ("removal", "kind", "where", "by"),
                [(one.id, one.kind, one.where, one.by) for one in self.removals],
                note="run the same `lakegc leftovers remove` again: it finishes them",
            ),
        }

    def to_json(self) -> dict[str, Any]:
        """As JSON values, with the name of each object."""
        return {
            "namespaces": [{**asdict(one), "newest": _text(one.newest)} for one in self.namespaces],
            "uploads": [
                _placed(
                    one,
                    uploads=[
                        {**u._asdict(), "begun": _text(u.begun), "newest": _text(u.newest)}
                        for u in one.uploads
                    ],
                )
                for one in self.uploads
            ],
            "uncommitted_blobs": [
                _placed(one, blobs=[blob._asdict() for blob in one.uploads]) for one in self.blocks
            ],
            "metadata": [
                {
                    "repository": one.repository,
                    "tables": one.tables.num_rows,
                    "metaranges": one.metaranges,
                    "bytes": one.size,
                    "listed": one.listed,
                    "files_of_dumps": one.dumps,
                    "keys": one.tables["key"].to_pylist(),
                }
                for one in self.metadata
            ],
            "retained": [
                {**asdict(one), "locked_until": _text(one.locked_until)} for one in self.retained
            ],
            "unfinished_removals": [asdict(one) for one in self.removals],
            "problems": [asdict(one) for one in self.problems],
        }


def find_leftovers(server: Server, names: Sequence[str] = ()) -> Leftovers:
    """Search a server, and the stores of its repositories.

    ``names``: of the only repositories to search; empty for all repositories and for places without
    a repository.

    Raises:
        ConfigurationError: there is no repository of such a name.
        LakeFSError: the server does not answer.
    """
    namespaces, problems = ([], []) if names else leftover_namespaces(server)
    uploads, more = leftover_uploads(server, names)
    blocks, of_blocks = uncommitted_blobs(server, names)
    retained, of_retained = retained_objects(server, names)
    problems += [*more, *of_blocks, *of_retained]
    metadata: list[UnreferencedTables] = []
    for one in server.chosen(names):
        # lakeFS does not dump the refs of a read-only repository, and nobody writes to it.
        if not one.read_only:
            ctx = server.context(one.id)
            with noting(problems, one.id, "ranges and metaranges: "):
                ctx = ctx.connect()
                if is_accounted_for(ctx):
                    continue
                found = unreferenced_tables(ctx)
                if found.tables.num_rows:
                    metadata.append(found)
    removals: list[Removal] = []
    with noting(problems, server.root.url, "the records of removals: "):
        removals = unfinished(server.root)
    # Each kind of leftovers reports a root that cannot be read, so duplicates are removed.
    once = list(dict.fromkeys(problems))
    return Leftovers(namespaces, uploads, blocks, metadata, retained, removals, once)


def _table(
    columns: Sequence[str],
    found: Iterable[Any],
    row_of: Callable[[Any], tuple[Any, ...]],
    note: str = "",
) -> Table:
    rows = [row_of(one) for one in sorted(found, key=lambda one: -one.size)]
    return Table(columns, rows, note=note)


def _placed(one: LeftoverUploads[Any], **those: object) -> dict[str, Any]:
    return {"where": one.where, "url": one.url, "bytes": one.size, **those}


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


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
