"""States of repositories, from their artifacts, holds and leases.

This module decides nothing: tables show its results. A repository that cannot be read has a row
with state ``unreadable``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple
from zlib import crc32

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import LakegcError
from lakegc_assets.estate.run_state import (
    MARKED,
    NOTHING,
    ON_HOLD,
    REFUSED,
    RESTORED,
    STOPPED,
    SWEEPING,
    SWEPT,
    UNFINISHED,
    Guards,
    RunManifests,
    RunState,
    Total,
    no_sweep,
    read_guards,
    run_state,
)
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts, is_name
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.sweep.approval import approval_of, how_to_approve
from lakegc_assets.sweep.status import Restoring, with_restores

UNREADABLE: Final = "unreadable"
WAITING: Final = "waiting for approval"
APPROVED: Final = "approved"
NEVER_RUN: Final = "never run"
#: The states of a repository; those that need a person come first.
STATES: Final = (
    ON_HOLD,
    UNREADABLE,
    REFUSED,
    STOPPED,
    WAITING,
    SWEEPING,
    UNFINISHED,
    APPROVED,
    MARKED,
    SWEPT,
    RESTORED,
    NEVER_RUN,
)
#: States in which a person has to act.
PERSON: Final = STATES[:5]
_REPOSITORIES: Final = 4
_NO_RUNS: Final[Mapping[str, OldRun]] = MappingProxyType({})
_RUNS: Final = 8
#: A run is read again after one to two times this time, so that not all are read at once.
_AGAIN: Final = timedelta(hours=1)
#: Number of the latest runs that are read each time.
_NEWEST: Final = 3


@dataclass(frozen=True)
class Freed:
    """Totals of one sweep: deleted objects and bytes, and the time of the last record."""

    run: str
    at: datetime
    objects: int
    size: int


@dataclass(frozen=True)
class Standing:
    """The state of one repository."""

    repository: str
    #: One of ``STATES``.
    state: str
    #: A sentence about the state.
    because: str
    #: Id of the run that the state is about; None without one.
    run: str | None = None
    #: Objects in the last complete listing, without those that sweeps have deleted since; None
    #: without a listing.
    objects: int | None = None
    #: Bytes of these objects.
    size: int | None = None
    #: Number of objects of the last published mark that no sweep of it has finished with; None
    #: without a mark.
    garbage: int | None = None
    #: Bytes of these objects.
    garbage_size: int | None = None
    #: Time when the last published mark finished.
    last_mark: datetime | None = None
    #: Time when the last sweep finished.
    last_sweep: datetime | None = None
    #: Deleted objects of each sweep, in the order of time.
    freed: Sequence[Freed] = ()


@dataclass(frozen=True)
class Unread:
    """An unreadable run: the reason, and its attempt if that is known."""

    run: str
    error: Exception
    attempt: str | None


class OldRun(NamedTuple):
    """The values that a process keeps of an old run."""

    #: Id of the present attempt.
    attempt: str
    #: The state of its sweep; None if none was begun.
    state: RunState | None
    #: The objects that were restored through it; None without any.
    restoring: Restoring | None


@dataclass(frozen=True)
class OldRuns:
    """The old runs that a process knows, each with the time at which it must be read again.

    Old runs hardly ever change. Only a few values of each are kept, so that a repository may have
    thousands of them.
    """

    _known: dict[str, Mapping[str, tuple[OldRun, datetime]]] = field(default_factory=dict)

    def of(self, repository: str, now: datetime) -> dict[str, OldRun]:
        """The old runs of a repository that do not have to be read again yet."""
        known = self._known.get(repository, {})
        return {run: one for run, (one, until) in known.items() if now < until}

    def keep(self, repository: str, old: Mapping[str, OldRun], now: datetime) -> None:
        """Keep these old runs of a repository, and drop all others."""
        before = self._known.get(repository, {})

        def until(run: str, one: OldRun) -> datetime:
            if run in before and before[run][0] is one:
                return before[run][1]
            return now + _AGAIN * (1 + crc32(f"{repository}/{run}".encode()) / 2**32)

        self._known[repository] = {run: (one, until(run, one)) for run, one in old.items()}


@dataclass(frozen=True)
class Runs:
    """The artifacts of the runs of a repository."""

    #: Readable runs, in the order in which they were begun.
    read: Sequence[RunManifests]
    #: Unreadable runs.
    unread: Sequence[Unread]
    #: The hold and the lease of the repository.
    guards: Guards
    #: State of each run with a begun sweep, by run id.
    states: Mapping[str, RunState]
    #: Runs through which objects were restored, if any sweep was begun.
    restoring: Sequence[Restoring] = ()
    #: Runs that were read before, and not now.
    old: Mapping[str, OldRun] = field(default_factory=dict)

    @property
    def attempts(self) -> dict[str, str]:
        """The present attempt of each readable run, by run id."""
        read = {one.attempt.run: one.attempt.attempt for one in self.read}
        return read | {run: one.attempt for run, one in self.old.items()}

    def state(self, one: RunManifests) -> RunState:
        """The state of a run of ``read``."""
        return self.states.get(one.attempt.run) or run_state(one, self.guards, self.restoring)

    @property
    def marks(self) -> list[RunManifests]:
        """The runs with a published mark, in the order in which the marks finished."""
        return sorted((one for one in self.read if one.report), key=lambda r: _finished(r.report))


def estate(
    root: ArtifactRoot, names: Collection[str], mode_of: Callable[[str], str], now: datetime
) -> tuple[list[Standing], list[str]]:
    """The states of all repositories that are known or have artifacts; and the problems.

    ``names`` always have a row. ``mode_of``: the mode (``approval.MODES``) of a repository, in
    which marks are swept that no person started.
    """
    found, notes = known_names(root, names)
    return standings(root, found, mode_of, now), notes


def standings(
    root: ArtifactRoot,
    names: Iterable[str],
    mode_of: Callable[[str], str],
    now: datetime,
    *,
    checked: bool = False,
) -> list[Standing]:
    """Read the states of these repositories, as ``standing`` does."""

    def row(name: str) -> Standing:
        return standing(root, name, mode_of(name), now, checked=checked)

    return thread_map(row, list(names), _REPOSITORIES)


def known_names(root: ArtifactRoot, names: Collection[str]) -> tuple[list[str], list[str]]:
    """The repositories that are known or have artifacts, and the problems."""
    found = set(names)
    try:
        return sorted(found.union(root.repositories())), []
    except LakegcError as error:
        note = (
            f"the artifacts at {root.url} cannot be listed ({error}): a repository that is known "
            "by its artifacts only is not shown"
        )
        return sorted(found), [note]


def standing(
    root: ArtifactRoot, repository: str, mode: str, now: datetime, *, checked: bool = False
) -> Standing:
    """Read the state of one repository; ``unreadable`` with the reason if it is unknown.

    ``mode``: one of ``approval.MODES``. ``checked``: ignore runs whose marks have no candidates
    yet.
    """
    if not is_name(repository):
        because = f"{repository!r} cannot be the name of a repository"
        return Standing(repository, UNREADABLE, because)
    try:
        return standing_of(repository, read_runs(root, repository), mode, now, checked=checked)
    except Exception as error:  # noqa: BLE001 - no error may hide the rows of other repositories
        return Standing(repository, UNREADABLE, f"its artifacts cannot be read: {_said(error)}")


def read_runs(root: ArtifactRoot, repository: str, old: Mapping[str, OldRun] = _NO_RUNS) -> Runs:
    """Read the artifacts of the runs of a repository.

    ``old``: runs that were read before, and are not read again.

    Raises:
        StorageError: the store of the artifacts does not answer.
        IntegrityError: a record of checks is damaged.
    """
    names = root.runs(repository)
    old = {run: old[run] for run in names if run in old}
    found = runs_by_begin(root, repository, [run for run in names if run not in old])
    runs = [one for one in found if isinstance(one, RunManifests)]
    guards = _guards(root, runs)
    swept = [one for one in runs if one.begun or one.swept]
    restoring = with_restores([one.attempt for one in runs]) if swept else []
    restoring += [one.restoring for one in old.values() if one.restoring]
    states = {run: one.state for run, one in old.items() if one.state}
    states |= {one.attempt.run: run_state(one, guards, restoring) for one in swept}
    unread = [one for one in found if isinstance(one, Unread)]
    return Runs(runs, unread, guards, states, restoring, old)


def read_changed_runs(root: ArtifactRoot, repository: str, known: OldRuns, now: datetime) -> Runs:
    """Read runs as ``read_runs`` does, without the old runs of ``known``; add new old runs to it.

    A run is never old if it is the last one of some kind, or has an unfinished sweep.
    """
    runs = read_runs(root, repository, known.of(repository, now))
    swept = [one for one in runs.read if one.swept is not None]
    whole = [one for one in runs.read if one.candidates and one.candidates.mode != "committed"]
    last = [*runs.read[-_NEWEST:], *runs.marks[-1:], *whole[-1:]]
    last += sorted(swept, key=lambda one: _finished(one.swept))[-1:]
    recent = {one.attempt.run for one in last}
    restoring = {one.attempt.run: one for one in runs.restoring}
    old = dict(runs.old)
    for one in runs.read:
        run, state = one.attempt.run, runs.states.get(one.attempt.run)
        if run not in recent and (one.swept or not one.begun):
            state = state and replace(state, because="", command="")
            old[run] = OldRun(one.attempt.attempt, state, restoring.get(run))
    known.keep(repository, old, now)
    return runs


def runs_by_begin(
    root: ArtifactRoot, repository: str, runs: Sequence[str] | None = None
) -> list[RunManifests | Unread]:
    """Read the manifests of some or all runs of a repository, in the order of their begin.

    Raises:
        StorageError: the store of the artifacts does not answer.
    """
    runs = root.runs(repository) if runs is None else runs
    return sorted(thread_map(partial(_read, root, repository), runs, _RUNS), key=_begun)


def standing_of(
    repository: str, found: Runs, mode: str, now: datetime, *, checked: bool = False
) -> Standing:
    """The state of a repository, from its runs; for the arguments see ``standing``."""
    runs = [one for one in found.read if one.candidates is not None or not checked]
    states, marks = found.states, found.marks
    state, because, run = _state(repository, runs, found, mode, now)
    objects, size = _held(runs, states)
    garbage, garbage_size = _garbage(marks[-1], found) if marks else (None, None)
    freed = (
        Freed(name, one.recorded, *one.deleted)
        for name, one in states.items()
        if one.recorded is not None
    )
    return Standing(
        repository,
        state,
        because,
        run,
        objects,
        size,
        garbage,
        garbage_size,
        _finished(marks[-1].report) if marks else None,
        max((one.swept.finished for one in runs if one.swept), default=None),
        tuple(sorted(freed, key=lambda one: one.at)),
    )


def _guards(root: ArtifactRoot, runs: Sequence[RunManifests]) -> Guards:
    """The guards of the namespace of the last run; empty before the first mark."""
    last = next((one.candidates for one in reversed(runs) if one.candidates is not None), None)
    return Guards() if last is None else read_guards(last.namespace, root.stores)


# One run


def _read(root: ArtifactRoot, repository: str, run: str) -> RunManifests | Unread:
    attempt: AttemptArtifacts | None = None
    try:
        attempt = root.attempt(repository, run)
        return RunManifests.of(attempt)
    except Exception as error:  # noqa: BLE001 - the row shows the error
        return Unread(run, error, None if attempt is None else attempt.attempt)


def _begun(one: RunManifests | Unread) -> str:
    """The id of an attempt, which sorts by time; an unknown one sorts after all others."""
    if isinstance(one, RunManifests):
        return one.attempt.attempt
    return one.attempt or "~"


def _finished(manifest: Manifest | None) -> datetime:
    if manifest is None:
        raise TypeError("what did not finish has no time")
    return manifest.finished


def _held(
    runs: Sequence[RunManifests], states: Mapping[str, RunState]
) -> tuple[int | None, int | None]:
    """Objects and bytes of the last complete listing, without those that are gone since.

    Several sweeps may name the same objects: one deletes an object, and another finds it missing.
    """
    for one in reversed(runs):
        if one.candidates is not None and one.candidates.mode != "committed":
            facts, own = one.candidates.facts, states.get(one.attempt.run)
            since = [
                state.still_deleted
                for run, state in states.items()
                if run != one.attempt.run
                and state.recorded
                and state.recorded > one.candidates.started
            ]
            deleted, gone = (NOTHING, NOTHING) if own is None else (own.still_deleted, own.gone)
            objects, size = (
                deleted[n] + max(gone[n] - deleted[n], sum(other[n] for other in since))
                for n in range(2)
            )
            return facts["listed"] - objects, facts["listed_bytes"] - size
    return None, None


def _garbage(last: RunManifests, found: Runs) -> Total:
    """Objects of the last mark that no sweep has finished with."""
    if last.swept is not None or last.report is None or _swept_twin(last, found):
        return NOTHING
    facts, state = last.report.facts, found.states.get(last.attempt.run)
    objects, size = NOTHING if state is None else state.done
    return Total(facts["objects"] - objects, facts["bytes"] - size)


# The state


def _state(
    repository: str, runs: Sequence[RunManifests], found: Runs, mode: str, now: datetime
) -> tuple[str, str, str | None]:
    """State, sentence, and the run that both are about."""
    if (held := _on_hold(repository, runs, found)) is not None:
        return held
    unread = found.unread
    last = runs[-1] if runs else None
    newest = max(unread, key=_begun, default=None)
    if newest is not None and (last is None or _begun(newest) > _begun(last)):
        return UNREADABLE, f"run {newest.run} cannot be read: {_said(newest.error)}", newest.run
    if last is None:
        return NEVER_RUN, "no run has left artifacts", None
    last = _swept_twin(last, found) or last
    state, because = _of(last, found.state(last), mode, now)
    if unread:
        count = "1 earlier run" if len(unread) == 1 else f"{len(unread)} earlier runs"
        because += f" ({count} cannot be read, for example {unread[0].run})"
    return state, because, last.attempt.run


def _swept_twin(last: RunManifests, found: Runs) -> RunManifests | None:
    """The mark of the same objects whose sweep has left none of them to a mark that waits.

    ``last``: a mark that was not swept. Its objects were listed before that sweep ended.
    """
    # A mark that is not published waits for no sweep: it goes on, or a check has refused it.
    if last.candidates is None or last.report is None or last.begun or last.swept is not None:
        return None
    for one in found.read:
        if one.swept is None or one.swept.finished < last.candidates.started:
            continue
        same = one.swept.digest == last.candidates.digest
        if same and found.state(one).gone.objects == last.candidates.rows > 0:
            return one
    return None


def _on_hold(
    repository: str, runs: Sequence[RunManifests], found: Runs
) -> tuple[str, str, str | None] | None:
    """The hold of a repository; if it is unreadable, the last alarm without a later sweep."""
    guards = found.guards
    if guards.hold is not None:
        run = guards.hold.get("run")
        about = next((one for one in runs if one.attempt.run == run), None)
        if about is not None and about.report is not None:
            return ON_HOLD, found.state(about).because, about.attempt.run
        alarm = guards.hold.get("alarm") or "an alarm has left a hold"
        return ON_HOLD, f"{alarm}. {no_sweep(repository)}", None
    alarms = [(one.alarm, one) for one in runs if one.alarm is not None]
    if not guards.problem or not alarms:
        return None
    at, last = max(alarms, key=lambda alarm: alarm[0])
    if any(one.swept is not None and one.swept.started > at for one in runs):
        return None
    return ON_HOLD, found.state(last).because, last.attempt.run


def _of(last: RunManifests, found: RunState, mode: str, now: datetime) -> tuple[str, str]:
    """State and sentence of a repository, from the last of its runs."""
    if found.state != MARKED or last.report is None or last.candidates is None:
        return found.state, found.because
    if last.is_of_another_version:
        return found.state, found.because
    attempt, name = last.attempt, f"mark {last.attempt.run}"
    approval = approval_of(attempt, now)
    if approval is not None:
        until = f"until {approval.ends:%Y-%m-%d %H:%M} UTC"
        return APPROVED, f"{name} is approved by {approval.by} {until}"
    if not last.report.facts["objects"]:
        return MARKED, f"{name} names no garbage"
    if mode == "never":
        return MARKED, f"{name} is not swept: `sweep` is `never`"
    return WAITING, f"{name}: {how_to_approve(last.candidates)}"


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, LakegcError) else f"{type(error).__name__}: {error}"
