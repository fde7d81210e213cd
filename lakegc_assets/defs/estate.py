"""The rows of the asset ``estate``: how each repository stands, and what is known of it here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import dagster as dg
import pyarrow as pa

from lakegc_assets.defs.metadata import table
from lakegc_assets.defs.names import Names
from lakegc_assets.defs.policy import Policies
from lakegc_assets.defs.schedules import next_run
from lakegc_assets.estate.overview import COLUMNS, Overview, Row
from lakegc_assets.estate.repository_state import STATES, estate
from lakegc_assets.estate.tables import freed_by_week, largest, last_weeks
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.wording import human_bytes

#: The columns, as Dagster shows those of an asset.
ROWS = pa.schema([(name, pa.string()) for name in COLUMNS])


def overview(
    root: ArtifactRoot,
    names: Collection[str],
    policies: Policies,
    on: Mapping[str, Sequence[str]],
    names_of: Names,
    now: datetime,
) -> Overview:
    """Look at all repositories, ``names`` in any case; one that cannot be read has a row, too."""
    stands, notes = estate(root, names, lambda name: policies.of(name).sweep, now)
    rows = []
    for one in stands:
        policy = policies.of(one.repository)
        due = next_run(on, policies, names_of, one.repository, now)
        rows.append(Row(one, due, policy.owners, policy.tags))
    # Those first that need a person; names in their order.
    rows.sort(key=lambda row: STATES.index(row.standing.state))
    return Overview(rows, now, notes)


def of_overview(found: Overview, links: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Metadata of ``estate``."""
    return {
        # A table of eleven columns is squeezed into a cell; Markdown has a window of its own.
        "estate": _table(found.rows, links),
        "need a person": table(
            ("repository", "state", "because"),
            [(*row.cells()[:2], row.standing.because) for row in found.rows if row.needs_person],
        ),
        "bytes deleted by week": _weeks(found),
        "notes": "\n".join(found.notes) or "none",
        **found.figures(),
    }


def _weeks(found: Overview) -> Any:  # noqa: ANN401 - metadata
    """Bytes deleted in each week, of those repositories that deleted most, and of all others."""
    weeks = last_weeks(found.at)
    rows = [
        (f"{week:%Y-%m-%d}", repository, human_bytes(freed[week]))
        for week in reversed(weeks)
        for repository, freed in largest(freed_by_week(found.freed(), weeks))
        if freed[week]
    ]
    return table(("week from its Monday on", "repository", "deleted"), rows)


def _table(rows: Sequence[Row], links: Mapping[str, Mapping[str, str]]) -> Any:  # noqa: ANN401 - metadata
    """All columns as Markdown; a repository leads into lakeFS."""
    if not rows:
        return "nothing"
    lines = [COLUMNS, ("---",) * len(COLUMNS)]
    for row in rows:
        name, *rest = map(_plain, row.cells())
        its = [f"[{_plain(what)}]({url})" for what, url in links.get(row.cells()[0], {}).items()]
        lines.append((" ".join((name, *its)), *rest))
    return dg.MetadataValue.md("\n".join(f"| {' | '.join(line)} |" for line in lines))


def _plain(text: str) -> str:
    """Text that Markdown takes as it is."""
    return "".join(c if c.isalnum() or c in " ._-" else f"&#{ord(c)};" for c in text)
