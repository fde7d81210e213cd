"""The inventory of the runs of a repository, by their artifacts.

An asset counts by its manifest, which is read by name. Files without a known name (the ledger of an
interrupted sweep, approvals, restores) are found by a listing. A listing counts only if it shows
every file that the manifests name.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime, timezone
from typing import Final

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError, RefusedError
from lakegc_assets.mark.earlier_marks import ASSET as COMMITS
from lakegc_assets.mark.earlier_marks import is_whole, unread_marks
from lakegc_assets.prune.decisions import Listing, Run
from lakegc_assets.recovery.restore_record import ASSET as RESTORED
from lakegc_assets.recovery.restore_record import restores
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts, validate_run_id
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.history import Earlier
from lakegc_assets.run.manifest import MARK_ASSETS, Manifest
from lakegc_assets.sweep.ledger import ASSET as SWEPT

_THREADS: Final = 8
_STAMP: Final = "%Y%m%dT%H%M%SZ"
_NEVER: Final = datetime(1, 1, 1, tzinfo=timezone.utc)
_LISTING: Final = "store_listing"


def restores_of(run: Run) -> Sequence[str]:
    """Ids of the restores of a run, in the order in which they began; by two listings."""
    listed = [] if run.artifacts is None else restores(run.artifacts)
    return sorted({*listed, *run.folders_in(f"{RESTORED}/")})


def look(
    root: ArtifactRoot,
    repository: str,
    more: AbstractSet[str],
    now: datetime,
    present: Connections | None = None,
) -> list[Run]:
    """The runs of a repository with the facts of their manifests, and the runs named in ``more``.

    ``now``: this machine's time.
    ``present``: of the repository as it is now; None if only its runs are known.

    Raises:
        StorageError: a store did not answer, so it is not known which other runs a run needs.
    """
    names = sorted({*root.runs(repository), *filter(_can_be_a_run, more)})
    looked = thread_map(lambda name: _look_at(root, repository, name), names, _THREADS)
    found = [one for one in looked if one is not None]
    unread: set[str] = set()
    for place in {one.namespace for one in found}:
        marks = [mark for one in found if one.namespace == place for mark in one.marks]
        is_here = present is not None and place == present.namespace_url
        made = present.made if present and is_here else None
        of_place = unread_marks(marks, now, is_whole, made=made)
        unread |= {mark.attempt.run for mark in of_place}
    return [_needed_by_next(run) if run.id in unread else run for run in found]


def _needed_by_next(run: Run) -> Run:
    why = run.needed or "the next mark reads its active_commits, which no later one has read"
    return replace(run, needed=why)


def _can_be_a_run(name: str) -> bool:
    try:
        validate_run_id(name)
    except ConfigurationError:
        return False
    return True


def _look_at(root: ArtifactRoot, repository: str, name: str) -> Run | None:
    try:
        attempt, *before = root.attempts(repository, name)
    except RefusedError:
        # A folder without an attempt is not a run.
        return None
    except IntegrityError as error:
        return Run(name, "", _NEVER, needed=unclear(root, repository, name, error))
    manifests: dict[str, Manifest] = {}
    needed = ""
    for asset in (*MARK_ASSETS, SWEPT):
        try:
            if (manifest := attempt.recorded_if_finished(asset)) is not None:
                manifests[asset] = manifest
        except IntegrityError as error:
            needed = needed or unclear(root, repository, name, error)
    listing = None
    try:
        listing = _listing(manifests.get(_LISTING))
    except (KeyError, ValueError, TypeError) as error:
        needed = needed or unclear(root, repository, name, error)
    marks = [Earlier(attempt, manifests[COMMITS])] if COMMITS in manifests else []
    try:
        marks += [Earlier(one, one.recorded(COMMITS)) for one in before if one.has(COMMITS)]
    except IntegrityError as error:
        needed = needed or unclear(root, repository, name, error)
    namespaces = {manifest.namespace for manifest in manifests.values()}
    namespaces = namespaces or {mark.manifest.namespace for mark in marks}
    if len(namespaces) > 1:
        different = f"its assets are of different namespaces ({', '.join(sorted(namespaces))})"
        needed = f"{different}. {_by_hand(root, repository, name)}"
    here = min(namespaces, default="")
    begun = _stamped(attempt.attempt.partition("-")[0])
    return Run(
        id=name,
        attempt=attempt.attempt,
        last=max([begun, *(manifest.finished for manifest in manifests.values())]),
        finished={asset: manifest.finished for asset, manifest in manifests.items()},
        listing=listing,
        needed=needed,
        namespace=here,
        artifacts=attempt,
        manifests=manifests,
        marks=[mark for mark in marks if mark.manifest.namespace == here],
    )


def unclear(root: ArtifactRoot, repository: str, run: str, error: Exception) -> str:
    """The reason why a run with unreadable artifacts stays."""
    kind = "" if isinstance(error, LakegcError) else f"{type(error).__name__}: "
    advice = _by_hand(root, repository, run)
    return f"it is not known whether it is needed ({kind}{error}). {advice}"


def _by_hand(root: ArtifactRoot, repository: str, run: str) -> str:
    return f"If nothing of this run is needed, remove {root.open(repository, run).url} by hand"


def _stamped(name: str) -> datetime:
    """The time at the beginning of a name; the earliest possible time for other names."""
    try:
        return datetime.strptime(name, _STAMP).replace(tzinfo=timezone.utc)
    except ValueError:
        return _NEVER


def _listing(manifest: Manifest | None) -> Listing | None:
    if manifest is None:
        return None
    facts = manifest.facts
    clean_at = facts.get("clean_at")
    return Listing(
        start=datetime.fromisoformat(str(facts["start"])),
        finished=manifest.finished,
        cutoff=manifest.cutoff,
        whole=manifest.mode != "committed",
        clean_at=None if clean_at is None else datetime.fromisoformat(str(clean_at)),
        swept_since=frozenset((run, attempt) for run, attempt in facts.get("swept_since", ())),
    )


def with_files(run: Run) -> Run:
    """A run with its files, and with facts that only a listing shows.

    The run is needed if the listing is not reliable.
    """
    attempt = run.artifacts
    if attempt is None:
        return run
    sizes: dict[str, int] = {}
    last = run.last
    for page in attempt.store().list():
        sizes.update(zip(page["key"].to_pylist(), page["size"].to_pylist(), strict=True))
        last = max([last, *page["last_modified"].to_pylist()])
    run = replace(run, sizes=sizes, last=last)
    restored = max((_stamped(name[:16]) for name in restores_of(run)), default=None)
    return replace(run, restored=restored, needed=run.needed or _not_shown(attempt, run))


def _not_shown(attempt: AttemptArtifacts, run: Run) -> str:
    """A sentence about named objects that a listing lacks; empty if it has all."""
    named = [f"{asset}/manifest.json" for asset in run.manifests]
    parts = (parts for one in run.manifests.values() for parts in one.parts.values())
    named += [part.key for some in parts for part in some]
    lacking = [key for key in named if key not in run.sizes]
    if not lacking:
        return ""
    return (
        f"a listing of {attempt.url} does not show {lacking[0]}, so it is not known what else is "
        "there. If nothing of this run is needed, remove its folder by hand"
    )
