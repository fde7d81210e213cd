"""Recorded repositories that are marked once for all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache

import pytest

from lakegc_assets_tests import recorded
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
