"""The definitions that Dagster loads: one instance of the component, with its defaults."""

from dagster import Definitions, definitions, in_process_executor

from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.loading import load
from lakegc_assets.run.command_line import source


@definitions
def defs() -> Definitions:
    """Definitions for a project without a file of its own: one process and one Spark session."""
    own = Definitions(executor=in_process_executor)
    return Definitions.merge(GarbageCollection().definitions(), own)


def component() -> GarbageCollection:
    """The component with the jobs that the command line runs, from ``--defs`` or with its defaults.

    Raises:
        ConfigurationError: the component cannot be loaded.
    """
    place = source().definitions
    return load(place) if place else GarbageCollection()
