"""``estate``: how each repository stands, in one table.

Reads: the artifacts of all repositories, the repositories that Dagster knows as partitions, which
schedules are on, and of each namespace the hold and the lease; not lakeFS.
Writes: nothing but what it shows: for each repository size, garbage, bytes freed, last mark, last
sweep, next run, state and why; and the bytes freed by repository and week.
Guarantees: a repository that is known, or has left artifacts, has a row; one whose artifacts cannot
be read has a row that says so.
"""

import dagster as dg

from lakegc_assets.defs.automation_state import schedules_on
from lakegc_assets.defs.estate import ROWS, of_overview, overview
from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.metadata import pages, shown_tables
from lakegc_assets.defs.names import REPOSITORY
from lakegc_assets.defs.stages import stage
from lakegc_assets.lakefs.reads import utc_now


@stage(columns=ROWS, resources=("collector", "lakefs", "stores"), kinds=("lakefs",))
def estate(execution: Execution) -> dg.MaterializeResult[None]:
    """The state of each repository, by its artifacts and Dagster's schedules."""
    context, names, resources = execution.context, execution.names, execution.resources
    known = context.instance.get_dynamic_partitions(names.of(REPOSITORY))
    origin = context.run.remote_job_origin
    location = origin.location_name if origin else None
    found = overview(
        resources.root,
        known,
        resources.collector.all_policies(),
        schedules_on(context.instance, location),
        names,
        utc_now(),
    )
    for note in found.notes:
        context.log.warning("%s", note)
    server = resources.lakefs.config()
    links = {row.standing.repository: pages(server, row.standing.repository) for row in found.rows}
    return shown_tables(of_overview(found, links), len(found.rows))
