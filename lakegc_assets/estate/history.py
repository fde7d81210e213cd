"""History of marks and sweeps, one after the other and by the week."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Final

from lakegc_assets.errors import LakegcError
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.history import earlier
from lakegc_assets.sweep.ledger import ASSET

#: Weeks that are shown, the last ones.
_WEEKS: Final = 26
#: Repositories that are shown by themselves; the rest are one.
_NAMED: Final = 8


@dataclass(frozen=True)
class MarkFigures:
    """One mark: when it was finished, the bytes that it names, and those that its sweep deleted."""

    at: datetime
    marked: int
    deleted: int


def marks_over_time(
    root: ArtifactRoot, repository: str, namespace: str | None = None
) -> list[MarkFigures]:
    """The finished marks of a repository, the oldest first; damaged ones do not count.

    None as ``namespace`` stands for any that the repository had.
    """
    found = []
    for one in reversed(earlier(root, repository, "gc_report", namespace, but="")):
        try:
            swept = one.attempt.recorded(ASSET) if one.attempt.has(ASSET) else None
            outcomes = swept.facts["outcomes"] if swept is not None else {}
            deleted = outcomes.get("deleted", {"bytes": 0})["bytes"]
            found.append(MarkFigures(one.manifest.finished, one.manifest.facts["bytes"], deleted))
        except LakegcError:
            continue
    return found


def last_weeks(now: datetime) -> list[date]:
    """The Mondays of the weeks that are shown, the last one its own."""
    return [_monday(now) - timedelta(weeks=back) for back in reversed(range(_WEEKS))]


def freed_by_week(
    freed: Iterable[tuple[str, datetime, int]], weeks: Sequence[date]
) -> dict[str, Counter[date]]:
    """Bytes freed by repository and the Monday of the week, UTC.

    ``freed`` has repository, end and bytes of each sweep; ``weeks`` the Mondays that count.
    """
    by: dict[str, Counter[date]] = {}
    for repository, at, size in freed:
        if size and (week := _monday(at)) in weeks:
            by.setdefault(repository, Counter())[week] += size
    return by


def largest(by: Mapping[str, Counter[date]]) -> list[tuple[str, Counter[date]]]:
    """The repositories that freed most, and all others as the last one."""
    order = sorted(by, key=lambda name: (-by[name].total(), name))
    few = order if len(order) <= _NAMED else order[: _NAMED - 1]
    shown = [(name, by[name]) for name in few]
    if rest := order[len(few) :]:
        others: Counter[date] = Counter()
        for name in rest:
            others.update(by[name])
        shown.append((f"{len(rest)} others", others))
    return shown


def _monday(moment: datetime) -> date:
    day = moment.astimezone(timezone.utc).date()
    return day - timedelta(days=day.weekday())
