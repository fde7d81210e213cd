"""Ends code at any of its lines, as a kill between two statements would."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

Line = tuple[str, int]


class Killed(BaseException):
    """Nothing handles it, as nothing handles a kill."""


def _die() -> None:
    raise Killed


class Lines:
    """Watches the lines of some modules while they run, in all threads.

    Args:
        modules: files of the modules.
        die: called at the line that is armed, and at every line after it.
        state: tells, at a line that runs for the n-th time, what the world is like then.
    """

    def __init__(
        self,
        *modules: str | None,
        die: Callable[[], None] = _die,
        state: Callable[[], int] = lambda: 0,
    ) -> None:
        self._files = {str(Path(module or "").resolve()) for module in modules}
        self._die = die
        self._state = state
        self.states: dict[tuple[Line, int], int] = {}
        self.seen: dict[Line, int] = {}
        self.armed: Line | None = None
        self.time = 1
        self.dead = False

    @contextmanager
    def watch(self, armed: Line | None = None, time: int = 1) -> Iterator[None]:
        """Watch, and die when a line is about to run for the n-th time."""
        self.seen, self.armed, self.time, self.dead = {}, armed, time, False
        self.states = {}
        before = sys.gettrace()
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(None)

    def kills(self) -> list[tuple[Line, int]]:
        """Where to kill what was watched: each line for the first time, and often the middle one.

        In the order in which they ran.
        """
        middle = {line: seen // 2 for line, seen in self.seen.items() if seen > 3}
        return [(line, n) for line, n in self.states if n in {1, middle.get(line)}]

    def telling(self) -> list[tuple[Line, int]]:
        """The first and the last of those kills between two changes of the state."""
        alike: dict[int, list[tuple[Line, int]]] = {}
        for kill in self.kills():
            alike.setdefault(self.states[kill], []).append(kill)
        return [kill for kills in alike.values() for kill in dict.fromkeys((kills[0], kills[-1]))]

    def _enter(self, frame: FrameType, _event: str, _of: Any) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, _of: Any) -> Any:
        if event == "line":
            line = (frame.f_code.co_filename, frame.f_lineno)
            self.seen[line] = self.seen.get(line, 0) + 1
            self.states[line, self.seen[line]] = self._state()
            if self.dead or (line == self.armed and self.seen[line] >= self.time):
                self.dead = True
                self._die()
        return self._line
