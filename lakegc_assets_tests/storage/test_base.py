"""Listings that a store ends early are asked for again behind the last key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from lakegc_assets.storage.local import LocalStore


class _Cut(LocalStore):
    """Shows two objects of each listing at most."""

    def list(
        self, prefix: str = "", start_after: str | None = None, end_before: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        for batch in super().list(prefix, start_after, end_before):
            yield batch.slice(0, 2)
            return


def test_plain_values_are_those_of_the_batches(tmp_path: Path) -> None:
    store = _Cut(tmp_path, f"file://{tmp_path}")
    for name in ("a/1", "a/2", "a/3", "a/4", "a/5", "b"):
        store.put(name, name.encode() * 3)
    rows = [row for batch in store.list_to_the_end("a/") for row in batch.to_pylist()]
    assert [row["key"] for row in rows] == ["a/1", "a/2", "a/3", "a/4", "a/5"]
    assert [vars(info) for info in store.infos_to_the_end("a/")] == rows
    assert [info.key for info in store.infos("a/", "a/3")] == ["a/4", "a/5"]
