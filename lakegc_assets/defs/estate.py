"""The table of all repositories: state, next collection, and owners of each."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

import dagster as dg
import pyarrow as pa

from lakegc_assets.defs.metadata import table
from lakegc_assets.defs.names import Names
from lakegc_assets.defs.policy import Policies
from lakegc_assets.defs.schedules import next_run
from lakegc_assets.estate.repository_state import PERSON, STATES, Standing, estate
from lakegc_assets.estate.tables import freed_by_week, largest, last_weeks
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.wording import human_bytes

COLUMNS: Final = (
    "repository",
    "state",
    "size",
    "garbage",
    "deleted",
    "last mark",
    "last sweep",
    "next run",
    "because",
    "owners",
    "tags",
)
#: The columns, in the form in which Dagster shows those of an asset.
ROWS: Final = pa.schema([(name, pa.string()) for name in COLUMNS])


@dataclass(frozen=True)
class Row:
    """One repository: its state, next collection or the reason for none, owners and tags."""

    standing: Standing
    next_run: datetime | str
    owners: Sequence[str]
    tags: Mapping[str, str]

    @property
    def needs_person(self) -> bool:
        """True if a person has to act."""
        return self.standing.state in PERSON

    @property
    def freed(self) -> int:
        """Bytes that all of its sweeps have deleted."""
        return sum(one.size for one in self.standing.freed)

    def cells(self) -> tuple[str, ...]:
        """The cells in words, in the order of ``COLUMNS``."""
        one = self.standing
        tags = ", ".join(f"{name}={value}" for name, value in sorted(self.tags.items()))
        return (
            one.repository,
            one.state,
            _size(one.size),
            _size(one.garbage_size),
            human_bytes(self.freed),
            _time(one.last_mark),
            _time(one.last_sweep),
            self.next_run if isinstance(self.next_run, str) else _time(self.next_run),
            one.because,
            ", ".join(self.owners),
            tags,
        )

    def to_json(self) -> dict[str, Any]:
        """The row as JSON values."""
        values = {
            **asdict(self.standing),
            "next_run": self.next_run,
            "owners": list(self.owners),
            "tags": dict(self.tags),
        }
        text = json.dumps(values, default=datetime.isoformat)
        return json.loads(text)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Overview:
    """All repositories, the time at which they were read, and the problems."""

    rows: Sequence[Row]
    at: datetime
    notes: Sequence[str] = ()

    def figures(self) -> dict[str, int]:
        """Totals that Dagster plots, under names that never change."""
        standings = [row.standing for row in self.rows]
        counted = {
            f"repositories {state}": sum(one.state == state for one in standings)
            for state in STATES
        }
        return {
            "repositories": len(self.rows),
            **counted,
            "bytes stored": sum(one.size or 0 for one in standings),
            "bytes of garbage": sum(one.garbage_size or 0 for one in standings),
            "bytes freed": sum(row.freed for row in self.rows),
        }

    def freed(self) -> list[tuple[str, datetime, int]]:
        """Repository, time and deleted bytes of each sweep."""
        return [
            (row.standing.repository, one.at, one.size)
            for row in self.rows
            for one in row.standing.freed
        ]


def _size(count: int | None) -> str:
    return "unknown" if count is None else human_bytes(count)


def _time(moment: datetime | None) -> str:
    return "never" if moment is None else f"{moment:%Y-%m-%d %H:%M} UTC"


def overview(
    root: ArtifactRoot,
    names: Collection[str],
    policies: Policies,
    on: Mapping[str, Sequence[str]],
    names_of: Names,
    now: datetime,
) -> Overview:
    """Read all repositories, always those of ``names``; an unreadable one also has a row."""
    stands, notes = estate(root, names, lambda name: policies.of(name).sweep, now)
    rows = []
    for one in stands:
        policy = policies.of(one.repository)
        due = next_run(on, policies, names_of, one.repository, now)
        rows.append(Row(one, due, policy.owners, policy.tags))
    # Repositories that need a person come first; the sort keeps the order of names.
    rows.sort(key=lambda row: STATES.index(row.standing.state))
    return Overview(rows, now, notes)


def of_overview(found: Overview, links: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Metadata of ``estate``."""
    return {
        # Dagster squeezes a table of eleven columns into a cell; Markdown opens in a window.
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
    """Bytes deleted in each week, by the repositories that deleted most, and by all others."""
    weeks = last_weeks(found.at)
    rows = [
        (f"{week:%Y-%m-%d}", repository, human_bytes(freed[week]))
        for week in reversed(weeks)
        for repository, freed in largest(freed_by_week(found.freed(), weeks))
        if freed[week]
    ]
    return table(("week from its Monday on", "repository", "deleted"), rows)


def _table(rows: Sequence[Row], links: Mapping[str, Mapping[str, str]]) -> Any:  # noqa: ANN401 - metadata
    """All columns as Markdown, with links of each repository into lakeFS."""
    if not rows:
        return "nothing"
    lines = [COLUMNS, ("---",) * len(COLUMNS)]
    for row in rows:
        name, *rest = map(_plain, row.cells())
        its = [f"[{_plain(what)}]({url})" for what, url in links.get(row.cells()[0], {}).items()]
        lines.append((" ".join((name, *its)), *rest))
    return dg.MetadataValue.md("\n".join(f"| {' | '.join(line)} |" for line in lines))


def _plain(text: str) -> str:
    """Text that Markdown shows unchanged."""
    return "".join(c if c.isalnum() or c in " ._-" else f"&#{ord(c)};" for c in text)
