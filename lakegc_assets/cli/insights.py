"""Additions to the report of a mark: attribution, and the forecast of other default days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lakegc_assets.attribution.attribution import ASSET
from lakegc_assets.attribution.usage import Use, usage
from lakegc_assets.cli.queries import any_context, local_context
from lakegc_assets.errors import LakegcError
from lakegc_assets.forecast.change import Change
from lakegc_assets.forecast.forecast import Forecast, forecast
from lakegc_assets.run.command_line import command_line


@dataclass(frozen=True)
class Insights:
    """Results beside the report of a mark.

    Attributes:
        classes: of all that was listed: class, why, objects, bytes; the largest first.
        branches: what is live and committed, by branch.
        paths: the same by the outermost folder.
        covers: what these figures are about, where that is not all.
        forecast: what today's rules free with another default, and in time; None where nobody can
            tell.
        problems: why something of it is missing, in sentences.
    """

    classes: Sequence[tuple[str, str | None, int, int]] = ()
    branches: Sequence[Use] = ()
    paths: Sequence[Use] = ()
    covers: Sequence[str] = ()
    forecast: Forecast | None = None
    problems: Sequence[str] = ()


def insights_of(repository: str, run: str, *, forecasting: bool) -> Insights:
    """Read what a mark has left, and forecast by it; what cannot be had is told.

    Args:
        repository: lakeFS repository.
        run: id of a run with a published mark.
        forecasting: whether to forecast, which takes a pass over the ranges of the mark.
    """
    found, problems = Insights(), []
    try:
        found = _attributed(repository, run)
    except LakegcError as error:
        problems.append(f"whose the storage is cannot be told: {error}")
    if not found.classes and not problems:
        how = command_line("usage", repository, "--run", run)
        problems.append(f"nobody has attributed the storage of this mark yet: `{how}` does")
    if forecasting:
        try:
            with any_context(repository, run) as ctx:
                found = replace(found, forecast=forecast(ctx, Change(), run))
        except LakegcError as error:
            problems.append(f"there is no forecast: {error}")
    return replace(found, problems=problems)


def _attributed(repository: str, run: str) -> Insights:
    """The attribution of a mark; empty without one."""
    with local_context(repository, run) as ctx:
        if not ctx.root.attempt(repository, run).has(ASSET):
            return Insights()
        by_branch = usage(ctx, "branch", 1)
        by_path = usage(ctx, "path", 1)
    facts = by_branch.facts
    rows = [(row[0], row[1], row[2], row[3]) for row in facts["classes"]]
    return Insights(
        sorted(rows, key=lambda row: -row[3]), by_branch.rows, by_path.rows, facts["covers"]
    )
