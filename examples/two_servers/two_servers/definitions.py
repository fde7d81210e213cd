"""The definitions that Dagster loads: the components of ``defs``."""

from pathlib import Path

from dagster import Definitions, definitions, in_process_executor, load_from_defs_folder


@definitions
def defs() -> Definitions:
    """Both collections in one code location, with assets that run in one process."""
    found = load_from_defs_folder(path_within_project=Path(__file__).parent)
    return Definitions.merge(found, Definitions(executor=in_process_executor))
