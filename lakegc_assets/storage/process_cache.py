"""Clients and connections that are made once for a process and shared by its threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache, wraps
from os import getpid
from threading import Lock
from typing import Final, ParamSpec, TypeVar

_Asked = ParamSpec("_Asked")
_Made = TypeVar("_Made")

_MOST: Final = 16


def once_per_process(
    *variables: str,
) -> Callable[[Callable[_Asked, _Made]], Callable[_Asked, _Made]]:
    """Let a function make what it returns once for its arguments, which are hashable.

    It is made again after one of the environment variables has changed whose names start with one
    of ``variables``, and in a forked process, which must use neither the sockets nor the locks of
    its parent.
    """

    def decorate(make: Callable[_Asked, _Made]) -> Callable[_Asked, _Made]:
        locks: dict[int, Lock] = {}
        names = tuple(os.fsencode(name) for name in variables)

        made = lru_cache(maxsize=_MOST)(lambda _pid, _seen, *args, **kwargs: make(*args, **kwargs))

        @wraps(make)
        def shared(*args: _Asked.args, **kwargs: _Asked.kwargs) -> _Made:
            pid = getpid()
            # To decode all of them would take as long as to sign a request.
            seen = frozenset((k, os.environb.get(k)) for k in os.environb if k.startswith(names))
            # A thread of the parent may have held its lock at the moment of the fork.
            with locks.setdefault(pid, Lock()):
                return made(pid, seen, *args, **kwargs)  # type: ignore[arg-type]  # hashable

        return shared

    return decorate
