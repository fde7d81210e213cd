"""What every store must do to read, write and copy objects of any size in pieces."""

from __future__ import annotations

import hashlib
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.storage.azure.store import AzureStore
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.bucket_store import Sizes
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import (
    ChangedError,
    InvalidKeyError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from lakegc_assets.storage.gcs.store import GcsStore
from lakegc_assets.storage.s3.store import S3Store
from lakegc_assets_tests.storage.conftest import KINDS, Kind, empty_store

_MIB = 2**20
KEYS = [
    "with space", " leading", "trailing ", "plus+plus", "per%20cent", "%2F", "pipe|pipe",
    "uni/é☃", "\U0001f600", "a&b<c>\"'", "#;,:@=$!*()[]{}^`~?", "new\nline", "tab\tkey",
    "semi;colon", "hash#tag?x=1&y=2", ("y" * 99 + "/") * 6 + "z",
]  # fmt: skip
_STORES = pytest.mark.stores
PAIRS = [
    ("local", "s3"),
    ("s3", "local"),
    pytest.param(("versitygw", "azurite"), marks=_STORES),
    pytest.param(("azurite", "versitygw"), marks=_STORES),
    pytest.param(("azurite", "fake gcs"), marks=_STORES),
    pytest.param(("azurite sas", "local"), marks=_STORES),
    pytest.param(("fake gcs", "versitygw"), marks=_STORES),
    pytest.param(("fake gcs", "local"), marks=_STORES),
    pytest.param(("local", "azurite"), marks=_STORES),
    pytest.param(("local", "fake gcs"), marks=_STORES),
    pytest.param(("s3", "versitygw"), marks=_STORES),
]


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def pieces(data: bytes, each: int = 300_000) -> Iterator[bytes]:
    return (data[at : at + each] for at in range(0, len(data), each))


def in_small_parts(store: ObjectStore) -> int:
    """Let a store send in the smallest parts that its server takes; their size in bytes."""
    if isinstance(store, AzureStore):
        store.sizes = Sizes(part=64 * 2**10)
        return store.sizes.part
    if isinstance(store, GcsStore):
        store.sizes = Sizes(part=256 * 2**10)
        return store.sizes.part
    if isinstance(store, S3Store):
        store.sizes = Sizes(part=5 * _MIB)
    return 5 * _MIB


def read(store: ObjectStore, key: str, etag: str | None = None) -> bytes:
    with store.stream(key, etag) as found:
        return b"".join(found)


def uploads_of(store: ObjectStore) -> list[Any]:
    """What is left of unfinished uploads."""
    if isinstance(store, S3Store):
        client = store.client
        return client.list_multipart_uploads(Bucket=store.bucket).get("Uploads", [])
    return []


def hidden(tmp_path: Path) -> list[Path]:
    return list(tmp_path.rglob(".lakegc-tmp-*"))


@pytest.fixture(params=[one for one in KINDS if "whole" not in str(one.values)])
def kind_name(request: pytest.FixtureRequest) -> str:
    """What is copied, and how, does not depend on the keys' beginning."""
    return str(request.param)


@pytest.fixture
def part(store: ObjectStore) -> int:
    return in_small_parts(store)


@pytest.mark.parametrize("if_absent", [pytest.param(False, marks=pytest.mark.conformance), True])
def test_sizes_around_those_of_parts_are_written_and_read(
    store: ObjectStore, part: int, *, if_absent: bool
) -> None:
    for size in (0, 1, part - 1, part, part + 1, 2 * part, 2 * part + 3):
        data = content(size)
        key = f"sizes/{size}"
        etag = store.put_stream(key, pieces(data), size, if_absent=if_absent).etag
        info = store.head(key)
        assert (info.size, info.etag) == (size, etag)
        assert read(store, key) == data
        assert read(store, key, etag) == data
        assert store.get(key) == data
    assert uploads_of(store) == []


def test_what_is_there_is_not_replaced_when_it_must_not_be(store: ObjectStore, part: int) -> None:
    etag = store.put("there", b"first")
    for size in (1, part + 1):
        data = content(size)
        with pytest.raises(PreconditionFailedError, match="there"):
            store.put_stream("there", pieces(data), size, if_absent=True)
        assert store.head("there").etag == etag
    assert store.put_stream("there", pieces(content(part + 1)), part + 1).etag != etag
    assert store.get("there") == content(part + 1)
    assert uploads_of(store) == []


@pytest.mark.parametrize("wrong", [-1, 1])
def test_pieces_of_another_size_write_nothing(
    store: ObjectStore, part: int, wrong: int, tmp_path: Path
) -> None:
    for size in (3, part + 3):
        data = content(size)
        with pytest.raises(StorageError, match="bytes"):
            store.put_stream("x", pieces(data), size + wrong)
    assert not store.exists("x")
    assert uploads_of(store) == []
    assert hidden(tmp_path) == []


def test_an_error_while_pieces_are_made_writes_nothing(
    store: ObjectStore, part: int, tmp_path: Path
) -> None:
    def failing(size: int) -> Iterator[bytes]:
        yield content(size)
        raise KeyboardInterrupt

    for size in (3, part + 3, 2 * part + 3):
        with pytest.raises(KeyboardInterrupt):
            store.put_stream("x", failing(size), size + 1)
    assert not store.exists("x")
    assert uploads_of(store) == []
    assert hidden(tmp_path) == []


def test_another_etag_and_a_missing_object_are_told_apart(store: ObjectStore) -> None:
    old = store.put("x", b"1")
    new = store.put("x", b"22")
    with pytest.raises(ChangedError, match="x"):
        read(store, "x", old)
    assert read(store, "x", new) == b"22"
    with pytest.raises(ObjectNotFoundError, match="no/such"):
        read(store, "no/such")
    with pytest.raises(ObjectNotFoundError, match="no/such"):
        store.checksums("no/such")
    for key in ("", "a/../b"):
        with pytest.raises(InvalidKeyError):
            read(store, key)
        with pytest.raises(InvalidKeyError):
            store.put_stream(key, [b"1"], 1)


def test_checksums_are_those_of_the_content(store: ObjectStore, part: int) -> None:
    for size in (0, 5, part + 1):
        data = content(size)
        store.put_stream("x", pieces(data), size)
        named = store.checksums("x")
        if "md5" in named:
            assert named["md5"] == hashlib.md5(data).hexdigest()
        assert ("md5" in named) == (
            not store.url.startswith("file")
            and not (isinstance(store, S3Store) and size > part)
        )  # fmt: skip


@pytest.mark.parametrize("if_absent", [False, True])
def test_odd_keys_are_copied(
    store: ObjectStore, kind_name: str, kind: Kind, *, if_absent: bool
) -> None:
    # The stand-in of `make test` knows no line breaks in paths.
    refused = kind.refused + "\n" * kind_name.startswith("s3")
    for key in (key for key in KEYS if not set(key) & set(refused)):
        data = key.encode()
        etag = store.put(key, data)
        done = copy_object(
            store, key, store, f"copy of/{key}", size=len(data), etag=etag, if_absent=if_absent
        )
        assert store.get(f"copy of/{key}") == data
        assert store.head(f"copy of/{key}").etag == done.etag
        assert done.verified_by == ("size" if store.url.startswith("file") else "md5")


@pytest.mark.parametrize("if_absent", [pytest.param(False, marks=pytest.mark.conformance), True])
def test_sizes_around_those_of_parts_are_copied(
    store: ObjectStore, part: int, *, if_absent: bool
) -> None:
    for size in (0, 1, part - 1, part, part + 1, 2 * part + 3):
        data = content(size)
        for known in (True, False):
            etag = store.put_stream("from", pieces(data), size).etag
            done = copy_object(
                store, "from", store, f"to/{size}/{known}",
                size=size, etag=etag if known else None, if_absent=if_absent,
            )  # fmt: skip
            assert store.get(f"to/{size}/{known}") == data
            assert store.head(f"to/{size}/{known}").etag == done.etag
    assert uploads_of(store) == []


def test_a_copy_replaces_only_what_it_may(store: ObjectStore, part: int) -> None:
    for size in (3, part + 3):
        etag = store.put_stream("from", pieces(content(size)), size).etag
        there = store.put("to", b"something else")
        with pytest.raises(PreconditionFailedError, match="to"):
            copy_object(store, "from", store, "to", size=size, etag=etag, if_absent=True)
        assert store.head("to").etag == there
        copy_object(store, "from", store, "to", size=size, etag=etag, if_absent=False)
        assert store.get("to") == content(size)
    assert uploads_of(store) == []


@pytest.mark.parametrize("if_absent", [False, True])
def test_a_source_that_changed_or_went_is_told(
    store: ObjectStore, part: int, *, if_absent: bool
) -> None:
    for size in (3, part + 3):
        old = store.put_stream("from", pieces(content(size)), size).etag
        store.put_stream("from", pieces(content(size)[::-1]), size)
        with pytest.raises(ChangedError, match="from"):
            copy_object(store, "from", store, "to", size=size, etag=old, if_absent=if_absent)
        with pytest.raises(ChangedError, match="from"):
            copy_object(store, "from", store, "to", size=size + 1, etag=None, if_absent=if_absent)
        store.delete_many(["from"])
        for etag in (old, None):
            with pytest.raises(ObjectNotFoundError, match="from"):
                copy_object(store, "from", store, "to", size=size, etag=etag, if_absent=if_absent)
        if if_absent:
            assert not store.exists("to")
    assert uploads_of(store) == []


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ObjectStore, ObjectStore]:
    one, other = (empty_store(name, request, tmp_path) for name in request.param)
    return one, other


@pytest.mark.parametrize("if_absent", [False, True])
def test_copies_between_stores(
    pair: tuple[ObjectStore, ObjectStore], tmp_path: Path, *, if_absent: bool
) -> None:
    source, target = pair
    for size in {0, 1, *(part + d for part in map(in_small_parts, pair) for d in (-1, 0, 1))}:
        data = content(size)
        etag = source.put(f"a b/é;{size}", data)
        done = copy_object(
            source, f"a b/é;{size}", target, f"#|{size}", size=size, etag=etag, if_absent=if_absent
        )
        assert target.get(f"#|{size}") == data
        assert done.etag == target.head(f"#|{size}").etag
        assert done.verified_by in {"md5", "md5 of parts"}
        if if_absent:
            with pytest.raises(PreconditionFailedError):
                copy_object(
                    source, f"a b/é;{size}", target, f"#|{size}", size=size, etag=etag,
                    if_absent=True,
                )  # fmt: skip
    for size in (3, 5 * _MIB + 1):
        old = source.put("changes", content(size))
        source.put("changes", content(size)[::-1])
        with pytest.raises(ChangedError, match="changes"):
            copy_object(source, "changes", target, "c", size=size, etag=old, if_absent=if_absent)
        with pytest.raises(ObjectNotFoundError, match="gone"):
            copy_object(source, "gone", target, "c", size=size, etag=old, if_absent=if_absent)
    assert not target.exists("c")
    assert uploads_of(target) == []
    assert hidden(tmp_path) == []


@pytest.mark.stores
@pytest.mark.parametrize(
    ("source_name", "target_name"),
    # Who reads and who writes know nothing of each other: each does both.
    [("versitygw", "azurite"), ("azurite", "fake gcs"), ("fake gcs", "versitygw"),
     ("versitygw", "local")],
)  # fmt: skip
def test_no_object_is_held_in_memory(
    source_name: str, target_name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Between servers that are processes of their own: a few parts, however large the object is."""
    source, target = (empty_store(name, request, tmp_path) for name in (source_name, target_name))
    size = 96 * _MIB + 1
    etag = source.put_stream("large", [*[bytes(_MIB)] * 96, b"1"], size).etag
    tracemalloc.start()
    try:
        with source.stream("large", etag) as found:
            target.put_stream("copy", found, size, if_absent=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert target.head("copy").size == size
    assert peak < 32 * _MIB
