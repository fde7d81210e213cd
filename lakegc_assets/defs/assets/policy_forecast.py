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

import dagster as dg

from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.forecast import of_forecast
from lakegc_assets.defs.stages import stage
from lakegc_assets.forecast.forecast import forecast


@stage(deps=("gc_report",), skippable=True)
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
    yield dg.MaterializeResult(metadata=of_forecast(found, policy.price_per_tb_month))
