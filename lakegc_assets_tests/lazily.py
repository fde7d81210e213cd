"""Modules that are loaded where a test needs them, and not where tests are collected."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


class Lazy:
    """Stands for a module, which its first use loads; for mypy all that it has is anything.

    Each worker imports all test modules, and one alone runs the tests of lakeFS's own client, which
    takes two seconds to load, and whose annotations call required what its constructors do not.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # Whoever collects tests asks each object in a module whether it is a fixture, or wraps one.
        if name.startswith("_") and self._name not in sys.modules:
            raise AttributeError(name)
        return getattr(import_module(self._name), name)
