"""A lake with a past, whose runs are pruned."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from lakegc_assets.prune.prune import Pruned, prune
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import RunContext
from lakegc_assets_tests.files import age, contents
from lakegc_assets_tests.lake import REPOSITORY, SmallLake
from lakegc_assets_tests.prune.past import DAY, long_ago
from lakegc_assets_tests.sessions import Session

KEEP = 30 * DAY
NOW = datetime.now(timezone.utc)
OLD = "old"
#: Of the old run, in days.
AGE = 90


class NoRecords:
    """No records outside of the artifacts."""

    def names(self) -> set[str]:
        return set()

    def last(self, run: str) -> tuple[datetime | None, str]:  # noqa: ARG002 - there is none
        return None, ""

    def forget(self, run: str) -> None:
        """Nothing is to be."""

    def forgettable(self, known: set[str], keep: timedelta, now: datetime) -> list[str]:  # noqa: ARG002 - there is none
        return []


class Records(NoRecords):
    """Records that say when they were asked to forget a run."""

    def __init__(self, busy: str = "", dies: bool = False) -> None:  # noqa: FBT001, FBT002 - a test's
        self.forgotten: list[str] = []
        self.busy, self.dies = busy, dies

    def last(self, run: str) -> tuple[datetime | None, str]:
        return None, self.busy if run == OLD else ""

    def forget(self, run: str) -> None:
        if self.dies:
            raise KeyboardInterrupt
        self.forgotten.append(run)


@dataclasses.dataclass(frozen=True)
class Estate:
    """A lake with one mark of now and some runs of long ago, of which ``old`` may go."""

    lake: SmallLake
    spark: Session
    folder: Path
    old: str = OLD

    @property
    def root(self) -> ArtifactRoot:
        return self.lake.root

    def artifacts(self, run: str = "") -> Path:
        """The folder of a run, the old one unless another is named."""
        return Path(self.root.url, REPOSITORY, run or self.old)

    def context(self, **settings: object) -> RunContext:
        return self.lake.context(self.spark, "none", **settings)

    def prune(
        self, records: NoRecords | None = None, *, dry_run: bool = False, **settings: object
    ) -> Pruned:
        return prune(self.context(**settings), KEEP, records or NoRecords(), dry_run=dry_run)

    def kept(self, records: NoRecords | None = None, **settings: object) -> dict[str, str]:
        """Why each run stays; empty for those that are gone now."""
        found = self.prune(records, dry_run=False, **settings)
        return {run.run: run.kept for run in found.runs}

    def namespace(self) -> Any:
        return self.lake.store

    def of(self, run: str = "") -> dict[str, bytes]:
        return contents(self.artifacts(run))


def again(estate: Estate, **more: Any) -> None:
    """Make the old run anew, in another way."""
    for path in sorted(estate.artifacts().rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    long_ago(estate.root, estate.old, AGE, **more)


def write_old(estate: Estate, key: str, data: bytes) -> None:
    """Write a file of the old run, as old as the others."""
    estate.root.attempt(REPOSITORY, estate.old).store().put(key, data)
    age(estate.artifacts(), AGE)
