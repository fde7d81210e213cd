"""Waits for a job so that an interrupt cancels it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from threading import Thread
from typing import Final, TypeVar

R = TypeVar("R")

_AGAIN_S: Final = 0.5


def interruptible(job: Callable[[], R], interrupt: Callable[[], object]) -> R:
    """Run a job that computes outside of Python, where no interrupt would arrive.

    It runs in a thread of its own, and this thread, which gets the interrupts, only waits. One that
    came into the middle of a call to a JVM would leave the answer of that call to the next one.

    Args:
        job: is run once, or not at all where an interrupt came before it.
        interrupt: ends it from another thread; called until it has ended.
    """
    context = copy_context()
    result: Future[R] = Future()

    def run() -> None:
        # False where the caller was interrupted while this thread was being started.
        if not result.set_running_or_notify_cancel():
            return
        try:
            result.set_result(context.run(job))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            result.set_exception(error)

    thread = Thread(target=run, name="lakegc-job", daemon=True)
    try:
        thread.start()
        return result.result()
    finally:
        # What is only about to begin is not ended by the first interrupt.
        while not result.cancel() and not result.done():
            interrupt()
            thread.join(_AGAIN_S)
