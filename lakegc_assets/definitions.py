"""All that Dagster loads: one instance of the component, with its defaults."""

from dagster import Definitions, definitions

from lakegc_assets.defs.component import GarbageCollection


@definitions
def defs() -> Definitions:
    """What a project without a file of its own has."""
    return GarbageCollection().definitions()


def component() -> GarbageCollection:
    """The component whose jobs the command line runs."""
    return GarbageCollection()
