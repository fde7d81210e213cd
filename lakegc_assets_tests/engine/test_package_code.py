"""A task runs the code of the process that has started it, or nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from lakegc_assets.engine import spark_frames, spark_jobs
from lakegc_assets.engine.choice import Engine
from lakegc_assets.engine.datasets import write_part
from lakegc_assets.engine.package_code import modules_digest, package_digest, require_code
from lakegc_assets.engine.session import Dataset
from lakegc_assets.engine.spark_frames import SparkBackedSession
from lakegc_assets.engine.tasks import Tasks
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.sessions import Session

_SCHEMA = pa.schema([("n", pa.int64())])


def _same(number: int) -> int:
    return number


def test_code_is_the_same_where_all_modules_are(tmp_path: Path) -> None:
    found: list[str] = []
    for name, text in (("a", "x = 1"), ("b", "x = 1"), ("a", "x = 2")):
        folder = tmp_path / str(len(found))
        folder.mkdir()
        (folder / f"{name}.py").write_text(text)
        found.append(modules_digest(folder))
    assert len(set(found)) == 3
    (tmp_path / "0" / "__pycache__").mkdir()
    (tmp_path / "0" / "__pycache__" / "a.pyc").touch()
    assert modules_digest(tmp_path / "0") == found[0]


def test_another_code_is_refused() -> None:
    require_code("")
    require_code(package_digest())
    with pytest.raises(ConfigurationError, match="a task runs another lakegc_assets"):
        require_code("another")


@pytest.mark.conformance
def test_no_task_of_spark_runs_another_code(
    spark: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that is on the nodes, ahead of what was sent, or that a worker has loaded."""
    for module in (spark_jobs, spark_frames):
        monkeypatch.setattr(module, "code_of_tasks", lambda _: "another")
    refused = partial(pytest.raises, ConfigurationError, match="a task runs another lakegc_assets")
    with refused():
        Tasks(Engine("spark", "a test says so"), spark).run("same", _same, [1, 2], 1.0)
    store = open_store(str(tmp_path / "not plain"))
    part = write_part(store, "some/", pa.table([list(range(30_000))], schema=_SCHEMA))
    with SparkBackedSession(spark, open_store) as session:
        frame = session.read(Dataset(store.url, [part], _SCHEMA))
        with refused():
            session.collect(frame, _SCHEMA, "a test")
        rows = session.create(pa.table([[1]], schema=_SCHEMA))
        with refused():
            session.write(rows, store.url, "out/", _SCHEMA, "a test")
