"""Columns in Python lists in place of Arrow's, by the same names. Types are Arrow's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from pyarrow import ArrowInvalid, types

T = TypeVar("T")
Values = list[Any]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND: Final = timedelta(microseconds=1)


class Scalar:
    """One value."""

    __slots__ = ("type", "value")

    def __init__(self, value: Any, kind: Any = None) -> None:
        self.value, self.type = value, kind

    def as_py(self) -> Any:
        """The value itself."""
        return self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scalar) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


class Array:
    """A column, in one piece.

    Args:
        values: of it; None for what is null.
        kind: Arrow's type; None for that of the values.
    """

    __slots__ = ("_kind", "values")

    def __init__(self, values: Values, kind: Any = None) -> None:
        self.values, self._kind = values, kind

    @property
    def type(self) -> Any:
        """Arrow's type."""
        if self._kind is None:
            self._kind = pa.array(self.values).type
        return self._kind

    @property
    def chunks(self) -> list[Array]:
        """It is one."""
        return [self]

    @property
    def null_count(self) -> int:
        """How many values are null."""
        return self.values.count(None)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Scalar]:
        return iter([Scalar(value, self._kind) for value in self.values])

    def __getitem__(self, at: int) -> Scalar:
        return Scalar(self.values[at], self._kind)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:  # noqa: FBT001
        found = self.to_numpy()
        return found if dtype is None else found.astype(dtype)

    def to_pylist(self) -> Values:
        """The values."""
        return list(self.values)

    def to_numpy(self, zero_copy_only: bool = True) -> Any:  # noqa: ARG002, FBT001, FBT002
        """For what has no nulls, or is text."""
        kind = _numpy_kind(self.type)
        if kind is not object and None in self.values:
            raise ArrowInvalid("there are nulls")
        return np.array(self.values, kind)

    def combine_chunks(self) -> Array:
        """It is one piece already."""
        return self

    def cast(self, kind: Any) -> Array:
        """The same values in another type."""
        return self if kind is self._kind else Array(_cast(self.values, kind), kind)

    def filter(self, mask: Any) -> Array:
        """Those where a mask is true."""
        chosen = values_of(mask)
        return Array([v for v, m in zip(self.values, chosen, strict=True) if m], self._kind)

    def take(self, indices: Any) -> Array:
        """Those at some places; null at those that are null."""
        at, values = values_of(indices), self.values
        return Array([None if i is None else values[i] for i in at], self._kind or self.type)

    def slice(self, offset: int = 0, length: int | None = None) -> Array:
        """Some that stand together."""
        end = None if length is None else offset + length
        return Array(self.values[offset:end], self._kind)


# What makes them


def values_of(some: Any) -> Values:
    """The values of a column, whatever it is."""
    if isinstance(some, Array):
        return some.values
    if isinstance(some, (list, tuple)):
        return list(some)
    if isinstance(some, np.ndarray):
        return list(some.tolist())
    if isinstance(some, (pa.Array, pa.ChunkedArray)):
        return list(some.to_pylist())
    return list(some)


def array(values: Any, type: Any = None, mask: Any = None) -> Array:  # noqa: A002 - as Arrow
    """As ``pyarrow.array``."""
    if isinstance(values, Array):
        return values if type is None else values.cast(type)
    if isinstance(values, (list, tuple)):
        found = list(values)
        if found and isinstance(found[0], Scalar):
            found = [scalar.value for scalar in found]
        return Array(found if type is None else _cast(found, type), type)
    if isinstance(values, np.ndarray):
        kind = type or _kind_of(values.dtype)
        found = values.tolist()
        if mask is not None:
            found = [None if m else v for v, m in zip(found, mask.tolist(), strict=True)]
        return Array(found, kind)
    if type is None and isinstance(values, (pa.Array, pa.ChunkedArray)):
        type = values.type  # noqa: A001 - as Arrow
    found = values_of(values)
    return Array(found if type is None else _cast(found, type), type)


def concat_arrays(arrays: Sequence[Any]) -> Array:
    """As ``pyarrow.concat_arrays``."""
    some = [one if isinstance(one, Array) else array(one) for one in arrays]
    kind = next((one._kind for one in some if one._kind is not None), None)
    return Array([value for one in some for value in one.values], kind)


def scalar(value: Any, type: Any = None) -> Scalar:  # noqa: A002 - as Arrow
    """As ``pyarrow.scalar``."""
    return Scalar(value, type)


def repeat(value: Any, size: int) -> Array:
    """As ``pyarrow.repeat``."""
    one = value if isinstance(value, Scalar) else Scalar(value)
    return Array([one.value] * size, one.type or _KINDS.get(type(one.value)))


def nulls(size: int, type: Any = None) -> Array:  # noqa: A002 - as Arrow
    """As ``pyarrow.nulls``."""
    return Array([None] * size, type)


# Types


def _once(asked: Callable[[Any], T]) -> Callable[[Any], T]:
    """Ask for each type once; it takes longer to compare types than to look which one it is."""
    known: dict[int, tuple[Any, T]] = {}

    def answer(kind: Any) -> T:
        found = known.get(id(kind))
        if found is None:
            found = known[id(kind)] = (kind, asked(kind))
        return found[1]

    return answer


@_once
def _numpy_kind(kind: Any) -> Any:
    return np.dtype(kind.to_pandas_dtype()).type if _family(kind) != "text" else object


@lru_cache(maxsize=64)
def _kind_of(dtype: Any) -> Any:
    return pa.from_numpy_dtype(dtype)


@_once
def _family(kind: Any) -> str:
    if types.is_timestamp(kind):
        return "time"
    if types.is_integer(kind):
        return "integer"
    if types.is_list(kind):
        return "list"
    return "text" if types.is_string(kind) or types.is_large_string(kind) else str(kind)


_KINDS: Final[dict[type, Any]] = {str: pa.string(), bool: pa.bool_(), int: pa.int64()}
#: What values of a type are in Python.
_PLAIN: Final[dict[str, type]] = {"time": datetime, "integer": int, "text": str, "bool": bool}


def _cast(values: Values, kind: Any) -> Values:
    """Values as they are in another type."""
    for first in values:
        if first is not None:
            break
    else:
        return values
    family = _family(kind)
    plain = _PLAIN.get(family)
    if type(first) is plain:
        return values
    made: Callable[[Any], Any]
    if family == "list":
        made = list
    elif family == "time" and isinstance(first, int):
        made = _time
    elif family == "integer" and isinstance(first, datetime):
        made = _microseconds
    elif plain in {int, bool} and isinstance(first, (bool, np.bool_, np.integer)):
        made = plain
    elif plain is None or isinstance(first, plain):
        return values
    else:
        raise ArrowInvalid(f"{first!r} is no {kind}")
    return [None if value is None else made(value) for value in values]


def _time(microseconds: int) -> datetime:
    return _EPOCH + microseconds * _MICROSECOND


def _microseconds(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND
