"""What Spark answers is whole, or an error: live objects in a missing file would look dead."""

from __future__ import annotations

import io
import socket
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import util

from lakegc_assets.engine.datasets import read_part
from lakegc_assets.engine.relation import union_all
from lakegc_assets.engine.spark_frames import SparkBackedSession
from lakegc_assets.errors import IntegrityError
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests import sessions
from lakegc_assets_tests.engine.test_sessions import SCHEMA, rows

_PARTS = 5


def _cut(share: float) -> Callable[..., tuple[io.BytesIO, socket.socket]]:
    """Connects to the JVM, and gives only a share of the bytes that it sends."""
    connect = util.local_connect_and_auth

    def connected(place: int | str | None, secret: str | None) -> tuple[io.BytesIO, socket.socket]:
        file, connection = connect(place, secret)
        sent = file.read()
        return io.BytesIO(sent[: int(len(sent) * share)]), connection

    return connected


@pytest.mark.conformance
@pytest.mark.parametrize(
    "size", [pytest.param(1, id="few rows, as Arrow"), pytest.param(5_000, id="files of tasks")]
)
def test_an_answer_that_ends_early_is_an_error_wherever_it_ends(
    size: int, spark: sessions.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the thread of the JVM that sends it dies, for example for want of memory."""
    store, table = open_store(str(tmp_path)), rows(_PARTS * size)
    with SparkBackedSession(spark, open_store) as session:
        # Many rows are known to be many only if they come in one table.
        session.create(table)
        slices = [table.slice(at * size, size) for at in range(_PARTS)]
        frame = union_all(*map(session.create, slices))

        def write() -> pa.Table:
            written = session.write(frame, store.url, "out/", SCHEMA, "a test")
            return pa.concat_tables([read_part(store, part) for part in written])

        def collect() -> pa.Table:
            return session.collect(frame, SCHEMA, "a test")

        for answer in (write, collect):
            assert answer() == table
            for share in (0, 0.2, 0.4, 0.6, 0.8, 0.99):
                with monkeypatch.context() as patch:
                    patch.setattr(util, "local_connect_and_auth", _cut(share))
                    with pytest.raises(IntegrityError, match="the answer of Spark ended early"):
                        answer()
