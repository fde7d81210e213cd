"""Finds the run of a mark id, and recognizes ids of marks that are no runs here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.mark.foreign import find_mark
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.command_line import command_line
from lakegc_assets.storage.base import ObjectStore


def known_attempt(
    root: ArtifactRoot, repository: str, run: str, store: Callable[[], ObjectStore]
) -> AttemptArtifacts:
    """The present attempt of a run.

    Args:
        root: of the artifacts.
        repository: lakeFS repository.
        run: id of the run.
        store: opens the store rooted at the namespace, where the run is unknown.

    Raises:
        RefusedError: the run is unknown, and what mark the namespace has under its id.
    """
    try:
        return root.attempt(repository, run)
    except RefusedError as unknown:
        what = ""
        # Who cannot be asked has nothing to add.
        with suppress(LakegcError):
            what = _in_namespace(store(), repository, run)
        if not what:
            raise
        raise RefusedError(f"{unknown}. {what}") from unknown


def _in_namespace(store: ObjectStore, repository: str, run: str) -> str:
    mark = find_mark(store, run)
    if mark.ours:
        return (
            f"This program made {mark.url}, with artifacts that are at another place, or were "
            "pruned: let LAKEGC_ARTIFACT_ROOT be the same as for the mark, or mark again"
        )
    return (
        f"{mark.url} is a mark of lakeFS's own collector: "
        f"`{command_line('adopt', repository, '--mark', run)}` judges each object of it, and makes "
        "a run of it"
    )
