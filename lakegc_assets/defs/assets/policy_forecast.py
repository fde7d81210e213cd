"""``policy_forecast``: what the retention rules that the component names would free.

Reads: the mark, the ranges that marks have decoded, the rules in lakeFS, and the commits of the
mark.
Writes: nothing but what it shows: objects and bytes today and under the other rules, the same with
each default from 1 to 365 days, and what today's rules free in time. Nothing where `forecast` is
not set.
Guarantees: no range is read that no mark has read; what is not known makes an amount a bound, which
is said; nothing is deleted, and no rule is set.
"""

from collections.abc import Iterator
from typing import Any, Final

import dagster as dg
import pyarrow as pa

from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.metadata import of_rules, shown_tables, table
from lakegc_assets.defs.stages import stage
from lakegc_assets.defs.units import a_month, human_bytes, price_note
from lakegc_assets.forecast.forecast import Amount, Forecast, forecast

#: Columns of the forecast with each default.
CURVE: Final = pa.schema(
    [
        ("default days", pa.int64()),
        ("objects", pa.int64()),
        ("bytes", pa.int64()),
        ("size", pa.string()),
        ("bound", pa.string()),
    ]
)


@stage(columns=CURVE, reads=("gc_report",), skippable=True)
def policy_forecast(execution: Execution) -> Iterator[dg.MaterializeResult[None]]:
    """Says what other retention rules would free, by this mark."""
    # Nothing is collected here, so nothing is to be excluded from it.
    with execution.run_context(excluded=True) as ctx:
        policy = execution.resources.collector.policy(ctx.repository)
        thought_of = policy.forecast
        if thought_of is None:
            execution.context.log.info("nothing is forecast: the component names no other rules")
            return
        found = forecast(ctx, thought_of.change(), ctx.run)
    for note in found.notes:
        execution.context.log.info("%s", note)
    shown = of_forecast(found, policy.price_per_tb_month)
    yield shown_tables(shown, len(found.curve))


def of_forecast(found: Forecast, price: float | None = None) -> dict[str, Any]:
    """Metadata of ``policy_forecast``: figures that Dagster plots, and tables.

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
        **_costs(found, price),
        "by default days": _amounts("default days", found.curve.items()),
        "today's rules, in days": _amounts("in days", found.later.items()),
        "notes": "\n".join(found.notes) or "none",
    }


def _costs(found: Forecast, price: float | None) -> dict[str, str]:
    """The cost of the garbage; nothing without a price."""
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
