"""Counts the requests of this process to lakeFS and to stores; each retry is one request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from threading import Lock
from typing import Final

#: Servers that receive requests.
LAKEFS: Final = "lakefs"
STORE: Final = "store"

_lock = Lock()
_sent: Counter[str] = Counter()


def add(server: str, method: str) -> None:
    """Count one request.

    Args:
        server: ``LAKEFS`` or ``STORE``.
        method: of HTTP.
    """
    add_all({f"{server} {method}": 1})


def add_all(requests: Mapping[str, int]) -> None:
    """Count requests that another process sent for this one, as ``since`` returns them."""
    with _lock:
        _sent.update(requests)


def by_kind() -> dict[str, int]:
    """Requests since this process began, by server and method with a space between them."""
    with _lock:
        return dict(_sent)


def since(before: Mapping[str, int]) -> dict[str, int]:
    """Requests since ``by_kind`` returned ``before``, by server and method."""
    return {
        kind: count - before.get(kind, 0)
        for kind, count in by_kind().items()
        if count > before.get(kind, 0)
    }
