"""The world in which the present interleaving runs, and its threads, locks and clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from lakegc_assets_tests.simulation import row_files
from lakegc_assets_tests.simulation.world import World

if TYPE_CHECKING:
    from typing_extensions import Self

_worlds: list[World] = []
_NEVER: Final = float("inf")


def world() -> World:
    """The world in which the present interleaving runs."""
    return _worlds[-1]


@contextmanager
def inside(one: World) -> Iterator[World]:
    """Run in a world."""
    _worlds.append(one)
    try:
        with row_files.among(one.files):
            yield one
    finally:
        _worlds.pop()


class Lock:
    """As ``threading.Lock``."""

    def __init__(self) -> None:
        self._taken = False

    def __enter__(self) -> bool:
        while self._taken:
            world().scheduler.sleep(_NEVER, lambda: not self._taken)
        self._taken = True
        return True

    def __exit__(self, *_error: object) -> None:
        self._taken = False


class Event:
    """As ``threading.Event``."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def wait(self, seconds: float) -> bool:
        world().scheduler.sleep(seconds, lambda: self._set)
        return self._set


class Thread:
    """As ``threading.Thread``: another actor of the same process."""

    def __init__(self, target: Callable[[], None], name: str, *, daemon: bool) -> None:
        assert daemon
        self._target, self._name = target, name

    def start(self) -> None:
        here = world()
        name = f"{here.process.name}, {self._name}"
        self._actor = here.scheduler.spawn(name, here.process, self._target)

    def join(self) -> None:
        if not self._actor.done:
            world().scheduler.sleep(_NEVER, lambda: self._actor.done)


class Pool:
    """As ``ThreadPoolExecutor``: one after the other, since each only asks a question."""

    def __init__(self, _threads: int) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        return [function(item) for item in items]
