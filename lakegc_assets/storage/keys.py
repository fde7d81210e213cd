"""Keys that a store can hold, and keys that a URL can carry unchanged."""

from __future__ import annotations

import re
from typing import Final

_MAX_BYTES: Final = 1024
# What proxies and servers rewrite in URLs.
_DOTS: Final = re.compile(r"(^|/)\.{1,2}(/|$)")
_EMPTY: Final = re.compile(r"^/|//")


def key_problem(full_key: str) -> str | None:
    """The reason that no store can hold a key, or None."""
    try:
        size = len(full_key.encode())
    except UnicodeEncodeError:
        return "it is not UTF-8"
    if not full_key:
        return "it is empty"
    return f"it has {size} bytes, {_MAX_BYTES} are allowed" if size > _MAX_BYTES else None


def url_problem(full_key: str) -> str | None:
    """The reason that a key cannot be sent in a URL, or None."""
    if problem := key_problem(full_key):
        return problem
    if _DOTS.search(full_key):
        return "it has a '.' or '..' path component, which servers and proxies rewrite in URLs"
    return None


def path_problem(full_key: str) -> str | None:
    """The reason that a key cannot be sent as a path with plain slashes, or None.

    A ``//`` that becomes a ``/`` on its way names another object.
    """
    if problem := url_problem(full_key):
        return problem
    if _EMPTY.search(full_key):
        return "it has an empty path component, which servers and proxies rewrite in URLs"
    return None
