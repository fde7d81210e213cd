"""Decoded ranges and metaranges, kept so that each is decoded once in the life of a repository.

They are immutable and named by their content, so a cached table never goes stale. A cached object
is the SHA-256 of its name and the rest, then the rest: a parquet file. Anything in the cache may be
deleted without harm, and what does not match its digest, or is another table's, is decoded again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from lakegc_assets.graveler.decode import DECODER_VERSION
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError

_DIGEST_SIZE = hashlib.sha256().digest_size


@dataclass(frozen=True)
class DecodedCache:
    """Tables by kind (``ranges`` or ``metaranges``) and id, for the present decoder."""

    store: ObjectStore

    def get(self, kind: str, table_id: str) -> pa.Table | None:
        """The cached table; None if there is none, or if it is damaged."""
        key = _key(kind, table_id)
        try:
            data = self.store.get(key)
        except ObjectNotFoundError:
            return None
        digest, payload = data[:_DIGEST_SIZE], data[_DIGEST_SIZE:]
        if _digest(key, payload) != digest:
            return None
        return pq.read_table(pa.BufferReader(payload))

    def has(self, kind: str, table_id: str) -> bool:
        """Whether a table is cached; reading it may still find it damaged."""
        try:
            self.store.head(_key(kind, table_id))
        except ObjectNotFoundError:
            return False
        return True

    def put(self, kind: str, table_id: str, table: pa.Table) -> None:
        """Keep a table; the write is atomic, so that a reader finds all of it or nothing."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        key, payload = _key(kind, table_id), sink.getvalue().to_pybytes()
        self.store.put(key, _digest(key, payload) + payload)


def _key(kind: str, table_id: str) -> str:
    return f"{kind}/v{DECODER_VERSION}/{table_id[:2]}/{table_id}"


def _digest(key: str, payload: bytes) -> bytes:
    return hashlib.sha256(key.encode() + payload).digest()
