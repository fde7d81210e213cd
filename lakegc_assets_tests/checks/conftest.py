"""Recorded repositories on an S3 server, for marks that are written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lakegc_assets_tests import recorded
from lakegc_assets_tests.checks.handmade import Lab
from lakegc_assets_tests.replay import ReplayServer

Labs = Callable[[str], Lab]


@pytest.fixture
def labs(s3_server: str, tmp_path: Path) -> Iterator[Labs]:
    """Gives a recorded repository by its name; what a test does to it is undone."""
    with ExitStack() as stack:
        # Marks that other tests share are of the same repositories in the same bucket.
        stack.enter_context(recorded.set_aside())

        def lab(repository: str) -> Lab:
            server = stack.enter_context(ReplayServer(repository))
            found = Lab(server, s3_server, tmp_path)
            found.load()
            return found

        yield lab


@pytest.fixture
def lab(labs: Labs) -> Lab:
    return labs("retention")
