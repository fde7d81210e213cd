"""The task that deletes: what it asks before each batch, and what it leaves undone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto.s3.responses import S3Response

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.mark.context import Connections
from lakegc_assets.settings import Settings
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.sweep import deletion
from lakegc_assets.sweep.deletion import Orders, _batched, _counts, _delete_batches
from lakegc_assets.sweep.delta import fingerprint
from lakegc_assets.sweep.ledger import Outcome
from lakegc_assets_tests.lake import REPOSITORY, SmallLake


def rows(addresses: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"address": pa.array(addresses, pa.string()), "size": [7] * len(addresses)}
    )


@given(st.lists(st.sets(st.text(max_size=3), max_size=9)), st.integers(1, 5))
def test_batches_hold_every_object_and_no_more_than_they_may(
    pages: list[set[str]], most: int
) -> None:
    batches = list(_batched((rows(sorted(page)) for page in pages), most))
    assert all(1 <= len(batch) <= most for batch in batches)
    assert all(len(batch) == most for batch in batches[:-1])
    assert set().union(*batches) == set().union(*pages)


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


@pytest.fixture
def orders(lake: SmallLake) -> Orders:
    """Two objects a batch, with a delta mark that was taken just now."""
    url = f"local://{REPOSITORY}"
    connections = Connections(lake.config, lake.server.store_config, url, "/nowhere")
    seen = fingerprint(lake.client, REPOSITORY, protect_tags=False)
    artifacts = str(lake.folder / "attempt")
    return Orders(connections, REPOSITORY, artifacts, seen, time.time(), False, 2)


def plant(lake: SmallLake, count: int) -> list[str]:
    addresses = [f"data/planted/{n}" for n in range(count)]
    for address in addresses:
        path = lake.objects / address
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


def run(orders: Orders, addresses: list[str]) -> Iterator[dict[str, object]]:
    for counts in _delete_batches(orders, iter([rows(addresses)])):
        yield from counts.to_pylist()


def test_every_batch_is_recorded_before_the_next_is_sent(lake: SmallLake, orders: Orders) -> None:
    addresses = plant(lake, 5)
    (lake.objects / addresses[1]).unlink()
    before = lake.keys()
    outcomes: dict[str, str] = {}
    for counts in run(orders, addresses):
        outcomes = recorded(orders)
        assert lake.keys() == before - outcomes.keys()
        assert counts["outcome"] in ("deleted", "already_missing")
    assert outcomes == dict.fromkeys(addresses, "deleted") | {addresses[1]: "already_missing"}


@pytest.mark.parametrize("age", [541, 600, 10**6, -601])
def test_nothing_is_sent_when_the_delta_mark_is_old_or_from_the_future(
    lake: SmallLake, orders: Orders, age: float
) -> None:
    asked: list[str] = []
    lake.on_request = lambda _method, path: asked.append(path)
    addresses, before = plant(lake, 3), lake.keys()
    counts = list(run(replace(orders, taken=time.time() - age), addresses))
    assert [row["outcome"] for row in counts] == ["stale"]
    assert lake.keys() == before
    assert not asked


def test_nothing_more_is_sent_when_heads_changed(lake: SmallLake, orders: Orders) -> None:
    addresses = plant(lake, 5)
    task = run(orders, addresses)
    assert next(task)["objects"] == 2
    lake.commit("busy")
    assert [row["outcome"] for row in task] == ["stale"]
    assert recorded(orders) == dict.fromkeys(addresses[:2], "deleted")
    assert set(addresses[2:]) < lake.keys()


def test_heads_and_rules_are_read_again_when_the_answer_took_long(
    lake: SmallLake, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock counts suspension: what was read before a machine slept says nothing."""
    addresses = plant(lake, 2)
    readings = iter([0, 20, 100, 101])
    monkeypatch.setattr(deletion, "_elapsed", lambda: next(readings))
    assert [row["outcome"] for row in run(orders, addresses)] == ["deleted"]
    assert not list(readings)


def test_nothing_is_sent_when_every_answer_takes_long(
    lake: SmallLake, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses, before = plant(lake, 2), lake.keys()
    readings = iter(range(0, 10_000, 20))
    monkeypatch.setattr(deletion, "_elapsed", lambda: next(readings))
    assert [row["outcome"] for row in run(orders, addresses)] == ["stale"]
    assert lake.keys() == before


def test_the_request_ends_within_a_minute_of_the_reading() -> None:
    longest = deletion._CHECK_TIME + deletion._CONNECT_TIMEOUT + deletion._REQUEST_TIMEOUT
    assert longest <= deletion.CHECK_LIFETIME == 60


def test_access_denied_stops_a_task(
    orders: Orders, s3_server: str, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 refuses one key of a batch: each key has its own outcome, and no batch follows."""
    stores = StoreConfig(endpoint_url=s3_server)
    connections = replace(orders.connections, stores=stores, namespace_url=f"s3://{s3_bucket}/ns")
    store = connections.store()
    addresses = [f"data/s/{n}" for n in range(5)]
    for address in addresses:
        store.put(address, b"content")
    allowed = S3Response._bucket_response_delete_keys

    def refuse(response: S3Response, bucket: str, authenticated: bool = True) -> object:  # noqa: FBT001, FBT002 - moto's
        status, headers, body = allowed(response, bucket, authenticated)
        refusal = (
            f"<Error><Key>ns/{addresses[0]}</Key><Code>AccessDenied</Code>"
            "<Message>not yours</Message></Error>"
        )
        text = body.decode() if isinstance(body, bytes) else body
        kept = f"<Deleted><Key>ns/{addresses[0]}</Key></Deleted>"
        assert "".join(text.split()).count("<Deleted>") == 2
        text = "".join(line.strip() for line in text.splitlines())
        assert kept in text
        return status, headers, text.replace(kept, refusal)

    monkeypatch.setattr(S3Response, "_bucket_response_delete_keys", refuse)
    counts = {
        row["outcome"]: row for row in run(replace(orders, connections=connections), addresses)
    }
    assert counts["failed"]["error_code"] == "AccessDenied"
    assert counts["failed"]["objects"] == counts["deleted"]["objects"] == 1
    assert recorded(orders) == {addresses[0]: "failed", addresses[1]: "deleted"}
    left = {key for batch in store.list() for key in batch["key"].to_pylist()}
    assert set(addresses[2:]) <= left
