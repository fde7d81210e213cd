"""Files of this machine that an engine reads by itself are those that were compared."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pyarrow as pa
import pytest

from lakegc_assets import traffic
from lakegc_assets.engine.datasets import write_part
from lakegc_assets.engine.embedded import EmbeddedSession
from lakegc_assets.engine.session import Dataset
from lakegc_assets.engine.spark_frames import SparkBackedSession
from lakegc_assets.engine.spark_session import prepare_session
from lakegc_assets.errors import IntegrityError
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests import sessions
from lakegc_assets_tests.engine.test_sessions import SCHEMA, rows

_ROWS: Final = 50_000
on_each_engine = pytest.mark.parametrize(
    "engine", ["embedded", pytest.param("spark", marks=pytest.mark.conformance)]
)


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("folder", "reader"),
    [
        ("run=1/", "FileScan parquet"),
        ("_cache/.a@b+c~d/", "FileScan parquet"),
        ("so[m]e/", "MapInArrow"),
        ("ü %20/", "MapInArrow"),
        # Of a stream, of which Spark reads nothing else than what its own log names.
        ("_spark_metadata/", "MapInArrow"),
    ],
)
def test_spark_reads_files_of_this_machine_by_itself_where_their_names_mean_the_same_to_it(
    folder: str,
    reader: str,
    spark: sessions.Session,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = open_store(str(tmp_path))
    ancient = pa.array([datetime(1, 1, 1, tzinfo=timezone.utc)] * _ROWS, SCHEMA.field("at").type)
    table = rows(_ROWS).set_column(2, SCHEMA.field("at"), ancient)
    parts = [write_part(store, folder, table.slice(at, 20_000)) for at in range(0, _ROWS, 20_000)]
    with SparkBackedSession(spark, open_store) as session:
        frame = session.read(Dataset(store.url, parts, SCHEMA))
        frame.explain()
        found = session.collect(frame, SCHEMA, "a test")
    assert reader in capsys.readouterr().out
    assert found.sort_by("address").equals(table.sort_by("address"))


@pytest.mark.conformance
@pytest.mark.parametrize("folder", ["some/", "so[m]e/"])
def test_what_is_known_to_be_small_is_sent_to_each_task_of_a_join(
    folder: str,
    spark: sessions.Session,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How long texts are is known of files of this machine alone."""
    store = open_store(str(tmp_path))
    parts = [write_part(store, folder, rows(30_000))]
    texts = Dataset(store.url, parts, SCHEMA).select("address")
    numbers = Dataset(store.url, parts, SCHEMA).select("hash")
    big = Dataset(store.url, [write_part(store, folder, rows(_ROWS))], SCHEMA)
    # A row with its place in a hash table, and a number.
    size = 30_000 * (64 + 8)

    def is_sent(dataset: Dataset, most: int) -> bool:
        monkeypatch.setattr("lakegc_assets.engine.spark_frames.SMALL_BYTES", most)
        (key,) = dataset.schema.names
        with SparkBackedSession(spark, open_store) as session:
            small = session.read(dataset)
            assert session.is_small(dataset) == (key == "hash" and size <= most)
            monkeypatch.setattr("lakegc_assets.engine.spark_frames.SMALL_BYTES", 0)
            frame = session.read(big).join(small.where(f"{key} is not null").distinct(), key)
            # Nor by what Spark takes for small by itself.
            frame.sparkSession.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
            frame.explain()
            plan = capsys.readouterr().out
            assert session.collect(frame, SCHEMA, "a test").num_rows == 30_000
        return "BroadcastHashJoin" in plan

    assert is_sent(numbers, size)
    assert not is_sent(numbers, size - 1)
    assert not is_sent(texts, size)
    assert is_sent(texts, 64 << 20) == (folder == "some/")


@on_each_engine
def test_a_file_that_is_there_twice_is_read_twice(
    spark: sessions.Session, tmp_path: Path, engine: str
) -> None:
    store = open_store(str(tmp_path))
    part = write_part(store, "some/", rows(_ROWS))
    embedded = EmbeddedSession(open_store, None)
    with embedded if engine == "embedded" else SparkBackedSession(spark, open_store) as session:
        frame = session.read(Dataset(store.url, [part, part], SCHEMA))
        assert session.collect(frame, SCHEMA, "a test").num_rows == 2 * _ROWS


@on_each_engine
def test_a_folder_that_looks_like_a_partition_gives_no_column(
    spark: sessions.Session, tmp_path: Path, engine: str
) -> None:
    """Else all that is live had one hash, that of the folder, and nothing else were alive."""
    store, table = open_store(str(tmp_path)), rows(_ROWS)
    part = write_part(store, "hash=7/address=a/", table)
    embedded = EmbeddedSession(open_store, None)
    with embedded if engine == "embedded" else SparkBackedSession(spark, open_store) as session:
        found = session.collect(session.read(Dataset(store.url, [part], SCHEMA)), SCHEMA, "a test")
    assert found.sort_by("address").equals(table.sort_by("address"))


@on_each_engine
def test_a_file_that_is_swapped_after_it_was_compared_is_reported(
    spark: sessions.Session, tmp_path: Path, engine: str
) -> None:
    """No checksum of a page shows that: what takes its place is whole."""
    store = open_store(str(tmp_path))
    other = rows(30_000).set_column(3, SCHEMA.field(3), pa.array([True] * 30_000, pa.bool_()))
    parts = [write_part(store, "some/", some, plain=True) for some in (rows(30_000), other)]
    dataset = Dataset(store.url, parts, SCHEMA)
    embedded = EmbeddedSession(open_store, None)
    with embedded if engine == "embedded" else SparkBackedSession(spark, open_store) as session:
        frame = session.read(dataset)
        assert session.collect(frame, SCHEMA, "a test").num_rows == 60_000
        first, second = (tmp_path / part.key for part in parts)
        first.write_bytes(second.read_bytes())
        for _ in range(2):
            with pytest.raises(IntegrityError, match=r"part-.* is not what its manifest says"):
                session.collect(frame, SCHEMA, "a test")


@on_each_engine
def test_a_file_that_goes_after_it_was_compared_is_reported(
    spark: sessions.Session, tmp_path: Path, engine: str
) -> None:
    store = open_store(str(tmp_path))
    part = write_part(store, "some/", rows(30_000))
    embedded = EmbeddedSession(open_store, None)
    with embedded if engine == "embedded" else SparkBackedSession(spark, open_store) as session:
        frame = session.read(Dataset(store.url, [part], SCHEMA))
        (tmp_path / part.key).unlink()
        with pytest.raises(IntegrityError, match=rf"{part.key} is missing"):
            session.collect(frame, SCHEMA, "a test")


@on_each_engine
def test_a_file_of_this_machine_is_compared_once(
    spark: sessions.Session, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many frames of a session read it; but once more when it is another one."""
    store, compared = open_store(str(tmp_path)), list[object]()
    parts = [write_part(store, "some/", rows(30_000)) for _ in range(2)]

    def sha256(*data: bytes) -> object:
        # Piece by piece; all at once where it is read here, to know how long its texts are.
        if not data:
            compared.append(data)
        return hashlib.sha256(*data)

    hashes = SimpleNamespace(sha256=sha256)
    monkeypatch.setattr("lakegc_assets.engine.datasets.hashlib", hashes)
    embedded = EmbeddedSession(open_store, None)
    with embedded if engine == "embedded" else SparkBackedSession(spark, open_store) as session:
        for names in (["address"], ["hash"], SCHEMA.names):
            schema = pa.schema([SCHEMA.field(name) for name in names])
            frame = session.read(Dataset(store.url, parts, schema))
            assert session.collect(frame, schema, "a test").num_rows == 60_000
        assert len(compared) == 2
        with pytest.raises(IntegrityError, match="has other columns than it should"):
            session.read(Dataset(store.url, parts, pa.schema([("hash", pa.uint64())])))
        other = parts[0]._replace(sha256="0" * 64)
        with pytest.raises(IntegrityError, match=f"{other.key} is not what its manifest says"):
            session.read(Dataset(store.url, [other, parts[1]], SCHEMA))
        path = tmp_path / parts[0].key
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        with pytest.raises(IntegrityError, match=f"{parts[0].key} is not what its manifest says"):
            session.read(Dataset(store.url, parts, SCHEMA))


def test_a_file_of_another_machine_is_fetched_once(s3_server: str, s3_bucket: str) -> None:
    """However many frames of a session read it, with whatever columns."""
    config = StoreConfig(endpoint_url=s3_server)
    store = open_store(f"s3://{s3_bucket}/some", config)
    parts = [write_part(store, "parts/", rows(100)) for _ in range(3)]
    before = traffic.by_kind()
    with EmbeddedSession(partial(open_store, config=config), None) as session:
        for names in (["address"], ["hash"], SCHEMA.names):
            schema = pa.schema([SCHEMA.field(name) for name in names])
            frame = session.read(Dataset(store.url, parts, schema))
            assert session.collect(frame, schema, "a test").num_rows == 300
        wrong = pa.schema([("hash", pa.uint64())])
        with pytest.raises(IntegrityError, match="has other columns than it should"):
            session.read(Dataset(store.url, parts, wrong))
    assert traffic.since(before) == {"store GET": 3}


@pytest.mark.conformance
def test_a_file_that_is_missing_is_an_error_whatever_configures_spark(
    spark: sessions.Session, tmp_path: Path
) -> None:
    store = open_store(str(tmp_path))
    parts = [write_part(store, "some/", rows(30_000)) for _ in range(2)]
    for name in ("Missing", "Corrupt"):
        spark().conf.set(f"spark.sql.files.ignore{name}Files", "true")
    prepare_session(spark())
    with SparkBackedSession(spark, open_store) as session:
        frame = session.read(Dataset(store.url, parts, SCHEMA))
        (tmp_path / parts[0].key).unlink()
        with pytest.raises(IntegrityError, match=f"{parts[0].key} is missing"):
            session.collect(frame, SCHEMA, "a test")
