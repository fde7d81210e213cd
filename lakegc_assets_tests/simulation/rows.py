"""Rows in Python lists in place of Arrow, whose calls take much longer than a few rows are worth.

It has what the code under test asks of ``pyarrow``, by the same names; what it lacks is an error.
Chunks, batches and buffers are not told from arrays, tables and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from pyarrow import (
    ArrowException,
    ArrowInvalid,
    bool_,
    int32,
    int64,
    large_string,
    list_,
    string,
    timestamp,
    uint64,
)

from lakegc_assets_tests.simulation.arrays import (
    Array,
    Scalar,
    Values,
    array,
    concat_arrays,
    nulls,
    repeat,
    scalar,
    values_of,
)

__all__ = [
    "Array",
    "ArrowException",
    "ArrowInvalid",
    "BufferOutputStream",
    "BufferReader",
    "ChunkedArray",
    "DictionaryArray",
    "Field",
    "RecordBatch",
    "Scalar",
    "Schema",
    "Table",
    "array",
    "bool_",
    "chunked_array",
    "concat_arrays",
    "concat_tables",
    "field",
    "int32",
    "int64",
    "large_string",
    "list_",
    "nulls",
    "repeat",
    "scalar",
    "schema",
    "schema_of",
    "string",
    "table",
    "table_of",
    "timestamp",
    "uint64",
    "values_of",
]

ChunkedArray = Array


class Field(NamedTuple):
    """As Arrow's field."""

    name: str
    type: Any
    nullable: bool = True


class Schema:
    """As Arrow's schema."""

    def __init__(self, fields: Iterable[Field], metadata: dict[bytes, bytes] | None = None) -> None:
        self.fields, self.metadata = list(fields), metadata
        self.names = [field.name for field in self.fields]
        self.types = [field.type for field in self.fields]
        self.required = [number for number, one in enumerate(self.fields) if not one.nullable]
        self._empty: Table | None = None

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def field(self, which: int | str) -> Field:
        """One of the fields."""
        return self.fields[self.names.index(which) if isinstance(which, str) else which]

    def equals(self, other: Schema) -> bool:
        """Whether names and types are the same."""
        return self is other or (self.names == other.names and self.types == other.types)

    def empty_table(self) -> Table:
        """One without rows: always the same."""
        if self._empty is None:
            self._empty = Table(self.names, [Array([], kind) for kind in self.types])
        return self._empty


class Table:
    """Columns by name; also what Arrow calls a batch.

    Args:
        names: of the columns.
        columns: of one length.
    """

    __slots__ = ("column_names", "columns", "metadata")

    def __init__(
        self,
        names: Sequence[str],
        columns: Sequence[Array],
        metadata: dict[bytes, bytes] | None = None,
    ) -> None:
        self.column_names = names if type(names) is list else list(names)
        self.columns, self.metadata = columns, metadata

    @classmethod
    def from_arrays(
        cls, arrays: Sequence[Any], names: Sequence[str] = (), schema: Any = None
    ) -> Table:
        """Of columns in the order of their names."""
        return table(list(arrays), schema=schema, names=names)

    @classmethod
    def from_pylist(cls, rows: Sequence[dict[str, Any]], schema: Any) -> Table:
        """Of rows."""
        of = schema_of(schema)
        return cls(of.names, [array([r.get(f.name) for r in rows], f.type) for f in of])

    @classmethod
    def from_batches(cls, batches: Sequence[Any]) -> Table:
        """Of all rows of some tables."""
        return concat_tables(batches)

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(self.columns[0].values) if self.columns else 0

    @property
    def num_columns(self) -> int:
        """How many columns there are."""
        return len(self.columns)

    @property
    def schema(self) -> Schema:
        """Names and types."""
        pairs = zip(self.column_names, self.columns, strict=True)
        return Schema((Field(name, column.type) for name, column in pairs), self.metadata)

    def replace_schema_metadata(self, said: dict[str, str]) -> Table:
        """The same rows, of which something else is said."""
        metadata = {key.encode(): value.encode() for key, value in said.items()}
        return Table(self.column_names, self.columns, metadata)

    def __getitem__(self, which: int | str) -> Array:
        try:
            return self.columns[self.column_names.index(which)]
        except ValueError:
            if isinstance(which, int):
                return self.columns[which]
            raise KeyError(which) from None

    def column(self, which: int | str) -> Array:
        """One column."""
        return self[which]

    def to_batches(self) -> list[Table]:
        """It is one."""
        return [self]

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows."""
        names = self.column_names
        columns = [column.values for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _each(self, change: Callable[[Array], Array]) -> Table:
        return Table(self.column_names, [change(column) for column in self.columns])

    def select(self, names: Sequence[str | int]) -> Table:
        """Some columns."""
        chosen = [self.column_names[n] if isinstance(n, int) else n for n in names]
        return Table(chosen, [self[name] for name in chosen])

    def drop_columns(self, names: Sequence[str]) -> Table:
        """All columns but some."""
        return self.select([name for name in self.column_names if name not in names])

    def rename_columns(self, names: Sequence[str]) -> Table:
        """The same columns with other names."""
        return Table(list(names), self.columns)

    def append_column(self, field: Any, column: Any) -> Table:
        """One column more."""
        name = field if isinstance(field, str) else field.name
        return Table([*self.column_names, name], [*self.columns, array(column)])

    def set_column(self, at: int, field: Any, column: Any) -> Table:
        """Another column in the place of one."""
        names, columns = list(self.column_names), list(self.columns)
        names[at] = field if isinstance(field, str) else field.name
        columns[at] = array(column)
        return Table(names, columns)

    def unify_dictionaries(self) -> Table:
        """It has none."""
        return self

    def combine_chunks(self) -> Table:
        """It is one piece already."""
        return self

    def filter(self, mask: Any) -> Table:
        """Rows where a mask is true."""
        chosen = values_of(mask)
        at = [place for place, chose in enumerate(chosen) if chose]
        return self if len(at) == len(chosen) else self._at(at)

    def take(self, indices: Any) -> Table:
        """Rows at some places."""
        return self._at(values_of(indices))

    def _at(self, places: Values) -> Table:
        return self._each(lambda c: Array([c.values[p] for p in places], c._kind))

    def slice(self, offset: int = 0, length: int | None = None) -> Table:
        """Some rows that stand together."""
        return self._each(lambda column: column.slice(offset, length))

    def sort_by(self, sorting: str | Sequence[tuple[str, str]]) -> Table:
        """In order; what is null comes last."""
        keys = [(sorting, "ascending")] if isinstance(sorting, str) else sorting
        places = list(range(self.num_rows))
        if len(places) > 1:
            for name, order in reversed(keys):
                values, down = self[name].values, order == "descending"
                some = [p for p in places if values[p] is not None]
                nulls = [p for p in places if values[p] is None]
                places = sorted(some, key=values.__getitem__, reverse=down) + nulls
        return self._at(places)

    def validate(self, *, full: bool) -> None:
        """What is written here is never damaged."""

    def cast(self, schema: Any) -> Table:
        """The same rows in other types.

        Raises:
            ValueError: there is a null where none may be.
        """
        of = schema_of(schema)
        if of.names != self.column_names:
            raise ValueError(f"{self.column_names} are not {of.names}")
        for number in of.required:
            if None in self.columns[number].values:
                raise ValueError(f"{of.names[number]} has nulls")
        columns = zip(self.columns, of.types, strict=True)
        return Table(of.names, [c if c._kind is kind else c.cast(kind) for c, kind in columns])

    def group_by(self, keys: str | Sequence[str], *, use_threads: bool = True) -> Grouped:
        """Rows by what some columns have."""
        del use_threads
        return Grouped(self, [keys] if isinstance(keys, str) else list(keys))

    def join(self, right: Any, keys: str | Sequence[str], join_type: str) -> Table:
        """Rows with those of another table that have the same keys."""
        return _joined(self, table_of(right), [keys] if isinstance(keys, str) else keys, join_type)


RecordBatch = Table


class DictionaryArray:
    """Values by their numbers, which are not told from the values themselves."""

    @staticmethod
    def from_arrays(indices: Any, dictionary: Any) -> Array:
        """As ``pyarrow.DictionaryArray.from_arrays``."""
        return array(dictionary).take(indices)


class Grouped:
    """Rows by the keys that they share; in the order in which these come first."""

    def __init__(self, rows: Table, keys: Sequence[str]) -> None:
        self._rows, self._keys = rows, keys

    def aggregate(self, asked: Sequence[tuple[str, str]]) -> Table:
        """One row for each key: the key, and what is asked of some columns."""
        groups: dict[tuple[Any, ...], list[int]] = {}
        keys = (self._rows[key].values for key in self._keys)
        for place, key in enumerate(zip(*keys, strict=True)):
            groups.setdefault(key, []).append(place)
        names = list(self._keys)
        columns = [
            Array([key[n] for key in groups], self._rows[name].type) for n, name in enumerate(names)
        ]
        for name, function in asked:
            column = self._rows[name]
            found = [
                _AGGREGATES[function]([v for p in at if (v := column.values[p]) is not None])
                for at in groups.values()
            ]
            names.append(f"{name}_{function}")
            columns.append(Array(found, int64() if function == "count" else column.type))
        return Table(names, columns)


_AGGREGATES: Final[dict[str, Callable[[Values], Any]]] = {
    "count": len,
    "sum": lambda values: sum(values) if values else None,
    "min": lambda values: min(values, default=None),
    "max": lambda values: max(values, default=None),
}


def _joined(left: Table, right: Table, keys: Sequence[str], how: str) -> Table:
    mine = list(zip(*(left[key].values for key in keys), strict=True))
    theirs: dict[tuple[Any, ...], list[int]] = {}
    for place, key in enumerate(zip(*(right[key].values for key in keys), strict=True)):
        if None not in key:
            theirs.setdefault(key, []).append(place)
    if how in {"left semi", "left anti"}:
        wanted = how == "left semi"
        return left._at([place for place, key in enumerate(mine) if (key in theirs) is wanted])
    if how not in {"left outer", "inner"}:
        raise NotImplementedError(how)
    alone: list[Any] = [None] if how == "left outer" else []
    pairs = [(place, at) for place, key in enumerate(mine) for at in theirs.get(key, alone)]
    found = left._at([place for place, _ in pairs])
    for name in right.column_names:
        if name not in keys:
            found = found.append_column(name, right[name].take([at for _, at in pairs]))
    return found


# What makes them


def chunked_array(arrays: Sequence[Any], type: Any = None) -> Array:  # noqa: A002 - as Arrow
    """As ``pyarrow.chunked_array``."""
    return concat_arrays([*arrays, Array([], type)] if type is not None else arrays)


def field(name: str, type: Any, nullable: bool = True) -> Field:  # noqa: A002, FBT001, FBT002
    """As ``pyarrow.field``."""
    return Field(name, type, nullable)


def schema(fields: Iterable[Any]) -> Schema:
    """As ``pyarrow.schema``."""
    return Schema(one if isinstance(one, Field) else Field(*one) for one in fields)


def table(data: Any, names: Sequence[str] = (), schema: Any = None) -> Table:
    """As ``pyarrow.table``."""
    of = None if schema is None else schema_of(schema)
    if isinstance(data, dict):
        names, data = list(data), list(data.values())
        if of is not None and of.names != names:
            data = [data[names.index(name)] for name in of.names]
    if of is None:
        return Table(list(names), [array(column) for column in data])
    return Table(of.names, [array(c, t) for c, t in zip(data, of.types, strict=True)])


def concat_tables(tables: Iterable[Any]) -> Table:
    """As ``pyarrow.concat_tables``.

    Raises:
        ArrowInvalid: they have other columns.
    """
    some = [table_of(one) for one in tables]
    if len(some) == 1:
        return some[0]
    names = some[0].column_names
    if any(one.column_names != names for one in some):
        raise ArrowInvalid(f"not all have the columns {names}")
    filled = [one for one in some if one.columns and one.columns[0].values]
    if len(filled) <= 1:
        return filled[0] if filled else some[0]
    return Table(
        names, [concat_arrays([one.columns[n] for one in filled]) for n in range(len(names))]
    )


def table_of(some: Any) -> Table:
    """A table, also of one that is Arrow's."""
    if isinstance(some, Table):
        return some
    return Table(some.schema.names, [array(column) for column in some.columns])


_known: Final[dict[int, tuple[Any, Schema]]] = {}


def schema_of(some: Any) -> Schema:
    """A schema, also of one that is Arrow's."""
    if isinstance(some, Schema):
        return some
    if id(some) not in _known:
        _known[id(some)] = (some, Schema(Field(f.name, f.type, f.nullable) for f in some))
    return _known[id(some)][1]


class BufferOutputStream:
    """Bytes that are written."""

    def __init__(self) -> None:
        self._data = b""

    def write(self, data: bytes) -> None:
        """Take some more."""
        self._data += data

    def getvalue(self) -> BufferOutputStream:
        """What was written."""
        return self

    def to_pybytes(self) -> bytes:
        """The bytes."""
        return self._data


class BufferReader:
    """Bytes that are read."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self) -> bytes:
        """All of them."""
        return self._data
