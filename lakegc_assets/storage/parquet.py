"""The rows of one Parquet file as bytes, and back: all that a stage writes for itself goes here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

#: Types that mostly do not compress, as hashes and sizes.
_NUMBERS: Final = frozenset({pa.int32(), pa.int64(), pa.uint64(), pa.bool_()})


def encode(rows: pa.Table, compression: str = "zstd", *, plain: bool = False) -> bytes:
    """The bytes of a Parquet file, whose pages have checksums.

    ``plain`` writes numbers as they are, for columns that do not compress.
    """
    options: dict[str, Any] = {"compression": compression}
    if plain:
        texts = [field.name for field in rows.schema if field.type not in _NUMBERS]
        options["compression"] = dict.fromkeys(texts, compression)
        options |= {"use_dictionary": texts, "write_statistics": texts}
    elif compression == "zstd":
        options["compression_level"] = 1
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, write_page_checksum=True, **options)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


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
    names = None if columns is None else list(columns)
    source = pa.BufferReader(data)
    rows = pq.read_table(source, columns=names, page_checksum_verification=verify)
    if verify:
        rows.validate(full=True)
        if rows.num_rows != pq.read_metadata(pa.BufferReader(data)).num_rows:
            raise ValueError("it lacks rows")
    return rows
