"""What the asset ``estate_leftovers`` shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lakegc_assets.defs.metadata import table
from lakegc_assets.defs.units import human_bytes
from lakegc_assets.leftovers.report import Leftovers

#: Rows of a table, the largest first; the command has all of them.
_ROWS: Final = 100


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
