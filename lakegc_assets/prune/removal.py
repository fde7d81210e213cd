"""Removes the artifacts of one run, so that the next prune can finish an interrupted removal.

``pruning.json`` is written first, with the attempts to remove. Then ``attempt.json`` is removed:
every reader starts from it, so from then on the remaining files are not taken for a run. Then the
attempts are removed, and ``pruning.json`` last. If the run has begun again meanwhile, its new
attempt is not in ``pruning.json`` and stays. A folder with neither of the two files is not from a
prune: it stays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.run.artifacts import ArtifactRoot, validate_run_id
from lakegc_assets.run.json_record import DAMAGE
from lakegc_assets.run.manifest import MARK_ASSETS
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError, StorageError
from lakegc_assets.storage.removal import PRUNE_AGAIN, remove_listed, remove_objects
from lakegc_assets.storage.values import require_removed
from lakegc_assets.sweep.ledger import ASSET as SWEPT

PRUNING: Final = "pruning.json"
ATTEMPT: Final = "attempt.json"


def remove_run(
    root: ArtifactRoot,
    repository: str,
    run: str,
    attempt: str,
    forget: Callable[[], None],
    require: Callable[[], object],
) -> None:
    """Remove a run that nothing needs, after its present attempt was judged.

    ``forget`` is called when only the record of the removal is left; it may be called again.
    ``require`` raises if other processes may work on the run now; then the run stays.

    Raises:
        RefusedError: the run has begun again meanwhile.
        StorageError: something could not be removed, or still exists; prune again.
    """
    store = root.open(repository, run)
    # A run names a new attempt before its first file is written, so all listed attempts are older.
    attempts = {folder.rstrip("/") for folder in store.list_prefixes().prefixes}
    attempts |= {attempt, *_recorded(store)}
    etag = store.head(ATTEMPT).etag
    present, *earlier = root.attempts(repository, run)
    if present.attempt != attempt:
        raise RefusedError(f"run {run!r} of {repository!r} was begun again: it stays. Prune again")
    attempts |= {one.attempt for one in earlier}
    store.put(PRUNING, json.dumps({"attempts": sorted(attempts)}).encode())
    require()
    # If the store ignores the condition, a mark that begins now finds its attempt missing, and
    # stops.
    outcomes = store.delete_many([ATTEMPT], {ATTEMPT: etag})
    if any(one.outcome == "spared" for one in outcomes):
        raise RefusedError(f"run {run!r} of {repository!r} was begun again: it stays. Prune again")
    require_removed(outcomes, store.url, PRUNE_AGAIN)
    _end(store, sorted(attempts), forget)


def is_left(root: ArtifactRoot, repository: str, run: str) -> bool:
    """Return whether a killed prune left files of a run that no longer exists."""
    store = root.open(repository, run)
    return store.exists(PRUNING) and not store.exists(ATTEMPT)


def end_removal(root: ArtifactRoot, repository: str, run: str, forget: Callable[[], None]) -> None:
    """Remove the files that a killed prune left; see ``remove_run``.

    Raises:
        IntegrityError: the record of the removal is damaged.
        StorageError: something could not be removed.
    """
    store = root.open(repository, run)
    _end(store, _recorded(store), forget)


def _end(store: ObjectStore, attempts: Sequence[str], forget: Callable[[], None]) -> None:
    for attempt in attempts:
        remove_listed(store, f"{attempt}/")
        for asset in (*MARK_ASSETS, SWEPT):
            if store.exists(f"{attempt}/{asset}/manifest.json"):
                raise StorageError(
                    f"a listing of {store.url}/{attempt} shows nothing, but {asset}/manifest.json "
                    "exists: prune again"
                )
    forget()
    remove_objects(store, [PRUNING])


def _recorded(store: ObjectStore) -> list[str]:
    """The attempts that an earlier removal had to remove.

    Raises:
        IntegrityError: the record of that removal cannot be read.
    """
    try:
        return [validate_run_id(name) for name in json.loads(store.get(PRUNING))["attempts"]]
    except ObjectNotFoundError:
        return []
    except (*DAMAGE, ConfigurationError) as error:
        raise IntegrityError(
            f"{store.url}/{PRUNING} is damaged ({error}): it is not known which files an "
            "interrupted prune had to remove. If nothing of that run is needed, remove "
            f"{store.url} by hand"
        ) from error
