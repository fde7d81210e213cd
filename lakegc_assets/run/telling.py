"""Says every few seconds how far a long step is, for as long as it takes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

#: Also told here, for whoever watches this process and not the log of a run.
PROGRESS: Final = logging.getLogger("lakegc.progress")
_EVERY_S: Final = 5.0


@contextmanager
def telling(log: logging.Logger, how_far: Callable[[], str]) -> Iterator[None]:
    """Tell how far it is while something goes on; what is done soon is not told.

    Args:
        log: is told.
        how_far: what is being done, and how much of how much; called in another thread.
    """
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(_EVERY_S):
            # Nothing fails because nobody can say how far it is.
            with suppress(Exception):
                text = how_far()
                log.info("%s", text)
                PROGRESS.info("%s", text)

    thread = threading.Thread(target=tell, name="lakegc-telling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
