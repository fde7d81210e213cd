"""Before the last look of a sweep: waits until the store carries out none of its requests any more.

A request that a client gave up, or whose task was lost, may be on its way still. What it deletes
behind the last look, no alarm would tell.
"""

from __future__ import annotations

from lakegc_assets.errors import LakegcError
from lakegc_assets.run.clocks import SYSTEM_CLOCKS, Clocks
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.sweep.liveness_look import CHECK_LIFETIME
from lakegc_assets.sweep.rate_limit import in_flight


def settle(artifacts: ObjectStore, sweep: str, clocks: Clocks = SYSTEM_CLOCKS) -> None:
    """Wait, if need be, as long as a request that was allowed before now may take.

    To be called when no task may send another batch. Where the store keeps deadlines, nothing is
    carried out afterwards; where it keeps none, only what the network held back for longer.

    Args:
        artifacts: the store rooted at the attempt.
        sweep: its short name.
        clocks: of the run.
    """
    begun = clocks.elapsed()
    try:
        if not in_flight(artifacts, sweep):
            return
    except LakegcError:
        # Who cannot be asked may have something under way.
        pass
    while (left := CHECK_LIFETIME - (clocks.elapsed() - begun)) > 0:
        clocks.sleep(left)
