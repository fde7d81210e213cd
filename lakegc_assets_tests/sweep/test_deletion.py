"""The task that deletes: what it asks before each batch, and what it leaves undone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto.s3.responses import S3Response

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.run.context import Connections
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.sweep import deletion
from lakegc_assets.sweep.deletion import Orders, _counts, _delete_batches
from lakegc_assets.sweep.delta import fingerprint
from lakegc_assets.sweep.lease import repository_lease
from lakegc_assets.sweep.ledger import Outcome
from lakegc_assets.sweep.moment import Moment
from lakegc_assets.sweep.pace import Limits, Pace
from lakegc_assets_tests.lake import REPOSITORY, SmallLake
from lakegc_assets_tests.sweep.stand_ins import earlier

FAST = Limits(keys=1e9, requests=1e9)


def rows(addresses: list[str], etags: dict[str, str] | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "address": pa.array(addresses, pa.string()),
            "size": [7] * len(addresses),
            "etag": pa.array([(etags or {}).get(a, "") for a in addresses], pa.string()),
        }
    )


_OUTCOMES = st.sampled_from(["deleted", "already_missing", "failed"])


@given(st.lists(st.builds(Outcome, st.text(max_size=3), st.integers(0, 2**40), _OUTCOMES)))
def test_counts_add_up(outcomes: list[Outcome]) -> None:
    counts = {row["outcome"]: row for row in _counts(outcomes).to_pylist()}
    for name in ("deleted", "already_missing", "failed"):
        of_it = [outcome.size for outcome in outcomes if outcome.outcome == name]
        found = counts.get(name, {"objects": 0, "bytes": 0})
        assert (found["objects"], found["bytes"]) == (len(of_it), sum(of_it))


def test_counts_tell_of_one_failure() -> None:
    failed = Outcome("a", 1, "failed", "AccessDenied", "not yours")
    row, other = _counts([failed, Outcome("b", 1, "deleted")]).to_pylist()
    assert (row["error_code"], row["detail"]) == ("AccessDenied", "a: not yours")
    assert other["error_code"] is None


@pytest.mark.parametrize("batch", [0, -1, 1001])
def test_a_batch_that_no_store_takes(batch: int) -> None:
    with pytest.raises(ConfigurationError, match="sweep_batch is"):
        Settings(sweep_batch=batch)


@contextmanager
def ordered(bare: SmallLake, stores: StoreConfig, url: str) -> Iterator[Orders]:
    """Two objects a batch, under a lease, with a delta mark that was taken just now."""
    connections = Connections(bare.config, stores, url, "/nowhere")
    store = connections.store()
    with repository_lease(store, {"host": "here"}, duration=timedelta(minutes=3)) as lease:
        lease.begin_round(1)
        yield Orders(
            connections=connections,
            repository=REPOSITORY,
            artifacts_url=str(bare.folder / "attempt"),
            delta=fingerprint(bare.client, REPOSITORY, protect_tags=False),
            taken=Moment.now(store),
            protect_tags=False,
            lease=lease.token,
            number=1,
            condition="none",
            batch=2,
            limits=FAST,
        )


@pytest.fixture
def orders(bare: SmallLake) -> Iterator[Orders]:
    with ordered(bare, bare.server.store_config, f"local://{REPOSITORY}") as found:
        yield found


@pytest.fixture
def s3_orders(bare: SmallLake, s3_server: str, s3_bucket: str) -> Iterator[Orders]:
    with ordered(bare, StoreConfig(endpoint_url=s3_server), f"s3://{s3_bucket}/ns") as found:
        yield found


def plant(bare: SmallLake, count: int) -> list[str]:
    addresses = [f"data/planted/{n}" for n in range(count)]
    for address in addresses:
        path = bare.objects / address
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("planted")
    return addresses


def recorded(orders: Orders) -> dict[str, str]:
    """The ledger's outcomes."""
    found: dict[str, str] = {}
    for path in Path(orders.artifacts_url).glob("swept_set/ledger/*.parquet"):
        table = pq.read_table(path)
        found.update(zip(*(table[c].to_pylist() for c in ("address", "outcome")), strict=True))
    return found


def run(
    orders: Orders, addresses: list[str], etags: dict[str, str] | None = None
) -> Iterator[dict[str, object]]:
    for counts in _delete_batches(orders, iter([rows(addresses, etags)])):
        yield from counts.to_pylist()


def test_every_batch_is_recorded_before_the_next_is_sent(bare: SmallLake, orders: Orders) -> None:
    addresses = plant(bare, 5)
    (bare.objects / addresses[1]).unlink()
    before = bare.keys()
    outcomes: dict[str, str] = {}
    for counts in run(orders, addresses):
        outcomes = recorded(orders)
        assert bare.keys() == before - outcomes.keys()
        assert counts["outcome"] in ("deleted", "already_missing")
    assert outcomes == dict.fromkeys(addresses, "deleted") | {addresses[1]: "already_missing"}


@pytest.mark.parametrize("age", [541, 600, 10**6, -100])
def test_nothing_is_sent_when_the_delta_mark_is_old_or_from_the_future(
    bare: SmallLake, orders: Orders, age: float
) -> None:
    addresses, before = plant(bare, 3), bare.keys()
    counts = list(run(replace(orders, taken=earlier(orders.taken, age)), addresses))
    assert [row["outcome"] for row in counts] == ["stale"]
    assert bare.keys() == before


def test_nothing_more_is_sent_when_heads_changed(bare: SmallLake, orders: Orders) -> None:
    addresses = plant(bare, 5)
    task = run(orders, addresses)
    assert next(task)["objects"] == 2
    bare.commit("busy")
    assert [row["outcome"] for row in task] == ["stale"]
    assert recorded(orders) == dict.fromkeys(addresses[:2], "deleted")
    assert set(addresses[2:]) <= bare.keys()


def test_heads_and_rules_are_read_again_when_the_answer_took_long(
    bare: SmallLake, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock counts suspension: what was read before a machine slept says nothing."""
    addresses = plant(bare, 2)
    readings = iter([0, 20, 100, 101])
    monkeypatch.setattr(deletion, "elapsed", lambda: next(readings))
    assert [row["outcome"] for row in run(orders, addresses)] == ["deleted"]
    assert not list(readings)


def test_nothing_is_sent_when_every_answer_takes_long(
    bare: SmallLake, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses, before = plant(bare, 2), bare.keys()
    readings = iter(range(0, 10_000, 20))
    monkeypatch.setattr(deletion, "elapsed", lambda: next(readings))
    assert [row["outcome"] for row in run(orders, addresses)] == ["stale"]
    assert bare.keys() == before


def test_the_request_ends_within_a_minute_of_the_reading() -> None:
    # Credentials are renewed within the time of a connection, or nothing is sent.
    longest = deletion._CHECK_TIME + 2 * deletion._CONNECT_TIMEOUT + deletion._REQUEST_TIMEOUT
    assert longest <= deletion.CHECK_LIFETIME == 60


def fill(orders: Orders, count: int) -> dict[str, str]:
    """Objects in the store of the orders, with their etags."""
    store = orders.connections.store()
    return {f"data/s/{n}": store.put(f"data/s/{n}", b"content %d" % n) for n in range(count)}


def keys(orders: Orders) -> set[str]:
    store = orders.connections.store()
    return {key for batch in store.list("data/") for key in batch["key"].to_pylist()}


def answer_with_errors(patch: pytest.MonkeyPatch, codes: dict[str, list[str]]) -> None:
    """Let S3 refuse keys of a bulk delete with these codes, one at each try; then it obeys."""
    allowed = S3Response._bucket_response_delete_keys

    def refuse(response: S3Response, bucket: str, authenticated: bool = True) -> object:  # noqa: FBT001, FBT002 - moto's
        errors = ""
        for key, left in codes.items():
            identifier = f"<Object><Key>ns/{key}</Key></Object>"
            body = response.body.decode()
            if left and identifier in body:
                response.body = body.replace(identifier, "").encode()
                errors += f"<Error><Key>ns/{key}</Key><Code>{left.pop(0)}</Code></Error>"
        if "<Object>" not in response.body.decode():
            return 200, {}, f"<DeleteResult>{errors}</DeleteResult>"
        status, headers, answer = allowed(response, bucket, authenticated)
        text = answer.decode() if isinstance(answer, bytes) else answer
        assert "</DeleteResult>" in text
        return status, headers, text.replace("</DeleteResult>", f"{errors}</DeleteResult>")

    patch.setattr(S3Response, "_bucket_response_delete_keys", refuse)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What tasks wait for, which takes no time here."""
    waited: list[float] = []

    def pace(
        artifacts: ObjectStore, folder: str, partition: int, limits: Limits, share: float
    ) -> Pace:
        clock, pause = (lambda: sum(waited)), waited.append
        return Pace(artifacts, folder, partition, limits, share, clock, pause)

    monkeypatch.setattr(deletion, "Pace", pace)
    return waited


def test_access_denied_stops_all_tasks(s3_orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 refuses one key of a batch: each key has its own outcome, and no batch follows."""
    addresses = list(fill(s3_orders, 5))
    answer_with_errors(monkeypatch, {addresses[0]: ["AccessDenied"]})
    counts = {row["outcome"]: row for row in run(s3_orders, addresses)}
    assert counts["failed"]["error_code"] == "AccessDenied"
    assert counts["failed"]["objects"] == counts["deleted"]["objects"] == 1
    assert recorded(s3_orders) == {addresses[0]: "failed", addresses[1]: "deleted"}
    assert keys(s3_orders) == {addresses[0], *addresses[2:]}
    (row,) = _other_task(s3_orders, addresses[2:])
    assert row["outcome"] == "stopped"
    assert "AccessDenied: data/s/0" in str(row["detail"])
    assert keys(s3_orders) == {addresses[0], *addresses[2:]}


def _other_task(orders: Orders, addresses: list[str]) -> list[dict[str, object]]:
    task = deletion._Task(orders, 1)
    marked = deletion._marked([rows(addresses)])
    return [row for counts in task.run(marked) for row in counts.to_pylist()]


def test_a_second_attempt_of_a_task_does_nothing(bare: SmallLake, orders: Orders) -> None:
    """Retried or speculative: what the first attempt has begun is its own in this round."""
    addresses = plant(bare, 4)
    first = run(orders, addresses)
    assert next(first)["outcome"] == "deleted"
    before = bare.keys()
    (row,) = run(orders, addresses)
    assert row["outcome"] == "taken"
    assert bare.keys() == before
    assert [row["outcome"] for row in first] == ["deleted"]
    assert recorded(orders) == dict.fromkeys(addresses, "deleted")
    ledger = list(Path(orders.artifacts_url).glob("swept_set/ledger/*.parquet"))
    assert sum(pq.read_table(path).num_rows for path in ledger) == len(addresses)


def test_the_second_attempt_tells_why_the_first_one_failed(
    bare: SmallLake, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = plant(bare, 3)
    before = bare.keys()
    with monkeypatch.context() as patch:
        patch.setattr(deletion, "fingerprint", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            list(run(orders, addresses))
    (row,) = run(orders, addresses)
    assert row["outcome"] == "taken"
    assert str(row["detail"]).endswith("has begun, and failed: ZeroDivisionError: division by zero")
    assert bare.keys() == before


def test_a_task_of_an_earlier_round_stops(bare: SmallLake, orders: Orders) -> None:
    addresses = plant(bare, 3)
    (row,) = run(replace(orders, number=0), addresses)
    assert row["outcome"] == "lost"
    assert "round 1 of this sweep has begun" in str(row["detail"])
    assert set(addresses) <= bare.keys()


def test_what_the_store_cannot_take_now_is_sent_again(
    s3_orders: Orders, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    """SlowDown for one key of a bulk answer: the other is recorded, and this one follows later."""
    addresses = list(fill(s3_orders, 3))
    answer_with_errors(
        monkeypatch, {addresses[0]: ["SlowDown", "InternalError"], addresses[2]: ["SlowDown"]}
    )
    assert {row["outcome"] for row in run(s3_orders, addresses)} == {"deleted"}
    assert recorded(s3_orders) == dict.fromkeys(addresses, "deleted")
    assert keys(s3_orders) == set()
    assert sum(pauses) >= 3


def test_a_store_that_never_takes_a_key_fails_it_and_stops(
    s3_orders: Orders, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    addresses = list(fill(s3_orders, 3))
    answer_with_errors(monkeypatch, {address: ["SlowDown"] * 99 for address in addresses})
    counts = list(run(s3_orders, addresses))
    assert {(row["outcome"], row["error_code"]) for row in counts} == {("failed", "SlowDown")}
    assert keys(s3_orders) == set(addresses)
    assert len(pauses) >= deletion._TRIES - 1
    assert _other_task(s3_orders, addresses)[0]["outcome"] == "stopped"


def test_an_object_that_was_rewritten_is_spared(bare: SmallLake, orders: Orders) -> None:
    addresses = plant(bare, 3)
    store = orders.connections.store()
    etags = {address: store.head(address).etag for address in addresses}
    store.put(addresses[1], b"written again")
    conditional = replace(orders, condition="bulk")
    assert {r["outcome"] for r in run(conditional, addresses, etags)} == {"deleted", "spared"}
    assert recorded(orders)[addresses[1]] == "spared"
    assert set(addresses) & bare.keys() == {addresses[1]}


def test_single_deletes_are_conditional_where_bulk_ones_are_not(s3_orders: Orders) -> None:
    """Moto honours the condition of single deletes only."""
    etags = fill(s3_orders, 5)
    addresses = list(etags)
    s3_orders.connections.store().put(addresses[3], b"written again")
    s3_orders.connections.store().delete_many([addresses[4]])
    list(run(replace(s3_orders, condition="single"), addresses, etags))
    expected = dict.fromkeys(addresses, "deleted")
    expected |= {addresses[3]: "spared", addresses[4]: "already_missing"}
    assert recorded(s3_orders) == expected
    assert keys(s3_orders) == {addresses[3]}


def test_single_deletes_stop_when_the_look_is_old(
    s3_orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is begun again with a new look; no key is lost on the way."""
    etags = fill(s3_orders, 4)
    looks: list[int] = []
    clock = iter(range(0, 10**6, 13))

    def tell(*args: Any, **kwargs: Any) -> str:
        looks.append(1)
        return fingerprint(*args, **kwargs)

    monkeypatch.setattr(deletion, "fingerprint", tell)
    monkeypatch.setattr(deletion, "elapsed", lambda: next(clock))
    list(run(replace(s3_orders, condition="single", batch=4), list(etags), etags))
    assert recorded(s3_orders) == dict.fromkeys(etags, "deleted")
    assert len(looks) == 2
