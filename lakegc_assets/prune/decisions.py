"""Decides which runs of a repository may go, with the reason of each that stays.

What needs a run, as other runs show: the next mark reads the latest active commits, and the
latest listings; an optimized run takes over what was listed since the last clean run, and what
sweeps and restores have changed since; a mark that is not swept yet leaves out what sweeps deleted
that came before it. What is seen by looking at one run alone (an undo, an approval and the like)
comes with it, as ``Run.needed``. So runs only ever go from the oldest on, but for what is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.history import Earlier
from lakegc_assets.wording import counted

#: The asset that is written when a mark is published: a run with it is a success.
SUCCESS: Final = "gc_report"
#: So many of the last successes stay, whatever their age.
SUCCESSES: Final = 3
#: By how much clocks may differ, and what happens at once may be recorded in another order.
_MARGIN: Final = timedelta(hours=1)


@dataclass(frozen=True)
class Listing:
    """Facts of the finished ``store_listing`` of a run."""

    #: By the store's clock.
    start: datetime
    finished: datetime
    cutoff: datetime
    #: Of all that the store holds, not of single objects.
    whole: bool = True
    #: Start of the last clean run; None where nothing can be carried forward from it.
    clean_at: datetime | None = None
    #: Run and attempt of each sweep whose deletes it leaves out.
    swept_since: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class Run:
    """One run, as it was found."""

    id: str
    attempt: str
    #: When something was written for it last, as far as anything shows.
    last: datetime
    #: When each of its assets was finished, by name.
    finished: Mapping[str, datetime] = field(default_factory=dict)
    #: None where no listing was finished.
    listing: Listing | None = None
    restored: datetime | None = None
    #: Why it stays, by its own artifacts; empty for no reason.
    needed: str = ""
    #: By each of its manifests; empty where it has none.
    namespace: str = ""
    #: Its present attempt; None where nobody can tell which that is.
    artifacts: AttemptArtifacts | None = None
    #: Of its finished assets, by name.
    manifests: Mapping[str, Manifest] = field(default_factory=dict)
    #: All its attempts that have active commits.
    marks: Sequence[Earlier] = ()
    #: Bytes of each file of the attempt, by key; empty before they are listed.
    sizes: Mapping[str, int] = field(default_factory=dict)

    def has_files_in(self, folder: str) -> bool:
        """Return whether a folder, with a slash at its end, has any object."""
        return any(key.startswith(folder) for key in self.sizes)

    def folders_in(self, folder: str) -> set[str]:
        """The folders in a folder, without slashes."""
        inside = (k.removeprefix(folder) for k in self.sizes if k.startswith(folder))
        return {key.partition("/")[0] for key in inside if "/" in key}


def judge(runs: Sequence[Run], keep: timedelta, now: datetime) -> dict[str, str]:
    """Why each run of a repository stays, by its id; empty for those that may go.

    ``runs``: those of one namespace that could be seen. Younger ones than ``keep`` stay.
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
    """Whatever finished last, even of a run that did not end: the next mark begins with it."""
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
    """Runs that were left half-way, and that no success has followed."""
    successes = [run.finished[SUCCESS] for run in runs if SUCCESS in run.finished]
    last = max(successes, default=None)
    return {
        run.id: "its mark did not finish, and no later one has"
        for run in runs
        if SUCCESS not in run.finished and (last is None or run.last >= last - _MARGIN)
    }


def _seen_twice(runs: Sequence[Run], now: datetime) -> dict[str, str]:
    """Listings in which a later mark searches for what was uploaded in parts.

    That takes the latest one that was finished before its cutoff, of the whole store and of any.
    """
    listings = [(run, run.listing) for run in runs if run.listing is not None]
    if not listings:
        return {}
    oldest = now - max(one.start - one.cutoff for _, one in listings) - _MARGIN
    because = "a later mark looks there for uploads in parts that were seen before"
    found = {run.id: because for run, one in listings if one.finished >= oldest}
    for whole in (True, False):
        before = [(r, o) for r, o in listings if o.finished < oldest and o.whole >= whole]
        if before:
            run, _ = max(before, key=lambda pair: (pair[1].finished, pair[0].id))
            found[run.id] = because
    return found


def _carried(runs: Sequence[Run], chosen: Sequence[Run]) -> dict[str, str]:
    """Runs since the last clean one that an optimized run reads, with the reason to keep each.

    ``chosen``: of which any may be the one that it takes over from.
    """
    since = [
        (run.listing.clean_at, run.id)
        for run in chosen
        if run.listing is not None and run.listing.clean_at is not None
    ]
    if not since:
        return {}
    clean_at, by = min(since)
    because = f"run {by!r} stands on what was listed and swept since {clean_at:%Y-%m-%d %H:%M} UTC"
    # The ids of restores have whole seconds.
    start = clean_at - _MARGIN
    return {
        run.id: because
        for run in runs
        if (run.listing is not None and run.listing.start >= start)
        or (run.restored is not None and run.restored >= start)
    }


def _relied_on(runs: Sequence[Run], kept: Mapping[str, str]) -> dict[str, str]:
    """All that stays, with the sweeps whose deletes are left out of what else stays."""
    by_id = {run.id: run for run in runs}
    found, waiting = dict(kept), list(kept)
    while waiting:
        run = by_id[waiting.pop()]
        for name, _ in sorted(run.listing.swept_since) if run.listing is not None else ():
            if name in by_id and name not in found:
                found[name] = f"run {run.id!r} leaves out what its sweep deleted"
                waiting.append(name)
    return found
