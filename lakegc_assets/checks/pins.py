"""Pins of restored objects, read independently of the mark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from lakegc_assets.storage.base import ObjectStore

_PINS: Final = "_lakefs/retention/gc/lakegc/pins/"


def pinned_addresses(store: ObjectStore) -> Iterator[pa.Array]:
    """Addresses pinned now, by the store's clock, in batches.

    Raises:
        ArrowInvalid: a pin cannot be read.
    """
    now = store.server_time()
    for page in store.list(_PINS):
        for key in page["key"].to_pylist():
            content = pa.BufferReader(store.get(key))
            with pq.ParquetFile(content, page_checksum_verification=True) as file:
                until = datetime.fromisoformat(file.schema_arrow.metadata[b"until"].decode())
                if until > now:
                    for batch in file.iter_batches(columns=["address"]):
                        yield batch["address"]
