"""A mark and its sweep on a cluster: the package gets there, secrets get nowhere, a worker dies."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock

import boto3
import pytest

from lakegc_assets.lakefs.writes import LakeFSWriter
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.s3.client import write_credentials_file
from lakegc_assets_tests.clusters.standalone import (
    Cluster,
    Driver,
    descendants,
    fetch,
    kill,
    standalone,
)
from lakegc_assets_tests.lake import REPOSITORY, SECRET_KEY, running
from lakegc_assets_tests.storage.servers import Server, versitygw

pytestmark = pytest.mark.stores

S3_KEY = "clustermarkerkey"
S3_SECRET = "cluster/marker+secret"
LAKEFS_KEY = "AKIALAKEGCEMBEDDED"
#: Two tasks that delete, each several times.
COLLECTOR = {
    "min_age_hours": 1 / 3600,
    "allow_unsafe_min_age": True,
    "max_candidate_share": 0.9,
    "listing_num_partitions": 2,
    "range_num_partitions": 2,
    "address_num_partitions": 2,
    "sweep_num_partitions": 2,
    "sweep_batch": 2,
    "engine": "spark",
}
#: Stands in Spark's settings, so that it must be found wherever they are shown.
CANARY = "a-canary-in-the-settings"


def forms(*secrets: str) -> set[bytes]:
    """Secrets as they may be written: plain, in URLs, in base64 and in JSON."""
    pairs = [f"{LAKEFS_KEY}:{SECRET_KEY}", f"{S3_KEY}:{S3_SECRET}"]
    found = set(secrets)
    found |= {urllib.parse.quote(s, safe="") for s in secrets}
    found |= {json.dumps(s)[1:-1].replace("/", "\\/") for s in secrets}
    found |= {base64.b64encode(s.encode()).decode().rstrip("=") for s in (*secrets, *pairs)}
    return {each.encode() for each in found}


SECRETS = forms(SECRET_KEY, S3_SECRET)


def holding(folder: Path, *texts: bytes) -> set[str]:
    """Files below a folder that hold one of some texts."""
    found = set()
    # A JVM that ends removes its folders meanwhile, which ``os.walk`` passes over.
    for where, _, names in os.walk(folder):
        for path in (Path(where, name) for name in names):
            with suppress(FileNotFoundError):
                if path.is_file() and not path.is_symlink():
                    content = path.read_bytes()
                    if any(text in content for text in texts):
                        found.add(str(path.relative_to(folder)))
    return found


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("s3")
    with versitygw(folder, "--access", S3_KEY, "--secret", S3_SECRET) as server:
        yield server


@pytest.fixture(scope="module")
def environment(s3: Server) -> Mapping[str, str]:
    """Where tasks and driver find credentials: nothing else tells them."""
    return {
        "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": LAKEFS_KEY,
        "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_ACCESS_KEY_ID": S3_KEY,
        "AWS_SECRET_ACCESS_KEY": S3_SECRET,
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }


@pytest.fixture(scope="module")
def cluster(
    environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with standalone(tmp_path_factory.mktemp("cluster"), environment, workers=2) as found:
        yield found


def tell(client: LakeFSWriter, namespace: str) -> tuple[set[str], set[str]]:
    """A repository without rules: addresses that live, and some that were never committed."""
    client.create_repository(REPOSITORY, namespace)

    def upload(path: str, content: str) -> str:
        found = client.upload_object(REPOSITORY, "main", path, content.encode())
        return found.physical_address.removeprefix(f"{namespace}/")

    dead = {upload(f"a/{n}", f"first of a {n}") for n in range(20)}
    live = {upload(f"a/{n}", f"the second of a {n}") for n in range(20)}
    client.commit_branch(REPOSITORY, "main", "all of a", allow_empty=False)
    live |= {upload(f"b/{n}", f"staged as b {n}, and left so") for n in range(3)}
    return live, dead


@dataclass
class Watch:
    """Looks for secrets wherever somebody could see them while a run is on.

    Attributes:
        cluster: what it runs on.
        user: who started it.
        found: where secrets were seen.
        canaries: where the canary was seen, so that a blind look is noticed.
        looks: how often it was looked.
    """

    cluster: Cluster
    user: Driver
    process: subprocess.Popen[bytes] | None = None
    found: list[str] = field(default_factory=list)
    canaries: set[str] = field(default_factory=set)
    looks: int = 0

    def shown(self) -> Iterator[tuple[str, bytes]]:
        """What Spark's web interfaces and the list of processes show."""
        api = f"http://127.0.0.1:{self.user.ui_port}/api/v1/applications"
        (application,) = json.loads(fetch(api))
        for url in (
            f"{api}/{application['id']}/environment",
            f"{api}/{application['id']}/jobs",
            f"{api}/{application['id']}/stages",
            f"{api}/{application['id']}/allexecutors",
            f"http://127.0.0.1:{self.user.ui_port}/environment/",
            f"{self.cluster.ui}/json/",
            f"{self.cluster.ui}/app/?appId={application['id']}",
            self.cluster.ui,
        ):
            yield url, fetch(url).encode()
        assert self.process is not None
        for root in (self.process, *self.cluster.workers.values()):
            for pid in descendants(root.pid):
                with suppress(OSError):
                    yield f"process {pid}", Path(f"/proc/{pid}/cmdline").read_bytes()

    def look(self, _method: str, path: str) -> None:
        if not path.endswith("/prepare_uncommited"):
            return
        for where, text in self.shown():
            if CANARY.encode() in text:
                self.canaries.add(where.partition(" ")[0].rpartition("/v1/")[0] or where)
            self.found += [where for secret in SECRETS if secret in text]
        for folder in (self.cluster.folder, self.user.folder):
            self.found += holding(folder, *SECRETS)
        self.looks += 1


@dataclass
class Strike:
    """Kills a worker as soon as both are in the middle of their deletes.

    Attributes:
        cluster: that has the worker.
        user: who started the sweep.
        stored: finds what the store holds.
        dead: what the sweep deletes.
        struck: what was left when the worker died.
    """

    cluster: Cluster
    user: Driver
    stored: Callable[[], set[str]]
    dead: set[str]
    struck: list[set[str]] = field(default_factory=list)
    _both: Event = field(default_factory=Event)
    _once: Lock = field(default_factory=Lock)

    def see(self, _method: str, _path: str) -> None:
        begun = [] if self.struck else self.user.notes("begun")
        if not begun:
            return
        if len(begun) < 2:
            self._both.wait(600)
            return
        self._both.set()
        with self._once:
            if self.struck or self.stored() >= self.dead:
                return
            assert self.user.notes("ended") == []
            self.struck.append(self.stored())
            victim = self.cluster.workers.pop("worker-0")
            kill(victim.pid)
            victim.wait()


def test_no_secret_is_shown_and_another_worker_goes_on_where_one_is_killed(
    cluster: Cluster, s3: Server, environment: Mapping[str, str], tmp_path: Path
) -> None:
    """What the dead worker had not done is left to a new round of the other."""
    keys = tmp_path / "s3.json"
    write_credentials_file(keys, S3_KEY, S3_SECRET)
    access = StoreConfig(endpoint_url=s3.endpoint, region="us-east-1", credentials_file=str(keys))
    boto3.client(
        "s3", endpoint_url=s3.endpoint, region_name="us-east-1", aws_access_key_id=S3_KEY,
        aws_secret_access_key=S3_SECRET,
    ).create_bucket(Bucket="lake")  # fmt: skip
    with running(tmp_path / "lake", store="s3://lake", store_config=access) as lake:
        live, dead = tell(lake.client, f"s3://lake/{REPOSITORY}")
        store = open_store(f"s3://lake/{REPOSITORY}", access)

        def stored() -> set[str]:
            return {key for batch in store.list("data/") for key in batch["key"].to_pylist()}

        user = Driver(cluster, tmp_path / "driver", environment, lake.server.endpoint)
        user.write_settings(canary=CANARY)
        watch, strike = Watch(cluster, user), Strike(cluster, user, stored, dead)

        def see(method: str, path: str) -> None:
            watch.look(method, path)
            strike.see(method, path)

        lake.on_request = see
        watch.process = user.run(REPOSITORY, "one", COLLECTOR)
        assert watch.process.wait(900) == 0, user.log()[-5000:]
        assert stored() == live
    (left,) = strike.struck
    assert live < left < live | dead
    assert user.rounds("one") >= 2
    outcomes = user.outcomes("one")
    assert outcomes.keys() == dead
    assert set(outcomes.values()) <= {"deleted", "already_missing"}
    # Once in the mark, and in the sweep before and after it deletes.
    assert watch.looks >= 3
    assert watch.found == []
    for folder in (cluster.folder, user.folder, s3.log.parent):
        assert holding(folder, *SECRETS) == set()
    # The same looks do see what is there to be seen.
    assert f"http://127.0.0.1:{user.ui_port}/api" in watch.canaries
    assert {name.partition("/")[0] for name in holding(user.folder, CANARY.encode())} == {
        "events", "spark.conf"
    }  # fmt: skip
    stderr = holding(
        cluster.folder / "work", b"Successfully created scheduler backend", b"Executor"
    )
    assert len({name.partition("/")[0] for name in stderr}) == 2
