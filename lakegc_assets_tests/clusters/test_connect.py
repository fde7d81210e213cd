"""A mark and its sweep through Spark Connect: a server and its tasks that lack this package."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pytest

import lakegc_assets_tests
from lakegc_assets_tests.clusters.standalone import Cluster, Driver, bare_python, kill
from lakegc_assets_tests.frames import CONNECT_VARIABLE
from lakegc_assets_tests.lake import (
    REPOSITORY,
    SECRET_KEY,
    SmallLake,
    running,
    tell_history,
)
from lakegc_assets_tests.sessions import SMALL

pytestmark = pytest.mark.conformance

_PATIENCE_S = 300


@contextmanager
def connect_server(cluster: Cluster) -> Iterator[str]:
    """A Spark Connect server with two cores; its URL."""
    process = cluster.start(
        "connect", "org.apache.spark.deploy.SparkSubmit",
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--master", "local[2]",
        "--conf", f"spark.connect.grpc.binding.port={cluster.port}",
        "--conf", "spark.connect.grpc.binding.address=127.0.0.1",
        "--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1",
        "--conf", "spark.ui.enabled=false",
        *chain(*(("--conf", f"{n}={v}") for n, v in SMALL.items() if n.startswith("spark.sql"))),
        memory="1g",
    )  # fmt: skip
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", cluster.port)) == 0:
                    break
            assert process.poll() is None, cluster.logs()
            assert time.monotonic() < deadline, cluster.logs()
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{cluster.port}"
    finally:
        kill(process.pid)
        process.wait()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallLake]:
    with running(tmp_path_factory.mktemp("lake")) as found:
        yield found


@pytest.fixture(scope="module")
def environment(lake: SmallLake) -> dict[str, str]:
    """Where tasks and driver find credentials."""
    return {
        "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": "AKIALAKEGCEMBEDDED",
        "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": SECRET_KEY,
        "LAKEGC_LOCAL_ROOT": str(lake.server.objects_dir),
    }


@pytest.fixture(scope="module")
def server(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, str]]:
    """One for both tests, with its URL: it takes long to start, and longer to become fast."""
    folder = tmp_path_factory.mktemp("connect")
    cluster = Cluster(folder, bare_python(folder / "python"), environment)
    with connect_server(cluster) as url:
        yield cluster, url


def test_relations_are_what_their_twins_say_on_spark_connect(server: tuple[Cluster, str]) -> None:
    package = Path(lakegc_assets_tests.__file__).parent
    files = sorted(map(str, package.glob("*/test_*relations.py")))
    assert len(files) > 1
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files,
         str(package / "engine" / "test_sessions.py")],
        cwd=package.parent,
        env=os.environ | {CONNECT_VARIABLE: server[1]},
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-5000:]
    assert " passed" in ended.stdout


def test_a_repository_is_collected_through_spark_connect(
    server: tuple[Cluster, str], lake: SmallLake, environment: dict[str, str], tmp_path: Path
) -> None:
    groups, _ = tell_history(lake)
    marked = frozenset().union(*groups.values())
    live = lake.keys() - marked
    cluster, url = server
    user = Driver(cluster, tmp_path / "driver", environment, lake.server.endpoint)
    user.folder.mkdir()
    (user.folder / "spark.conf").write_text(f"spark.remote {url}\n")
    settings = {
        "min_age_hours": 1 / 3600, "allow_unsafe_min_age": True,
        "max_candidate_share": 0.9, "sweep_num_partitions": 2, "sweep_batch": 2,
    }  # fmt: skip
    process = user.run(REPOSITORY, "one", settings)
    assert process.wait(900) == 0, user.log()[-5000:] + cluster.logs()
    assert lake.keys() == live
    assert user.outcomes("one") == dict.fromkeys(marked, "deleted")
    (manifest,) = (user.folder / "artifacts").glob(f"{REPOSITORY}/one/*/gc_report/manifest.json")
    assert json.loads(manifest.read_bytes())["facts"]["engine"] == (
        "spark (LAKEGC_SPARK_CONF configures it)"
    )
