"""The compiled loop of S3 listings: where in a page the fields of its objects are.

What it does not know in full it refuses, and leaves it to an XML parser: whatever is not a run of
elements ``Contents``, of elements with plain texts in ASCII, each of the fields once.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

#: The fields, in the order in which they are told.
FIELDS: Final = ("Key", "LastModified", "ETag", "Size")


def _bytes_of(text: str) -> Any:  # noqa: ANN401 - numba knows no other texts
    return np.frombuffer(text.encode(), np.uint8)


_OBJECT, _END = _bytes_of("<Contents>"), _bytes_of("</Contents>")
_KEY, _TIME, _ETAG, _SIZE = (_bytes_of(f"<{name}>") for name in FIELDS)
_QUOTE, _QUOTE_NUMBER = _bytes_of("&quot;"), _bytes_of("&#34;")
_LESS, _MORE, _SLASH, _AMPERSAND = (ord(character) for character in "<>/&")
_FIRST, _LAST = ord(" "), ord("~")
#: What makes a letter of ASCII a small one.
_LOWER: Final = 32
_FIRST_LETTER, _LAST_LETTER = ord("a"), ord("z")
_OF_ETAG: Final = 2


@numba.njit(inline="always")
def _has(page: Any, at: Any, text: Any) -> Any:  # noqa: ANN401 - arrays and a position
    """True if a text stands in a page at a position."""
    same = 0 <= at <= len(page) - len(text)
    i = 0
    while same and i < len(text):
        same = page[at + i] == text[i]
        i += 1
    return same


@numba.njit(inline="always")
def _opened(page: Any, at: Any) -> Any:  # noqa: ANN401 - an array and a position
    """The place of the text of an element that begins at a position; -1 if none does."""
    if at >= len(page) or page[at] != _LESS:
        return -1
    at += 1
    first = at
    while at < len(page) and _FIRST_LETTER <= page[at] | _LOWER <= _LAST_LETTER:
        at += 1
    return at + 1 if first < at < len(page) and page[at] == _MORE else -1


@numba.njit(inline="always")
def _closed(page: Any, at: Any, opened: Any, length: Any) -> Any:  # noqa: ANN401 - as above
    """The end of the closing tag at a position, of a tag with a length; -1 if it is none."""
    if at + length >= len(page) or page[at] != _LESS or page[at + 1] != _SLASH:
        return -1
    for i in range(1, length):
        if page[at + 1 + i] != page[opened + i]:
            return -1
    return at + 1 + length


@numba.njit(inline="always")
def _text_end(page: Any, at: Any) -> Any:  # noqa: ANN401 - an array and a position
    """The end of the text that begins at a position, and how many entities are in it."""
    entities = 0
    # "]]>" would be no text.
    while at < len(page) and _FIRST <= page[at] <= _LAST and page[at] not in (_LESS, _MORE):
        entities += page[at] == _AMPERSAND
        at += 1
    return at, entities


@numba.njit(inline="always")
def _without_quotes(page: Any, at: Any, end: Any) -> Any:  # noqa: ANN401 - an array and positions
    """A text without the quotes around it, and how many of these it had."""
    quotes = 0
    for quote in (_QUOTE, _QUOTE_NUMBER):
        if at + len(quote) <= end and _has(page, at, quote):
            at += len(quote)
            quotes += 1
        if at + len(quote) <= end and _has(page, end - len(quote), quote):
            end -= len(quote)
            quotes += 1
    return at, end, quotes


@numba.njit(inline="always")
def _field(page: Any, at: Any) -> Any:  # noqa: ANN401 - an array and a position
    """The number of the field whose element begins at a position; -1 of another element."""
    if _has(page, at, _KEY):
        return 0
    if _has(page, at, _TIME):
        return 1
    if _has(page, at, _ETAG):
        return _OF_ETAG
    return 3 if _has(page, at, _SIZE) else -1


@numba.njit(cache=True, nogil=True)
def find_fields(page: Any, at: Any, begins: Any, ends: Any) -> Any:  # noqa: ANN401 - arrays
    """Find the texts of the fields of objects.

    Args:
        page: the body of an answer.
        at: where its first object begins.
        begins: takes where each text begins: a row for each field, as long as there are objects.
        ends: takes where each ends.

    Returns:
        How many objects there are, and where the last one ends; -1 if one is not known in full.
    """
    row = 0
    while _has(page, at, _OBJECT):
        at += len(_OBJECT)
        begins[:, row] = -1
        while not _has(page, at, _END):
            text = _opened(page, at)
            end, entities = _text_end(page, text)
            after = _closed(page, end, at, text - at) if text >= 0 else -1
            field = _field(page, at)
            if field == _OF_ETAG:
                text, end, quotes = _without_quotes(page, text, end)
                entities -= quotes
            if after < 0 or entities or (field >= 0 and begins[field, row] >= 0):
                return -1, at
            if field >= 0:
                begins[field, row], ends[field, row] = text, end
            at = after
        if begins[:, row].min() < 0:
            return -1, at
        at += len(_END)
        row += 1
    return row, at


@numba.njit(cache=True, nogil=True)
def copy_texts(page: Any, begins: Any, offsets: Any, texts: Any) -> None:  # noqa: ANN401 - arrays
    """Copy texts of a page, one after the other.

    Args:
        page: the body of an answer.
        begins: where each text begins in it.
        offsets: where each begins in ``texts``, and where the last one ends.
        texts: takes them.
    """
    for i in range(len(begins)):
        at = begins[i] - offsets[i]
        for place in range(offsets[i], offsets[i + 1]):
            texts[place] = page[at + place]
