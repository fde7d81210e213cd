"""Garbage collection for lakeFS repositories as a Dagster asset graph on PySpark."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any, Final

__all__ = ["GarbageCollection"]

#: When this process, or that which it is a fork of, began to load the package.
LOADED_AT: Final = time.time()


def __getattr__(name: str) -> Any:  # noqa: ANN401 - as Python has it
    """The component, which `dg` looks for here; loaded when it is asked for, with Dagster."""
    if name in __all__:
        return getattr(import_module("lakegc_assets.defs.component"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Names of the package, with those that are loaded on first use."""
    return sorted({*globals(), *__all__})
