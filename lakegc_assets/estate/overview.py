"""The rows of all repositories: the state of each, and what its policy says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from lakegc_assets.estate.repository_state import PERSON, STATES, Standing
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
UNKNOWN: Final = "unknown"


@dataclass(frozen=True)
class Row:
    """One repository: how it stands, when it is collected next or why not, owners and tags."""

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
        """In words, in the order of ``COLUMNS``."""
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
        """As JSON values."""
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
    """All repositories, when they were looked at, and what could not be."""

    rows: Sequence[Row]
    at: datetime
    notes: Sequence[str] = ()

    def figures(self) -> dict[str, int]:
        """Totals that Dagster plots, under names that stay as they are."""
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
    return UNKNOWN if count is None else human_bytes(count)


def _time(moment: datetime | None) -> str:
    return "never" if moment is None else f"{moment:%Y-%m-%d %H:%M} UTC"
