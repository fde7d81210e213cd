"""Backups on another S3 server than the namespace, with credentials of their own."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import boto3
import pytest

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.config import S3Access
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, mark
from lakegc_assets_tests.recovery.restore.test_histories import World, world
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.storage.servers import Server

BACKUPS = "backups-elsewhere"


@pytest.fixture(scope="module")
def other_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a second S3 server, in a process of its own, which has a bucket that no other has."""
    log = tmp_path_factory.mktemp("other") / "log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p"]
    server = Server("a second S3 server", lambda port: [*command, str(port)], log)
    server.start()
    try:
        s3 = boto3.client(
            "s3",
            endpoint_url=server.endpoint,
            region_name="us-east-1",
            aws_access_key_id="another",
            aws_secret_access_key="another",
        )
        s3.create_bucket(Bucket=BACKUPS)
        yield server.endpoint
    finally:
        server.stop()


@pytest.fixture
def here(tmp_path: Path, spark: Session, s3_server: str, s3_bucket: str) -> Iterator[World]:
    with world(tmp_path, spark, 1, s3_server, s3_bucket) as found:
        found.settings["backup_url"] = f"s3://{BACKUPS}/of lakes"
        yield found


def _elsewhere(ctx: RunContext, bucket: str, endpoint: str) -> RunContext:
    access = S3Access(endpoint_url=endpoint, profile="of the backups")
    stores = replace(ctx.root.stores, elsewhere=((bucket, access),))
    return replace(ctx, root=replace(ctx.root, stores=stores))


def test_what_is_backed_up_on_another_server_comes_back_from_there(
    here: World, other_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "credentials"
    keys.write_text(
        "[of the backups]\naws_access_key_id = another\naws_secret_access_key = another\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    here.tell()
    time.sleep(1.1)  # Buckets tell times in whole seconds.
    ctx = _elsewhere(here.context("one"), BACKUPS, other_server)
    mark(ctx)
    before = here.contents()
    make_backup(ctx)
    sweep(ctx)
    dead = before.keys() - here.contents().keys()
    here.marked = {address: before[address] for address in dead}
    for address in dead:
        here.suffer(address, "pruned")

    outcomes = restore(ctx, Choice(everything=True)).facts["outcomes"]

    assert outcomes["restored"]["objects"] == len(dead) > 0
    assert before.items() <= here.contents().items()
    backup = ctx.root.stores.at(f"s3://{BACKUPS}")
    assert (backup.endpoint_url, backup.profile) == (other_server, "of the backups")
    assert backup.read_timeout_s == ctx.root.stores.read_timeout_s


def test_one_name_for_two_buckets_is_refused(here: World, other_server: str) -> None:
    namespace = here.lake.client.repository(REPOSITORY).storage_namespace
    bucket = namespace.split("/")[2]
    ctx = _elsewhere(here.context("one"), bucket, other_server)
    with pytest.raises(ConfigurationError, match="Choose a bucket with another name"):
        ctx.connect()
