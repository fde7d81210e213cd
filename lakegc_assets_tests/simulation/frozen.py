"""Makes frozen dataclasses in less time; they stay as frozen as they are.

What ``dataclasses`` generates asks ``object.__setattr__`` for each field.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any, TypeVar

T = TypeVar("T")


def frozen() -> Iterator[tuple[object, str, object]]:
    """What is replaced where, in all modules under test."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("lakegc_assets."):
            continue
        for constant, value in list(vars(module).items()):
            if value is dataclasses.replace:
                yield module, constant, changed
            elif value is dataclasses:
                yield module, constant, SimpleNamespace(**vars(dataclasses) | {"replace": changed})
            elif isinstance(value, type) and value.__module__ == name and _is_frozen(value):
                yield value, "__init__", init_of(value)


def _is_frozen(some: type) -> bool:
    told = vars(some).get("__dataclass_params__")
    return told is not None and bool(told.frozen)


@cache
def init_of(some: type) -> Callable[..., None]:
    """As the ``__init__`` that ``dataclasses`` generates."""
    known: dict[str, Any] = {"missing": dataclasses.MISSING}
    asked, lines = ["self"], ["values = self.__dict__"]
    for field in dataclasses.fields(some):
        name, value = field.name, field.name
        if field.default_factory is not dataclasses.MISSING:
            known[f"make_{name}"] = field.default_factory
            asked.append(f"{name}=missing")
            value = f"make_{name}() if {name} is missing else {name}"
        elif field.default is not dataclasses.MISSING:
            known[f"usual_{name}"] = field.default
            asked.append(f"{name}=usual_{name}")
        else:
            asked.append(name)
        lines.append(f"values['{name}'] = {value}")
    if hasattr(some, "__post_init__"):
        lines.append("self.__post_init__()")
    body = "".join(f"\n    {line}" for line in lines)
    exec(f"def __init__({', '.join(asked)}):{body}", known)
    made: Callable[..., None] = known["__init__"]
    return made


def changed(one: T, /, **changes: Any) -> T:
    """As ``dataclasses.replace``.

    Raises:
        TypeError: it has no such field.
    """
    kind: Any = type(one)
    names = kind.__dataclass_fields__
    if not _is_frozen(kind) or not changes.keys() <= names.keys():
        return dataclasses.replace(one, **changes)  # type: ignore[type-var]
    made: T = object.__new__(kind)
    values, mine = made.__dict__, one.__dict__
    for name in names:
        values[name] = changes[name] if name in changes else mine[name]
    if hasattr(made, "__post_init__"):
        made.__post_init__()
    return made
