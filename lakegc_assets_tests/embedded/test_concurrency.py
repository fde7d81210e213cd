"""Many clients at once: every write is there, every commit whole, and a collector sees it all."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from lakegc_assets.graveler.entry import decode_entry
from lakegc_assets.graveler.ranges import read_metarange
from lakegc_assets.graveler.sstable import read_sstable
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets_tests.embedded.api import Repo
from lakegc_assets_tests.embedded.direct import Direct
from lakegc_assets_tests.embedded.integrity import everything

WRITERS = 6
PATHS = 6


class Writer:
    """Writes numbers that grow to paths of its own on ``main``."""

    def __init__(self, api: Direct, number: int, seed: int, calls: int) -> None:
        self.repo = Repo(api, "repo")
        self.number = number
        self.calls = calls
        self.random = Random(seed * 100 + number)
        self.state: dict[str, bytes] = {}
        self.addresses: dict[str, str] = {}
        self.history: dict[str, list[bytes | None]] = {}
        self.commits: list[str] = []

    def run(self) -> None:
        for count in range(1, self.calls + 1):
            path = f"{self.number}/{self.random.randrange(PATHS)}"
            doing = self.random.choices((self.put, self.remove, self.commit), (6, 2, 1))[0]
            doing(path, f"{self.number} {count}".encode())

    def put(self, path: str, content: bytes) -> None:
        self.history.setdefault(path, []).append(content)
        self.addresses.pop(path, None)
        address = self.repo.put(path, content)["physical_address"]
        self.state[path], self.addresses[path] = content, address

    def remove(self, path: str, _: bytes) -> None:
        self.history.setdefault(path, []).append(None)
        self.addresses.pop(path, None)
        self.repo.remove(path)
        self.state.pop(path, None)

    def commit(self, _: str, message: bytes) -> None:
        response = self.repo.api.send(
            "POST", f"{self.repo.path}/branches/main/commits", json={"message": message.decode()}
        )
        assert response.status_code in {201, 400, 412}, response.text
        if response.status_code == 201:
            self.commits.append(response.json()["id"])


def together(*works: Callable[[], None]) -> None:
    """Run all at once, and fail if one of them does."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised again where it is seen
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def staged_addresses(repo: Repo, store: ObjectStore) -> set[str]:
    """All pages of the uncommitted list."""
    body: dict[str, str] = {}
    found: set[str] = set()
    while True:
        page = repo.call("POST", "/gc/prepare_uncommited", 201, json=body)
        if page["gc_uncommitted_location"]:
            folder = page["gc_uncommitted_location"].removeprefix("local://repo/")
            for batch in store.list(folder):
                for key in batch.column("key").to_pylist():
                    table = pq.read_table(io.BytesIO(store.get(key)))
                    found |= set(table["physical_address"].to_pylist())
        if "continuation_token" not in page:
            return found
        body = {"continuation_token": page["continuation_token"]}


def committed_addresses(repo: Repo, store: ObjectStore) -> set[str]:
    """Of the active commits, by lakeFS's list."""
    answer = repo.call("POST", "/gc/prepare_commits", 201, json={})
    lines = store.get(answer["gc_commits_location"].removeprefix("local://repo/")).decode()
    found: set[str] = set()
    for line in lines.splitlines()[1:]:
        metarange = line.split(",")[2]
        if metarange:
            for info in read_metarange(store.get(f"_lakefs/{metarange}"), metarange):
                records = read_sstable(store.get(f"_lakefs/{info.id}"), info.id).records
                found |= {decode_entry(record.value).address for record in records}
    return found


def is_subsequence(part: list[bytes | None], whole: list[bytes | None]) -> bool:
    rest = iter(whole)
    return all(any(seen == found for seen in rest) for found in part)


def work_at_once(data: Path, seed: int, calls: int, scans: int) -> None:
    with Direct.on(data, range_raggedness=4, uncommitted_page_steps=7) as api:
        repo = api.repository()
        repo.rules(1)
        store = api.lake.stores.open("local://repo")
        writers = [Writer(api, number, seed, calls) for number in range(WRITERS)]

        def collect() -> None:
            """What is readable before and after the two looks of a collector is in one of them."""
            for _ in range(scans):
                before = [dict(writer.addresses) for writer in writers]
                live = staged_addresses(repo, store) | committed_addresses(repo, store)
                for writer, old in zip(writers, before, strict=True):
                    now = dict(writer.addresses)
                    kept = {a for path, a in old.items() if now.get(path) == a}
                    assert {a.removeprefix("local://repo/") for a in kept} <= live, f"seed {seed}"

        together(*(writer.run for writer in writers), collect)
        expected = {path: content for writer in writers for path, content in writer.state.items()}
        paths = repo.list(amount=1000)
        assert {path: repo.read(path) for path in paths} == expected, f"seed {seed}"
        log = repo.call("GET", "/refs/main/commits", params={"amount": 1000})["results"]
        made = [commit for writer in writers for commit in writer.commits]
        assert sorted(c["id"] for c in log[:-1]) == sorted(made), f"seed {seed}"
        for newer, older in pairwise(log):
            assert newer["parents"] == [older["id"]]
        check_order(writers, repo, [c["id"] for c in reversed(log)])
        api.send("POST", f"{repo.path}/branches/main/commits", json={"message": "last"})
        assert repo.staged() == {}
        assert set(repo.list("main@", amount=1000)) == expected.keys()
        api.lake.close()
    everything(data)


def check_order(writers: list[Writer], repo: Repo, commits: list[str]) -> None:
    """From commit to commit a path only ever gets what was written to it later."""
    seen: dict[str, list[bytes | None]] = {}
    for commit in commits:
        there = {path: repo.read(path, commit) for path in repo.list(commit, amount=1000)}
        for path in {path for writer in writers for path in writer.history}:
            content = there.get(path)
            assert not isinstance(content, int)
            versions = seen.setdefault(path, [None])
            if versions[-1] != content:
                versions.append(content)
    for writer in writers:
        for path, history in writer.history.items():
            assert is_subsequence(seen[path], [None, *history]), (path, seen[path], history)


def test_uploads_deletes_and_commits_at_once(tmp_path: Path) -> None:
    work_at_once(tmp_path, seed=1, calls=40, scans=4)


@pytest.mark.conformance
def test_many_uploads_deletes_and_commits_at_once(tmp_path: Path) -> None:
    work_at_once(tmp_path, seed=2, calls=150, scans=15)
