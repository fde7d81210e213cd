"""Recorded repositories and a short history, which are marked once for all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
import pytest

from lakegc_assets.engine.datasets import PartWriter
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets_tests import lake, recorded
from lakegc_assets_tests.recorded import Marked
from lakegc_assets_tests.replay import ReplayServer
from lakegc_assets_tests.sessions import Session


@dataclass(frozen=True)
class Golden:
    """A recorded repository with its published mark.

    Tests share it: they change the store inside ``recorded.preserved``, a copy of the artifacts
    (``recorded.rewind``), and answers through ``server.overrides``, which are dropped afterwards.
    """

    server: ReplayServer
    marked: Marked


Goldens = Callable[[str], Golden]


@pytest.fixture(scope="session")
def _goldens(
    spark: Session,
    s3_server: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Goldens]:
    with ExitStack() as stack:

        @cache
        def golden(repository: str) -> Golden:
            recorded.load(repository)
            server = stack.enter_context(ReplayServer(repository))
            folder = tmp_path_factory.mktemp(repository)
            ctx = recorded.context(server, s3_server, folder, spark)
            return Golden(server, recorded.mark(ctx, publish=True))

        yield golden


@pytest.fixture
def golden(_goldens: Goldens) -> Iterator[Goldens]:
    """Gives a recorded repository by its name."""
    given: list[Golden] = []

    def get(repository: str) -> Golden:
        given.append(_goldens(repository))
        return given[-1]

    yield get
    for one in given:
        one.server.overrides.clear()
        one.server.has_async = True


class _InPieces(PartWriter):
    """Takes a few rows at a time."""

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        for at in range(0, rows.num_rows, 4):
            super().add(rows.slice(at, 4))


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory, spark: Session) -> lake.Marked:
    """A short history, marked up to its candidates, which are in several files."""
    folder = tmp_path_factory.mktemp("told")
    with lake.running(folder) as found, pytest.MonkeyPatch.context() as patch:
        groups, commits = lake.tell_history(found)
        patch.setattr("lakegc_assets.engine.datasets.ROWS_EACH", 4)
        patch.setattr("lakegc_assets.engine.datasets.PartWriter", _InPieces)
        lake.mark(found.context(spark), lake.STAGES[: lake.STAGES.index(find_candidates) + 1])
    return lake.Marked(folder, groups, commits, frozenset())
