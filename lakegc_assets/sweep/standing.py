"""How repositories stand, by their artifacts alone: what they hold, and what they wait for.

Nothing here decides anything: it is what a table shows. A repository that cannot be read has a row
that says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from lakegc_assets.errors import LakegcError
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts, Manifest
from lakegc_assets.run.command_line import command_line, recorded_settings
from lakegc_assets.run.tasks import each
from lakegc_assets.sweep.alarm import MISSING
from lakegc_assets.sweep.approval import approval_of, refusal_of, when
from lakegc_assets.sweep.ledger import ASSET
from lakegc_assets.sweep.unattended import how_to_approve

#: The words for how a repository stands, those first that need a person.
STATES: Final = (
    "held",
    "unreadable",
    "refused",
    "waiting for approval",
    "sweep unfinished",
    "unfinished",
    "approved",
    "marked",
    "swept",
    "never run",
)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_REPOSITORIES: Final = 4
_RUNS: Final = 8


@dataclass(frozen=True)
class Freed:
    """What one finished sweep deleted: objects, their bytes, and when it was finished."""

    run: str
    at: datetime
    objects: int
    size: int


@dataclass(frozen=True)
class Standing:
    """How one repository stands.

    Attributes:
        repository: its name.
        state: one of ``STATES``.
        because: a sentence about the state.
        run: that the state is about; None where there is none.
        objects: that the store held when it was listed last, without those that were deleted by
            the sweep of that listing's mark; None where nobody has listed it.
        size: of these, in bytes.
        garbage: objects that the last published mark names, none once it is swept; None without a
            mark.
        garbage_size: of these, in bytes.
        last_mark: when the last published mark was finished.
        last_sweep: when the last sweep was finished.
        freed: what each finished sweep deleted, in the order of time.
    """

    repository: str
    state: str
    because: str
    run: str | None = None
    objects: int | None = None
    size: int | None = None
    garbage: int | None = None
    garbage_size: int | None = None
    last_mark: datetime | None = None
    last_sweep: datetime | None = None
    freed: Sequence[Freed] = ()


@dataclass(frozen=True)
class Estate:
    """How all repositories stand, in the order of their names; and what could not be looked at."""

    rows: Sequence[Standing]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class _Run:
    """What a run left; the manifests of what did not finish are None.

    Attributes:
        attempt: the present one.
        candidates: of ``deletion_candidates``.
        report: of ``gc_report``.
        swept: of ``swept_set``.
        begun: whether a sweep has left anything.
        alarm: when one has found that something is gone that is needed; None if none did.
    """

    attempt: AttemptArtifacts
    candidates: Manifest | None
    report: Manifest | None
    swept: Manifest | None
    begun: bool
    alarm: datetime | None


@dataclass(frozen=True)
class _Unread:
    """A run that cannot be read: why, and its attempt where that much is known."""

    run: str
    error: Exception
    attempt: str | None


def estate(
    root: ArtifactRoot, names: Collection[str], mode_of: Callable[[str], str], now: datetime
) -> Estate:
    """How all repositories stand that are known or have left artifacts.

    Args:
        root: of the artifacts; nothing else is read.
        names: of repositories that have a row in any case.
        mode_of: how marks of a repository are swept that nobody asked for (``unattended.MODES``).
        now: the time, UTC.
    """
    notes = []
    found = set(names)
    try:
        prefixes = root.open().list_prefixes().prefixes
        found |= {name.rstrip("/") for name in prefixes if not name.startswith("_")}
    except LakegcError as error:
        notes.append(
            f"the artifacts at {root.url} cannot be listed ({error}): a repository that is known "
            "by its artifacts only is not shown"
        )

    def row(name: str) -> Standing:
        return standing(root, name, mode_of(name), now)

    return Estate(each(row, sorted(found), _REPOSITORIES), notes)


def standing(root: ArtifactRoot, repository: str, mode: str, now: datetime) -> Standing:
    """How one repository stands; ``unreadable`` with the reason where nobody can tell.

    Args:
        root: of the artifacts.
        repository: its name.
        mode: one of ``unattended.MODES``.
        now: the time, UTC.
    """
    if not _NAME.fullmatch(repository):
        return Standing(
            repository, "unreadable", f"{repository!r} cannot be the name of a repository"
        )
    try:
        return _standing(root, repository, mode, now)
    except Exception as error:  # noqa: BLE001 - whatever it is, the others have their rows
        return Standing(repository, "unreadable", f"its artifacts cannot be read: {_said(error)}")


def _standing(root: ArtifactRoot, repository: str, mode: str, now: datetime) -> Standing:
    found = each(partial(_read, root, repository), root.runs(repository), _RUNS)
    runs = sorted((one for one in found if isinstance(one, _Run)), key=_begun)
    unread = [one for one in found if isinstance(one, _Unread)]
    state, because, run = _state(runs, unread, mode, now)
    marks = sorted((r for r in runs if r.report), key=lambda r: _finished(r.report))
    sweeps = sorted((r.swept for r in runs if r.swept), key=_finished)
    objects, size = _held(runs)
    garbage, garbage_size = _garbage(marks[-1]) if marks else (None, None)
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
        sweeps[-1].finished if sweeps else None,
        tuple(Freed(s.run, s.finished, *_deleted(s)) for s in sweeps),
    )


# One run


def _read(root: ArtifactRoot, repository: str, run: str) -> _Run | _Unread:
    attempt: AttemptArtifacts | None = None
    try:
        attempt = root.attempt(repository, run)
        return _manifests(attempt)
    except Exception as error:  # noqa: BLE001 - it is told in the row
        return _Unread(run, error, None if attempt is None else attempt.attempt)


def _manifests(attempt: AttemptArtifacts) -> _Run:
    candidates, report, swept = (
        attempt.recorded(asset) if attempt.has(asset) else None
        for asset in ("deletion_candidates", "gc_report", ASSET)
    )
    begun, alarm = False, None
    if report is not None and swept is None:
        store = attempt.store()
        left = store.list_prefixes(f"{ASSET}/").prefixes
        begun = bool(left)
        alarms = [
            at
            for prefix in left
            for batch in store.list(f"{prefix}{MISSING}")
            for at in batch["last_modified"].to_pylist()
        ]
        alarm = max(alarms, default=None)
    return _Run(attempt, candidates, report, swept, begun, alarm)


def _begun(one: _Run | _Unread) -> str:
    """The id of an attempt, which sorts by time; behind all others where it is not known."""
    if isinstance(one, _Run):
        return one.attempt.attempt
    return one.attempt or "~"


def _finished(manifest: Manifest | None) -> datetime:
    if manifest is None:
        raise TypeError("what did not finish has no time")
    return manifest.finished


def _deleted(swept: Manifest) -> tuple[int, int]:
    total = swept.facts["outcomes"].get("deleted", {"objects": 0, "bytes": 0})
    return total["objects"], total["bytes"]


def _held(runs: Sequence[_Run]) -> tuple[int | None, int | None]:
    """Objects and bytes of the last listing of all that the store held."""
    for one in reversed(runs):
        if one.candidates is not None and one.candidates.mode != "committed":
            facts = one.candidates.facts
            objects, size = _deleted(one.swept) if one.swept else (0, 0)
            return facts["listed"] - objects, facts["listed_bytes"] - size
    return None, None


def _garbage(last: _Run) -> tuple[int, int]:
    if last.swept is not None or last.report is None:
        return 0, 0
    return last.report.facts["objects"], last.report.facts["bytes"]


# The state


def _state(
    runs: Sequence[_Run], unread: Sequence[_Unread], mode: str, now: datetime
) -> tuple[str, str, str | None]:
    """State, sentence, and the run that they are about."""
    if (held := _on_hold(runs)) is not None:
        return held
    last = runs[-1] if runs else None
    newest = max(unread, key=_begun, default=None)
    if newest is not None and (last is None or _begun(newest) > _begun(last)):
        return "unreadable", f"run {newest.run} cannot be read: {_said(newest.error)}", newest.run
    if last is None:
        return "never run", "no run has left artifacts", None
    state, because = _of(last, mode, now)
    if unread:
        because += f" ({len(unread)} earlier runs cannot be read, {unread[0].run} for one)"
    return state, because, last.attempt.run


def _on_hold(runs: Sequence[_Run]) -> tuple[str, str, str] | None:
    """An alarm after which no sweep could begin and finish."""
    alarms = [(one.alarm, one.attempt) for one in runs if one.alarm is not None]
    if not alarms:
        return None
    at, attempt = max(alarms, key=lambda alarm: alarm[0])
    if any(one.swept is not None and one.swept.started > at for one in runs):
        return None
    because = (
        f"the sweep of mark {attempt.run} raised an alarm on {at:%Y-%m-%d %H:%M} UTC: objects are "
        "gone that are needed. No sweep starts while hold.json is in the namespace, and none has "
        "been finished since: docs/operations.md says what to do"
    )
    return "held", because, attempt.run


def _of(last: _Run, mode: str, now: datetime) -> tuple[str, str]:
    """State and sentence of a repository by the last of its runs, as far as that came."""
    name = f"mark {last.attempt.run}"
    if last.swept is not None:
        objects, _ = _deleted(last.swept)
        return "swept", f"{name} was {when(last.swept)}: {objects:,} objects are deleted"
    if last.candidates is None:
        return "unfinished", f"{name} was begun and has not finished: look at its run"
    if last.report is not None:
        return _of_published(last, last.report, mode, now)
    if refusal := refusal_of(last.attempt):
        return "refused", f"{name}: {refusal}"
    return "unfinished", f"{name} was checked and is not published: look at its run"


def _of_published(last: _Run, report: Manifest, mode: str, now: datetime) -> tuple[str, str]:
    attempt, name = last.attempt, f"mark {last.attempt.run}"
    if last.begun:
        settings = recorded_settings(attempt)
        goes_on = command_line("sweep", attempt.repository, "--run", attempt.run, settings=settings)
        because = f"the sweep of {name} was begun and has not finished: `{goes_on}` goes on"
        return "sweep unfinished", because
    approval = approval_of(attempt, now)
    if approval is not None:
        until = f"until {approval.ends:%Y-%m-%d %H:%M} UTC"
        return "approved", f"{name} is approved by {approval.by} {until}"
    if not report.facts["objects"]:
        return "marked", f"{name} names no garbage"
    if mode == "never":
        return "marked", f"{name} is not swept: `sweep` is `never`"
    return "waiting for approval", f"{name}: {how_to_approve(attempt)}"


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, LakegcError) else f"{type(error).__name__}: {error}"
