"""Pages of listings: prefix, delimiter and continuation, the same for all lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Paging:
    """The part of a list that a caller requests.

    Attributes:
        prefix: only keys with this prefix.
        after: only keys after this key, or after all keys below this common prefix.
        amount: maximum of items and common prefixes.
        delimiter: keys with it after the prefix become one common prefix; empty for none.
    """

    prefix: str = ""
    after: str = ""
    amount: int = 100
    delimiter: str = ""


def page(
    read: Callable[[bytes], Iterator[tuple[bytes, Item]]], wanted: Paging
) -> tuple[list[Item | str], bool]:
    """Page through items by key, as lakeFS's listings do; ``read`` returns them from a key on.

    Returns items, and common prefixes as strings; and whether more follow.
    """
    prefix, delimiter = wanted.prefix.encode(), wanted.delimiter.encode()
    after = wanted.after.encode()
    cut = after.find(delimiter, len(prefix)) if delimiter and after.startswith(prefix) else -1
    start = max(prefix, _next_key(after, below=0 <= cut == len(after) - len(delimiter)))
    found: list[Item | str] = []
    ended = False
    while not ended and len(found) <= wanted.amount:
        ended = True
        for key, item in read(start):
            if not key.startswith(prefix) or len(found) > wanted.amount:
                break
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            if cut < 0:
                found.append(item)
                continue
            common = key[: cut + len(delimiter)]
            found.append(common.decode())
            start, ended = _next_key(common, below=True), False
            break
    return found[: wanted.amount], len(found) > wanted.amount


def _next_key(key: bytes, *, below: bool) -> bytes:
    """The first key after this one, or after all keys with this prefix (byte 255 is not UTF-8)."""
    if not key:
        return key
    return key[:-1] + bytes((key[-1] + 1,)) if below else key + b"\0"
