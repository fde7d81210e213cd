"""Lease, conditions and deleting tasks on real S3 and Azure servers, which die in the middle."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Barrier

import boto3
import pyarrow.parquet as pq
import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.run.connections import Connections
from lakegc_assets.storage.azure.auth import write_azure_credentials_file
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import AzureAccess, StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.probes import Condition, probe_conditions
from lakegc_assets.storage.values import DeleteOutcome
from lakegc_assets.sweep.deletion import DeletingTask, TaskClients
from lakegc_assets.sweep.lease import Lease, LeaseLostError, repository_lease
from lakegc_assets.sweep.lease_record import LEASE, PROBES, read_lease
from lakegc_assets.sweep.store_comparison import Marked
from lakegc_assets.sweep.task_orders import summed
from lakegc_assets_tests.clocks import StubClocks
from lakegc_assets_tests.lake import SmallLake
from lakegc_assets_tests.storage.conftest import azure_client
from lakegc_assets_tests.storage.servers import AZURE_ACCOUNT, AZURE_KEY, Server
from lakegc_assets_tests.sweep.stand_ins import orders_of, table_of

pytestmark = pytest.mark.stores

DURATION = timedelta(minutes=3)
Place = tuple[str, StoreConfig]


def new_bucket(server: Server) -> Place:
    bucket = f"bucket-{uuid.uuid4().hex}"
    boto3.client("s3", endpoint_url=server.endpoint).create_bucket(Bucket=bucket)
    config = StoreConfig(endpoint_url=server.endpoint, connect_timeout_s=2, max_attempts=2)
    return f"s3://{bucket}/n s", config


@pytest.fixture
def s3(versitygw_server: Server) -> Place:
    return new_bucket(versitygw_server)


@pytest.fixture
def minio(minio_server: Server) -> Place:
    return new_bucket(minio_server)


@pytest.fixture
def azure(azurite_server: Server, tmp_path: Path) -> Place:
    path = tmp_path / "azure.json"
    write_azure_credentials_file(path, account_key=AZURE_KEY)
    name = f"box-{uuid.uuid4().hex}"
    azure_client(azurite_server).create_container(name)
    access = AzureAccess(f"{azurite_server.endpoint}/{AZURE_ACCOUNT}", str(path))
    url = f"https://{AZURE_ACCOUNT}.blob.core.windows.net/{name}/n"
    return url, StoreConfig(azure=access, read_timeout_s=60)


@pytest.fixture(params=["s3", "minio", "azure"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def store(place: Place) -> ObjectStore:
    url, config = place
    return open_store(url, config)


def test_versitygw_honours_conditions_of_single_deletes_only(s3: Place) -> None:
    store = open_store(s3[0], s3[1])
    assert probe_conditions(store, PROBES) == "single"
    assert [batch for batch in store.list() if batch.num_rows] == []


def test_minio_honours_no_conditions_of_deletes(minio: Place) -> None:
    store = open_store(minio[0], minio[1])
    assert probe_conditions(store, PROBES) == "none"
    assert [batch for batch in store.list() if batch.num_rows] == []


def test_azurite_honours_conditions_of_its_batches(azure: Place) -> None:
    store = open_store(azure[0], azure[1])
    assert probe_conditions(store, PROBES) == "bulk"
    assert [batch for batch in store.list() if batch.num_rows] == []


def _refuse(_seconds: float) -> None:
    raise RefusedError("somebody has it")


def test_of_many_one_has_the_lease(store: ObjectStore) -> None:
    together, decided = Barrier(5), Barrier(5)

    def take(number: int) -> bool:
        together.wait()
        try:
            with repository_lease(
                store, {"pid": str(number)}, duration=DURATION, clocks=StubClocks(_refuse)
            ):
                decided.wait()
                return True
        except RefusedError:
            decided.wait()
            return False

    for _ in range(3):
        with ThreadPoolExecutor(5) as pool:
            assert sum(pool.map(take, range(5))) == 1
    assert read_lease(store).released


def test_a_lease_is_renewed_and_lost(store: ObjectStore) -> None:
    with repository_lease(store, {"pid": "1"}, duration=DURATION) as lease:
        first = read_lease(store)
        lease.begin_round(1)
        assert read_lease(store).expires >= first.expires
        theirs = replace(read_lease(store), token="theirs")
        store.put_if_match(LEASE, theirs.to_bytes(), store.head(LEASE).etag)
        with pytest.raises(LeaseLostError, match="another process has the lease"):
            lease.begin_round(2)
    assert read_lease(store) == theirs


class Sweep:
    """A deleting task on a real store, with its lease, and the ledger on local files."""

    def __init__(self, bare: SmallLake, place: Place, lease: Lease) -> None:
        url, stores = place
        self.connections = Connections(bare.config, stores, url, "/nowhere")
        self.store = self.connections.store()
        self.folder = bare.folder / "attempt"
        self.lease = lease
        self.rounds = 0
        self.sleep: Callable[[float], None] = time.sleep

    def round(self, marked: list[Marked], condition: Condition) -> dict[str, int]:
        """Delete in one round what has no outcome yet; objects by outcome."""
        self.rounds += 1
        self.lease.begin_round(self.rounds)
        orders = orders_of(self.connections, self.folder, self.lease, condition=condition, batch=10)
        done = self.outcomes("deleted", "already_missing", "spared")
        left = table_of(m for m in marked if m.address not in done)
        reach = replace(TaskClients.of(orders), clocks=StubClocks(self.sleep))
        told = summed(DeletingTask(orders, 0, reach).run([left]))
        return {one.outcome: one.objects or 1 for one in told}

    def outcomes(self, *names: str) -> dict[str, str]:
        """Recorded outcomes; no address may have two of these."""
        found: dict[str, str] = {}
        for path in self.folder.glob("swept_set/ledger/*.parquet"):
            for row in pq.read_table(path).to_pylist():
                if row["outcome"] in names:
                    assert row["address"] not in found
                    found[row["address"]] = row["outcome"]
        return found

    def keys(self) -> set[str]:
        return {key for batch in self.store.list("data/") for key in batch["key"].to_pylist()}


@pytest.fixture
def sweep(bare: SmallLake, place: Place, store: ObjectStore) -> Iterator[Sweep]:
    with repository_lease(store, {"pid": "1"}, duration=DURATION) as lease:
        yield Sweep(bare, place, lease)


def plant(store: ObjectStore, count: int) -> list[Marked]:
    def put(number: int) -> Marked:
        # S3 deletes a key with a percent sign or a plus in a request of its own.
        key = f"data/slice é/{number:03d} a"
        store.put(key, b"x")
        info = store.head(key)
        return Marked(key, info.size, info.last_modified, info.etag)

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(put, range(count)))


@pytest.mark.parametrize(
    ("place", "condition"),
    [("s3", "none"), ("s3", "single"), ("minio", "none"), ("azure", "none"), ("azure", "single")],
    indirect=["place"],
)
def test_tasks_delete_and_spare(sweep: Sweep, condition: Condition) -> None:
    marked = plant(sweep.store, 25)
    kept = {"data/kept", "data/slice é/kept"}
    for key in kept:
        sweep.store.put(key, b"not marked")
    rewritten = marked[7].address
    if condition == "single":
        sweep.store.put(rewritten, b"written again")
        kept.add(rewritten)
    totals = sweep.round(marked, condition)
    spared = {"deleted": 24, "spared": 1}
    assert totals == (spared if condition == "single" else {"deleted": 25})
    assert sweep.keys() == kept


@pytest.mark.parametrize("fixture", ["versitygw_server", "minio_server"])
def test_a_store_that_dies_in_the_middle(
    bare: SmallLake,
    fixture: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed while its requests are on their way, and started again: each key has one outcome."""
    server: Server = request.getfixturevalue(fixture)
    place = new_bucket(server)
    store = open_store(*place)
    marked = plant(store, 60)
    store.put("data/kept", b"not marked")
    with repository_lease(store, {"pid": "1"}, duration=DURATION) as lease:
        sweep = Sweep(bare, place, lease)
        sweep.sleep = lambda _seconds: None
        send: Callable[..., list[DeleteOutcome]] = DeletingTask.send
        sent: list[int] = []

        def die_in_the_third(task: DeletingTask, batch: list[Marked]) -> list[DeleteOutcome]:
            sent.append(len(batch))
            if len(sent) == 3:
                server.kill()
                outcomes = send(task, batch)
                assert {outcome.error_code for outcome in outcomes} == {"ConnectionFailed"}
                return outcomes
            return send(task, batch)

        monkeypatch.setattr(DeletingTask, "send", die_in_the_third)
        # The lease cannot be read any more: the task stops with an error, and so does the sweep.
        with pytest.raises(Exception, match=r"127\.0\.0\.1"):
            sweep.round(marked, "none")
        assert len(sent) == 3
        assert len(sweep.outcomes("deleted")) == 20
        server.start()
        assert len(sweep.keys()) == 41
        assert sweep.round(marked, "none") == {"deleted": 40}
        assert sweep.outcomes("deleted", "already_missing", "spared", "failed").keys() == {
            m.address for m in marked
        }
        assert sweep.keys() == {"data/kept"}
