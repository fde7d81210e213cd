"""Schemas in Spark's form of SQL's DDL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

#: Arrow's types by Spark's names; times are in UTC.
_TYPES: Final = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "array<string>": pa.list_(pa.string()),
}
_NOT_NULL: Final = " not null"


def schema(*pieces: str | Iterable[Any]) -> pa.Schema:
    """Return the schema with the columns of all pieces.

    ``pieces``: columns in the form of DDL, ``"address string not null, size bigint"``; or fields,
        for example another schema.

    Raises:
        ValueError: a column is not a name and a type, or its type is unknown.
    """
    found: list[Any] = []
    for piece in pieces:
        found += map(_field, piece.split(",")) if isinstance(piece, str) else piece
    return pa.schema(found)


def _field(column: str) -> pa.Field:
    column = column.strip()
    name, _, kind = column.removesuffix(_NOT_NULL).partition(" ")
    if not name or kind not in _TYPES:
        raise ValueError(f"{column!r} is no column: write a name and one of {', '.join(_TYPES)}")
    return pa.field(name, _TYPES[kind], nullable=not column.endswith(_NOT_NULL))
