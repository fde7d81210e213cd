"""Forecasts the mark under other retention rules and under today's, from the data of a mark.

The forecast is for the moment of the mark: its listing, its HEADs, its cutoff. Objects that sweeps
deleted since then are left out. The forecast repeats all steps of a mark but the last: it does not
ask lakeFS which objects it serves although no list of entries has them. So this is unknown for
objects that the mark did not ask about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from lakegc_assets.errors import RefusedError
from lakegc_assets.forecast import relations
from lakegc_assets.forecast.commits import (
    MarkedCommits,
    Span,
    read_marked_commits,
    spans_of,
    spans_of_paths,
)
from lakegc_assets.forecast.outlook import LATER, TOTALS, Mark, Outlook, look_out
from lakegc_assets.forecast.proposed_rules import Change, todays_rules
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.retention.retain_rules import Retain
from lakegc_assets.retention.rules import Rules
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.history import earlier
from lakegc_assets.run.scratch import FORECAST, scratch
from lakegc_assets.run.settings import recorded_retain
from lakegc_assets.wording import counted

EXACT: Final = "exact"
AT_MOST: Final = "at most"
AT_LEAST: Final = "at least"
ABOUT: Final = "about"
#: Default retentions of the curve, in days.
CURVE: Final = range(1, 366)
#: Days after the mark for which the forecast says how much today's rules free.
LATER_DAYS: Final = (7, 30, 90)
_WHAT: Final = "add up what is freed"


@dataclass(frozen=True)
class Amount:
    """Objects and bytes that a mark would name: exact, at most, at least, or about this many."""

    objects: int
    bytes: int
    bound: str = EXACT


@dataclass(frozen=True)
class Forecast:
    """The forecast of other rules."""

    repository: str
    #: Run that the forecast is computed from.
    mark: str
    #: The moment of that mark.
    as_of: datetime
    #: The rules in lakeFS; None without rules.
    todays_rules: Rules | None
    #: The other rules.
    rules: Rules
    #: The mark's rules in addition to lakeFS's.
    todays_retain: Retain
    #: The rules that replace ``todays_retain``.
    retain: Retain
    #: Branches that the forecast treats as deleted.
    without_branches: Sequence[str]
    #: Objects that a mark under today's rules would name.
    today: Amount
    #: Objects that a mark under the other rules would name.
    forecast: Amount
    #: The part of the forecast that today's rules keep: the mark did not ask lakeFS whether it
    #: serves some of it.
    unverified: Amount
    #: Objects that a mark would name under the other rules, for each default from 1 to 365 days.
    curve: Mapping[int, Amount]
    #: Objects that a mark under today's rules would name after some days without writes.
    later: Mapping[int, Amount]
    #: Facts that a reader of the forecast has to know, in sentences.
    notes: Sequence[str]

    @property
    def changes(self) -> bool:
        """Return whether the other rules differ from today's, or branches are left out."""
        today = (self.todays_rules, self.todays_retain)
        return today != (self.rules, self.retain) or bool(self.without_branches)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "repository": self.repository,
            "mark": self.mark,
            "as_of": self.as_of.isoformat(),
            "rules": {
                "today": None if self.todays_rules is None else self.todays_rules.to_json(),
                "forecast": self.rules.to_json(),
            },
            "retain": {
                "today": self.todays_retain.to_json(),
                "forecast": self.retain.to_json(),
            },
            "without_branches": list(self.without_branches),
            "today": asdict(self.today),
            "forecast": {**asdict(self.forecast), "unverified": asdict(self.unverified)},
            "curve": [{"default_days": n, **asdict(one)} for n, one in self.curve.items()],
            "later": [{"in_days": n, **asdict(one)} for n, one in self.later.items()],
            "notes": list(self.notes),
        }


def forecast(ctx: RunContext, change: Change, run: str | None = None) -> Forecast:
    """Compute how much other rules free, from a mark: None for the latest mark of the whole store.

    Raises:
        RefusedError: there is no such mark.
        ConfigurationError: the change does not fit this repository.
        IntegrityError: an artifact of the mark is missing or damaged, or lakeFS no longer has a
            commit that the mark reached.
    """
    ctx = ctx.connect()
    attempt = _marked(ctx, run)
    with scratch(ctx.root, ctx.repository, FORECAST) as url, ctx.frames() as frames:
        chain = attempt.chain("deletion_candidates", ctx.connections.namespace_url)
        return _forecast(Mark(ctx, frames, attempt, chain, url), ctx.client, change)


def _marked(ctx: RunContext, run: str | None) -> AttemptArtifacts:
    """The attempt of the mark that the forecast is computed from."""
    how = f"`{command_line('mark', ctx.repository)}` makes one"
    found = [
        one
        for one in earlier(ctx.root, ctx.repository, "gc_report", ctx.connections.namespace_url, "")
        if one.manifest.mode == "unified" and run in {None, one.attempt.run}
    ]
    if found:
        return found[0].attempt
    which = f"no mark {run!r}" if run else "no mark"
    raise RefusedError(
        f"there is {which} of repository {ctx.repository!r} that lists its whole store and has "
        f"finished, and a forecast needs such a mark: {how}"
    )


def _forecast(mark: Mark, client: LakeFSClient, change: Change) -> Forecast:
    """See ``forecast``."""
    frames, repository, chain = mark.frames, mark.ctx.repository, mark.chain
    today = todays_rules(client.gc_rules(repository))
    rules = change.of(today)
    marked = read_marked_commits(client, mark.attempt, chain["active_commits"])
    start, cutoff = chain["store_listing"].start, chain["store_listing"].cutoff
    retain = recorded_retain([chain["active_commits"].settings])
    other_retain = retain if change.retain is None else change.retain
    which = (today, rules.branches, change.without, start, retain, other_retain)
    outlook = look_out(
        mark,
        marked.commits,
        spans_of(marked, *which),
        spans_of_paths(marked, *which),
        cutoff + timedelta(days=max(LATER_DAYS)),
    )
    staged = [one for one in change.without if _has_staged(client, repository, one)]
    unlisted = len(chain["store_listing"].facts.get("skipped_slices", ()))
    bounds = _Bounds(outlook.missing, marked.rules, staged, unlisted)
    objects = frames.read(outlook.objects)
    by_days: list[dict[str, int]] = frames.collect_rows(
        relations.totals_by_days(objects, cutoff), TOTALS, _WHAT
    )

    def later(days: int) -> Amount:
        """The garbage under today's rules after some days."""
        total = relations.total_later(objects, cutoff + timedelta(days=days), days)
        (row,) = frames.collect_rows(total, LATER, _WHAT)
        return _bounded(row["objects"], row["bytes"] or 0, bounds.after(today, days))

    default = rules.default_retention_days
    unverified = _amount(by_days, default, AT_MOST, "new_")
    return Forecast(
        repository,
        mark.attempt.run,
        start,
        today,
        rules,
        retain,
        other_retain,
        tuple(change.without),
        later(0),
        _amount(by_days, default, bounds.under(default)),
        unverified,
        {days: _amount(by_days, days, bounds.under(days)) for days in CURVE},
        {days: later(days) for days in LATER_DAYS},
        _notes(outlook, bounds, today, rules, unverified) + _without_branch(marked, today, rules),
    )


def _without_branch(marked: MarkedCommits, today: Rules | None, rules: Rules) -> list[str]:
    """A sentence about each new rule of a branch that is not there: its name may be misspelt."""
    new = rules.branches.keys() - (today.branches.keys() if today else ())
    return [
        f"the mark found no branch {name!r}: its rule keeps nothing while there is none"
        for name in sorted(new - marked.heads.keys())
    ]


def _has_staged(client: LakeFSClient, repository: str, branch: str) -> bool:
    """Return whether a branch has staged entries, or is gone and may have had some."""
    try:
        return any(True for _ in client.diff_branch(repository, branch))
    except NotFoundError:
        return True


@dataclass(frozen=True)
class _Bounds:
    """The reasons why amounts are bounds and not exact."""

    #: Span of each range or metarange with unknown contents.
    missing: Sequence[Span]
    #: Rules that the mark followed.
    marked: Rules | None
    #: Branches that the forecast treats as deleted, and that have staged entries.
    staged: Sequence[str]
    #: Slices that were made after the cutoff, and that the mark did not list.
    unlisted: int

    def knows(self, default: int) -> bool:
        """Return whether all commits that a default retention keeps are known.

        Only lakeFS knows the commits that no branch or tag leads to, as those of deleted branches.
        lakeFS reports only the ones that its current rules keep.
        """
        return self.marked is not None and default <= self.marked.default_retention_days

    def under(self, default: int) -> str:
        """The bound of the objects that a mark would name under a default retention."""
        too_much = not self.knows(default) or any(span.days <= default for span in self.missing)
        return _bound(too_much=too_much, too_little=bool(self.staged))

    def after(self, today: Rules | None, days: int) -> str:
        """The bound of the objects that a mark would name under today's rules after some days."""
        unmarked = self.marked is None
        known = unmarked if today is None else self.knows(today.default_retention_days)
        too_much = not known or any(span.left > days for span in self.missing)
        return _bound(too_much=too_much, too_little=bool(days and self.unlisted))


def _bound(*, too_much: bool, too_little: bool) -> str:
    """The bound of an amount that may include too much, or may lack objects."""
    if too_little:
        return ABOUT if too_much else AT_LEAST
    return AT_MOST if too_much else EXACT


def _amount(rows: Iterable[Mapping[str, int]], default: int, bound: str, which: str = "") -> Amount:
    """The garbage under a default retention: all objects that it does not keep."""
    freed = [row for row in rows if row["days"] > default]
    objects, size = (sum(row[f"{which}{name}"] for row in freed) for name in ("objects", "bytes"))
    return _bounded(objects, size, bound)


def _bounded(objects: int, size: int, bound: str) -> Amount:
    # No amount is below zero, so at most 0 is exactly 0.
    return Amount(objects, size, EXACT if bound == AT_MOST and not objects else bound)


def _notes(
    outlook: Outlook, bounds: _Bounds, today: Rules | None, rules: Rules, unverified: Amount
) -> list[str]:
    """Sentences that a reader needs to understand a forecast."""
    notes = []
    if unverified.objects:
        notes.append(
            f"today's rules keep {counted(unverified.objects, 'object')} of the forecast. A mark "
            "also asks lakeFS whether it serves some of them although nothing lists them, and "
            "spares those; the forecast has not asked"
        )
    default = rules.default_retention_days
    if unknown := sum(span.days <= default for span in outlook.missing):
        which = "today's rules keep" if rules == today else "the other rules keep"
        notes.append(
            f"{which} {counted(unknown, 'range')} whose content is not known, since no mark has "
            "read them, or a prune removed what it read: the forecast is a bound"
        )
    if not bounds.knows(default):
        marked = bounds.marked
        was = "no rules" if marked is None else f"{counted(marked.default_retention_days, 'day')}"
        notes.append(
            f"the mark was made with {was} by default: a longer default would also keep commits "
            "that no branch or tag leads to, for example those of deleted branches, which lakeFS "
            "did not report. The forecast is a bound"
        )
    if today != bounds.marked:
        notes.append("the rules in lakeFS differ from those that the mark followed")
    notes += [
        f"branch {branch!r} has staged objects, which would be freed, too, and are not counted"
        for branch in bounds.staged
    ]
    if bounds.unlisted:
        notes.append(
            f"the mark has not listed {counted(bounds.unlisted, 'slice')} made after its cutoff: "
            "objects that become garbage there later are not counted"
        )
    notes += [
        f"the sweep of run {run!r} has not finished: objects that it deleted are still counted"
        for run in outlook.unfinished
    ]
    return notes
