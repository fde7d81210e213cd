"""While clients do whatever they do on a real lakeFS, it is collected, and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
import requests

from lakegc_assets_tests.real_lakefs.server import ACCESS_KEY, SECRET_KEY, lakefs
from lakegc_assets_tests.real_lakefs.writers import Lake, Writers
from lakegc_assets_tests.storage.servers import (
    S3_ACCESS_KEY,
    S3_SECRET_KEY,
    Server,
    fake_gcs,
    minio,
)

pytestmark = pytest.mark.lakefs

_WRITERS: Final = 4
#: Runs beside the writers.
_RUNS: Final = 3
#: Of the server, for one run.
_RESTARTS: Final = 5
#: Between the upload of an object and its link are milliseconds here.
_MIN_AGE_S: Final = 6


@dataclass(frozen=True)
class Place:
    """A store, as lakeFS and the command are told of it."""

    blockstore: Mapping[str, Any]
    environment: Mapping[str, str]
    namespace: str
    signs: bool


@contextmanager
def on_minio(folder: Path) -> Iterator[Place]:
    with minio(folder) as server:
        keys = {
            "AWS_ACCESS_KEY_ID": S3_ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": S3_SECRET_KEY,
            "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL_S3": server.endpoint,
        }  # fmt: skip
        client = boto3.client(
            "s3", endpoint_url=server.endpoint, region_name="us-east-1",
            aws_access_key_id=S3_ACCESS_KEY, aws_secret_access_key=S3_SECRET_KEY,
        )  # fmt: skip
        client.create_bucket(Bucket="lake")
        s3 = {
            "force_path_style": True, "endpoint": server.endpoint, "region": "us-east-1",
            "discover_bucket_region": False,
            "credentials": {
                "access_key_id": S3_ACCESS_KEY, "secret_access_key": S3_SECRET_KEY
            },
        }  # fmt: skip
        yield Place({"type": "s3", "s3": s3}, keys, "s3://lake/some/where", signs=True)


@contextmanager
def on_files(folder: Path) -> Iterator[Place]:
    local = {"path": str(folder / "objects")}
    found = {"LAKEGC_LOCAL_ROOT": local["path"]}
    yield Place({"type": "local", "local": local}, found, "local://lake", signs=False)


@contextmanager
def on_gcs(folder: Path) -> Iterator[Place]:
    with fake_gcs(folder) as server:
        requests.post(f"{server.endpoint}/storage/v1/b", json={"name": "lake"}, timeout=60)
        found = {"STORAGE_EMULATOR_HOST": server.address}
        gs = {"disable_pre_signed": True}
        yield Place({"type": "gs", "gs": gs}, found, "gs://lake/some/where", signs=False)


@pytest.mark.parametrize("store", [on_minio, on_files, on_gcs])
def test_nothing_is_lost_beside_writers_of_all_kinds(
    tmp_path: Path, store: Callable[[Path], Any]
) -> None:
    with store(tmp_path) as place, lakefs(tmp_path, place.blockstore, place.environment) as server:
        lake = Lake(server.endpoint, "lake")
        url = f"{server.endpoint}/api/v1/repositories"
        made = {"name": "lake", "storage_namespace": place.namespace}
        requests.post(url, json=made, auth=(ACCESS_KEY, SECRET_KEY), timeout=60).raise_for_status()
        lake.set_rules({"default_retention_days": 2, "branches": []})
        collect = Collector(tmp_path, server, place)
        with Writers(lake, _WRITERS, signs=place.signs) as writers:
            for number in range(_RUNS):
                time.sleep(_MIN_AGE_S)
                collect.run(f"beside-{number}")
                assert writers.lost() == []
        time.sleep(_MIN_AGE_S + 1)
        afterwards = collect.run("afterwards")
        assert writers.lost() == []
        again = collect.run("again")
        assert writers.lost() == []
    assert afterwards["outcomes"]["deleted"]["objects"] > 0
    # What was uploaded in parts is garbage only when a mark has seen it before.
    assert set(again["outcomes"]) <= {"deleted"}
    # All that they can do was done, and not refused for some reason of theirs.
    assert writers.done.keys() >= {"upload", "put", "commit", "merge", "copy", "delete_branch"}


@dataclass(frozen=True)
class Collector:
    """The command, in a process of its own, as users have it."""

    folder: Path
    server: Server
    place: Place

    def run(self, name: str) -> Mapping[str, Any]:
        """Mark and sweep; the report."""
        age = ("--min-age", f"{_MIN_AGE_S}s", "--allow-unsafe-min-age")
        found = self._call("run", "lake", "--run", name, *age, "--max-candidate-share", "1")
        picked = "cherry-picked" in found.stdout + found.stderr
        if found.returncode and picked and name.count("again") < _RESTARTS:
            # Of a merge that was cherry-picked, and merged, lakeFS knows nothing by its id until it
            # is started again, or ten minutes have passed. Nothing is deleted by such a run.
            self.server.stop()
            self.server.start()
            return self.run(f"{name}-again")
        assert found.returncode == 0, found.stdout + found.stderr
        report: dict[str, Any] = json.loads(
            self._call("report", "lake", "--run", name, "--json").stdout
        )
        return report

    def _call(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            **self.place.environment,
            "LAKECTL_SERVER_ENDPOINT_URL": self.server.endpoint,
            "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": ACCESS_KEY,
            "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": SECRET_KEY,
            "LAKEGC_ARTIFACT_ROOT": str(self.folder / "artifacts"),
            "DAGSTER_HOME": str(self.folder / "dagster"),
        }
        return subprocess.run(
            [sys.executable, "-m", "lakegc_assets.cli", *words],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
