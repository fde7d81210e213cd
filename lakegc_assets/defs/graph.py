"""The graph: its assets, a module for each, in their order."""

from typing import Final

from lakegc_assets.defs.assets.active_commits import active_commits
from lakegc_assets.defs.assets.backup import backup
from lakegc_assets.defs.assets.committed_addresses import committed_addresses
from lakegc_assets.defs.assets.deletion_candidates import deletion_candidates
from lakegc_assets.defs.assets.estate import estate
from lakegc_assets.defs.assets.estate_leftovers import estate_leftovers
from lakegc_assets.defs.assets.gc_report import gc_report
from lakegc_assets.defs.assets.policy_forecast import policy_forecast
from lakegc_assets.defs.assets.restored_set import restored_set
from lakegc_assets.defs.assets.storage_attribution import storage_attribution
from lakegc_assets.defs.assets.store_listing import store_listing
from lakegc_assets.defs.assets.swept_set import swept_set
from lakegc_assets.defs.assets.uncommitted_snapshot import uncommitted_snapshot

STAGES: Final = (
    store_listing,
    uncommitted_snapshot,
    active_commits,
    committed_addresses,
    deletion_candidates,
    gc_report,
    storage_attribution,
    backup,
    swept_set,
    restored_set,
    policy_forecast,
    estate,
    estate_leftovers,
)
#: What a mark is made of, and what is said with it.
MARK: Final = STAGES[: STAGES.index(backup)]
#: What is made in one step: a sweep goes on where no backup was asked for.
SWEEP: Final = (backup, swept_set)
