"""The choice of the engine of a run, with its reason."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from lakegc_assets.wording import counted

#: What a user may ask for.
EngineSetting = Literal["auto", "embedded", "spark"]
ENGINE_SETTINGS: Final[tuple[EngineSetting, ...]] = get_args(EngineSetting)


@dataclass(frozen=True)
class Engine:
    """The engine of a run.

    Attributes:
        kind: ``embedded``: threads and processes of this machine, no JVM; ``spark``: a Spark
            session, classic or Connect.
        reason: why it is this one, as half a sentence.
    """

    kind: Literal["embedded", "spark"]
    reason: str

    def __str__(self) -> str:
        """As logs and reports show it."""
        return f"{self.kind} ({self.reason})"


def choose_engine(
    setting: EngineSetting, configured_by: str, rows: int, embedded_rows: int
) -> Engine:
    """Choose the engine of a run.

    Args:
        setting: what was asked for.
        configured_by: what configures Spark; empty where nothing does.
        rows: that the run is known to list and to decode.
        embedded_rows: more than these are left to Spark where nothing else is said.
    """
    if setting != "auto":
        return Engine(setting, f"engine is set to {setting}")
    if configured_by:
        return Engine("spark", f"{configured_by} configures it")
    if rows <= embedded_rows:
        return Engine(
            "embedded", f"nothing configures Spark, and {counted(rows, 'row is', 'rows are')} known"
        )
    beyond = f"{rows:,} rows are more than embedded_rows, {embedded_rows:,}"
    if not has_java():
        return Engine("embedded", f"{beyond}, and there is no Java for Spark")
    return Engine("spark", beyond)


def has_java() -> bool:
    """Return whether Spark would find a Java: the one of ``JAVA_HOME``, or the one on the path."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home, "bin")) if home else None) is not None
