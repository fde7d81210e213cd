"""The choice of the engine of a run, with its reason."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from lakegc_assets.wording import counted

#: Values of the setting ``engine``.
EngineSetting = Literal["auto", "embedded", "spark"]
ENGINE_SETTINGS: Final[tuple[EngineSetting, ...]] = get_args(EngineSetting)


@dataclass(frozen=True)
class Engine:
    """The engine of a run.

    Attributes:
        kind: ``embedded``: threads and processes of this machine, no JVM; ``spark``: a Spark
            session, classic or Connect.
        reason: the reason for the choice, as a clause.
    """

    kind: Literal["embedded", "spark"]
    reason: str

    def __str__(self) -> str:
        """Return the form of logs and reports."""
        return f"{self.kind} ({self.reason})"


def choose_engine(
    setting: EngineSetting, configured_by: str, rows: int, embedded_rows: int
) -> Engine:
    """Choose the engine of a run.

    ``configured_by``: the source of Spark's configuration; empty for none. ``rows``: rows that the
    run is known to list and to decode. ``embedded_rows``: with the setting ``auto``, more rows than
    these are left to Spark.
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
    """Return True if Spark would find a Java: from ``JAVA_HOME``, else on the path."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home, "bin")) if home else None) is not None
