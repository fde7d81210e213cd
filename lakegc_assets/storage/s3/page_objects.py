"""The objects in a page of an S3 listing, found in its bytes without an XML parser.

Between two texts of an object stand tags only. Objects with as many tags must have the very tags of
the first one of these: numpy compares eight bytes of all of them at a time. What is not known in
full is refused, and the whole page left to an XML parser.
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
#: Opening tag, name and closing tag; the quotes of an etag, which all servers write, are theirs.
_ELEMENT: Final = b"(<([A-Za-z]+)>(?:(?<=<ETag>)%s)?)[^<>&]*((?:%s(?=</ETag>))?</\\2>)" % (
    _QUOTE,
    _QUOTE,
)
_ELEMENTS: Final = re.compile(_ELEMENT)
_OBJECT: Final = re.compile(b"%s(?:%s)+%s" % (_BEGIN, _ELEMENT, _END))
_WORD: Final = 8
#: Texts are of printable ASCII, which an XML parser would not change.
_FIRST, _LAST = ord(" "), ord("~")
_LESS, _MORE, _AMPERSAND = b"<>&"

_Numbers = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]


class _Form(NamedTuple):
    """The parts that objects have in common: the tags before, between and behind their texts.

    Words of eight bytes cover the tags; of each, which tags it is of, where it is in them, and its
    bytes, as far as they are the tags', which the mask says.
    """

    #: Of the tags, each.
    lengths: _Numbers
    #: Bytes of them that come before their first ``<``.
    shifts: _Numbers
    ampersands: int
    tags: _Numbers
    offsets: _Numbers
    masks: _Words
    words: _Words


def objects_in(body: bytes) -> tuple[bytes, list[pa.Array]] | None:
    """The page with an element ``_`` in place of its objects, and the texts of their ``FIELDS``.

    None where there are none, or one is not known in full. In a comment, say, they are no objects:
    then the element is none, too.
    """
    begin, end = body.find(_BEGIN), body.rfind(_END) + len(_END)
    # Words may reach beyond the last tag, where the page ends with others.
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
    # All that the tags do not have is in a text, where it would be damage or an entity.
    expected = ((_MORE, len(places)), (_AMPERSAND, ampersands))
    if any(np.count_nonzero(objects == one) != count for one, count in expected):
        return None
    texts = [_texts(body, *both) for both in zip(begins, ends, strict=True)]
    return b"%s<_/>%s" % (body[:begin], body[end:]), texts


def _have(form: _Form, words: _Words, tags: _Numbers, ends: _Numbers) -> bool:
    """Return whether objects have the tags of a form.

    Args:
        form: theirs, if they have it.
        words: of the page, one from each of its bytes on.
        tags: for each object, where its tags are.
        ends: of the objects.
    """
    behind = tags + form.lengths
    # Else words of one would be looked for in the next object, or beyond the page.
    if (behind[:, :-1] > tags[:, 1:]).any() or (behind[:, -1] != ends).any():
        return False
    return bool(((words[tags[:, form.tags] + form.offsets] & form.masks) == form.words).all())


def _form_of(sample: bytes) -> tuple[_Form, Sequence[int]] | None:
    """The form of an object, and which of its texts are those of ``FIELDS``."""
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
    """The texts that begin and end at some positions of a page, in order."""
    # With what stands between two of them.
    offsets = np.stack((begins, ends), axis=1).reshape(-1)
    buffers = pa.py_buffer(offsets), pa.py_buffer(body)
    both = pa.StringArray.from_buffers(len(offsets) - 1, *buffers)
    return both.take(pa.array(np.arange(0, len(both), 2)))
