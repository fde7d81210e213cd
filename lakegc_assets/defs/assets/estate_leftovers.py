"""``estate_leftovers``: what no collection of a repository finds, on the server and in its stores.

Reads: the repositories that lakeFS has, what lies below the roots of namespaces, uploads in parts
(on Azure blocks that no blob has), versions and what else the stores hold of what was deleted, the
tables below `_lakefs/` of each repository, and the dumps of all commits that lakeFS writes when it
is asked.
Writes: nothing but what it shows, and those dumps, which lakeFS writes below `_lakefs/` of each
repository that has tables older than 30 days which neither logs nor earlier dumps name.
Guarantees: it removes nothing; a place that cannot be looked at is named, and the others are
looked at. `lakegc leftovers remove` removes what a person confirms.
"""

import dagster as dg

from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.leftovers import of_leftovers
from lakegc_assets.defs.stages import stage
from lakegc_assets.leftovers.report import find_leftovers
from lakegc_assets.leftovers.server import Server


@stage(resources=("collector", "lakefs", "stores"), kinds=("lakefs",))
def estate_leftovers(execution: Execution) -> dg.MaterializeResult[None]:
    """Namespaces, uploads and tables that nothing has, and what the stores still hold."""
    context, resources = execution.context, execution.resources
    server = Server(
        resources.root,
        execution.repository_context,
        resources.lakefs.config().connect,
        resources.collector.roots(),
    )
    if not server.namespace_roots:
        context.log.info("no namespace_roots are set: namespaces that nothing has are not found")
    found = find_leftovers(server)
    for problem in found.problems:
        context.log.warning("%s could not be looked at: %s", problem.where, problem.what)
    return dg.MaterializeResult(metadata=of_leftovers(found))
