"""What earlier runs of a repository left behind, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import LakegcError
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts, Manifest

_THREADS = 8


@dataclass(frozen=True)
class Earlier:
    """An asset that finished in an earlier run.

    Attributes:
        attempt: the present attempt of that run.
        manifest: of the asset; its files were not looked at.
    """

    attempt: AttemptArtifacts
    manifest: Manifest


def earlier(
    root: ArtifactRoot, repository: str, asset: str, namespace: str | None, but: str
) -> list[Earlier]:
    """The other runs in which an asset finished, the latest first; damaged ones do not count.

    What was at another namespace was another repository of the same name.

    Args:
        root: of the artifacts.
        repository: lakeFS repository.
        asset: name of the asset.
        namespace: of the repository, in its canonical form; None where it is not known, for any.
        but: the run that is of no interest.
    """

    def read(run: str) -> Earlier | None:
        try:
            attempt = root.attempt(repository, run)
            return Earlier(attempt, attempt.recorded(asset))
        except LakegcError:
            return None

    runs = [run for run in root.runs(repository) if run != but]
    found = [one for one in thread_map(read, runs, _THREADS) if one is not None]
    same = [one for one in found if namespace in {None, one.manifest.namespace}]
    return sorted(same, key=_finished, reverse=True)


def of_whole_store(listings: Sequence[Earlier]) -> list[Earlier]:
    """Of earlier listings those of all that the store held: not those of the mode ``committed``."""
    return [one for one in listings if one.manifest.mode != "committed"]


def _finished(one: Earlier) -> tuple[datetime, str]:
    return one.manifest.finished, one.manifest.run
