"""A team that works on a repository of the embedded lakeFS, with a clock that moves day by day."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from lakegc_assets.embedded.server import EmbeddedLakeFS
from lakegc_assets.lakefs.writes import LakeFSWriter

_DAY = 86_400


def variables(folder: Path, server: EmbeddedLakeFS) -> dict[str, str]:
    """The variables that lead the command and the graph to a lakeFS and its files in a folder."""
    return {
        **server.environment,
        "LAKEGC_ARTIFACT_ROOT": str(folder / "artifacts"),
        "DAGSTER_HOME": str(folder / "dagster"),
    }


@dataclass
class Calendar:
    """The clock of an embedded lakeFS: some days in the past, until the history is complete."""

    days_ago: float = 365
    started: float = field(default_factory=time.time)

    def __call__(self) -> float:
        """Epoch seconds."""
        return time.time() if self.days_ago == 0 else self.started - self.days_ago * _DAY


@dataclass
class Team:
    """Writes the history of a repository, day by day."""

    client: LakeFSWriter
    repository: str
    calendar: Calendar
    uploads: int = 0

    def on(self, days_ago: float) -> None:
        """Move the clock to a day."""
        self.calendar.days_ago = days_ago

    def write(self, branch: str, path: str, size: int = 600) -> None:
        """Stage an object with unique content."""
        self.uploads += 1
        line = f"{self.uploads} {branch} {path}\n".encode()
        content = (line * (size // len(line) + 1))[:size]
        self.client.upload_object(self.repository, branch, path, content)

    def remove(self, branch: str, path: str) -> None:
        """Stage a deletion."""
        self.client.delete_object(self.repository, branch, path)

    def commit(self, branch: str, message: str) -> str:
        """Commit the staged entries; the id of the commit."""
        return self.client.commit_branch(self.repository, branch, message).id

    def branch(self, name: str, source: str) -> None:
        """Make a branch."""
        self.client.create_branch(self.repository, name, source)
