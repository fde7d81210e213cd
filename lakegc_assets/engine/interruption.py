"""Waits for a job in a way that an interrupt ends it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import Final, TypeVar

R = TypeVar("R")

_AGAIN_S: Final = 0.5


def interruptible(job: Callable[[], R], interrupt: Callable[[], object]) -> R:
    """What a job gives that is computed outside of Python, where no interrupt arrives.

    It runs in a thread of its own, and this thread, which gets the interrupts, only waits. One that
    came into the middle of a call to a JVM would leave the answer of that call to the next one.

    Args:
        job: is run once.
        interrupt: ends it from another thread; called until it has ended.
    """
    context = copy_context()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(context.run, job)
        try:
            return waiting.result()
        finally:
            # What is only about to begin is not ended by the first one.
            while not waiting.done():
                interrupt()
                wait([waiting], _AGAIN_S)
