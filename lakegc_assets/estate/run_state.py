"""The state of one run, for commands, pages and Dagster's tables.

It reads the run's artifacts, its sweep's ledger, and the guards in the namespace of its repository:
the hold, and the owner of the lease. The results are shown only, and decide nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import LakegcError
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.command_line import command_line, recorded_settings
from lakegc_assets.run.manifest import PROTECTION_VERSION, Manifest, way_out
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.alarm import MISSING
from lakegc_assets.sweep.approval import refusal_of, when
from lakegc_assets.sweep.hold import HOLD, read_hold
from lakegc_assets.sweep.lease_record import LeaseRecord, describe, is_gone, read_lease, sweep_of
from lakegc_assets.sweep.ledger import ASSET, DONE, GONE
from lakegc_assets.sweep.rate_limit import killed_since
from lakegc_assets.sweep.status import Restored, Restoring, SweepTry, last_try, restored
from lakegc_assets.wording import counted

UNFINISHED: Final = "unfinished"
REFUSED: Final = "refused"
MARKED: Final = "marked"
SWEEPING: Final = "sweeping"
STOPPED: Final = "stopped in its sweep"
ON_HOLD: Final = "on hold"
SWEPT: Final = "swept"
RESTORED: Final = "restored"
#: Detail of objects that are recorded as missing, and that an earlier try may have deleted.
DELETED_OR_MISSING: Final = "deleted or missing: the try before was killed while it deleted"


@dataclass(frozen=True)
class Guards:
    """Hold and lease of a repository."""

    url: str = ""
    #: Content of the hold as JSON values, empty for any other content; None without one.
    hold: Mapping[str, object] | None = None
    #: The lease that is held now; None without one.
    lease: LeaseRecord | None = None
    #: Reason why the hold is unreadable; empty if it was read.
    problem: str = ""
    #: Reason why the lease is unreadable; empty if it was read, or there is none.
    lease_problem: str = ""

    def hold_is_about(self, run: str) -> bool:
        """True if the hold names this run."""
        return self.hold is not None and self.hold.get("run") == run

    def sweep_of(self, run: str) -> str:
        """The short name of the sweep of this run that holds the lease; empty without one."""
        if self.lease is None or self.lease.owner.get("run") != run or "doing" in self.lease.owner:
            return ""
        return sweep_of(self.lease.token)


def read_guards(namespace: str, stores: StoreConfig) -> Guards:
    """Read the hold and the lease of a repository, each once; an error becomes a problem."""
    url = f"{namespace.rstrip('/')}/{HOLD}"
    try:
        store = open_store(namespace, replace(stores, max_attempts=1))
        hold = read_hold(store)
    except (LakegcError, OSError) as error:
        return Guards(url, problem=str(error))
    found = Guards(url, None if hold is None else hold.values)
    try:
        return replace(found, lease=_held_lease(store))
    except (LakegcError, OSError) as error:
        return replace(found, lease_problem=str(error))


def _held_lease(store: ObjectStore) -> LeaseRecord | None:
    """The lease if it is held now; None if there is none, or its owner has ended.

    Raises:
        LakegcError: the lease is unreadable.
    """
    try:
        lease = read_lease(store)
    except ObjectNotFoundError:
        return None
    over = lease.released or lease.expires <= store.server_time()
    return None if over or is_gone(lease.owner) else lease


class Total(NamedTuple):
    """Objects and their bytes."""

    objects: int
    size: int


NOTHING: Final = Total(0, 0)


@dataclass(frozen=True)
class RunState:
    """The state of a run."""

    #: One of the words above.
    state: str
    #: Sentences about the state, without the last full stop.
    because: str
    #: Totals that its sweep has recorded, by outcome.
    outcomes: Mapping[str, Total] = field(default_factory=dict)
    #: Total of its mark; nothing if that is not published.
    marked: Total = NOTHING
    #: The command that continues it; empty if none does, or a person must look first.
    command: str = ""
    #: Time of the last recorded outcome; None without any.
    recorded: datetime | None = None
    #: Swept objects that were brought back; None without any.
    restored: Restored | None = None
    #: Reason why the records of its sweep are unreadable; empty if they were read.
    unread: str = ""

    @property
    def summary(self) -> str:
        """The state in few words, with the progress of an unfinished sweep."""
        back = self.restored
        if self.state == RESTORED:
            return str(back)
        summary = self.state
        if self.state in {SWEEPING, STOPPED, ON_HOLD}:
            deleted = self._total(GONE).objects
            summary += f", {deleted:,} of {self.marked.objects:,} deleted"
        return f"{summary}, {back}" if back else summary

    @property
    def gone(self) -> Total:
        """Objects that its sweep deleted or found missing, and that no restore has brought back."""
        gone, back = self._total(GONE), self.restored
        return gone if back is None else Total(gone.objects - back.objects, gone.size - back.size)

    @property
    def still_deleted(self) -> Total:
        """The objects of ``gone`` that the sweep itself has deleted."""
        return Total(*map(min, self.deleted, self.gone))

    @property
    def done(self) -> Total:
        """Objects that are finished: gone, spared, locked, or put back."""
        return self._total(DONE)

    @property
    def deleted(self) -> Total:
        """Objects that its sweep has recorded as deleted."""
        return self._total(("deleted",))

    @property
    def locked(self) -> Total:
        """Objects that the store refused to delete, because they are locked."""
        return self._total(("locked",))

    def _total(self, names: Sequence[str]) -> Total:
        totals = [self.outcomes[name] for name in names if name in self.outcomes]
        return Total(sum(one.objects for one in totals), sum(one.size for one in totals))


@dataclass(frozen=True)
class RunManifests:
    """The manifests of a run; those of unfinished assets are None."""

    attempt: AttemptArtifacts
    #: Manifest of ``deletion_candidates``.
    candidates: Manifest | None
    #: Manifest of ``gc_report``.
    report: Manifest | None
    #: Manifest of ``swept_set``.
    swept: Manifest | None
    #: True if a sweep that has not finished has left files.
    begun: bool
    #: Time of the last alarm about needed objects that are gone; None without one.
    alarm: datetime | None

    @property
    def is_of_another_version(self) -> bool:
        """True if the mark is published with another protection version, and so is not swept."""
        return self.report is not None and self.report.protection != PROTECTION_VERSION

    @classmethod
    def of(cls, attempt: AttemptArtifacts) -> RunManifests:
        """Read the manifests of an attempt.

        Raises:
            IntegrityError: one is damaged.
            StorageError: the store of the artifacts did not answer.
        """
        candidates, report, swept = (
            attempt.recorded_if_finished(asset)
            for asset in ("deletion_candidates", "gc_report", ASSET)
        )
        if report is None or swept is not None:
            return cls(attempt, candidates, report, swept, begun=False, alarm=None)
        store = attempt.store()
        left = store.list_prefixes(f"{ASSET}/").prefixes
        alarms = [
            at
            for prefix in left
            for batch in store.list(f"{prefix}{MISSING}")
            for at in batch["last_modified"].to_pylist()
        ]
        return cls(
            attempt, candidates, report, None, begun=bool(left), alarm=max(alarms, default=None)
        )


def run_state(
    found: RunManifests,
    guards: Guards,
    others: Sequence[Restoring] | None = None,
    now_at: str = "",
) -> RunState:
    """Derive the state of a run from its artifacts and the guards of its repository.

    ``others``: the runs of the repository that restored something; None to read them. ``now_at``:
    the namespace of the repository now, in its canonical form; empty if it is not known.

    Raises:
        IntegrityError: the record of its checks is damaged.
        StorageError: the store of the artifacts did not answer.
    """
    name = f"mark {found.attempt.run}"
    if found.candidates is None:
        return RunState(UNFINISHED, f"{name} has not finished: {_how_to_mark(found.attempt)}")
    if found.report is None:
        if refusal := refusal_of(found.attempt):
            return RunState(REFUSED, f"{name}: {refusal}")
        because = f"{name} is checked and not published: {_how_to_mark(found.attempt)}"
        return RunState(UNFINISHED, because)
    marked = Total(found.report.facts["objects"], found.report.facts["bytes"])
    known = replace(_recorded(found), marked=marked)
    known = replace(known, **_of_published(found, guards, _how_far(found, known), now_at))
    back = None
    # If nobody can read what was restored, the state omits it.
    with suppress(LakegcError):
        back = restored(found.attempt, others) if known.outcomes else None
    if back is None:
        return known
    state = RESTORED if known.state == SWEPT and back.whole else known.state
    return replace(known, state=state, because=f"{known.because}; {back}", restored=back)


def _of_published(found: RunManifests, guards: Guards, how_far: str, now_at: str) -> dict[str, Any]:
    """State, sentences and command of a published mark.

    ``how_far``: the progress of its sweep, as a sentence without its full stop. ``now_at``: as in
    ``run_state``.
    """
    run = found.attempt.run
    if guards.hold_is_about(run) or (guards.problem and found.alarm is not None):
        return {"state": ON_HOLD, "because": f"{_on_hold(found.attempt, guards)}. {how_far}"}
    if found.swept is not None:
        return {"state": SWEPT, "because": f"mark {run} was {when(found.swept)}: {how_far}"}
    if guards.lease is not None and guards.sweep_of(run):
        because = f"mark {run} is being swept by {describe(guards.lease.owner)}. So far {how_far}"
        return {"state": SWEEPING, "because": because}
    tried = last_try(found.attempt)
    command = tried.command if tried else sweep_command(found.attempt)
    if guards.hold is not None:
        # The alarm is of another mark, or of an unknown one: this mark must not be swept either.
        command = ""
    then = f"`{command}` continues it" if command else no_sweep(found.attempt.repository)
    if found.report is not None and now_at not in {"", found.report.namespace}:
        command = ""
        then = (
            f"The mark is of {found.report.namespace}, and {found.attempt.repository!r} is at "
            f"{now_at} now: it was made anew, so no sweep takes this mark. Mark again under a new "
            "id"
        )
    if found.is_of_another_version:
        command = ""
        later = found.report is not None and found.report.protection > PROTECTION_VERSION
        then = (
            f"{'A later' if later else 'An earlier'} version of lakegc made it, and this version "
            f"does not sweep it: {way_out(later=later)}"
        )
    if found.begun:
        because = f"{_stopped(run, tried)}. {how_far}. {then}"
        return {"state": STOPPED, "because": because, "command": command}
    because = f"mark {run} is published, and nothing of it is deleted"
    if not command:
        because += f". {then}"
    elif tried and tried.error:
        because += f". Its sweep of {tried.begun:%Y-%m-%d %H:%M} UTC did not begin: {tried.error}"
    return {"state": MARKED, "because": because, "command": command}


def _how_to_mark(attempt: AttemptArtifacts) -> str:
    """The next step for a mark that has not finished, as a sentence without its full stop."""
    command = command_line("mark", attempt.repository, "--run", attempt.run)
    return f"wait for it, or if its process has ended, make it again with `{command}`"


def sweep_command(attempt: AttemptArtifacts) -> str:
    """The command that sweeps a published mark with the settings of that mark."""
    settings = recorded_settings(attempt)
    return command_line("sweep", attempt.repository, "--run", attempt.run, settings=settings)


def _stopped(run: str, tried: SweepTry | None) -> str:
    """A sentence, without its full stop, about a stopped sweep, with the reason."""
    since = f" of {tried.begun:%Y-%m-%d %H:%M} UTC" if tried else ""
    why = "its process has ended, perhaps killed, and has recorded no reason"
    if tried and tried.ended:
        why = tried.error.rstrip(".") or "it ended without a record"
    return f"the sweep{since} of mark {run} has stopped: {why}"


def _on_hold(attempt: AttemptArtifacts, guards: Guards) -> str:
    """The alarm, and the sweeps that it stops, in sentences."""
    hold = guards.hold or {}
    alarm = str(hold.get("alarm") or f"objects of mark {attempt.run!r} are gone, and are needed")
    if guards.problem:
        return f"{alarm}. It is not known whether {guards.url} still exists ({guards.problem})"
    return f"{alarm}. {no_sweep(attempt.repository)}"


def no_sweep(repository: str) -> str:
    """The sentence, without its full stop, that no sweep of a repository starts."""
    hold = command_line("hold", repository)
    return f"No sweep starts: `{hold}` shows what is lost and what you can do"


def _how_far(found: RunManifests, sweep: RunState) -> str:
    """The number of objects that a sweep has deleted, as a sentence without its full stop."""
    if sweep.unread:
        return f"it is not known how many objects are deleted ({sweep.unread})"
    locked = sweep.locked.objects
    more = f", and {counted(locked, 'object is locked', 'objects are locked')}" if locked else ""
    if found.swept is not None:
        deleted = counted(sweep.deleted.objects, "object is deleted", "objects are deleted")
        return f"{deleted}{more}"
    of = counted(sweep.marked.objects, "object is deleted", "objects are deleted")
    return f"{sweep.gone.objects:,} of {of}{more}"


def state_of(attempt: AttemptArtifacts, now_at: str = "") -> RunState:
    """Read the state of a single run; ``now_at`` as in ``run_state``.

    Raises:
        IntegrityError: its artifacts are damaged.
        StorageError: the store of the artifacts did not answer.
    """
    found = RunManifests.of(attempt)
    namespace = None if found.candidates is None else found.candidates.namespace
    guards = Guards() if namespace is None else read_guards(namespace, attempt.root.stores)
    return run_state(found, guards, now_at=now_at)


def deleted_or_missing(attempt: AttemptArtifacts, outcomes: pa.Table) -> pa.Table:
    """Outcomes ``already_missing`` of objects that a killed try of the sweep may have deleted."""
    missing = outcomes.filter(pc.equal(outcomes["outcome"], "already_missing"))
    killed = killed_since(attempt.store()) if missing.num_rows else None
    return missing.slice(0, 0) if killed is None else missing.filter(pc.field("at") >= killed)


def _recorded(found: RunManifests) -> RunState:
    """The records of a run's sweep, without a state; or the reason why they are unreadable."""
    if found.swept is not None:
        recorded = found.swept.facts["outcomes"]
        outcomes = {name: Total(one["objects"], one["bytes"]) for name, one in recorded.items()}
        return RunState("", "", outcomes, recorded=found.swept.finished)
    if not found.begun:
        return RunState("", "")
    try:
        rows = ledger.read(found.attempt)
    except LakegcError as error:
        return RunState("", "", unread=str(error))
    totals = rows.group_by("outcome").aggregate([("size", "count"), ("size", "sum")])
    outcomes = {
        one["outcome"]: Total(one["size_count"], one["size_sum"]) for one in totals.to_pylist()
    }
    return RunState("", "", outcomes, recorded=pc.max(rows["at"]).as_py())
