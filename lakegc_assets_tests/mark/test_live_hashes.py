"""Hashes of live sets are written in files of a bounded size, and none is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.engine.datasets import read_part
from lakegc_assets.mark import live_hashes
from lakegc_assets.mark.live_hashes import HashWriter
from lakegc_assets.run.hashing import KeyDigest, digest_of_hashes, unsigned
from lakegc_assets.storage.opening import open_store

HASHES = st.sampled_from([0, 1, 2, 2**63, 2**64 - 2, 2**64 - 1]) | st.integers(0, 2**64 - 1)


def test_each_hash_is_in_a_file_of_few(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_hashes, "HASHES_PER_FILE", 5)
    folder: Path = tmp_path_factory.mktemp("hashes")
    store = open_store(str(folder))

    @given(st.lists(st.lists(HASHES, max_size=30), max_size=5))
    def test(given_hashes: list[list[int]]) -> None:
        writer = HashWriter(store, "live/")
        for some in given_hashes:
            writer.add(np.array(some, np.uint64))
        files = [unsigned(read_part(store, part)["hash"]) for part in writer.finish()]
        assert all(0 < len(set(file.tolist())) == len(file) <= 5 for file in files)
        assert {h for file in files for h in file.tolist()} == {h for s in given_hashes for h in s}
        assert writer.digest == sum(map(digest_of_hashes, files), KeyDigest())

    test()
