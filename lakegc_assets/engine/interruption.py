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
    """Run a job that computes outside of Python, so that an interrupt of this thread ends it.

    The job runs in its own thread, and this thread only waits for it, since Python delivers
    interrupts here. An interrupt in the middle of a call to a JVM would leave the answer of that
    call to the next call.

    Args:
        job: runs once, or not at all if an interrupt comes before its start.
        interrupt: ends the job from another thread; called until the job has ended.
    """
    context = copy_context()
    result: Future[R] = Future()

    def run() -> None:
        # False if the caller was interrupted during the start of this thread.
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
        # The first interrupt does not end a job that is only about to begin.
        while not result.cancel() and not result.done():
            interrupt()
            thread.join(_AGAIN_S)
