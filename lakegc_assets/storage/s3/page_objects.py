"""The objects in a page of an S3 listing, found in its bytes without an XML parser.

Only tags are between two texts of an object. Objects with the same number of tags must have exactly
the tags of the first such object: numpy compares eight bytes of all of them at a time. If anything
is not known in full, the whole page is left to an XML parser.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

#: The elements of an object that make its columns.
FIELDS: Final = (b"Key", b"LastModified", b"ETag", b"Size")
_BEGIN: Final = b"<Contents>"
_END: Final = b"</Contents>"
_QUOTE: Final = b"(?:&quot;|&#34;)"
#: Opening tag, name and closing tag; the quotes of an etag, which all servers write, belong to
#: them.
_ELEMENT: Final = b"(<([A-Za-z]+)>(?:(?<=<ETag>)%s)?)[^<>&]*((?:%s(?=</ETag>))?</\\2>)" % (
    _QUOTE,
    _QUOTE,
)
_ELEMENTS: Final = re.compile(_ELEMENT)
_OBJECT: Final = re.compile(b"%s(?:%s)+%s" % (_BEGIN, _ELEMENT, _END))
_WORD: Final = 8
#: Texts are printable ASCII, which an XML parser does not change.
_FIRST, _LAST = ord(" "), ord("~")
_LESS, _MORE, _AMPERSAND = b"<>&"

_Numbers = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]


class _Form(NamedTuple):
    """The common parts of objects: the tags before, between and after their texts.

    Words of eight bytes cover the tags. Each word has the index of its run of tags, its offset in
    the run, its bytes, and a mask of the bytes that belong to the run.
    """

    #: Bytes of each run of tags.
    lengths: _Numbers
    #: Bytes of each run of tags before its first ``<``.
    shifts: _Numbers
    ampersands: int
    tags: _Numbers
    offsets: _Numbers
    masks: _Words
    words: _Words


def objects_in(body: bytes) -> tuple[bytes, list[pa.Array]] | None:
    """A page with an element ``_`` in place of its objects, and the texts of their ``FIELDS``.

    None if there are no objects, or one is not known in full. In a comment, for example, they are
    no objects; then the XML parser finds no element ``_`` either.
    """
    begin, end = body.find(_BEGIN), body.rfind(_END) + len(_END)
    # Words may extend past the last tag of the objects, so other tags must follow.
    if not 0 <= begin < end <= len(body) - _WORD:
        return None
    objects = np.frombuffer(body, np.uint8)[begin:end]
    if objects.min() < _FIRST or objects.max() > _LAST:
        return None
    words: _Words = np.ndarray((len(body) - _WORD + 1,), "<u8", body, strides=(1,))
    places = np.flatnonzero(objects == _LESS) + begin
    starts = np.flatnonzero(words[places] == words[begin])
    borders = np.append(places[starts], end)
    counts = np.diff(starts, append=len(places))
    begins, ends = np.empty((2, len(FIELDS), len(starts)), np.int32)
    ampersands = 0
    for count in np.unique(counts):
        rows = np.flatnonzero(counts == count)
        found = _form_of(body[borders[rows[0]] : borders[rows[0] + 1]])
        if found is None:
            return None
        form, fields = found
        tags = places[starts[rows][:, None] + np.arange(0, count, 2)] - form.shifts
        if not _have(form, words, tags, borders[rows + 1]):
            return None
        behind = tags + form.lengths
        begins[:, rows], ends[:, rows] = behind[:, fields].T, tags[:, 1:][:, fields].T
        ampersands += form.ampersands * len(rows)
    # Any other such character is in a text, where it is damage or an entity.
    expected = ((_MORE, len(places)), (_AMPERSAND, ampersands))
    if any(np.count_nonzero(objects == one) != count for one, count in expected):
        return None
    texts = [_texts(body, *both) for both in zip(begins, ends, strict=True)]
    return b"%s<_/>%s" % (body[:begin], body[end:]), texts


def _have(form: _Form, words: _Words, tags: _Numbers, ends: _Numbers) -> bool:
    """Return whether objects have the tags of a form.

    Args:
        form: the expected form of the objects.
        words: of eight bytes of the page, one from each byte on.
        tags: for each object, the positions of its tags.
        ends: end position of each object.
    """
    behind = tags + form.lengths
    # Otherwise words of one object would be read in the next object, or past the page.
    if (behind[:, :-1] > tags[:, 1:]).any() or (behind[:, -1] != ends).any():
        return False
    return bool(((words[tags[:, form.tags] + form.offsets] & form.masks) == form.words).all())


def _form_of(sample: bytes) -> tuple[_Form, Sequence[int]] | None:
    """The form of an object, and the positions of ``FIELDS`` among its texts."""
    if not _OBJECT.fullmatch(sample):
        return None
    opening, names, closing = zip(*_ELEMENTS.findall(sample), strict=True)
    if any(names.count(name) != 1 for name in FIELDS):
        return None
    form = _form(tuple(map(bytes.__add__, (_BEGIN, *closing), (*opening, _END))))
    return form, [names.index(name) for name in FIELDS]


@lru_cache
def _form(tags: Sequence[bytes]) -> _Form:
    covered = [
        (number, at, text[at : at + _WORD])
        for number, text in enumerate(tags)
        for at in range(0, len(text), _WORD)
    ]
    numbers, offsets, words = zip(*covered, strict=True)
    masks = [b"\xff" * len(word) for word in words]
    return _Form(
        np.array([len(text) for text in tags]),
        np.array([text.index(b"<") for text in tags]),
        sum(text.count(b"&") for text in tags),
        np.array(numbers),
        np.array(offsets),
        _numbers(masks),
        _numbers(words),
    )


def _numbers(words: Sequence[bytes]) -> _Words:
    return np.array([int.from_bytes(word, "little") for word in words], np.uint64)


def _texts(body: bytes, begins: Any, ends: Any) -> pa.Array:  # noqa: ANN401 - numpy's arrays
    """The texts between pairs of positions of a page, in order."""
    # Includes the bytes between two texts, which are dropped below.
    offsets = np.stack((begins, ends), axis=1).reshape(-1)
    buffers = pa.py_buffer(offsets), pa.py_buffer(body)
    both = pa.StringArray.from_buffers(len(offsets) - 1, *buffers)
    return both.take(pa.array(np.arange(0, len(both), 2)))
