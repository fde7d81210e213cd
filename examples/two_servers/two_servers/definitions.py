"""The definitions that Dagster loads: the components of ``defs``."""

from pathlib import Path

from dagster import Definitions, definitions, load_from_defs_folder


@definitions
def defs() -> Definitions:
    """Both collections, in one code location."""
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
