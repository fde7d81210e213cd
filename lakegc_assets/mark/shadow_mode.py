"""Shadow mode: each mark of ours beside the newest one that a collector of lakeFS's has finished.

A team that has not decided yet runs both, and reads the difference for some weeks. Nothing depends
on it.
"""

from __future__ import annotations

from typing import Any

from lakegc_assets.errors import LakegcError
from lakegc_assets.mark.comparison import compare
from lakegc_assets.mark.foreign import newest_mark
from lakegc_assets.run.context import RunContext

#: So many objects of each difference are named in the report.
_LISTED = 20


def compare_with_newest(ctx: RunContext) -> dict[str, Any]:
    """The candidates of a run beside the newest mark of the collector in ``compare_with``.

    Args:
        ctx: a run with candidates.

    Returns:
        A ``Comparison`` as JSON; ``{"problem": sentence}`` where there is nothing to compare with,
        or it cannot be read; nothing where ``compare_with`` is not set.
    """
    collector = ctx.settings.compare_with
    if collector == "none":
        return {}
    try:
        mark = newest_mark(ctx.connect()[1].store(), collector)
        if mark is None:
            problem = f"no collector has finished a mark yet (compare_with is {collector})"
            ctx.log.warning("%s", problem)
            return {"problem": problem}
        return compare(ctx, ctx.run, mark, _LISTED).to_json()
    except LakegcError as error:
        ctx.log.warning("nothing is compared with a mark of lakeFS's collector: %s", error)
        return {"problem": str(error)}
