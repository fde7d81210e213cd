"""PySpark's functions for relations, taken from the engine of their data frames.

A relation is a pure function from data frames to a data frame, written once in PySpark's DataFrame
API. Classic Spark, Spark Connect and SQLFrame each have their own columns. So ``F`` and ``Window``
delegate to the modules of the engine of the relation's frames.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import reduce, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

__all__ = ["F", "RelationFrame", "Window", "relation", "union_all"]

P = ParamSpec("P")

#: Modules of the functions and of the class ``Window``, by the packages of an engine's frames.
_MODULES: Final = {
    "lakegc_assets.engine.database": ("sqlframe.duckdb.functions", "sqlframe.duckdb.window"),
    "pyspark.sql.connect.": ("pyspark.sql.connect.functions", "pyspark.sql.connect.window"),
    "pyspark.sql.": ("pyspark.sql.functions", "pyspark.sql.window"),
}

_current: ContextVar[tuple[str, str]] = ContextVar("functions")


class RelationFrame(ABC):
    """A frame of an engine without PySpark's functions, which applies relations itself."""

    @abstractmethod
    def apply(self, rule: Callable[..., Any], args: Sequence[Any], how: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a frame
        """Return the result of a relation as another frame of this engine.

        Args:
            rule: the relation, a function with a module and a name.
            args: its arguments, one of which is this frame.
            how: its keyword arguments.
        """


def relation(rule: Callable[P, DataFrame]) -> Callable[P, DataFrame]:
    """Decorate a relation so that ``F`` and ``Window`` belong to the engine of its first frame.

    Args:
        rule: the relation; at least one of its arguments is a data frame.
    """

    @wraps(rule)
    def on_engine(*args: P.args, **kwargs: P.kwargs) -> DataFrame:
        for one in args:
            if isinstance(one, RelationFrame):
                result: DataFrame = one.apply(rule, args, kwargs)
                return result
        # Subclasses of frames are in the packages of their engines, too.
        frame: Any
        frame, modules = next((one, found) for one in args if (found := _modules_of(one)))
        token = _current.set(modules)
        try:
            if modules == _MODULES["lakegc_assets.engine.database"]:
                planned: DataFrame = frame.session.apply(rule, *args, **kwargs)
                return planned
            return rule(*args, **kwargs)
        finally:
            _current.reset(token)

    return on_engine


@relation
def union_all(frame: DataFrame, *others: DataFrame) -> DataFrame:
    """Return the union of frames with equal columns, with all their rows."""
    return reduce(lambda some, more: some.unionByName(more), others, frame)


def _modules_of(value: object) -> tuple[str, str] | None:
    package = type(value).__module__
    return next((names for start, names in _MODULES.items() if package.startswith(start)), None)


class _OfEngine:
    """Looks up names in a module of the current relation's engine."""

    def __init__(self, which: int, within: str = "") -> None:
        self._which, self._within = which, within

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the engine has by this name
        modules = _current.get(None)
        if modules is None:
            raise AttributeError(f"{name} was looked up outside of a relation")
        found: Any = import_module(modules[self._which])
        return getattr(getattr(found, self._within) if self._within else found, name)


if not TYPE_CHECKING:
    F = _OfEngine(0)
    Window = _OfEngine(1, "Window")
