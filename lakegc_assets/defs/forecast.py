"""The rules of which ``policy_forecast`` says what they would free, and what it shows of that."""

from __future__ import annotations

from typing import Annotated, Any

import dagster as dg
from pydantic import AfterValidator, Field

from lakegc_assets.defs import plots
from lakegc_assets.defs.cost import a_month, price_note
from lakegc_assets.defs.fields import Texts
from lakegc_assets.defs.metadata import of_rules, picture, table
from lakegc_assets.defs.units import human_bytes
from lakegc_assets.forecast.change import Change
from lakegc_assets.forecast.forecast import Amount, Forecast
from lakegc_assets.retention.rules import Rules, RulesError
from lakegc_assets.run.bounds import Bounds


def _branch_days(branches: dict[str, Any]) -> dict[str, Any]:
    """Refuse days that no rule can have; what is still to be filled in is text."""
    try:
        Rules(0, {name: days for name, days in branches.items() if not isinstance(days, str)})
    except RulesError as error:
        raise ValueError(str(error)) from error
    return branches


def _filled_in(context: dg.ResolutionContext, branches: dict[str, Any]) -> dict[str, Any]:
    return {name: context.resolve_value(days) for name, days in branches.items()}


_BranchDays = Annotated[
    dict[str, int],
    AfterValidator(_branch_days),
    dg.Resolver(_filled_in, model_field_type=dict[str, int | str]),
]


class ForecastSection(dg.Model, dg.Resolvable):
    """Retention rules that are thought of, as changes of those that hold in lakeFS."""

    default_retention_days: Annotated[int | None, Bounds(0, 2**31 - 1)] = Field(
        default=None, description="days by default; null: as it is"
    )
    branches: _BranchDays = Field(
        default_factory=dict, description="days of single branches, by their names"
    )
    without_branches: Texts = Field(
        default_factory=list, description="branches that are thought to be deleted"
    )

    def change(self) -> Change:
        """As the core takes it."""
        return Change(
            default=self.default_retention_days,
            branches=self.branches,
            without=tuple(self.without_branches),
        )


def of_forecast(found: Forecast, price: float | None = None) -> dict[str, Any]:
    """What ``policy_forecast`` shows: figures that Dagster plots, and tables.

    Args:
        found: the forecast.
        price: of a TB for a month; None for no money.
    """
    return {
        "mark": found.mark,
        "as of": dg.MetadataValue.timestamp(found.as_of),
        "objects today": found.today.objects,
        "bytes today": found.today.bytes,
        "objects forecast": found.forecast.objects,
        "bytes forecast": found.forecast.bytes,
        "size forecast": f"{human_bytes(found.forecast.bytes)} ({found.forecast.bound})",
        "rules today": of_rules(found.todays_rules.to_json() if found.todays_rules else None),
        "rules forecast": of_rules(found.rules.to_json()),
        "without branches": ", ".join(found.without_branches) or "none",
        "plot by default days": picture(
            "bytes of garbage by default days",
            plots.of_curve([(days, one.bytes) for days, one in found.curve.items()]),
        ),
        **_costs(found, price),
        "by default days": _amounts("default days", found.curve.items()),
        "today's rules, in days": _amounts("in days", found.later.items()),
        "notes": "\n".join(found.notes) or "none",
    }


def _costs(found: Forecast, price: float | None) -> dict[str, str]:
    """What the garbage costs; nothing without a price."""
    if price is None:
        return {}
    return {
        "cost today": a_month(found.today.bytes, price),
        "cost forecast": a_month(found.forecast.bytes, price),
        "price": "".join(price_note(price)),
    }


def _amounts(what: str, amounts: Any) -> Any:  # noqa: ANN401 - metadata
    rows: list[tuple[int, Amount]] = list(amounts)
    return table(
        (what, "objects", "bytes", "size", "bound"),
        [(days, one.objects, one.bytes, human_bytes(one.bytes), one.bound) for days, one in rows],
    )
