"""Counts the requests that this process sends to lakeFS and to stores, each try as one."""

from __future__ import annotations

from threading import Lock

_lock = Lock()
_sent = [0]


def add(requests: int = 1) -> None:
    """Count requests that are sent, or that another process has sent for this one."""
    with _lock:
        _sent[0] += requests


def sent() -> int:
    """How many were counted since this process began."""
    return _sent[0]
