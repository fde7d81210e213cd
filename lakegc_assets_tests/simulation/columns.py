"""What the code under test asks of ``pyarrow.compute``, about the columns of ``rows``."""

from __future__ import annotations

import builtins
import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from operator import add as plus
from operator import eq, ge, gt, le, lt, mul, ne
from typing import Any, Final

import pyarrow as pa

from lakegc_assets_tests.simulation.arrays import Array, Scalar, Values, values_of
from lakegc_assets_tests.simulation.rows import Table

_BOOL: Final = pa.bool_()
_INT: Final = pa.int64()
_TEXT: Final = pa.string()
_TIME: Final = pa.timestamp("us", "UTC")


def _other(some: Any, size: int) -> Values:
    """The values of a column, or one for each row of another."""
    if isinstance(some, Scalar):
        return [some.value] * size
    if some is None or isinstance(some, (str, int, float)):
        return [some] * size
    return values_of(some)


def _pairs(function: Callable[[Any, Any], Any], kind: Any) -> Callable[[Any, Any], Array]:
    """A function of two columns, or of a column and a value; null where one is null."""

    def of(first: Any, second: Any) -> Array:
        size = len(first if isinstance(first, Array) else second)
        pairs = zip(_other(first, size), _other(second, size), strict=True)
        return Array([None if a is None or b is None else function(a, b) for a, b in pairs], kind)

    return of


def _each(function: Callable[[Any], Any], kind: Any) -> Callable[[Any], Array]:
    def of(column: Any) -> Array:
        return Array([None if v is None else function(v) for v in values_of(column)], kind)

    return of


equal = _pairs(eq, _BOOL)
not_equal = _pairs(ne, _BOOL)
less = _pairs(lt, _BOOL)
less_equal = _pairs(le, _BOOL)
greater = _pairs(gt, _BOOL)
greater_equal = _pairs(ge, _BOOL)
multiply = _pairs(mul, _INT)
#: Of times and what is between them.
add = _pairs(plus, _TIME)
and_ = _pairs(lambda a, b: a and b, _BOOL)
or_ = _pairs(lambda a, b: a or b, _BOOL)
and_not = _pairs(lambda a, b: a and not b, _BOOL)
invert = _each(lambda value: not value, _BOOL)
utf8_trim_whitespace = _each(str.strip, _TEXT)


def is_null(column: Any) -> Array:
    """Whether each is null."""
    return Array([value is None for value in values_of(column)], _BOOL)


def is_valid(column: Any) -> Array:
    """Whether each is not null."""
    return Array([value is not None for value in values_of(column)], _BOOL)


def fill_null(column: Any, fill: Any) -> Array:
    """A value in place of nulls."""
    return Array([fill if value is None else value for value in values_of(column)], column._kind)


def coalesce(first: Any, second: Any) -> Array:
    """One in place of what is null in the other."""
    pairs = zip(values_of(first), values_of(second), strict=True)
    return Array([b if a is None else a for a, b in pairs], first._kind)


def if_else(condition: Any, first: Any, second: Any) -> Array:
    """One or the other; null where the condition is."""
    mask = values_of(condition)
    found = zip(mask, _other(first, len(mask)), _other(second, len(mask)), strict=True)
    kind = next((c.type for c in (first, second) if isinstance(c, Array)), None)
    return Array([None if m is None else (a if m else b) for m, a, b in found], kind)


def is_in(column: Any, value_set: Any) -> Array:
    """Whether each is among some values."""
    known = set(values_of(value_set))
    return Array([value in known for value in values_of(column)], _BOOL)


def index_in(column: Any, value_set: Any) -> Array:
    """Where each is among some values; null where it is not."""
    place: dict[Any, int] = {}
    for number, value in enumerate(values_of(value_set)):
        place.setdefault(value, number)
    return Array([place.get(value) for value in values_of(column)], pa.int32())


def unique(column: Any) -> Array:
    """Each value once, in the order in which they come first."""
    return Array(list(dict.fromkeys(values_of(column))), column._kind)


def value_counts(column: Any) -> Table:
    """Each value, and how often it is there."""
    counted = Counter(values_of(column))
    return Table(["values", "counts"], [Array(list(counted)), Array(list(counted.values()))])


def _present(column: Any) -> Values:
    return [value for value in values_of(column) if value is not None]


def sum(column: Any) -> Scalar:  # noqa: A001 - as Arrow
    """Of what is not null; null where nothing is."""
    some = _present(column)
    return Scalar(builtins.sum(some) if some else None)


def min(column: Any) -> Scalar:  # noqa: A001 - as Arrow
    """Of what is not null; null where nothing is."""
    return Scalar(builtins.min(_present(column), default=None))


def max(column: Any) -> Scalar:  # noqa: A001 - as Arrow
    """Of what is not null; null where nothing is."""
    return Scalar(builtins.max(_present(column), default=None))


def any(column: Any) -> Scalar:  # noqa: A001 - as Arrow
    """Of what is not null; null where nothing is."""
    some = _present(column)
    return Scalar(builtins.any(some) if some else None)


# Text


@lru_cache(maxsize=64)
def _pattern(pattern: str) -> re.Pattern[str]:
    """One of RE2 as Python writes it."""
    pattern = re.sub(r"\\x\{([0-9a-f]+)\}", lambda found: chr(int(found[1], 16)), pattern)
    return re.compile(pattern.replace("$", r"\Z"))


def starts_with(column: Any, pattern: str) -> Array:
    """Whether each begins so."""
    return _each(lambda value: value.startswith(pattern), _BOOL)(column)


def match_substring(column: Any, pattern: str) -> Array:
    """Whether each has it."""
    return _each(lambda value: pattern in value, _BOOL)(column)


def match_substring_regex(column: Any, pattern: str) -> Array:
    """Whether each has something like it."""
    search = _pattern(pattern).search
    return _each(lambda value: search(value) is not None, _BOOL)(column)


def replace_substring_regex(column: Any, pattern: str, replacement: str) -> Array:
    """Something else in place of all that is like it."""
    replace = _pattern(pattern).sub
    return _each(lambda value: replace(replacement, value), _TEXT)(column)


def utf8_slice_codeunits(column: Any, start: int, stop: int | None = None) -> Array:
    """Some characters of each."""
    return _each(lambda value: value[start:stop], _TEXT)(column)


def binary_join_element_wise(*columns: Any) -> Array:
    """Several texts for each row, with the last one in between; null where one is null."""
    size = len(next(column for column in columns if isinstance(column, Array)))
    *parts, between = (_other(column, size) for column in columns)
    return Array(
        [
            None if None in some else separator.join(some)
            for *some, separator in zip(*parts, between, strict=True)
        ],
        _TEXT,
    )
