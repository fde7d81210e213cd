"""The component of a Dagster project that the command acts for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lakegc_assets.run.command_line import Source

#: A file below DAGSTER_HOME, whose first line is what ``--defs`` takes.
POINTER: Final = "lakegc-defs"


def dagster_home() -> Path:
    """``DAGSTER_HOME``, or ``.lakegc/dagster`` below the working directory."""
    return Path(os.environ.get("DAGSTER_HOME") or ".lakegc/dagster").expanduser().resolve()


def chosen(defs: str | None) -> Source:
    """The component that is named, or that the file below DAGSTER_HOME names."""
    pointer = dagster_home() / POINTER
    if not defs and pointer.is_file():
        defs = pointer.read_text(encoding="utf-8").partition("\n")[0].strip()
    if not defs:
        return Source()
    return Source(str(Path(defs).expanduser().resolve()), _usual)


def _usual(repository: str) -> Mapping[str, Any]:
    from lakegc_assets.definitions import component

    return component().usual_settings(repository)
