"""All leftovers of a server, of every kind, and the places that could not be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from lakegc_assets.estate.tables import Table
from lakegc_assets.leftovers.ledger import Removal, unfinished
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
from lakegc_assets.leftovers.retained_objects import RetainedObjects, retained_objects
from lakegc_assets.leftovers.server import Problem, Server, noting
from lakegc_assets.leftovers.uploads import (
    LeftoverUploads,
    leftover_uploads,
    uncommitted_blobs,
)
from lakegc_assets.storage.values import MultipartUpload, UncommittedBlob
from lakegc_assets.wording import human_bytes


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
