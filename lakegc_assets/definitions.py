"""All that Dagster loads."""

from pathlib import Path

from dagster import ComponentTree, Definitions, definitions, load_from_defs_folder
from dagster._utils.warnings import disable_dagster_warnings

_HERE = Path(__file__).parent


@definitions
def defs() -> Definitions:
    """The definitions below ``defs/``."""
    return load_from_defs_folder(path_within_project=_HERE)


def shown_nowhere() -> Definitions:
    """The same for a process without Dagster's UI, in a tenth of the time.

    For the UI, Dagster describes every kind of component of every package that is installed.
    """
    # As ``load_from_defs_folder`` does.
    with disable_dagster_warnings():
        return ComponentTree.for_project(_HERE).build_defs(Path())
