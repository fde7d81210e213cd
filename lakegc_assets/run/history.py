"""Earlier runs of a repository, by their artifacts, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import pyarrow as pa

from lakegc_assets.engine.session import Dataset
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import LakegcError
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.manifest import Manifest

#: Threads that read small files of earlier runs: there may be thousands, and threads mostly wait.
READERS: Final = 16
#: Known rows by URL of the artifacts, repository and run.
_rows_of_runs: dict[tuple[str, str, str], int] = {}


class Earlier(NamedTuple):
    """A finished asset of an earlier run; its files have not been checked."""

    attempt: AttemptArtifacts
    manifest: Manifest


def earlier(
    root: ArtifactRoot, repository: str, asset: str, namespace: str | None, but: str
) -> list[Earlier]:
    """Return the finished assets of other runs, newest first; damaged ones do not count.

    A run at another namespace was of another repository of the same name.

    ``namespace``: namespace of the repository in canonical form; None for any. ``but``: the run to
    omit.
    """

    def read(run: str) -> Earlier | None:
        try:
            attempt = root.attempt(repository, run)
            return Earlier(attempt, attempt.recorded(asset))
        except LakegcError:
            return None

    runs = [run for run in root.runs(repository) if run != but]
    found = [one for one in thread_map(read, runs, READERS) if one is not None]
    same = [one for one in found if namespace in {None, one.manifest.namespace}]
    return sorted(same, key=lambda one: (one.manifest.finished, one.manifest.run), reverse=True)


def dataset_of(found: Sequence[Earlier], schema: pa.Schema) -> list[Dataset]:
    """Return the data of an asset of several runs as one dataset; none without runs.

    A query of hundreds of datasets takes minutes to be planned, and more datasets fail.
    """
    if not found:
        return []
    first = found[0].attempt
    parts = [
        part._replace(key=f"{one.attempt.run}/{one.attempt.attempt}/{part.key}")
        for one in found
        for part in one.manifest.parts["data"]
    ]
    return [Dataset(f"{first.root.url.rstrip('/')}/{first.repository}", parts, schema)]


def known_rows(root: ArtifactRoot, repository: str, run: str) -> int:
    """Return the rows that a run lists and decodes: its own, or the latest other run's if larger.

    Only the choice of the engine depends on it, so damaged or missing artifacts count as 0 rows.
    A process reads the artifacts once, and notes its own rows (``note_rows``).
    """

    def rows(one: str) -> int:
        found = 0
        with suppress(LakegcError):
            attempt = root.attempt(repository, one)
            found += attempt.recorded("store_listing").rows
            found += int(attempt.recorded("committed_addresses").facts.get("entries", 0))
        return found

    key = (root.url, repository, run)
    if key not in _rows_of_runs:
        runs = {run}
        with suppress(LakegcError):
            runs |= set(sorted(set(root.runs(repository)) - {run})[-1:])
        _rows_of_runs[key] = max(rows(one) for one in runs)
    return _rows_of_runs[key]


def note_rows(root: ArtifactRoot, repository: str, run: str, rows: int) -> None:
    """Note that a run has listed or decoded rows: ``known_rows`` returns no fewer."""
    key = (root.url, repository, run)
    if key in _rows_of_runs:
        _rows_of_runs[key] = max(_rows_of_runs[key], rows)


def of_whole_store(listings: Sequence[Earlier]) -> list[Earlier]:
    """Return the earlier listings of the whole store: not those of the mode ``committed``."""
    return [one for one in listings if one.manifest.mode != "committed"]
