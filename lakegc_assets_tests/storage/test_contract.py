"""What every object store must do, whatever is behind the interface."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import (
    InvalidKeyError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.values import LISTING_SCHEMA
from lakegc_assets_tests.storage.conftest import Kind, Plant
from lakegc_assets_tests.storage.servers import AZURE_KEY, S3_SECRET_KEY

KEYS = [
    "a-b", "a/b", "a.b", "a0", "data/x/y", "data/x-y", "data/x/z", "with space", " leading",
    "trailing ", "plus+plus", "per%20cent", "%2F", "%", "pipe|pipe", "tab\tkey", "uni/é☃",
    "\U0001f600", "\uffe6", "a&b<c>\"'", "#;,:@=$!*()[]{}^`~?", "back\\slash", "ctl\x01x", "cr\rx",
    "\x7f\x85\u2028\xa0", "d/... /..x", "composed/\u00e9", "composed/e\u0301",
]  # fmt: skip


def listed(store: ObjectStore, *args: str | None) -> list[str]:
    batches = list(store.list(*args))  # type: ignore[arg-type] # the first one is never None
    assert all(batch.schema == LISTING_SCHEMA and batch.num_rows for batch in batches)
    return [key for batch in batches for key in batch["key"].to_pylist()]


def config_of(store: ObjectStore) -> StoreConfig:
    config: StoreConfig = getattr(store, "config", StoreConfig())
    return config


def fill(store: ObjectStore, keys: list[str]) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: store.put(key, key.encode()), keys))


def test_odd_keys_are_written_listed_read_copied_and_deleted(
    store: ObjectStore, kind: Kind
) -> None:
    most = 1024 - len(getattr(store, "prefix", "").encode())
    long_key = ("y" * 99 + "/") * 11
    long_key = f"{long_key[: most - 1]}z"
    keys = [*filter(kind.takes, KEYS), long_key]
    fill(store, keys)
    assert listed(store) == sorted(keys, key=str.encode)
    for key in keys:
        assert store.get(key) == key.encode()
        info = store.head(key)
        assert (info.key, info.size) == (key, len(key.encode()))
    odd = "copy/per cent+%20"
    copy_object(store, "per%20cent", store, odd, size=10, etag=None, if_absent=False)
    assert store.get(odd) == b"per%20cent"
    outcomes = store.delete_many([*keys, *keys[:3]])
    assert [(o.key, o.outcome) for o in outcomes] == [(key, "deleted") for key in keys]
    assert listed(store) == [odd]


def test_keys_that_a_store_would_read_as_others_are_refused(store: ObjectStore, kind: Kind) -> None:
    fill(store, ["a/b", "ab"])
    for key in (f"a{character}b" for character in kind.refused):
        for call in (store.get, store.head, lambda key: store.put(key, b"")):
            with pytest.raises(InvalidKeyError):
                call(key)
        (outcome,) = store.delete_many([key])
        assert (outcome.outcome, outcome.error_code) == ("failed", "InvalidKey")
    assert listed(store) == ["a/b", "ab"]


def test_a_listing_says_what_head_says(store: ObjectStore) -> None:
    before = store.server_time() - timedelta(seconds=2)
    etag = store.put("x/y", b"12345")
    (batch,) = store.list()
    (row,) = batch.to_pylist()
    info = store.head("x/y")
    assert etag
    assert '"' not in etag
    assert (row["key"], row["size"], row["etag"]) == ("x/y", 5, etag)
    assert (info.size, info.etag) == (5, etag)
    assert abs(row["last_modified"] - info.last_modified) < timedelta(seconds=1)
    assert info.last_modified.tzinfo == timezone.utc
    assert before <= info.last_modified <= store.server_time() + timedelta(seconds=1)
    assert store.list_prefixes("x/").objects[0].etag == etag
    assert store.put("x/y", b"54321") != etag


def test_prefixes_are_strings_and_not_paths(store: ObjectStore, kind: Kind) -> None:
    below = "data/ab/b" if kind.files else "data/a/b"
    fill(store, ["data/a", below, "data/ac", "dat", "e/f/g"])
    assert listed(store, "data/a")[0] == "data/a"
    assert len(listed(store, "data/a")) == 3
    assert listed(store, "dat")[0] == "dat"
    assert listed(store, "data/ac") == ["data/ac"]
    assert listed(store, "nothing") == []
    assert listed(store, "e/f/g/") == []


def test_one_level(store: ObjectStore, kind: Kind) -> None:
    fill(store, ["a/1", "a/b/1", "a/b/2", "a/b-c", "ab/1", "b", "a+ é/x"])
    assert store.list_prefixes().prefixes == ["a+ é/", "a/", "ab/"]
    assert [o.key for o in store.list_prefixes().objects] == ["b"]
    level = store.list_prefixes("a/")
    assert (level.prefixes, [o.key for o in level.objects]) == (["a/b/"], ["a/1", "a/b-c"])
    assert store.list_prefixes("a/b").prefixes == ["a/b/"]
    assert store.list_prefixes("a").prefixes == ["a+ é/", "a/", "ab/"]
    assert store.list_prefixes("b/") == ([], [])
    if kind.dots:
        assert store.list_prefixes("../") == ([], [])


def test_ranges_are_open_at_both_ends_and_bounds_need_not_exist(store: ObjectStore) -> None:
    keys = ["a", "b/1", "b/2", "b/3", "b0", "c"]
    fill(store, keys)
    bounds = [None, "", "a", "b/", "b/15", "b/3", "b0x", "c"]
    for low in bounds:
        for high in bounds:
            expected = [k for k in keys if k > (low or "") and (high is None or k < high)]
            assert listed(store, "", low, high) == expected, (low, high)
            inside = [k for k in expected if k.startswith("b/")]
            assert listed(store, "b/", low, high) == inside, (low, high)


def test_the_directory_of_the_root_itself_is_no_key(store: ObjectStore, kind: Kind) -> None:
    keys = ["ns/a", "nsx"] if kind.files else ["ns", "ns/", "ns/a", "nsx"]
    fill(store, keys)
    inner = open_store(f"{store.url}/ns/", config_of(store))
    assert listed(inner) == ["a"]
    assert [o.key for o in inner.list_prefixes().objects] == ["a"]
    assert listed(store) == keys


def test_conditional_puts(store: ObjectStore) -> None:
    etag = store.put_if_absent("lease", b"1")
    assert store.head("lease").etag == etag
    with pytest.raises(PreconditionFailedError, match="lease"):
        store.put_if_absent("lease", b"2")
    newer = store.put_if_match("lease", b"3", etag)
    with pytest.raises(PreconditionFailedError, match="lease"):
        store.put_if_match("lease", b"4", etag)
    assert (store.get("lease"), store.head("lease").etag) == (b"3", newer)
    with pytest.raises(PreconditionFailedError, match="other"):
        store.put_if_match("other", b"5", etag)
    assert listed(store) == ["lease"]


@pytest.mark.parametrize("existing", [False, True])
def test_of_many_writers_with_one_condition_one_wins(store: ObjectStore, *, existing: bool) -> None:
    etag = store.put("k/lease", b"first") if existing else ""
    barrier = threading.Barrier(6)

    def write(number: int) -> int | None:
        barrier.wait()
        try:
            if existing:
                store.put_if_match("k/lease", b"%d" % number, etag)
            else:
                store.put_if_absent("k/lease", b"%d" % number)
        except PreconditionFailedError:
            return None
        return number

    with ThreadPoolExecutor(6) as pool:
        (winner,) = [n for n in pool.map(write, range(6)) if n is not None]
    assert store.get("k/lease") == b"%d" % winner


def test_missing_objects_are_told_apart_from_other_errors(store: ObjectStore) -> None:
    asked: list[Callable[[], object]] = [
        lambda: store.get("no/such"),
        lambda: store.head("no/such"),
        lambda: copy_object(store, "no/such", store, "x", size=1, etag=None, if_absent=False),
    ]
    for ask in asked:
        with pytest.raises(ObjectNotFoundError, match="no/such") as error:
            ask()
        assert store.url in str(error.value)
    assert {o.outcome for o in store.delete_many(["no/such"])} <= {"already_missing", "deleted"}


@pytest.mark.parametrize("key", ["", "a/../b", "..", "./a", "a/.", "\ud800", "x" * 1025])
def test_keys_that_cannot_be_used_are_refused(store: ObjectStore, key: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.get(key),
        lambda: store.head(key),
        lambda: store.put(key, b""),
        lambda: store.put_if_absent(key, b""),
        lambda: store.put_if_match(key, b"", "e"),
    ]
    for call in calls:
        with pytest.raises(InvalidKeyError):
            call()


def test_an_invalid_key_does_not_keep_others_from_being_deleted(store: ObjectStore) -> None:
    fill(store, ["a", "b"])
    outcomes = store.delete_many(["a", "", "x" * 1025, "b", "b"])
    assert [o.outcome for o in outcomes] == ["deleted", "failed", "failed", "deleted"]
    assert {o.error_code for o in outcomes} == {None, "InvalidKey"}
    assert listed(store) == []
    assert list(store.delete_many([])) == []


def test_keys_with_newlines(store: ObjectStore, plant: Plant, kind: Kind) -> None:
    keys = ["new\nline", "x/\n", "\n"]
    plant(keys)
    if kind.unlisted:
        with pytest.raises(StorageError, match="not percent-encoded"):
            listed(store)
        return
    assert listed(store) == sorted(keys)
    assert [o.outcome for o in store.delete_many(keys)] == ["deleted"] * 3
    assert listed(store) == []


def test_many_pages(store: ObjectStore, plant: Plant, kind: Kind) -> None:
    keys = sorted(f"data/{n % 3}/{n:05d}" for n in range(kind.many))
    middle = f"data/1/{kind.many // 2:05d}"
    plant(keys)
    assert listed(store) == keys
    inside = [k for k in keys if middle < k < "data/2"]
    assert listed(store, "data/1/", middle) == inside
    first = [k for k in keys if k.startswith("data/0/")]
    assert [info.key for info in store.list_prefixes("data/0/").objects] == first
    outcomes = store.delete_many(iter(keys))
    assert [(o.key, o.outcome) for o in outcomes] == [(key, "deleted") for key in keys]
    assert listed(store) == []


def test_the_clock_is_that_of_the_store(store: ObjectStore) -> None:
    now = store.server_time()
    assert now.tzinfo == timezone.utc
    assert abs(now - datetime.now(timezone.utc)) < timedelta(minutes=1)


def test_the_configuration_travels_and_opens_the_same_store(store: ObjectStore) -> None:
    config = config_of(store)
    store.put("x", b"1")
    assert open_store(store.url, pickle.loads(pickle.dumps(config))).get("x") == b"1"
    for secret in (S3_SECRET_KEY, AZURE_KEY):
        assert secret not in repr(config) + repr(store) + str(pickle.dumps(config))
