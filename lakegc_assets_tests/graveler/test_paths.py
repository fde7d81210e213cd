"""The folders of paths, as the decoder of ranges tells them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.graveler import decode
from lakegc_assets.graveler.decode import decode_paths
from lakegc_assets.graveler.entry import Entry
from lakegc_assets.graveler.ranges import write_range

_names = st.text("ab/ü\n", min_size=1, max_size=9)


def _folders(path: str, depth: int) -> str:
    return "".join(f"{part}/" for part in path.split("/")[:-1][:depth])


@given(st.sets(_names, min_size=1, max_size=12), st.integers(1, 4))
def test_folders_are_what_paths_begin_with(paths: set[str], depth: int) -> None:
    ordered = sorted(paths, key=str.encode)
    info, data = write_range(
        [(path, Entry(f"data/s/{n}", size=n)) for n, path in enumerate(ordered)]
    )
    _, found = decode_paths(data, info.id)
    assert found.folders(depth).to_pylist() == [_folders(path, depth) for path in ordered]


def test_folders_go_on_from_chunk_to_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "CHUNK", 1000)
    paths = [f"a/{n // 700}/{n:05d}" for n in range(2000)]
    info, data = write_range([(path, Entry("data/s/x", size=1)) for path in paths])
    _, found = decode_paths(data, info.id)
    folders = found.folders(2)
    assert folders.to_pylist() == [_folders(path, 2) for path in paths]
    assert len(folders.dictionary) == 3
