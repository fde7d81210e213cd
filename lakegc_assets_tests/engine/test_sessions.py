"""Every engine reads datasets, computes relations, and writes what they give."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, ArithmeticException
from pyspark.errors.utils import is_debugging_enabled
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import TimestampType

from lakegc_assets.engine import embedded, spark_frames
from lakegc_assets.engine.database import Database, open_database
from lakegc_assets.engine.datasets import Part, read_part, write_part, write_tables
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.embedded import EmbeddedSession
from lakegc_assets.engine.relation import F, Window, relation, union_all
from lakegc_assets.engine.session import Dataset
from lakegc_assets.engine.spark_frames import FOR_FEW_ROWS, SparkBackedSession
from lakegc_assets.engine.spark_session import REQUIRED, prepare_session
from lakegc_assets.errors import ConfigurationError, IntegrityError
from lakegc_assets.mark.relations import counts_by_reason, listing_totals
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.frames import Frames
from lakegc_assets_tests.sessions import SMALL, Session

SCHEMA = schema("address string not null, hash bigint not null, at timestamp, odd boolean")
_AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
_ROWS = 50_000


def rows(count: int) -> pa.Table:
    """Rows with addresses that are hard to carry."""
    return pa.table(
        [
            [f"data/\n|'\"ü{number}" for number in range(count)],
            [(-1) ** number * (2**63 - 1 - number) for number in range(count)],
            [_AT if number % 3 else None for number in range(count)],
            [bool(number % 2) for number in range(count)],
        ],
        schema=SCHEMA,
    )


@relation
def odd_ones(some: pa.Table, others: pa.Table) -> pa.Table:
    """A relation that uses what most of them use."""
    last = Window.partitionBy("odd").orderBy(F.col("address").desc())
    ranked = some.where(F.col("odd") & (F.col("at") <= F.lit(_AT)))
    ranked = ranked.join(others.select("hash"), "hash", "left_anti")
    return ranked.withColumn("n", F.row_number().over(last)).where("n <= 2").drop("n")


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    # DuckDB would take brackets for a pattern.
    return open_store(str(tmp_path / "a [b] *'ü"))


def test_a_relation_of_datasets_is_written(frames: Frames, store: ObjectStore) -> None:
    table = rows(_ROWS)
    parts = [write_part(store, "some/", table.slice(at, 20_000)) for at in range(0, _ROWS, 20_000)]
    other = write_part(store, "others/", table.filter(pa.array([n % 4 == 1 for n in range(_ROWS)])))
    left = [frames.session.read(Dataset(store.url, some, SCHEMA)) for some in (parts, [other])]
    written = frames.session.write(odd_ones(*left), store.url, "out/", SCHEMA, "a test")
    expected = [
        row
        for number, row in enumerate(table.to_pylist())
        if number % 4 == 3 and row["at"] is not None
    ]
    expected.sort(key=lambda row: str(row["address"]), reverse=True)
    found = pa.concat_tables([read_part(store, part) for part in written])
    assert found.schema.equals(SCHEMA)
    assert found.sort_by([("address", "descending")]).to_pylist() == expected[:2]


def test_frames_that_are_put_together_have_all_rows(frames: Frames, store: ObjectStore) -> None:
    """Spark numbers the tasks of both anew, and may split what it gives to one."""
    table = rows(60_000)
    some = [write_part(store, "some/", table.slice(at, 9_000)) for at in range(0, 27_000, 9_000)]
    places = range(27_000, 60_000, 5_500)
    others = [write_part(store, "others/", table.slice(at, 5_500)) for at in places]
    both = [frames.session.read(Dataset(store.url, parts, SCHEMA)) for parts in (some, others)]
    found = frames.session.collect(both[0].unionByName(both[1]), SCHEMA, "a test")
    assert found.sort_by("address").equals(table.sort_by("address"))
    again = union_all(both[1], both[0], both[1])
    assert frames.session.collect(again, SCHEMA, "a test").num_rows == 93_000


def test_a_step_is_written_where_an_engine_would_hold_it(
    frames: Frames, store: ObjectStore
) -> None:
    few = pa.schema([SCHEMA.field(name) for name in ("hash", "odd")])
    some = frames.session.create(rows(4))
    step = frames.session.step(some, store.url, "step/", few, "a test")
    assert sorted(step.columns) == sorted(few.names)
    assert frames.session.collect(step, few, "a test").equals(rows(4).select(few.names))
    is_embedded = isinstance(frames.session, EmbeddedSession)
    assert len(list(store.infos("step/"))) == is_embedded


def test_nothing_is_written_of_an_empty_frame(frames: Frames, store: ObjectStore) -> None:
    nothing = frames.session.read(Dataset(store.url, [], SCHEMA))
    assert frames.session.collect(nothing, SCHEMA, "a test").num_rows == 0
    assert frames.session.write(nothing, store.url, "out/", SCHEMA, "a test") == []


@pytest.mark.conformance
def test_few_rows_are_written_without_a_task_in_python(
    spark: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: list[str] = []

    def write(*given: Any) -> list[Part]:
        here.append(given[1])
        return write_tables(*given)

    monkeypatch.setattr(spark_frames, "write_tables", write)
    store = open_store(str(tmp_path))
    with SparkBackedSession(spark, open_store) as session:
        few = session.create(rows(10))
        (part,) = session.write(few, store.url, "few/", SCHEMA, "a test")
        assert read_part(store, part).equals(rows(10))
        many = session.read(Dataset(store.url, [write_part(store, "some/", rows(30_000))], SCHEMA))
        session.write(many, store.url, "many/", SCHEMA, "a test")
    assert here == ["few/"]


def test_few_rows_may_be_joined_to_many(frames: Frames, store: ObjectStore) -> None:
    some = frames.session.create(rows(200))
    others = frames.session.create(rows(200).select(["odd"]))
    both = some.join(others, "odd")
    written = frames.session.write(both, store.url, "out/", SCHEMA, "a test")
    assert sum(part.rows for part in written) == 200 * 100
    twice = frames.session.write(
        union_all(both, both.limit(1)), store.url, "out/", SCHEMA, "a test"
    )
    assert sum(part.rows for part in twice) == 200 * 100 + 1


@pytest.mark.conformance
def test_operations_on_columns_are_not_traced(spark: Session) -> None:
    """Each of them would ask the JVM five times more."""
    spark()
    assert not is_debugging_enabled()


@pytest.mark.conformance
def test_what_configures_spark_holds_where_rows_are_many(
    spark: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind few rows, which are computed in a way of their own."""
    monkeypatch.setattr(spark_frames, "FOR_FEW_ROWS", _OTHERWISE)
    store = open_store(str(tmp_path))
    with SparkBackedSession(spark, open_store) as session:
        for count, wanted in ((100, _OTHERWISE), (30_000, REQUIRED | SMALL)):
            part = write_part(store, "some/", rows(count))
            frame = session.read(Dataset(store.url, [part], SCHEMA))
            session.collect(frame, SCHEMA, "a test")
            for name in FOR_FEW_ROWS:
                assert frame.sparkSession.conf.get(name) == wanted[name]


#: Settings for few rows that are none of those that the session of the tests has for all.
_OTHERWISE = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "3",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
}


@pytest.mark.conformance
def test_created_rows_need_no_exchange(spark: Session, capsys: pytest.CaptureFixture[str]) -> None:
    with SparkBackedSession(spark, open_store) as session:
        created = session.create(rows(10))
        created.join(created.groupBy("odd").count(), "odd").orderBy("hash").explain()
    plan = capsys.readouterr().out
    assert "Sort" in plan
    assert not re.search(r"Exchange (hash|range|Single)", plan)


@pytest.mark.conformance
def test_no_default_of_a_cluster_changes_what_relations_compute(spark: Session) -> None:
    """What is not told to a session is as the cluster's administrators like it."""
    session = spark().newSession()
    for name, value in _DEFAULTS_OF_A_CLUSTER.items():
        session.conf.set(name, value)
    prepare_session(session)
    frame = session.createDataFrame(rows(10))
    assert {row["why"]: row["objects"] for row in _by_why(frame).collect()} == {True: 5, False: 5}
    with pytest.raises(AnalysisException, match="ambiguous"):
        _ambiguous(frame).collect()
    with pytest.raises(AnalysisException, match="cannot be resolved"):
        frame.select(frame["`o.d`"])
    assert frame.join(frame, frame["hash"] == frame["hash"]).count() == 10
    largest = _largest(session)
    with pytest.raises(ArithmeticException, match="overflow"):
        listing_totals(largest, _AT).collect()
    assert largest.schema["last_modified"].dataType == TimestampType()
    assert session.conf.get("spark.sql.adaptive.autoBroadcastJoinThreshold") == "1m"


_DEFAULTS_OF_A_CLUSTER = {
    "spark.sql.retainGroupColumns": "false",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.analyzer.failAmbiguousSelfJoin": "false",
    "spark.sql.selfJoinAutoResolveAmbiguity": "false",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "10g",
}


def _by_why(frame: DataFrame) -> DataFrame:
    return counts_by_reason(frame.withColumnRenamed("odd", "why"))


def _ambiguous(frame: DataFrame) -> DataFrame:
    few = frame.where("hash > 0")
    return frame.join(few, frame["hash"] > few["hash"])


def _largest(session: SparkSession) -> DataFrame:
    largest = [(True, _AT, 2**63 - 1)] * 2
    return session.createDataFrame(largest, "in_place boolean, last_modified timestamp, size long")


def test_rows_in_order_are_written_in_order(frames: Frames, store: ObjectStore) -> None:
    part = write_part(store, "some/", rows(_ROWS))
    ordered = frames.session.read(Dataset(store.url, [part], SCHEMA)).orderBy("address")
    written = frames.session.write(ordered, store.url, "out/", SCHEMA, "a test")
    found = pa.concat_tables([read_part(store, one) for one in written])["address"].to_pylist()
    assert found == sorted(found)
    assert len(found) == _ROWS


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _swapped(path: Path) -> None:
    path.write_bytes(next(p for p in path.parent.iterdir() if p != path).read_bytes())


def _missing(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [_flipped, _cut, _swapped, _missing])
@pytest.mark.parametrize("count", [100, 30_000], ids=["few rows", "many rows"])
def test_damage_is_reported(
    frames: Frames, tmp_path: Path, damage: Callable[[Path], None], count: int
) -> None:
    store = open_store(str(tmp_path))
    # Two files of equal length and number of rows, so that one can take the other's place.
    other = rows(count).set_column(3, SCHEMA.field(3), pa.array([True] * count, pa.bool_()))
    parts = [write_part(store, "some/", some, plain=True) for some in (rows(count), other)]
    damage(tmp_path / parts[0].key)
    with pytest.raises(IntegrityError, match=r"part-.* is (missing|not what its manifest says)"):
        frames.session.collect(
            frames.session.read(Dataset(store.url, parts, SCHEMA)), SCHEMA, "a test"
        )


@pytest.mark.parametrize("count", [100, 30_000], ids=["few rows", "many rows"])
@pytest.mark.parametrize("order", [1, -1], ids=["first", "last"])
def test_hashes_of_another_kind_are_reported(
    frames: Frames, store: ObjectStore, count: int, order: int
) -> None:
    """Joined with signed ones, they would equal none: what they keep alive would look dead."""
    usual = write_part(store, "some/", rows(count))
    unsigned = pa.array(range(2**63, 2**63 + count), pa.uint64())
    other = write_part(store, "some/", rows(count).set_column(1, "hash", unsigned))
    parts = [other, usual][::order]
    with pytest.raises(IntegrityError, match=r"part-.* has other columns than it should"):
        frames.session.collect(
            frames.session.read(Dataset(store.url, parts, SCHEMA)), SCHEMA, "a test"
        )


@pytest.mark.parametrize("copies", [1, 30_000])
def test_texts_that_were_written_by_a_dictionary_are_texts(
    copies: int, frames: Frames, store: ObjectStore
) -> None:
    """Few rows are read here, more of them by tasks."""
    names = pa.array(["a", "b"] * copies).dictionary_encode()
    part = write_part(store, "some/", pa.table({"name": names}))
    schema = pa.schema([("name", pa.string())])
    read = frames.session.read(Dataset(store.url, [part], schema))
    assert len(frames.rows(read, schema)) == 2 * copies


def test_a_table_without_rows_is_known_by_its_columns() -> None:
    with EmbeddedSession(open_store, None) as session:
        given = [session.create(found) for found in (rows(3), rows(0), rows(0))]
        assert [frame.dtypes for frame in given] == [given[0].dtypes] * 3
        assert session.collect(given[1], SCHEMA, "none") == SCHEMA.empty_table()
        assert session.collect(union_all(*given), SCHEMA, "all") == rows(3)


def test_the_embedded_engine_spills_and_says_where_memory_ends(
    store: ObjectStore,
) -> None:
    table = rows(100_000)
    part = write_part(store, "some/", table)
    with EmbeddedSession(open_store, 32 << 20) as session:
        frame = session.read(Dataset(store.url, [part], SCHEMA))
        for _ in range(4):
            frame = frame.unionAll(frame)
        written = session.write(frame.orderBy("address"), store.url, "out/", SCHEMA, "a test")
    assert sum(one.rows for one in written) == 16 * table.num_rows
    with EmbeddedSession(open_store, 1 << 20) as small:
        frame = small.read(Dataset(store.url, [part], SCHEMA)).orderBy("address")
        with pytest.raises(ConfigurationError, match=r"raise embedded_memory"):
            small.write(frame, store.url, "out/", SCHEMA, "a test")


def test_the_embedded_engine_gives_back_what_a_query_has_held() -> None:
    """In a process of its own: what others hold in this one, nobody knows."""
    found = subprocess.run(
        [sys.executable, "-c", _HOLD], check=True, capture_output=True, text=True, timeout=120
    )
    held, left = map(int, found.stdout.split())
    assert held > 100 > left


#: Prints by how many megabytes a process grows for a query, and how many of these it keeps.
_HOLD = """
import time
from pathlib import Path
from lakegc_assets.engine.database import open_database

def held():
    lines = Path("/proc/self/smaps_rollup").read_text("ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) >> 10

database = open_database(1 << 30)
before = held()
numbers = "SELECT x, 'data/' || x * 31 AS y FROM range(900_000) AS r(x)"
query = f"SELECT a.y FROM ({numbers}) a JOIN ({numbers}) b USING (x) ORDER BY a.y || b.y"
database.connection.execute(query).fetchmany(1)
most = held()
database.connection.execute("SELECT 1").fetchall()
end = time.monotonic() + 60
while held() > before + 80 and time.monotonic() < end:
    time.sleep(0.1)
print(most - before, held() - before)
"""


def _threads(connection: duckdb.DuckDBPyConnection) -> int:
    # Another cursor: what this one is in the middle of goes on.
    (found,) = connection.cursor().execute("SELECT current_setting('threads')").fetchone() or (0,)
    return int(found)


@pytest.mark.parametrize(
    ("said", "memory"), [("max\n", None), (f"{1 << 30}\n", 1 << 28), (f"{1 << 62}", None)]
)
def test_a_container_has_the_memory_that_it_may_use(
    said: str, memory: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "LIMITS", (tmp_path / "nowhere",))
    _, of_machine = embedded.default_memory()
    (tmp_path / "memory.max").write_text(said)
    monkeypatch.setattr(embedded, "LIMITS", (tmp_path / "nowhere", tmp_path / "memory.max"))
    usual, most = embedded.default_memory()
    assert most == (memory or of_machine)
    assert usual == min((os.cpu_count() or 1) << 29, most)


def test_there_are_no_more_threads_than_memory_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a query cannot spill it holds once for each thread."""
    with EmbeddedSession(open_store, 1 << 30):
        database = open_database(1 << 30)
        monkeypatch.setattr(database, "cores", 16)
        for memory, threads in ((128, 1), (1_500, 2), (4_096, 8), (65_536, 16)):
            database.limit(memory << 20)
            assert _threads(database.connection) == threads


#: Rows, and behind them what needs memory: DuckDB's error comes in the middle.
_LATE = """
SELECT i AS number FROM range(300000) t(i) UNION ALL
SELECT a.number FROM (SELECT (i * 7919) % 900000 AS number, max(i) AS most
                      FROM range(900000) t(i) GROUP BY ALL) a
FULL JOIN (SELECT (i * 104729) % 900000 AS number, min('folder/' || i) AS folder
           FROM range(900000) t(i) GROUP BY ALL) b ON a.number = b.number
"""
_NUMBERS = schema("number bigint")


def test_what_runs_out_of_memory_in_the_middle_is_computed_once_more_in_one_thread(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Database, "use_threads", _use_many)
    with EmbeddedSession(open_store, 32 << 20) as session:
        database = open_database(32 << 20)
        with pytest.raises((duckdb.OutOfMemoryException, OSError)):
            database.connection.sql(_LATE).to_arrow_reader(100_000).read_all()
        frame = cast("DataFrame", database.read(_LATE, _NUMBERS))
        written = session.write(frame, store.url, "out/", _NUMBERS, "a test")
        assert sum(one.rows for one in written) == 1_200_000
        assert _threads(database.connection) == _MANY


def test_what_runs_out_of_memory_at_once_gets_the_most_that_it_may_have_and_the_next_does_not(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Database, "use_threads", _use_many)
    monkeypatch.setattr(embedded, "default_memory", lambda: (16 << 20, 512 << 20))
    limits: list[str] = []
    original = Database.one_thread

    @contextmanager
    def one_thread(database: Database, memory: int) -> Iterator[None]:
        with original(database, memory):
            limits.append(_limit(database.connection))
            yield

    monkeypatch.setattr(Database, "one_thread", one_thread)
    with EmbeddedSession(open_store, None) as session:
        database = open_database(16 << 20)
        frame = cast("DataFrame", database.read(_LATE.partition("UNION ALL")[2], _NUMBERS))
        written = session.write(frame, store.url, "out/", _NUMBERS, "a test")
        assert sum(one.rows for one in written) == 900_000
        assert limits == ["512.0 MiB"]
        assert _limit(database.connection) == "16.0 MiB"


def _limit(connection: duckdb.DuckDBPyConnection) -> str:
    found = connection.cursor().execute("SELECT current_setting('memory_limit')").fetchone()
    return str(found and found[0])


_MANY = 8


def _use_many(database: Database, _memory: int) -> None:
    database.set_threads(_MANY)


_SPILLING = """
import os, sys
from lakegc_assets.engine.folders import SpillFolder
folder = SpillFolder()
(folder.path / "something").write_text("x")
print(folder.path, flush=True)
os.kill(os.getpid(), 9) if sys.argv[1] == "killed" else folder.remove()
"""


def _spilled(how: str, temporary: Path) -> Path:
    command = [sys.executable, "-c", _SPILLING, how]
    ended = subprocess.run(
        command, env={"TMPDIR": str(temporary)}, capture_output=True, check=False, text=True
    )
    return Path(ended.stdout.strip())


def test_what_a_killed_process_spilled_is_removed_by_the_next(tmp_path: Path) -> None:
    left = _spilled("killed", tmp_path)
    assert (left / "something").exists()
    assert not _spilled("ended", tmp_path).exists()
    assert list(tmp_path.iterdir()) == []


def test_parts_know_their_place(frames: Frames, store: ObjectStore) -> None:
    part = write_part(store, "some/", rows(3))
    lost = Part("some/part-none.parquet", part.rows, part.size, part.sha256)
    with pytest.raises(IntegrityError, match=r"some/part-none.parquet is missing"):
        frames.session.read(Dataset(store.url, [lost], SCHEMA))
