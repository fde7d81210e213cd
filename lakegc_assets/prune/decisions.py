"""Decides which runs of a repository may be removed, with the reason for each run that stays.

Other runs need a run for these reasons. The next mark reads the latest active commits and the
latest listings. An optimized run reads the listings, sweeps and restores since the last clean run.
A mark that is not swept yet leaves out the objects that earlier sweeps deleted. Reasons that one
run shows alone (an undo, an approval and so on) are in ``Run.needed``. So runs are removed from the
oldest on, except those that are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.history import Earlier
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.wording import counted

#: The asset that is written once a mark is published: a run with it is a success.
SUCCESS: Final = "gc_report"
#: Number of latest successes that stay at any age.
SUCCESSES: Final = 3
#: Largest difference of clocks, and of the recorded order of simultaneous events.
_MARGIN: Final = timedelta(hours=1)


@dataclass(frozen=True)
class Listing:
    """Facts of the finished ``store_listing`` of a run."""

    #: Time by the store's clock.
    start: datetime
    finished: datetime
    cutoff: datetime
    #: True for a listing of the whole store, false for a listing of single objects.
    whole: bool = True
    #: Start of the last clean run; None if nothing can be carried forward from this listing.
    clean_at: datetime | None = None
    #: Run and attempt of each sweep that deleted objects which this listing leaves out.
    swept_since: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class Run:
    """One run, as its artifacts show it."""

    id: str
    attempt: str
    #: Time of the last known write for this run.
    last: datetime
    #: Time at which each of its assets was finished, by name.
    finished: Mapping[str, datetime] = field(default_factory=dict)
    #: None without a finished listing.
    listing: Listing | None = None
    restored: datetime | None = None
    #: Reason in its own artifacts why it stays; empty without a reason.
    needed: str = ""
    #: Namespace in each of its manifests; empty without manifests.
    namespace: str = ""
    #: Its present attempt; None if that is not known.
    artifacts: AttemptArtifacts | None = None
    #: Manifests of its finished assets, by name.
    manifests: Mapping[str, Manifest] = field(default_factory=dict)
    #: All its attempts that have active commits.
    marks: Sequence[Earlier] = ()
    #: Bytes of each file of the attempt, by key; empty before the files are listed.
    sizes: Mapping[str, int] = field(default_factory=dict)

    def has_files_in(self, folder: str) -> bool:
        """Return whether a folder, with a slash at its end, has any object."""
        return any(key.startswith(folder) for key in self.sizes)

    def folders_in(self, folder: str) -> set[str]:
        """The folders in a folder, without slashes."""
        inside = (k.removeprefix(folder) for k in self.sizes if k.startswith(folder))
        return {key.partition("/")[0] for key in inside if "/" in key}


def judge(runs: Sequence[Run], keep: timedelta, now: datetime) -> dict[str, str]:
    """The reason why each run of a repository stays, by its id; empty for runs that may be removed.

    ``runs``: the visible runs of one namespace. Runs younger than ``keep`` stay.
    """
    recent = _latest(runs) | _last_successes(runs) | _young(runs, keep, now)
    chosen = [run for run in runs if run.id in recent]
    kept = (
        {run.id: run.needed for run in runs if run.needed}
        | _unfinished(runs)
        | _seen_twice(runs, now)
        | _carried(runs, chosen)
        | recent
    )
    return {run.id: kept.get(run.id, "") for run in runs} | _relied_on(runs, kept)


def _young(runs: Iterable[Run], keep: timedelta, now: datetime) -> dict[str, str]:
    ages = {run.id: now - run.last for run in runs}
    days = {i: max(age, timedelta(0)).days for i, age in ages.items() if age < keep}
    return {i: f"it is {counted(age, 'day')} old" for i, age in days.items()}


def _last_successes(runs: Iterable[Run]) -> dict[str, str]:
    marks = [run for run in runs if SUCCESS in run.finished]
    marks.sort(key=lambda run: (run.finished[SUCCESS], run.id))
    return {run.id: f"it is one of the last {SUCCESSES} marks" for run in marks[-SUCCESSES:]}


def _latest(runs: Sequence[Run]) -> dict[str, str]:
    """The runs with the latest of each asset, also of unfinished runs: the next mark reads them."""
    found: dict[str, str] = {}
    for asset in sorted({name for run in runs for name in run.finished}):
        having = [run for run in runs if asset in run.finished]
        last = max(having, key=lambda run: (run.finished[asset], run.id))
        found[last.id] = f"its {asset} is the latest"
    for whole in (True, False):
        listings = [r for r in runs if r.listing is not None and r.listing.whole >= whole]
        if listings:
            last = max(listings, key=lambda r: (r.listing.start if r.listing else r.last, r.id))
            found[last.id] = "its listing is the latest"
    return found


def _unfinished(runs: Sequence[Run]) -> dict[str, str]:
    """Runs that were interrupted, without a success after them."""
    successes = [run.finished[SUCCESS] for run in runs if SUCCESS in run.finished]
    last = max(successes, default=None)
    return {
        run.id: "its mark did not finish, and no later one has"
        for run in runs
        if SUCCESS not in run.finished and (last is None or run.last >= last - _MARGIN)
    }


def _seen_twice(runs: Sequence[Run], now: datetime) -> dict[str, str]:
    """Listings in which a later mark searches for multipart uploads.

    It searches the latest listing that was finished before its cutoff, both of the whole store and
    of any kind.
    """
    listings = [(run, run.listing) for run in runs if run.listing is not None]
    if not listings:
        return {}
    oldest = now - max(one.start - one.cutoff for _, one in listings) - _MARGIN
    because = "a later mark searches its listing for uploads in parts"
    found = {run.id: because for run, one in listings if one.finished >= oldest}
    for whole in (True, False):
        before = [(r, o) for r, o in listings if o.finished < oldest and o.whole >= whole]
        if before:
            run, _ = max(before, key=lambda pair: (pair[1].finished, pair[0].id))
            found[run.id] = because
    return found


def _carried(runs: Sequence[Run], chosen: Sequence[Run]) -> dict[str, str]:
    """Runs since the last clean run that an optimized run reads, with the reason to keep each.

    ``chosen``: runs of which an optimized run may carry forward any one.
    """
    since = [
        (run.listing.clean_at, run.id)
        for run in chosen
        if run.listing is not None and run.listing.clean_at is not None
    ]
    if not since:
        return {}
    clean_at, by = min(since)
    because = f"run {by!r} relies on listings and sweeps since {clean_at:%Y-%m-%d %H:%M} UTC"
    # The ids of restores have a resolution of one second.
    start = clean_at - _MARGIN
    return {
        run.id: because
        for run in runs
        if (run.listing is not None and run.listing.start >= start)
        or (run.restored is not None and run.restored >= start)
    }


def _relied_on(runs: Sequence[Run], kept: Mapping[str, str]) -> dict[str, str]:
    """All kept runs, and the sweeps that deleted objects which kept runs leave out."""
    by_id = {run.id: run for run in runs}
    found, waiting = dict(kept), list(kept)
    while waiting:
        run = by_id[waiting.pop()]
        for name, _ in sorted(run.listing.swept_since) if run.listing is not None else ():
            if name in by_id and name not in found:
                found[name] = f"the listing of run {run.id!r} leaves out objects that it deleted"
                waiting.append(name)
    return found
