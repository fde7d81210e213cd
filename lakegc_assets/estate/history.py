"""What the marks of a repository found and its sweeps deleted, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lakegc_assets.errors import LakegcError
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.history import earlier
from lakegc_assets.sweep.ledger import ASSET


@dataclass(frozen=True)
class MarkFigures:
    """One mark: when it was finished, the bytes that it names, and those that its sweep deleted."""

    at: datetime
    marked: int
    deleted: int


def marks_over_time(
    root: ArtifactRoot, repository: str, namespace: str | None = None
) -> list[MarkFigures]:
    """The finished marks of a repository, the oldest first; damaged ones do not count.

    Args:
        root: of the artifacts.
        repository: lakeFS repository.
        namespace: of the repository; None for any.

    Raises:
        StorageError: the store of the artifacts does not answer.
    """
    found = []
    for one in reversed(earlier(root, repository, "gc_report", namespace, but="")):
        try:
            swept = one.attempt.recorded(ASSET) if one.attempt.has(ASSET) else None
            outcomes = swept.facts["outcomes"] if swept is not None else {}
            deleted = outcomes.get("deleted", {"bytes": 0})["bytes"]
            found.append(MarkFigures(one.manifest.finished, one.manifest.facts["bytes"], deleted))
        except LakegcError:
            continue
    return found
