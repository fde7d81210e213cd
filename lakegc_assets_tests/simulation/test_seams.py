"""What the simulation puts in the place of slower things does the same."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakegc_assets.engine.datasets import Part
from lakegc_assets.recovery import relations
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.local import LocalStore
from lakegc_assets_tests.simulation import row_files, seams
from lakegc_assets_tests.simulation.choices import Choices
from lakegc_assets_tests.simulation.interleaving import interleave
from lakegc_assets_tests.simulation.lake import Lake
from lakegc_assets_tests.simulation.row_files import RowFiles
from lakegc_assets_tests.simulation.store import Bucket, Kept
from lakegc_assets_tests.simulation.twin_session import TwinFrame
from lakegc_assets_tests.simulation.world import BASE, World


def test_files_hold_what_was_written_and_cut_ones_nothing() -> None:
    files, table = RowFiles(), pa.table({"address": ["one", "two"], "size": [1, 2]})
    with row_files.among(files):
        data = row_files.encode(table)
        assert row_files.decode(data).equals(table)
        assert row_files.decode(data, ["size"]).column_names == ["size"]
        assert row_files.encode(table) != data
        with pytest.raises(pa.ArrowInvalid):
            row_files.decode(data[:-1])


def test_a_copy_of_files_begins_with_the_same_and_goes_its_own_way() -> None:
    files = RowFiles()
    data = files.encode(pa.table({"a": [1], "b": [2]}))
    copied = files.copy()
    assert copied.table(data).num_rows == 1
    more = copied.encode(pa.table({"a": [3], "b": [4]}))
    with pytest.raises(pa.ArrowInvalid):
        files.table(more)


def test_a_manifest_that_was_encoded_has_the_digest_of_its_bytes() -> None:
    now = BASE
    manifest = Manifest(
        *("asset", "repo", "run", "attempt", "s3://lake/repo", now, now, now, 1, "digest"),
        parts={"data": [Part("key", 1, 2, "sha256")]},
        previous="",
        settings=Settings().to_json(),
        facts={"b": [1, None], "a": {"x": 1.5}},
    )
    read = Manifest.from_bytes(manifest.to_bytes(), "somewhere")
    assert read.sha256 == manifest.sha256


def test_rows_that_somebody_says_something_of_are_a_file_of_their_own() -> None:
    files = RowFiles()
    table = pa.table({"address": ["one"]})
    said = table.replace_schema_metadata({"why": "wanted"})
    assert files.encode(table) != files.encode(said)
    assert files.table(files.encode(said)).schema.metadata == {b"why": b"wanted"}


def test_a_bucket_knows_its_keys_in_order() -> None:
    kept = Kept(b"", "", BASE, 0)
    bucket = Bucket(dict.fromkeys(("d/b", "d/a", "e"), kept))
    assert bucket.between("d/", None, None) == ["d/a", "d/b"]
    bucket["d/ab"] = bucket["d"] = bucket["d/ab"] = kept
    del bucket["d/b"]
    assert bucket.pop("e") is kept
    assert bucket.pop("e", None) is None
    assert bucket.between("", None, None) == sorted(bucket) == ["d", "d/a", "d/ab"]
    assert bucket.between("d", "d", "d/ab") == ["d/a"]
    assert bucket.between("d/", "a", "z") == ["d/a", "d/ab"]


def test_a_list_has_what_is_there_between_its_ends() -> None:
    world = World(Choices(), Lake(), {"lake": {}, "artifacts": {}})
    world.ask = lambda *_: ""  # type: ignore[method-assign]
    store = world.store("s3://lake/repo")
    for key in ("d/b", "d/a", "e", "d/c/f", "d/c/g"):
        world.write_directly(key, key.encode())

    def listed(*asked: str | None) -> list[str]:
        return [key for page in store.list(*asked) for key in page["key"].to_pylist()]  # type: ignore[arg-type]

    assert listed("d/", "d/a", "d/c/g") == ["d/b", "d/c/f"]
    world.write_directly("d/b", b"another")
    del world.buckets["lake"]["repo/e"]
    assert listed() == ["d/a", "d/b", "d/c/f", "d/c/g"]
    assert [row["size"] for page in store.list("d/b") for row in page.to_pylist()] == [7]
    assert store.list_prefixes("d/").prefixes == ["d/c/"]
    assert store.list_prefixes().prefixes == ["d/"]


def test_a_world_that_is_forgotten_is_freed_at_once() -> None:
    with seams.installed():
        ended = interleave(Choices())
    bucket = weakref.ref(ended.world.buckets["lake"])
    gc.disable()
    try:
        ended.world.forget()
        assert bucket() is None
    finally:
        gc.enable()


def test_an_interleaving_knows_nothing_of_earlier_ones() -> None:
    def told(seed: int) -> list[str]:
        lines: list[str] = []
        interleave(Choices(seed), lines.append)
        return lines

    with seams.installed():
        first = told(3)
        for seed in range(4, 8):
            interleave(Choices(seed))
        assert told(3) == first


def test_a_relation_of_rows_is_its_twin() -> None:
    rows: Any = TwinFrame([{"address": "b", "reason": "x"}, {"address": "a", "reason": "x"}])
    others: Any = TwinFrame([{"address": "b"}])
    found: Any = relations.without(rows, others)
    assert isinstance(found, TwinFrame)
    assert found == [{"address": "a", "reason": "x"}]


def test_a_run_opens_the_stores_that_it_is_given() -> None:
    opened = []

    def opener(url: str, config: StoreConfig) -> ObjectStore:
        opened.append((url, config))
        return LocalStore(Path("/"), "file:///")

    stores = StoreConfig(opener=opener, page_size=5)
    assert isinstance(ArtifactRoot("kept://somewhere", stores).open("repo"), LocalStore)
    assert opened == [("kept://somewhere/repo", stores)]
