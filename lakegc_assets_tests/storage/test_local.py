"""What local files must stand: crashes, other processes, symbolic links, file system limits."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage import files
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    InvalidKeyError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from lakegc_assets.storage.opening import open_store

_FORK = multiprocessing.get_context("fork")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.fixture
def store(root: Path) -> ObjectStore:
    return open_store(str(root))


def listed(store: ObjectStore, *args: str | None) -> list[str]:
    return [key for b in store.list(*args) for key in b["key"].to_pylist()]  # type: ignore[arg-type]


SEGMENT = st.text("ab-./0\x01é\U0001f600 ", min_size=1, max_size=3).filter(
    lambda text: "/" not in text and text not in {".", ".."}
)
KEY = st.lists(SEGMENT, min_size=1, max_size=3).map("/".join)
BOUND = st.none() | KEY | st.text("ab-/é", max_size=3)


@settings(max_examples=60)
@given(
    keys=st.lists(KEY, max_size=12),
    prefix=st.text("ab-/é", max_size=3),
    bounds=st.lists(st.tuples(BOUND, BOUND), min_size=1, max_size=5),
)
def test_listings_are_those_of_a_sorted_set_of_strings(
    tmp_path_factory: pytest.TempPathFactory,
    keys: list[str],
    prefix: str,
    bounds: list[tuple[str | None, str | None]],
) -> None:
    root = tmp_path_factory.mktemp("listing")
    held: set[str] = set()
    for key in keys:
        path = root / key
        if not any(f"{k}/".startswith(f"{key}/") or f"{key}/".startswith(f"{k}/") for k in held):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            held.add(key)
    store = open_store(str(root))
    ordered = sorted(held, key=str.encode)
    assert listed(store) == ordered
    for low, high in bounds:
        expected = [
            k
            for k in ordered
            if k.startswith(prefix) and (low is None or k > low) and (high is None or k < high)
        ]
        assert listed(store, prefix, low, high) == expected
    level = {k[: k.find("/", len(prefix)) + 1] or k for k in ordered if k.startswith(prefix)}
    found = store.list_prefixes(prefix)
    assert sorted([*found.prefixes, *(o.key for o in found.objects)]) == sorted(level)


def test_symbolic_links_are_neither_listed_nor_followed(
    store: ObjectStore, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (root / "dir").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    store.put("real", b"x")
    assert listed(store) == ["real"]
    assert store.list_prefixes() == ([], [store.head("real")])
    assert store.list_prefixes("dir/") == ([], [])
    for key in ("dir/secret", "file"):
        with pytest.raises(ObjectNotFoundError):
            store.get(key)
    with pytest.raises(InvalidKeyError, match="symbolic link"):
        store.put("dir/new", b"x")
    (file, below) = store.delete_many(["file", "dir/secret"])
    assert (file.outcome, below.outcome) == ("failed", "already_missing")
    assert sorted(p.name for p in outside.iterdir()) == ["secret"]


def test_a_key_cannot_be_both_an_object_and_a_directory(store: ObjectStore) -> None:
    store.put("a", b"x")
    with pytest.raises(InvalidKeyError, match="'a/b'"):
        store.put("a/b", b"x")
    store.put("c/d", b"x")
    for write in (store.put, store.put_if_absent):
        with pytest.raises(InvalidKeyError, match="'c'"):
            write("c", b"x")
    with pytest.raises(ObjectNotFoundError):
        store.get("c")
    assert [o.outcome for o in store.delete_many(["c", "a/b"])] == ["already_missing"] * 2
    assert listed(store) == ["a", "c/d"]


@pytest.mark.parametrize(
    "key", ["/etc/passwd", "a//b", "a/", "nul\0", "n" * 256, "d/.lakegc-tmp-1"]
)
def test_keys_that_name_no_file_are_refused(store: ObjectStore, root: Path, key: str) -> None:
    with pytest.raises(InvalidKeyError):
        store.put(key, b"x")
    with pytest.raises(InvalidKeyError):
        store.get(key)
    (outcome,) = store.delete_many([key])
    assert (outcome.outcome, outcome.error_code) == ("failed", "InvalidKey")
    assert listed(store) == []
    assert [p for p in root.rglob("*") if p.is_file()] == []


def test_a_file_name_that_is_not_utf8_is_an_error(store: ObjectStore, root: Path) -> None:
    os.close(os.open(os.fsencode(root) + b"/\xff", os.O_CREAT | os.O_WRONLY))
    with pytest.raises(StorageError, match="UTF-8"):
        listed(store)


def test_unfinished_writes_are_invisible(store: ObjectStore, root: Path) -> None:
    store.put("d/a", b"x")
    (root / "d" / ".lakegc-tmp-0123").write_bytes(b"half")
    (root / "e").mkdir()
    (root / "e" / ".lakegc-tmp-0123").write_bytes(b"half")
    assert listed(store) == ["d/a"]
    assert store.list_prefixes().prefixes == ["d/"]
    with pytest.raises(InvalidKeyError, match="unfinished"):
        store.get("d/.lakegc-tmp-0123")


def test_directories_go_with_their_last_object_but_never_the_root(
    store: ObjectStore, root: Path
) -> None:
    for key in ("a/b/c", "a/b/d", "x"):
        store.put(key, b"")
    store.delete_many(["a/b/c"])
    assert (root / "a/b").is_dir()
    store.delete_many(["a/b/d", "x"])
    assert list(root.iterdir()) == []
    assert root.is_dir()


def test_puts_survive_deletes_of_their_directory(store: ObjectStore) -> None:
    stop = threading.Event()

    def delete() -> None:
        while not stop.is_set():
            store.delete_many(["a/b/c/victim"])

    with ThreadPoolExecutor(2) as pool:
        deleting = pool.submit(delete)
        for number in range(40):
            store.put("a/b/c/victim", b"x")
            key = f"a/b/c/{number}"
            store.put(key, b"x")
            store.delete_many([key])
        stop.set()
        deleting.result()


def test_etags_differ_for_writes_of_the_same_size_at_the_same_time(store: ObjectStore) -> None:
    etags = [store.put("k", b"%d" % (n % 2)) for n in range(100)]
    assert len(set(etags)) == 100


def test_a_failed_write_leaves_the_old_object_and_nothing_else(
    store: ObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("d/k", b"old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "fsync", fail)
    with pytest.raises(StorageError, match=r"'d/k': No space left"):
        store.put("d/k", b"new")
    assert store.get("d/k") == b"old"
    assert [p.name for p in (root / "d").iterdir()] == ["k"]


def _killed_at_line(root: str, operation: str, line: int) -> None:
    """Run a write, and kill this process at its n-th line."""
    store = open_store(root)
    etag = store.head("k").etag if operation == "put_if_match" else ""
    left = line

    def trace(_frame: object, event: str, _arg: object) -> object:
        nonlocal left
        left -= event == "line"
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    if operation == "put_if_match":
        store.put_if_match("k", b"n" * 5000, etag)
    elif operation == "put":
        store.put("k", b"n" * 5000)
    else:
        store.put_if_absent("d/k", b"n" * 5000)
    sys.settrace(None)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # its child starts no thread
@pytest.mark.parametrize("operation", ["put", "put_if_absent", "put_if_match"])
def test_a_process_killed_at_any_line_leaves_old_or_new(tmp_path: Path, operation: str) -> None:
    seen = set()
    for line in range(1, 1000, 6):
        root = tmp_path / str(line)
        store = open_store(str(root))
        store.put("k", b"old")
        pid = os.fork()
        if pid == 0:
            _killed_at_line(str(root), operation, line)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        key = "d/k" if operation == "put_if_absent" else "k"
        content = store.get(key) if key in listed(store) else None
        assert content in {b"n" * 5000, None if key == "d/k" else b"old"}
        seen.add(content)
        store.put(key, b"next")
        assert store.get(key) == b"next"
        if status == 0:
            break
    assert len(seen) == 2, "some kills came before the write, some after it"


def _count(root: str, times: int, ready: Connection) -> None:
    store = open_store(root)
    ready.send("ready")
    ready.recv()
    for _ in range(times):
        while True:
            etag, value = store.head("counter").etag, store.get("counter")
            try:
                store.put_if_match("counter", b"%d" % (int(value) + 1), etag)
                break
            except PreconditionFailedError:
                time.sleep(random.random() / 1000)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # its children start no thread
def test_processes_do_not_lose_updates(store: ObjectStore, root: Path) -> None:
    store.put("counter", b"0")
    workers = []
    for _ in range(3):
        ours, theirs = _FORK.Pipe()
        worker = _FORK.Process(target=_count, args=(str(root), 100, theirs))
        worker.start()
        workers.append((worker, ours))
    for _, pipe in workers:
        pipe.recv()
    for _, pipe in workers:
        pipe.send("go")
    for worker, pipe in workers:
        worker.join()
        pipe.close()
        assert worker.exitcode == 0
    assert store.get("counter") == b"300"


def test_without_directory_locks_only_conditional_replacement_is_refused(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(files, "flock", refuse)
    etag = store.put_if_absent("k", b"x")
    with pytest.raises(ConfigurationError, match="cannot lock"):
        store.put_if_match("k", b"y", etag)
    assert store.get("k") == b"x"
    assert store.delete_many(["k"])[0].outcome == "deleted"


def test_a_root_that_does_not_exist_is_empty_until_it_is_written(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "new" / "root"))
    assert listed(store) == []
    assert store.list_prefixes() == ([], [])
    with pytest.raises(ConfigurationError, match="does not exist"):
        store.server_time()
    store.put("a/b", b"x")
    assert listed(store) == ["a/b"]


def test_a_root_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = open_store(str(tmp_path / "file"))
    with pytest.raises(StorageError):
        listed(store)
    with pytest.raises(StorageError):
        store.put("k", b"x")


def test_a_directory_that_cannot_be_read_is_an_error(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("d/k", b"x")

    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files, "scandir", deny)
    with pytest.raises(AccessDeniedError, match="Permission denied"):
        listed(store)


def test_local_namespaces_live_below_the_local_root(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="local_root"):
        open_store("local://repo/ns")
    with pytest.raises(ConfigurationError, match="not a directory"):
        open_store("local://repo/ns", StoreConfig(local_root=str(tmp_path / "missing")))
    store = open_store("local://repo/ns/", StoreConfig(local_root=str(tmp_path)))
    store.put("data/a", b"x")
    assert store.url == "local://repo/ns"
    assert (tmp_path / "repo" / "ns" / "data" / "a").read_bytes() == b"x"


def test_settings_out_of_range_are_refused() -> None:
    for wrong in ({"max_attempts": 0}, {"connect_timeout_s": 0}, {"addressing": "dns"}):
        with pytest.raises(ConfigurationError):
            StoreConfig(**wrong)
