"""How tasks reach lakeFS: each thread has a client, and who tries again does not wait again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.run import connections as module
from lakegc_assets.run.connections import Connections
from lakegc_assets.storage.config import StoreConfig


@pytest.mark.parametrize(("attempt", "wait_s"), [(None, 60.0), (0, 60.0), (1, 0.0), (3, 0.0)])
def test_a_task_that_spark_tries_again_has_waited_already(
    attempt: int | None, wait_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else tasks that are tried four times would wait four times as long as is set."""
    task = None if attempt is None else SimpleNamespace(attemptNumber=lambda: attempt)
    monkeypatch.setattr(module, "TaskContext", SimpleNamespace(get=lambda: task))
    (tmp_path / "c.yaml").write_text("credentials: {access_key_id: a, secret_access_key: b}")
    lakefs = LakeFSConfig("http://127.0.0.1:1", str(tmp_path / "c.yaml"), wait_s=60.0)
    connections = Connections(lakefs, StoreConfig(), "s3://bucket/namespace", "")
    monkeypatch.setattr(LakeFSConfig, "connect", lambda config: config)
    client: object = connections.client()
    assert isinstance(client, LakeFSConfig)
    assert client.wait_s == wait_s
