"""``estate``: how each repository stands, in one table.

Reads: the artifacts of all repositories, the repositories that Dagster knows as partitions, which
schedules are on, and of each namespace the hold and the lease; not lakeFS.
Writes: nothing but what it shows: for each repository size, garbage, bytes freed, last mark, last
sweep, next run, state and why; and the bytes freed by repository and week.
Guarantees: a repository that is known, or has left artifacts, has a row; one whose artifacts cannot
be read has a row that says so.
"""

import dagster as dg

from lakegc_assets.defs.connecting import LakeFSResource, ObjectStoreResource
from lakegc_assets.defs.contracts import contract
from lakegc_assets.defs.due import schedules_on
from lakegc_assets.defs.estate import of_overview, overview
from lakegc_assets.defs.links import pages
from lakegc_assets.defs.policy import Policies
from lakegc_assets.defs.resources import CollectorResource
from lakegc_assets.lakefs.reads import utc_now


@dg.asset(description=contract(__doc__), group_name="gc", kinds={"lakefs"})
def estate(
    context: dg.AssetExecutionContext,
    collector: CollectorResource,
    lakefs: LakeFSResource,
    stores: ObjectStoreResource,
) -> dg.MaterializeResult[None]:
    """How each repository stands, by its artifacts and Dagster's schedules."""
    known = context.instance.get_dynamic_partitions("repository")
    origin = context.run.remote_job_origin
    location = origin.location_name if origin else None
    found = overview(
        collector.root(stores),
        known,
        Policies(**collector.policies),
        schedules_on(context.instance, location),
        utc_now(),
    )
    for note in found.notes:
        context.log.warning("%s", note)
    server = lakefs.config()
    links = {row.standing.repository: pages(server, row.standing.repository) for row in found.rows}
    return dg.MaterializeResult(metadata=of_overview(found, links))
