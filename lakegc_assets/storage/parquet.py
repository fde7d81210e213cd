"""The rows of one Parquet file as bytes, and back: all that a stage writes for itself goes here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

#: Types that mostly do not compress, as hashes and sizes.
_NUMBERS: Final = frozenset({pa.int32(), pa.int64(), pa.uint64(), pa.bool_()})
#: Rows of a column by which is seen whether its values repeat.
_SEEN: Final = 1000
#: Bytes from which threads earn what it takes to hand columns to them.
_WORTH_THREADS: Final = 1 << 20


def encode(rows: pa.Table, compression: str = "zstd", *, plain: bool = False) -> bytes:
    """The bytes of a Parquet file, whose pages have checksums.

    ``plain`` writes numbers as they are, for columns that do not compress.
    """
    # A dictionary of addresses, hashes or etags takes most of the time, and is given up.
    repeated = [name for name in rows.column_names if _repeats(rows[name])]
    options: dict[str, Any] = {"compression": compression, "use_dictionary": repeated}
    if plain:
        texts = [field.name for field in rows.schema if field.type not in _NUMBERS]
        options["compression"] = dict.fromkeys(texts, compression)
        options["use_dictionary"] = [name for name in repeated if name in texts]
        options["write_statistics"] = texts
    elif compression == "zstd":
        options["compression_level"] = 1
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, write_page_checksum=True, **options)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _repeats(column: pa.ChunkedArray) -> bool:
    """True if values of a column repeat, by its first ones."""
    if pa.types.is_dictionary(column.type) or pa.types.is_nested(column.type):
        return True
    some = column.slice(0, _SEEN)
    return 2 * pc.count_distinct(some).as_py() <= len(some)  # type: ignore[no-any-return]


def encode_values(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> bytes:
    """The bytes of a Parquet file with a few rows of plain values, in the order of the columns."""
    columns = [pa.array([row[n] for row in rows], kind) for n, kind in enumerate(schema.types)]
    return encode(pa.Table.from_arrays(columns, schema=schema), "snappy")


def decode_values(data: bytes, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The few rows of a Parquet file as plain values. Raises as ``decode``."""
    rows: list[dict[str, Any]] = decode(data, columns).to_pylist()
    return rows


def decode(data: bytes, columns: Sequence[str] | None = None, *, verify: bool = False) -> pa.Table:
    """The rows of a Parquet file; ``columns`` are the names of those that are read, None for all.

    ``verify`` compares the checksums of pages and the number of rows, for files of which no
    manifest has a digest. Raises ArrowException, OSError and ValueError: it is damaged.
    """
    # Of a small file ``read_table``, which plans a scan of a dataset, takes several times as long.
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=verify)
    names = file.schema_arrow.names if columns is None else list(columns)
    if any(file.schema_arrow.get_field_index(name) < 0 for name in names):
        raise ValueError(f"it has the columns {file.schema_arrow.names}, not each of {names} once")
    rows = file.read(names, use_threads=len(data) >= _WORTH_THREADS).select(names)
    if verify:
        rows.validate(full=True)
        if rows.num_rows != file.metadata.num_rows:
            raise ValueError("it lacks rows")
    return rows
