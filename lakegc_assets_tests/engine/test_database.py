"""The SQL of a relation is made once, and is right for other frames and arguments."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from lakegc_assets.engine.database import (
    OPTIMIZERS,
    Database,
    open_database,
    require_right_answers,
)
from lakegc_assets.engine.datasets import write_part
from lakegc_assets.engine.embedded import EmbeddedSession, default_memory
from lakegc_assets.engine.plans import PlanCache
from lakegc_assets.engine.relation import F, relation, union_all
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.local import LocalStore

_NUMBERS = pa.schema([("number", pa.int64())])
_planned: list[str] = []


@relation
def _without(all_of: DataFrame, some: DataFrame) -> DataFrame:
    _planned.append("without")
    return all_of.join(some, "number", "left_anti")


@relation
def _together(first: DataFrame, second: DataFrame) -> DataFrame:
    return first.union(second)


@relation
def _above(rows: DataFrame, least: float) -> DataFrame:
    _planned.append("above")
    return rows.where(F.col("number") > F.lit(least))


@relation
def _above_without(rows: DataFrame, more: Sequence[DataFrame], least: float) -> DataFrame:
    for one in more:
        rows = _without(rows, one)
    return _above(rows, least)


@relation
def _either(rows: DataFrame, since: datetime | None, named: object) -> DataFrame:
    _planned.append("either")
    return rows if since is None else rows.where(F.lit(since).isNotNull() & F.lit(bool(named)))


def test_a_duckdb_that_omits_rows_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Install duckdb>=1\.5\.3, or run with"):
        Database(1 << 28, PlanCache(None), version="1.5.2")
    for version in ("1.5.3", "1.5.6", "2.0.0.dev7", "2.0.0"):
        require_right_answers(version)


def named(sql: str) -> set[str]:
    rows = open_database(1 << 28).connection.execute(sql).fetchall()
    return {name for (text,) in rows for name in text.split(",")}


def test_optimizers_of_other_versions_are_off() -> None:
    every = named("SELECT name FROM duckdb_optimizers()")
    turned_off = named("SELECT current_setting('disabled_optimizers')")
    assert every - turned_off == OPTIMIZERS & every
    assert {"filter_pushdown", "unused_columns", "build_side_probe_side"} < OPTIMIZERS & every


def test_no_filter_of_one_side_of_a_join_reaches_the_other(tmp_path: Path) -> None:
    """With such filters DuckDB 1.5.6 may find rows that are not among the first ones."""
    connection = open_database(1 << 28).connection
    assert "join_filter_pushdown" in named("SELECT current_setting('disabled_optimizers')")
    numbers = range(100_000)
    all_of = pa.table({"k": numbers, "place": [i * 7919 % len(numbers) for i in numbers]})
    pq.write_table(all_of, tmp_path / "all")
    pq.write_table(pa.table({"k": range(20_000, 30_000, 10)}), tmp_path / "some")
    ((found,),) = connection.execute(
        "SELECT count(*) FROM "
        f"(FROM read_parquet('{tmp_path / 'all'}') ORDER BY place LIMIT 5000) "
        f"JOIN read_parquet('{tmp_path / 'some'}') USING (k)"
    ).fetchall()
    assert found == sum(i * 7919 % len(numbers) < 5000 for i in range(20_000, 30_000, 10))


def test_each_side_of_a_union_has_its_own_columns() -> None:
    """DuckDB 1.5.1 to 2.0.1 may compute a join once, and give both sides the columns of one."""
    values = [i * 7 % 8 for i in range(8)]
    connection = open_database(1 << 28).connection
    connection.execute(
        "CREATE TABLE entries AS SELECT i AS id, i * 7 % 8 AS value FROM range(8) numbers(i)"
    )
    joined = (
        "SELECT a, this.value AS of_this, next.value AS of_next "
        "FROM (SELECT id AS a, id + 1 AS b FROM entries WHERE value % 2 = 0) "
        "JOIN entries this ON this.id = a JOIN entries next ON next.id = b"
    )
    found = connection.execute(
        f"WITH joined AS NOT MATERIALIZED ({joined}) "
        "SELECT a, of_this FROM joined UNION ALL SELECT a, of_next FROM joined"
    ).fetchall()
    connection.execute("DROP TABLE entries")
    even = range(0, 8, 2)
    assert sorted(found) == sorted((a, values[at]) for a in even for at in (a, a + 1))


@pytest.fixture
def session() -> Iterator[EmbeddedSession]:
    _planned.clear()
    with EmbeddedSession(lambda url: LocalStore(Path(url), url), None) as made:
        yield made


def _frame(session: EmbeddedSession, *numbers: int) -> DataFrame:
    return session.create(pa.table({"number": pa.array(numbers, pa.int64())}))


def _numbers(session: EmbeddedSession, frame: DataFrame) -> list[int]:
    found: list[int] = session.collect(frame, _NUMBERS, "test")["number"].to_pylist()
    return sorted(found)


def test_other_frames_have_the_same_plan_and_their_own_rows(session: EmbeddedSession) -> None:
    first = _without(_frame(session, 1, 2, 3), _frame(session, 2))
    second = _without(_frame(session, 4, 5), _frame(session, 5, 6))
    assert _numbers(session, first) == [1, 3]
    assert _numbers(session, second) == [4]
    assert len(_planned) <= 1


def test_a_frame_that_is_given_twice_is_told_from_two(session: EmbeddedSession) -> None:
    rows = _frame(session, 1, 2)
    assert _numbers(session, _together(rows, rows)) == [1, 1, 2, 2]
    assert _numbers(session, _together(rows, _frame(session, 3))) == [1, 2, 3]
    assert _numbers(session, _together(rows, rows)) == [1, 1, 2, 2]


def test_other_columns_are_planned_anew(session: EmbeddedSession) -> None:
    def reported(kind: pa.DataType) -> Any:
        table = pa.table({"number": pa.array([1, 2], pa.int64()), "more": pa.array([1, 2], kind)})
        frame = _without(session.create(table), _frame(session, 1))
        schema = pa.schema([("number", pa.int64()), ("more", kind)])
        return session.collect(frame, schema, "test").to_pylist()

    assert reported(pa.int64()) == [{"number": 2, "more": 2}]
    assert reported(pa.int32()) == [{"number": 2, "more": 2}]


def test_other_arguments_are_planned_anew(session: EmbeddedSession) -> None:
    rows = _frame(session, 0, 1, 2)
    assert [_numbers(session, _above(rows, least)) for least in (0, 1, 0.5, True, 1)] == [
        [1, 2],
        [2],
        [1, 2],
        [2],
        [2],
    ]


def test_relations_within_relations_are_repeated_with_their_views(session: EmbeddedSession) -> None:
    for offset in (0, 10):
        rows = _frame(session, *(offset + number for number in range(6)))
        less = [_frame(session, offset + 1), _frame(session, offset + 2)]
        assert _numbers(session, _above_without(rows, less, 0)) == [
            offset + number for number in range(6) if number not in (1, 2) and offset + number > 0
        ]
        assert _numbers(session, _above_without(rows, less[:1], 0)) == [
            offset + number for number in range(6) if number != 1 and offset + number > 0
        ]


def test_an_argument_that_may_change_is_looked_at_each_time(session: EmbeddedSession) -> None:
    since = datetime(2026, 1, 1, tzinfo=timezone.utc)
    names: dict[str, str] = {}
    assert _numbers(session, _either(_frame(session, 1), since, names)) == []
    names["a"] = "b"
    assert _numbers(session, _either(_frame(session, 1), since, names)) == [1]


def test_a_relation_may_give_what_it_got(session: EmbeddedSession) -> None:
    for number in (1, 2):
        assert _numbers(session, _either(_frame(session, number), None, "x")) == [number]


@relation
def _equal(rows: DataFrame, *numbers: int) -> DataFrame:
    found = [rows.where(F.col("number") == number).select("number") for number in numbers]
    return union_all(*found)


def test_parts_of_a_plan_are_told_from_each_other_whatever_their_checksums(
    session: EmbeddedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = _frame(session, *range(10))
    # By SQLFrame's names for them, two of many parts are the same now and then: here, all are.
    monkeypatch.setattr("sqlframe.base.dataframe.zlib", SimpleNamespace(crc32=lambda _: 7))
    assert _numbers(session, _equal(rows, 3, 5, 8)) == [3, 5, 8]


def _named_twice(joined: DataFrame) -> DataFrame:
    return joined.where((F.col("number") == F.lit(1)) | (F.col("number") == F.lit(2)))


@pytest.mark.parametrize("how", ["left", "full_outer"])
def test_a_key_of_an_outer_join_is_not_read_from_the_side_that_lacks_it(
    session: EmbeddedSession, how: str
) -> None:
    """SQLFrame resolves the second use of its name to the other frame, and says nothing."""

    @relation
    def behind_it(all_of: DataFrame, some: DataFrame) -> DataFrame:
        return _named_twice(all_of.join(some, "number", how))

    with pytest.raises(ValueError, match="behind an outer join number is read from the side that"):
        behind_it(_frame(session, 1, 2, 3), _frame(session, 3))


def test_a_key_of_an_inner_join_and_one_that_is_named_once_are_read(
    session: EmbeddedSession,
) -> None:
    @relation
    def inner(all_of: DataFrame, some: DataFrame) -> DataFrame:
        return _named_twice(all_of.join(some, "number"))

    @relation
    def once(all_of: DataFrame, some: DataFrame) -> DataFrame:
        return all_of.join(some, "number", "left").where(F.col("number").isin(1, 2))

    @relation
    def united(all_of: DataFrame, some: DataFrame) -> DataFrame:
        return all_of.join(some, "number", "full_outer")

    frames = _frame(session, 1, 2, 3), _frame(session, 2, 4)
    assert _numbers(session, inner(*frames)) == [2]
    assert _numbers(session, once(*frames)) == [1, 2]
    assert _numbers(session, united(*frames)) == [1, 2, 3, 4]


def test_a_text_that_is_named_like_a_view_stays_what_it_is(session: EmbeddedSession) -> None:
    @relation
    def named(rows: DataFrame, name: str) -> DataFrame:
        return rows.where(F.lit(name) == F.concat(F.lit("lakegc_"), F.lit("1")))

    for _ in range(2):
        assert _numbers(session, named(_frame(session, 7), "lakegc_1")) == [7]


def test_a_folder_that_is_named_like_a_query_is_a_folder(
    session: EmbeddedSession, tmp_path: Path
) -> None:
    """That of the frame itself, of an older one, or of a newer one."""
    number = next(open_database(1 << 30).names) + 1
    for name in range(number - 2, number + 3):
        store = LocalStore(tmp_path / f"lakegc_{name}", str(tmp_path / f"lakegc_{name}"))
        table = pa.table({"number": pa.array([1, 2], pa.int64())})
        dataset = Dataset(store.url, [write_part(store, "some/", table)], _NUMBERS)
        rows = session.read(dataset)
        assert _numbers(session, _without(rows, _frame(session, 2))) == [1]


def test_a_fork_that_ends_leaves_what_its_parent_spilled(session: EmbeddedSession) -> None:
    frame = _frame(session, 1)
    database = open_database(1 << 30)
    child = os.fork()
    if not child:
        database.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert database.spill.path.is_dir()
    assert _numbers(session, frame) == [1]


@relation
def _since(rows: DataFrame, since: datetime, until: datetime | None = None) -> DataFrame:
    _planned.append("since")
    later = rows.where(F.col("at") >= F.lit(since))
    return later if until is None else _before(later, until)


@relation
def _before(rows: DataFrame, until: datetime) -> DataFrame:
    _planned.append("before")
    return rows.where(F.col("at") < until)


@relation
def _a_day_after(rows: DataFrame, since: datetime) -> DataFrame:
    _planned.append("a day after")
    return rows.where(F.col("at") >= F.lit(since + timedelta(days=1)))


@relation
def _by_its_year(rows: DataFrame, since: datetime) -> DataFrame:
    return rows.where(F.year("at") >= F.lit(since.year))


_AT = pa.schema([("at", pa.timestamp("us", "UTC"))])


def _times(session: EmbeddedSession, *days: int) -> DataFrame:
    return session.create(pa.table([pa.array([_day(day) for day in days], _AT.field(0).type)], _AT))


def _day(day: int) -> datetime:
    return datetime(2026, 1, day, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=2)))


def _days(session: EmbeddedSession, frame: DataFrame) -> list[int]:
    return sorted(at.day for at in session.collect(frame, _AT, "test")["at"].to_pylist())


def test_another_moment_is_another_literal_of_the_same_plan(session: EmbeddedSession) -> None:
    for least in (2, 3, 1):
        since = _since(_times(session, 1, 2, 3), _day(least))
        assert _days(session, since) == [day for day in (1, 2, 3) if day >= least]
        both = _since(_times(session, 1, 2, 3), _day(least), until=_day(3))
        assert _days(session, both) == [day for day in (1, 2) if day >= least]
    assert _planned.count("since") <= 2
    assert _planned.count("before") <= 1


def test_a_moment_that_is_more_than_a_literal_is_planned_anew(session: EmbeddedSession) -> None:
    for least in (1, 2):
        found = _a_day_after(_times(session, 1, 2, 3), _day(least))
        assert _days(session, found) == [day for day in (1, 2, 3) if day > least]
    for year, found_days in ((2026, [1]), (2027, []), (2025, [1])):
        since = _day(1).replace(year=year)
        assert _days(session, _by_its_year(_times(session, 1), since)) == found_days


@pytest.mark.parametrize("sizes", [(1, 1_000, 1_200, 5), (0, 1_000, 0, 1_000)])
def test_a_small_file_before_large_ones_does_not_make_a_dataset_small(
    session: EmbeddedSession, tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    store = LocalStore(tmp_path, str(tmp_path))
    parts = [
        write_part(store, "data/", pa.table({"number": pa.array(range(rows), pa.int64())}))
        for rows in sizes
    ]
    rows = session.read(Dataset(store.url, parts, _NUMBERS))
    joined = rows.join(_frame(session, *range(50)), "number", "left")
    database = open_database(default_memory()[0])
    sql = f"EXPLAIN {database.query(joined, ['number'])}"
    ((_, plan),) = database.connection.execute(sql).fetchall()
    assert "Join Type: LEFT" in plan  # and not RIGHT, which would hold the rows of the dataset
    assert len(_numbers(session, joined)) == sum(sizes)
