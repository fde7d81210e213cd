"""Uploads through the gateway outlive restarts and crashes, and are native ones on S3."""

from __future__ import annotations

import os
import signal
import threading
from itertools import count
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import BotoCoreError

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.embedded.gateway.errors import S3Error
from lakegc_assets.embedded.gateway.multipart import SMALLEST_ON_S3
from lakegc_assets.embedded.gateway.uploads import Uploads
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets_tests.conformance.recorder import DURABILITY, conforms
from lakegc_assets_tests.embedded.api import TIMEOUT, Api, Repo
from lakegc_assets_tests.embedded.conftest import Clock
from lakegc_assets_tests.embedded.gateway.parts import (
    PATH,
    add,
    begin,
    complete,
    etag_of,
    files_of,
)
from lakegc_assets_tests.embedded.gateway.s3 import S3, client, client_of, refused
from lakegc_assets_tests.embedded.test_durability import process


def test_an_upload_goes_on_after_a_restart(tmp_path: Path) -> None:
    with EmbeddedLakeFS(tmp_path, secret_key="s") as server, Api.of(server) as api:
        api.repository()
        s3 = client_of(server)
        where, other = begin(s3), begin(s3, "main/other")
        first, done = add(s3, where, 1, b"one"), add(s3, other, 1, b"done")
        complete(s3, other, done)
        # What a crash between the two steps of a complete leaves, and one before a part's row.
        for name in (other["UploadId"], "nobody"):
            (tmp_path / "uploads" / name).mkdir(exist_ok=True)
            (tmp_path / "uploads" / name / "1-x").write_bytes(b"left over")
        unnamed = tmp_path / "uploads" / where["UploadId"] / "2-unnamed"
        unnamed.write_bytes(b"no row")
    with EmbeddedLakeFS(tmp_path, secret_key="s") as server, Api.of(server) as api:
        s3, repo = client_of(server), Repo(api, "repo")
        assert {path.parent.name for path in files_of(server)} == {where["UploadId"]}
        second = add(s3, where, 2, b"two")
        complete(s3, where, first, second)
        assert (repo.read(PATH), repo.read("other")) == (b"onetwo", b"done")
        assert files_of(server) == []
        assert complete(s3, other, done) == f'"{etag_of(b"done")}"'


def test_two_processes_share_an_upload(tmp_path: Path) -> None:
    with EmbeddedLakeFS(tmp_path, secret_key="s") as one, Api.of(one) as api:
        repo = api.repository()
        where = begin(client_of(one))
        first = add(client_of(one), where, 1, b"one")
        with EmbeddedLakeFS(tmp_path, secret_key="s") as two:
            second = add(client_of(two), where, 2, b"two")
        complete(client_of(one), where, first, second)
        assert repo.read(PATH) == b"onetwo"


def test_ended_uploads_are_known_for_a_day(tmp_path: Path, clock: Clock) -> None:
    with EmbeddedLakeFS(tmp_path, clock=clock) as server, Api.of(server) as api:
        api.repository()
        uploads = Uploads(server.lake)
        with server.lake.state.read() as db:
            (branch,) = db.execute("SELECT uid FROM branches").fetchone()
        ended = uploads.start(branch, "a", "", {})
        with server.lake.state.write() as db:
            uploads.end(db, uploads.find(ended, branch, "a")[0], "etag-1")
        clock.now += 24 * 3600
        running = uploads.start(branch, "b", "", {})
        assert uploads.find(ended, branch, "a")[0].etag == "etag-1"
        clock.now += 1
        uploads.start(branch, "c", "", {})
        with pytest.raises(S3Error, match="does not exist"):
            uploads.find(ended, branch, "a")
        assert uploads.find(running, branch, "b")[0].path == "b"


@pytest.mark.conformance
@conforms(
    DURABILITY,
    "Writes through the gateway survive kill -9",
    client="boto3",
    checked="puts, deletes and multipart uploads, the server killed in the middle of them",
)
def test_what_the_gateway_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    acknowledged: dict[str, bytes] = {}
    open_uploads: list[tuple[dict[str, Any], dict[str, Any], bytes]] = []

    def work(s3: S3) -> None:
        try:
            for number in count():
                key, data = f"{number % 20}", f"{number}".encode()
                if number % 10 == 9:
                    where = begin(s3, f"main/{key}")
                    complete(s3, where, add(s3, where, 1, data))
                    another = begin(s3, f"main/open-{number}")
                    open_uploads.append((another, add(s3, another, 1, data), data))
                else:
                    s3.put_object(Bucket="repo", Key=f"main/{key}", Body=data)
                acknowledged[key] = data
                if number == 60:
                    far_enough.set()
        except BotoCoreError:
            pass

    far_enough = threading.Event()
    with process(tmp_path, "--access-key", "me", "--secret-key", "s") as (api, running, said):
        api.repository()
        endpoint = said.split("endpoint=")[1].split()[0]
        worker = threading.Thread(target=work, args=(client(endpoint, "me", "s"),))
        worker.start()
        assert far_enough.wait(TIMEOUT)
        os.kill(running.pid, signal.SIGKILL)
        worker.join()
    last = max(int(data) for data in acknowledged.values())
    with process(tmp_path) as (api, _, said):
        repo, s3 = Repo(api, "repo"), client(said.split("endpoint=")[1].split()[0], "me", "s")
        for key, data in acknowledged.items():
            # The next one may have been done without its answer having been sent.
            following = str(last + 1).encode()
            assert repo.read(key) in ({data, following} if key == f"{(last + 1) % 20}" else {data})
        assert open_uploads
        for where, part, data in open_uploads:
            complete(s3, where, part)
            assert repo.read(where["Key"].removeprefix("main/")) == data


def test_on_s3_the_store_has_the_same_parts(tmp_path: Path, s3_server: str, s3_bucket: str) -> None:
    parts = [b"a" * SMALLEST_ON_S3, b"b" * 10]
    with (
        EmbeddedLakeFS(
            tmp_path, f"s3://{s3_bucket}/lake", store_config=StoreConfig(s3_server)
        ) as server,
        Api.of(server) as api,
    ):
        repo = api.repository(namespace=f"s3://{s3_bucket}/lake/repo")
        s3 = client_of(server)
        where = begin(s3)
        small = [add(s3, where, number, b"small") for number in (3, 4)]
        with refused(400, "EntityTooSmall"):
            complete(s3, where, *small)
        complete(s3, where, *[add(s3, where, n, part) for n, part in enumerate(parts, 1)])
        stat = repo.stat(PATH)
        assert stat["checksum"] == etag_of(*parts)
        assert repo.read(PATH) == b"".join(parts)
        behind: S3 = boto3.client("s3", endpoint_url=s3_server)
        key = stat["physical_address"].removeprefix(f"s3://{s3_bucket}/")
        assert behind.head_object(Bucket=s3_bucket, Key=key)["ETag"] == f'"{stat["checksum"]}"'
        assert "Uploads" not in behind.list_multipart_uploads(Bucket=s3_bucket)


def test_an_upload_that_the_store_refuses_is_taken_back(
    tmp_path: Path, s3_server: str, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        EmbeddedLakeFS(
            tmp_path, f"s3://{s3_bucket}/lake", store_config=StoreConfig(s3_server)
        ) as server,
        Api.of(server) as api,
    ):
        repo = api.repository(namespace=f"s3://{s3_bucket}/lake/repo")
        s3 = client_of(server)
        where = begin(s3)
        part = add(s3, where, 1, b"one")

        def fail(*_: object) -> bytes:
            raise RuntimeError("died")

        with monkeypatch.context() as patch:
            patch.setattr(Uploads, "read", fail)
            with refused(500, "InternalError"):
                complete(s3, where, part)
        assert repo.list() == []
        behind: S3 = boto3.client("s3", endpoint_url=s3_server)
        assert "Uploads" not in behind.list_multipart_uploads(Bucket=s3_bucket)
        complete(s3, where, part)
        assert repo.read(PATH) == b"one"
