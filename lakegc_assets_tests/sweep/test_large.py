"""A sweep of more addresses than one array of Arrow's holds: 2 GiB."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from lakegc_assets.sweep.delta import Candidates, without
from lakegc_assets.sweep.sweep import _require_whole


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    """More than 2 GiB of addresses, which are 1 MB of memory: the same again and again."""
    addresses = pa.chunked_array([pa.array(["a" * (1 << 20)])] * 2050 + [pa.array(["last"])])
    return pa.table({"address": addresses})


def test_what_is_done_is_left_out(rows: pa.Table) -> None:
    some = pa.chunked_array([["last"]])
    assert without(rows, some).num_rows == 2050
    assert without(pa.table({"address": some}), rows["address"]).num_rows == 0


def test_outcomes_are_compared_with_what_was_marked(rows: pa.Table) -> None:
    ctx: Any = Mock(run="run")
    _require_whole(ctx, rows, Candidates(rows, []))
