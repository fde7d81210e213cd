"""Listings that a store ends early are asked for again behind the last key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.values import Prefixes


class _Cut(LocalStore):
    """Shows two objects of each listing at most."""

    def list(
        self, prefix: str = "", start_after: str | None = None, end_before: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        for batch in super().list(prefix, start_after, end_before):
            yield batch.slice(0, 2)
            return

    def list_prefixes(self, prefix: str = "", max_objects: int | None = None) -> Prefixes:
        found = super().list_prefixes(prefix, max_objects)
        return found._replace(prefixes=found.prefixes[:2])


def test_plain_values_are_those_of_the_batches(tmp_path: Path) -> None:
    store = _Cut(tmp_path, f"file://{tmp_path}")
    for name in ("a/1", "a/2", "a/3", "a/4", "a/5", "b"):
        store.put(name, name.encode() * 3)
    rows = [row for batch in store.list_to_the_end("a/") for row in batch.to_pylist()]
    assert [row["key"] for row in rows] == ["a/1", "a/2", "a/3", "a/4", "a/5"]
    assert [vars(info) for info in store.infos_to_the_end("a/")] == rows
    assert [info.key for info in store.infos("a/", "a/3")] == ["a/4", "a/5"]


def test_folders_behind_the_last_one_are_found(tmp_path: Path) -> None:
    store = _Cut(tmp_path, f"file://{tmp_path}")
    assert store.prefixes_to_the_end() == []
    for name in ("a/1", "a/z/2", "b/1", "b/\U0010ffffx", "b1", "c/1", "c/2", "d", "e/1", "z"):
        store.put(name, b"")
    assert store.prefixes_to_the_end() == ["a/", "b/", "c/", "e/"]
