"""All that Dagster loads."""

from pathlib import Path

from dagster import Definitions, definitions, load_from_defs_folder


@definitions
def defs() -> Definitions:
    """The definitions below ``defs/``."""
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
