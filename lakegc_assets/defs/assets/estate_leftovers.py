"""``estate_leftovers``: what no collection of a repository finds, on the server and in its stores.

Reads: the repositories that lakeFS has, what lies below the roots of namespaces, uploads in parts
(on Azure blocks that no blob has), versions and what else the stores hold of what was deleted, the
tables below `_lakefs/` of each repository, and the dumps of all commits that lakeFS writes when it
is asked.
Writes: nothing but what it shows, and those dumps, which lakeFS writes below `_lakefs/` of each
repository that has tables older than 30 days which neither logs nor earlier dumps name.
Guarantees: it removes nothing; a place that cannot be looked at is named, and the others are
looked at. `lakegc leftovers remove` removes what a person confirms.
"""

from collections.abc import Sequence
from typing import Any, Final

import dagster as dg

from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.metadata import shown_tables, table
from lakegc_assets.defs.stages import stage
from lakegc_assets.defs.units import human_bytes
from lakegc_assets.leftovers.report import Leftovers, find_leftovers
from lakegc_assets.leftovers.server import Server

#: Rows of a table, the largest first; the command has all of them.
_ROWS: Final = 100


@stage(resources=("collector", "lakefs", "stores"), kinds=("lakefs",))
def estate_leftovers(execution: Execution) -> dg.MaterializeResult[None]:
    """Namespaces, uploads and tables that nothing has, and what the stores still hold."""
    context, resources = execution.context, execution.resources
    server = Server(
        resources.root,
        execution.repository_context,
        resources.lakefs.config().connect,
        resources.collector.roots(),
    )
    if not server.namespace_roots:
        context.log.info("no namespace_roots are set: namespaces that nothing has are not found")
    found = find_leftovers(server)
    for problem in found.problems:
        context.log.warning("%s could not be looked at: %s", problem.where, problem.what)
    return shown_tables(of_leftovers(found))


def of_leftovers(found: Leftovers) -> dict[str, Any]:
    """All leftovers as Dagster's metadata.

    Args:
        found: what was looked at.
    """
    namespaces = sorted(found.namespaces, key=lambda one: -one.size)
    uploads = sorted(found.uploads, key=lambda one: -one.size)
    metadata = sorted(found.metadata, key=lambda one: -one.size)
    retained = sorted(found.retained, key=lambda one: -one.size)
    return {
        "namespaces": _table(
            ("namespace", "repository", "of", "objects", "size", "newest", "stays"),
            [
                (
                    one.url, one.repository or "nobody knows", one.server, one.objects,
                    human_bytes(one.size), f"{one.newest:%Y-%m-%d}" if one.newest else "never",
                    one.stays or "may be removed",
                )
                for one in namespaces
            ],
        ),
        "uploads that never ended": _table(
            ("where", "uploads", "size", "oldest"),
            [
                (one.where, len(one.uploads), human_bytes(one.size), f"{one.oldest:%Y-%m-%d}")
                for one in uploads
            ],
        ),
        "blocks that nobody has committed": _table(
            ("where", "blobs", "size"),
            [
                (one.where, len(one.blobs), human_bytes(one.size))
                for one in sorted(found.blocks, key=lambda one: -one.size)
            ],
        ),
        "ranges and metaranges that nothing names": _table(
            ("repository", "metaranges", "ranges", "size"),
            [
                (
                    one.repository, one.metaranges, one.tables.num_rows - one.metaranges,
                    human_bytes(one.size),
                )
                for one in metadata
            ],
        ),
        "retained by the stores": _table(
            ("repository", "objects", "size", "delete markers", "notice", "rule to add"),
            [
                (one.repository, one.objects, human_bytes(one.size), one.markers, one.notice,
                 one.rule or "none")
                for one in retained
            ],
        ),
        "removals that did not end": _table(
            ("removal", "kind", "where", "by"),
            [(one.id, one.kind, one.where, one.by) for one in found.removals],
        ),
        "could not be looked at": _table(
            ("where", "why"), [(one.where, one.what) for one in found.problems]
        ),
        **found.figures(),
    }  # fmt: skip


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:  # noqa: ANN401 - metadata
    return table(columns, rows[:_ROWS])
