"""Compiles the loops over the bytes of ranges: without references that are counted.

numba counts the references to an array, with an atomic operation for each function that it is given
to: in loops over a few bytes each that takes three times as long as the work. What allocates
nothing needs no counts. numba has this option for what it extends itself with
(``numba.extending.register_jitable``), and its type hints do not name it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: Final[dict[str, Any]] = {"cache": True, "nogil": True, "_nrt": False}


def compiled(function: F) -> F:
    """Compile a loop that allocates nothing (no new arrays, no slice that is assigned to)."""
    return cast("F", numba.njit(**_OPTIONS)(function))


def inlined(function: F) -> F:
    """Compile a function into each place where it is called: for what is called for each byte."""
    return cast("F", numba.njit(inline="always")(function))
