"""Encode and decode the rows of one Parquet file; every file that a stage writes is made here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

#: Types that mostly do not compress, such as hashes and sizes.
_NUMBERS: Final = frozenset({pa.int32(), pa.int64(), pa.uint64(), pa.bool_()})
#: Rows of a column that show whether its values repeat.
_SEEN: Final = 1000
#: Bytes from which threads save more time than their start costs.
_WORTH_THREADS: Final = 1 << 20


def encode(rows: pa.Table, compression: str = "zstd", *, plain: bool = False) -> bytes:
    """Encode rows as a Parquet file whose pages have checksums.

    ``plain`` writes numbers without compression, dictionary and statistics.
    """
    # A dictionary of addresses, hashes or etags would take most of the time, and be dropped.
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
    """Return whether the first values of a column repeat."""
    if pa.types.is_dictionary(column.type) or pa.types.is_nested(column.type):
        return True
    some = column.slice(0, _SEEN)
    return 2 * pc.count_distinct(some).as_py() <= len(some)  # type: ignore[no-any-return]


def encode_values(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> bytes:
    """Encode a few rows of plain values, in the order of the columns, as a Parquet file."""
    columns = [pa.array([row[n] for row in rows], kind) for n, kind in enumerate(schema.types)]
    return encode(pa.Table.from_arrays(columns, schema=schema), "snappy")


def decode_values(data: bytes, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Decode the few rows of a Parquet file as plain values. Raises as ``decode``."""
    rows: list[dict[str, Any]] = decode(data, columns).to_pylist()
    return rows


def decode(data: bytes, columns: Sequence[str] | None = None, *, verify: bool = False) -> pa.Table:
    """Decode the rows of a Parquet file; ``columns`` names the columns to read, None for all.

    ``verify`` checks page checksums and the number of rows, for files without a digest in a
    manifest. Raises ArrowException, OSError and ValueError: it is damaged.
    """
    # ``read_table`` plans a scan of a dataset, which takes several times as long for a small file.
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
