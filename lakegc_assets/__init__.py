"""Garbage collection for lakeFS repositories as a Dagster asset graph on PySpark."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any, Final

__all__ = ["GarbageCollection"]

#: Epoch seconds when this process, or the process it was forked from, began to load the package.
LOADED_AT: Final = time.time()


def __getattr__(name: str) -> Any:  # noqa: ANN401 - as Python has it
    """Load the component on first use, together with Dagster; `dg` looks for it in this package."""
    if name in __all__:
        return getattr(import_module("lakegc_assets.defs.component"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Names of the package, including the names that are loaded on first use."""
    return sorted({*globals(), *__all__})
