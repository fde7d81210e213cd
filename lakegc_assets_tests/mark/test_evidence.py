"""What etags of listed objects say of those at branch HEADs, compared with a plain loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakegc_assets.mark import lookalikes
from lakegc_assets.mark.lookalikes import ETAGS, SMALL, Evidence
from lakegc_assets.run.parts import write_part
from lakegc_assets.storage.local import LocalStore

HASH = st.integers(0, 6)
ETAG = st.integers(0, 2)
OBJECTS = st.lists(st.tuples(HASH, ETAG, st.integers(1, 9)), max_size=8)
ENTRIES = st.lists(st.tuples(HASH, st.sampled_from([1, SMALL, SMALL + 1]), ETAG), max_size=8)


def plain(files: list[list[tuple[int, int, int]]], entries: list[tuple[int, int, int]]) -> Evidence:
    """Every object beside every entry of its address."""
    pairs = [
        (etag == of_entry, modified, size)
        for rows in files
        for hashed, etag, modified in rows
        for other, size, of_entry in entries
        if hashed == other and of_entry != 0
    ]
    if not pairs:
        return Evidence()
    return Evidence(
        all(agree for agree, _, _ in pairs),
        max(modified for _, modified, _ in pairs),
        any(agree and size <= SMALL for agree, _, size in pairs),
    )


@given(files=st.lists(OBJECTS, max_size=3), entries=ENTRIES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_object_is_compared_with_every_entry_of_its_address(
    tmp_path: Path, files: list[list[tuple[int, int, int]]], entries: list[tuple[int, int, int]]
) -> None:
    store = LocalStore(tmp_path, "file:///here")
    parts = []
    for rows in files:
        hashes, etags, modified = zip(*sorted(rows), strict=True) if rows else ((), (), ())
        table = pa.table([hashes, etags, modified], schema=ETAGS)
        parts.append(write_part(store, "etags/", table))
    # Entries come in several arrays, of which some are empty.
    found = []
    for some in (entries[::2], [], entries[1::2]):
        hashed, sizes, of_entries = zip(*some, strict=True) if some else ((), (), ())
        found.append(
            lookalikes._Entries(
                np.array(hashed, np.uint64),
                np.array(sizes, np.int64),
                np.array(of_entries, np.int64),
            )
        )
    assert sum(lookalikes._evidence(store, parts, found), Evidence()) == plain(files, entries)
