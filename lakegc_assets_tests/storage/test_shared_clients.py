"""Clients are made once for a process and its settings, whatever its threads and forks do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest

from lakegc_assets.storage import http
from lakegc_assets.storage.config import AzureAccess, GcsAccess, StoreConfig
from lakegc_assets.storage.http import once_per_process
from lakegc_assets.storage.opening import open_store

_OPENED = {
    "s3://bkt/ns": StoreConfig(endpoint_url="http://127.0.0.1:9"),
    "https://acc.blob.core.windows.net/box": StoreConfig(
        azure=AzureAccess("http://127.0.0.1:9/acc")
    ),
    "gs://bkt/ns": StoreConfig(gcs=GcsAccess("http://127.0.0.1:9")),
}
# The fork happens while another thread makes something, as where Spark's daemon forks.
_FORK = """
import os, threading, time
from lakegc_assets.storage.http import once_per_process

@once_per_process()
def made(seconds):
    time.sleep(seconds)
    return object()

mine = made(0)
threading.Thread(target=made, args=(2,), daemon=True).start()
time.sleep(0.5)
child = os.fork()
if not child:
    again = made(0)
    os._exit(0 if again is made(0) and again is not mine else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), made(0) is mine)
"""


@pytest.mark.parametrize("url", _OPENED)
@pytest.mark.usefixtures("aws_environment")
def test_a_store_that_is_opened_twice_has_one_client(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1")

    def client(config: StoreConfig) -> object:
        store = open_store(url, config)
        return store.clients if url.startswith("s3") else store.service  # type: ignore[attr-defined]

    assert client(_OPENED[url]) is client(_OPENED[url])
    assert client(_OPENED[url]) is not client(replace(_OPENED[url], max_attempts=2))


def test_threads_that_ask_at_once_share_one() -> None:
    made = []

    @once_per_process()
    def make(name: str) -> str:
        time.sleep(0.05)
        made.append(name)
        return name * 1000

    barrier = Barrier(8)

    def ask(_: int) -> str:
        barrier.wait()
        return make("x")

    with ThreadPoolExecutor(8) as pool:
        assert len({id(found) for found in pool.map(ask, range(8))}) == 1
    assert made == ["x"]


def test_a_variable_that_changes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    @once_per_process("LAKEGC_TRIED_")
    def make() -> str:
        return os.environ["LAKEGC_TRIED_NAME"]

    for name in ("a", "b"):
        monkeypatch.setenv("LAKEGC_TRIED_NAME", name)
        assert make() == name


def test_a_forked_process_makes_its_own_and_waits_for_no_thread_of_its_parent() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FORK],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    assert done.stdout.split() == ["0", "True"]


def test_a_store_that_was_used_before_a_fork_has_other_clients_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = open_store("gs://bkt/ns", _OPENED["gs://bkt/ns"])
    before = store.service  # type: ignore[attr-defined]
    monkeypatch.setattr(http, "getpid", lambda: -1)
    assert store.service is not before  # type: ignore[attr-defined]
