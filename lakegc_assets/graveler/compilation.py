"""Compile the loops over the bytes of ranges without reference counting.

numba counts the references to an array: each function that receives the array costs an atomic
operation. In loops over a few bytes this takes three times as long as the work itself. A function
that allocates nothing needs no counts. numba has this option for its own extensions
(``numba.extending.register_jitable``), but its type hints do not name it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: Final[dict[str, Any]] = {"cache": True, "nogil": True, "_nrt": False}


def compiled(function: F) -> F:
    """Compile a loop that allocates nothing: no new arrays, and no assignment to a slice."""
    return cast("F", numba.njit(**_OPTIONS)(function))


def inlined(function: F) -> F:
    """Compile a function into each of its callers, for functions that are called for each byte."""
    return cast("F", numba.njit(inline="always")(function))
