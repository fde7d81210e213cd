"""Small files of rows that tasks write each on their own: no manifest has a digest of them.

So their pages have checksums, which tell damage that a reader of parquet would not see.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from lakegc_assets.errors import IntegrityError
from lakegc_assets.storage.base import ObjectStore


def write_rows(store: ObjectStore, key: str, rows: pa.Table) -> None:
    """Write rows: they are all in the file when this returns, or there is none.

    Raises:
        StorageError: it is not known to be written.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, write_page_checksum=True)
    store.put(key, sink.getvalue().to_pybytes())


def read_rows(store: ObjectStore, key: str, schema: pa.Schema) -> pa.Table:
    """The rows of a file.

    Raises:
        IntegrityError: it is damaged, or of another schema.
        ObjectNotFoundError: there is none.
        StorageError: the store did not answer.
    """
    data = store.get(key)
    try:
        rows = pq.read_table(pa.BufferReader(data), page_checksum_verification=True).cast(schema)
        rows.validate(full=True)
        if rows.num_rows != pq.read_metadata(pa.BufferReader(data)).num_rows:
            raise ValueError("it lacks rows")  # noqa: TRY301 - it is damage
    except (pa.ArrowException, ValueError, OSError) as error:
        raise IntegrityError(f"{store.url}/{key} is damaged ({error})") from error
    return rows
