"""Sessions of each engine for the tests of relations: one relation, one twin, every engine."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from types import ModuleType
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from lakegc_assets.engine.embedded import EmbeddedSession
from lakegc_assets.engine.session import Session
from lakegc_assets.engine.spark_frames import SparkBackedSession
from lakegc_assets.engine.spark_session import prepare_session
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests import sessions

Rows = Sequence[Mapping[str, Any]]


class Frames:
    """Makes data frames of rows, and rows of data frames.

    Attributes:
        session: of the engine.
        examples: that a property is worth on it: a query of Spark's takes some tenths of a second.
        another: makes one more session of the engine, as each stage has its own.
    """

    def __init__(self, session: Session, examples: int, another: Callable[[], Session]) -> None:
        self.session, self.examples, self.another = session, examples, another

    def of(self, rows: Rows, schema: pa.Schema) -> DataFrame:
        """A data frame of some rows."""
        return self.session.create(pa.Table.from_pylist(list(rows), schema))

    def rows(self, frame: DataFrame, schema: pa.Schema) -> list[dict[str, Any]]:
        """The rows of a data frame, in no order that counts."""
        found: list[dict[str, Any]] = self.session.collect(frame, schema, "a test").to_pylist()
        return found


def same(some: Rows, others: Rows) -> bool:
    """Whether two lists hold the same rows, as often, in any order."""
    some_of, others_of = (
        Counter(tuple(sorted(row.items())) for row in rows) for rows in (some, others)
    )
    return some_of == others_of


def random_rows(
    values: Mapping[str, st.SearchStrategy[Any]], schema: pa.Schema, unique: str | None = None
) -> st.SearchStrategy[Rows]:
    """Some rows of a schema, by the values of its columns; one may have each value once."""
    row = st.fixed_dictionaries({name: values[name] for name in schema.names})
    return st.lists(row, max_size=8, unique_by=None if unique is None else itemgetter(unique))


def check(frames: Frames, test: Callable[..., None], *strategies: st.SearchStrategy[Any]) -> None:
    """Call a test with many values, as many as the engine is worth."""
    how = settings(
        max_examples=frames.examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.reuse, Phase.generate),
    )
    how(given(*strategies)(test))()


def holds(
    frames: Frames,
    relation: Callable[..., Any],
    twins: ModuleType,
    schema: pa.Schema,
    *values: Any,
    order: bool = False,
) -> None:
    """A relation gives what its twin gives: of frames (rows and schema), and of other values."""
    made = (frames.of(*one) if isinstance(one, tuple) else one for one in values)
    found = frames.rows(relation(*made), schema)
    plain = (one[0] if isinstance(one, tuple) else one for one in values)
    wanted = getattr(twins, relation.__name__)(*plain)
    cut = [{column: row[column] for column in schema.names} for row in wanted]
    assert found == cut if order else same(found, cut)


#: Names a Spark Connect server; then the tests of relations run there, and nowhere else.
CONNECT_VARIABLE: Final = "LAKEGC_TESTS_CONNECT"
_ENGINES: Final = (
    ["connect"]
    if CONNECT_VARIABLE in os.environ
    # A query of Spark's takes a hundred times as long, and engines seldom come to differ.
    else [
        "embedded",
        *(pytest.param(one, marks=pytest.mark.conformance) for one in ("thorough", "spark")),
    ]
)


#: Examples of a property, of which each run has others: what engines differ in, few show, and
#: Connect has the engine of Spark; the first one is empty.
_EXAMPLES: Final = {"embedded": 8, "thorough": 32, "spark": 5, "connect": 2}


@pytest.fixture(scope="module", params=_ENGINES)
def frames(request: pytest.FixtureRequest) -> Iterator[Frames]:
    """Data frames of each engine, for the tests of a module."""
    another: Callable[[], Session] = partial(EmbeddedSession, open_store, None)
    if request.param in {"spark", "connect"}:
        start: sessions.Session = _connected
        if request.param == "spark":
            start = request.getfixturevalue("spark")
        another = partial(SparkBackedSession, start, open_store)
    with another() as session:
        yield Frames(session, _EXAMPLES[request.param], another)


def _connected() -> SparkSession:
    spark = SparkSession.builder.remote(os.environ[CONNECT_VARIABLE]).getOrCreate()
    prepare_session(spark)
    return spark
