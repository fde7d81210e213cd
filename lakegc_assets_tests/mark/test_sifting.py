"""Sifting reads what is large once, whatever number of files a listing comes in."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from lakegc_assets.engine.datasets import Part, read_part, read_parts, write_part
from lakegc_assets.mark import sifting
from lakegc_assets.run import sets
from lakegc_assets.run.artifacts import LISTING
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.hashing import address_hashes
from lakegc_assets.run.sets import write_set
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.opening import open_store

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)


def test_each_file_of_a_live_set_is_read_once_for_all_files_of_a_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of large sets a process keeps nothing.
    monkeypatch.setattr(sets, "_KEPT", 0)
    asked: Counter[str] = Counter()

    def counted(store: ObjectStore, part: Part, columns: Any = None) -> pa.Table:
        asked[part.key] += 1
        return read_part(store, part, columns)

    monkeypatch.setattr(sets, "read_part", counted)
    store = open_store(str(tmp_path))
    names = [f"data/slice/{number:03}" for number in range(60)]
    live = [
        part
        for first in range(3)
        for part in write_set(store, "live/", [address_hashes(pa.array(names[first::4]))])
    ]
    listing = [
        write_part(
            store,
            "listing/",
            pa.table(
                [
                    some,
                    [1] * len(some),
                    [NOW - timedelta(days=9)] * len(some),
                    ["e"] * len(some),
                ],
                schema=LISTING,
            ),
        )
        for some in (names[:20], names[20:21], names[21:])
    ]
    url = f"file://{tmp_path}"
    sieve = sifting.Sieve(url, "sifted/", NOW - timedelta(days=1), live, [])
    connections = cast("Connections", SimpleNamespace(open=lambda _: store))
    sifted = sifting._sift(connections, sieve, listing)
    found = [name for t in read_parts(store, sifted.unlisted) for name in t["address"].to_pylist()]
    assert found == names[3::4]
    assert sifted.facts["listed"] == len(names)
    assert asked == Counter({part.key: 1 for part in live})
