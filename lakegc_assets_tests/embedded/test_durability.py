"""Nothing that was acknowledged is lost by kill -9, and no commit is ever half made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Semaphore

import pytest
from click.testing import CliRunner

from lakegc_assets.embedded import EmbeddedLakeFS, embedded
from lakegc_assets.embedded.lake import trees
from lakegc_assets.embedded.server import server_credentials
from lakegc_assets_tests.embedded.api import TIMEOUT, Api, Repo
from lakegc_assets_tests.embedded.integrity import everything
from lakegc_assets_tests.embedded.workload import Client

CLIENTS = 4


@contextmanager
def process(data: Path, *options: str) -> Iterator[tuple[Api, subprocess.Popen[str], str]]:
    """A server of its own, with what it said when it was ready."""
    command = [sys.executable, "-m", "lakegc_assets.embedded", "--data", str(data), "--port", "0"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        line = running.stdout.readline()
        said = dict(part.split("=", 1) for part in line.split() if "=" in part)
        try:
            with Api(said["endpoint"], said["access_key"], said["secret_key"]) as api:
                yield api, running, line
        finally:
            running.send_signal(signal.SIGKILL)


def kill_again_and_again(data: Path, seed: int, kills: int) -> None:
    """Clients work, the server is killed after a random number of answers, and starts again."""
    random = Random(seed)
    clients = [Client(number, seed) for number in range(CLIENTS)]
    with process(data) as (api, _, _):
        api.repository()
        Repo(api, "repo").call("POST", "/tags", 201, json={"id": "empty", "ref": "main"})
    for _ in range(kills):
        answers = Semaphore(0)
        until = random.randrange(10, 90)
        with process(data) as (api, running, line):
            keys = dict(part.split("=", 1) for part in line.split() if "=" in part)
            stop = threading.Event()
            threads = [
                threading.Thread(
                    target=work, args=(client, keys, data / "objects", answers.release, stop)
                )
                for client in clients
            ]
            for thread in threads:
                thread.start()
            for _ in range(until):
                assert answers.acquire(timeout=TIMEOUT), f"seed {seed}: the clients have stopped"
            os.kill(running.pid, signal.SIGKILL)
            for thread in threads:
                thread.join()
        everything(data)
        with process(data) as (api, _, _):
            for client in clients:
                client.settle(api)
    assert sum(client.acknowledged for client in clients) > kills * 10


def work(
    client: Client,
    keys: dict[str, str],
    objects: Path,
    progress: Callable[[], None],
    stop: threading.Event,
) -> None:
    with Api(keys["endpoint"], keys["access_key"], keys["secret_key"]) as api:
        client.work(api, objects, progress, stop)


@pytest.mark.conformance
def test_acknowledged_writes_survive_many_kills(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, seed=2, kills=6)


def test_the_command_keeps_its_credentials_and_takes_others_and_a_layout(tmp_path: Path) -> None:
    with process(tmp_path) as (api, _, first):
        assert "trials and tests" in first
        assert api.call("GET", "/config/version")["version"]
    assert (tmp_path / "credentials.json").stat().st_mode & 0o077 == 0
    keys = json.loads((tmp_path / "credentials.json").read_text())
    with process(tmp_path) as (_, _, second):
        assert keys["secret_key"] in second
    options = ("--access-key", "me", "--secret-key", "s", "--layout", "sharded")
    with process(tmp_path, *options) as (api, _, third):
        assert "access_key=me secret_key=s" in third
        api.call("GET", "/user")
        address = api.repository().put("a", b"")["physical_address"]
        assert address.startswith("local://repo/data/!")


def test_first_starts_at_once_make_up_the_same_credentials(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: server_credentials(tmp_path, None, None), range(8)))
    assert len(set(keys)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["credentials.json"]


def test_a_commit_that_dies_before_its_transaction_leaves_the_old_state(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.put("a", b"1")
    head = repo.head()

    def die(*_: object) -> None:
        raise RuntimeError("died")

    with monkeypatch.context() as patch:
        patch.setattr("lakegc_assets.embedded.lake.catalog.move_branch", die)
        assert (
            "died"
            in repo.call("POST", "/branches/main/commits", 500, json={"message": "x"})["message"]
        )
    assert repo.head() == head
    assert repo.staged() == {"a": "added"}
    repo.commit()
    assert repo.staged() == {}


def test_what_changes_while_a_commit_is_written(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("changed", "deleted", "kept"):
        repo.put(name, b"1")
    original = trees.TreeWriter.finish
    meanwhile: list[Callable[[], object]] = [
        lambda: repo.put("changed", b"2"),
        lambda: repo.put("new", b"2"),
        lambda: repo.remove("deleted"),
    ]

    def finish(writer: trees.TreeWriter) -> str:
        while meanwhile:
            meanwhile.pop()()
        return original(writer)

    monkeypatch.setattr(trees.TreeWriter, "finish", finish)
    repo.commit()
    assert repo.list("main@") == ["changed", "deleted", "kept"]
    assert repo.read("changed", "main@") == b"1"
    assert repo.staged() == {"changed": "changed", "deleted": "removed", "new": "added"}
    assert repo.list() == ["changed", "kept", "new"]


@pytest.mark.parametrize("intruder", ["commit", "reset"])
def test_a_commit_fails_when_its_branch_moves_meanwhile(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, intruder: str
) -> None:
    repo.put("a", b"1")
    original = trees.TreeWriter.finish
    first = [True]

    def finish(writer: trees.TreeWriter) -> str:
        if first.pop() if first else False:
            if intruder == "commit":
                repo.commit("the other one")
            else:
                repo.call("PUT", "/branches/main", 204, json={"type": "reset"})
        return original(writer)

    monkeypatch.setattr(trees.TreeWriter, "finish", finish)
    answer = repo.call("POST", "/branches/main/commits", 412, json={"message": "this one"})
    assert answer == {"message": "Precondition failed"}
    assert repo.log() == (["the other one"] if intruder == "commit" else []) + [
        "Repository created"
    ]
    assert repo.staged() == {}


def test_two_processes_on_one_state_write_different_slices(tmp_path: Path) -> None:
    with (
        EmbeddedLakeFS(tmp_path) as one,
        EmbeddedLakeFS(tmp_path) as two,
        Api.of(one) as api_one,
        Api.of(two) as api_two,
    ):
        first = api_one.repository()
        second = Repo(api_two, "repo")
        addresses = [repo.put(str(repo), b"1")["physical_address"] for repo in (first, second)]
        assert addresses[0].split("/")[4] != addresses[1].split("/")[4]
        first.commit()
        assert second.staged() == {}
        assert len(second.list()) == 2


def test_a_store_that_is_not_on_s3_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        embedded, ["--data", str(tmp_path), "--port", "0", "--store", "gs://bucket"]
    )
    assert result.exit_code == 1
    assert "'gs://bucket' is not on S3" in result.output
