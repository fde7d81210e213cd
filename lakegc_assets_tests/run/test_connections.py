"""How tasks reach lakeFS: each thread has a client, and who tries again does not wait again."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.run import connections as module
from lakegc_assets.run.connections import Connections
from lakegc_assets.storage.config import S3Access, StoreConfig


@pytest.mark.parametrize(("attempt", "wait_s"), [(None, 60.0), (0, 60.0), (1, 0.0), (3, 0.0)])
def test_a_task_that_spark_tries_again_has_waited_already(
    attempt: int | None, wait_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else tasks that are tried four times would wait four times as long as is set."""
    task = None if attempt is None else SimpleNamespace(attemptNumber=lambda: attempt)
    monkeypatch.setattr(module, "TaskContext", SimpleNamespace(get=lambda: task))
    (tmp_path / "c.yaml").write_text("credentials: {access_key_id: a, secret_access_key: b}")
    lakefs = LakeFSConfig("http://127.0.0.1:1", str(tmp_path / "c.yaml"), wait_s=60.0)
    stores = StoreConfig(wait_s=60.0)
    connections = Connections(lakefs, stores, "s3://bucket/namespace", "")
    monkeypatch.setattr(LakeFSConfig, "connect", lambda config: config)
    client: object = connections.client()
    assert isinstance(client, LakeFSConfig)
    assert client.wait_s == wait_s
    assert connections.store().config.wait_s == wait_s  # type: ignore[attr-defined] # of a bucket


def test_who_deletes_waits_for_nothing() -> None:
    stores = StoreConfig(wait_s=60.0)
    quick = Connections(LakeFSConfig(wait_s=60.0), stores, "s3://b/n", "").without_waiting()
    assert (quick.lakefs.wait_s, quick.stores.wait_s) == (0.0, 0.0)


@pytest.mark.parametrize("region", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_a_task_elsewhere_asks_the_store_of_who_has_started_it(
    region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one of a node without the variable would list, and delete, in a bucket of AWS."""
    unset = ("AWS_ENDPOINT_URL_S3", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
    for name in (*unset, "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://here:9000")
    monkeypatch.setenv(region, "eu-west-3")
    own = S3Access("http://backups:9000", "us-east-2")
    stores = StoreConfig(elsewhere=(("backups", own), ("others", S3Access(profile="p"))))
    sent = pickle.dumps(Connections(LakeFSConfig(), stores, "s3://bucket/namespace", ""))
    for name in ("AWS_ENDPOINT_URL", region):
        monkeypatch.delenv(name)
    there: Connections = pickle.loads(sent)
    found = [
        there.open(f"s3://{bucket}/a").config  # type: ignore[attr-defined] # of a bucket's store
        for bucket in ("bucket", "others", "backups")
    ]
    here = ("http://here:9000", "eu-west-3")
    assert [(c.endpoint_url, c.region) for c in found] == [
        here,
        here,
        (own.endpoint_url, own.region),
    ]


def test_without_a_variable_nothing_is_said_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://here:9000")
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert StoreConfig().settled() == StoreConfig()
