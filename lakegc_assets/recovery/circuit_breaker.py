"""Judges when a task that copies objects stops: when no other of them fares better."""

from __future__ import annotations

from threading import Lock
from typing import Final

from lakegc_assets.errors import ConfigurationError, LakegcError, RefusedError
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    StoreFullError,
    StoreThrottledError,
    StoreUnavailableError,
    error_class,
)

#: What no other object gets past either.
HOPELESS: Final[tuple[type[LakegcError], ...]] = (
    AccessDeniedError,
    StoreFullError,
    StoreThrottledError,
    StoreUnavailableError,
    ConfigurationError,
    RefusedError,
)
#: One object may be kept from us alone; so many in a row are not.
_IN_A_ROW: Final = 16


def hopeless_kind(error: LakegcError) -> type[LakegcError]:
    """The class in ``HOPELESS`` of an error: one that any process can unpickle."""
    return next(kind for kind in HOPELESS if isinstance(error, kind))


def hopeless_code(code: str) -> bool:
    """True for a store's code, or the name of an error of ours, that stops every object."""
    named = any(code == kind.__name__.removesuffix("Error") for kind in HOPELESS)
    return named or error_class(code) in HOPELESS


class Streak:
    """Objects in a row that met what no other gets past either; threads may share it."""

    def __init__(self) -> None:
        self._met = 0
        self._counting = Lock()

    def met(self, objects: int = 1) -> bool:
        """Count objects that met it; whether they are so many that it is not theirs alone."""
        with self._counting:
            self._met += objects
            return self._met >= _IN_A_ROW

    def end(self) -> None:
        """Begin anew: some object did not meet it."""
        with self._counting:
            self._met = 0
