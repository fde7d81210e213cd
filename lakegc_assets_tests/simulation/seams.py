"""Gives the code of the sweep another world to stand on: stores, clocks, threads and parquet."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import lru_cache
from typing import Any, Final
from unittest import mock

import pyarrow as pa

from lakegc_assets.checks.context import CheckResult
from lakegc_assets.checks.invariants import NAMES
from lakegc_assets.engine import tasks
from lakegc_assets.mark import commits, earlier_marks, report
from lakegc_assets.recovery import backup_pruning
from lakegc_assets.run import object_lookup
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.storage import parquet
from lakegc_assets.sweep import (
    lease,
    rounds,
    sweep,
)
from lakegc_assets_tests.simulation import row_files
from lakegc_assets_tests.simulation.current_world import (
    Pool,
    inside,
    world,
)

__all__ = ["inside", "installed"]

_PASSED: Final = [CheckResult(name, True, "not evaluated in a simulation") for name in NAMES]


class _Few(int):
    """Fewer objects are asked for one by one; none are in worlds where batches are listed."""

    def __lt__(self, other: int) -> bool:
        return (0 if world().unlike == "listed" else int(self)) < other


def _condition(*_: object) -> str:
    promises = world().promises
    return "bulk" if promises.etags else "single" if promises.single else "none"


def _replaced() -> list[tuple[object, str, object]]:
    """What is replaced where."""
    answers: list[tuple[object, str, object]] = [
        (parquet, name, getattr(row_files, name))
        for name in ("encode", "encode_values", "decode", "decode_values")
    ]
    answers += [
        (secrets, "token_hex", lambda size=16: world().token_hex(size)),
    ]
    answers += [
        (lease, "owner_of", lambda **_: {"host": world().process.name}),
    ]
    answers += [(backup_pruning, "repository_lock", nullcontext)]
    return [
        *answers,
        # Of bytes that are the same in many interleavings.
        (Manifest, "from_bytes", lru_cache(maxsize=1024)(Manifest.from_bytes)),
        (report, "read_results", lambda *_: _PASSED),
        (report, "dimensions_of", lambda *_: {}),
        (lease, "is_gone", lambda owner: world().knows_gone(owner["host"])),
        (sweep, "probe_conditions", _condition),
        (sweep, "probe_deadlines", lambda *_, **__: world().promises.deadlines),
        (tasks, "ThreadPoolExecutor", Pool),
        (rounds, "BATCHES_PER_TASK", 1),
        (rounds, "evaluate", lambda *_: _PASSED),
        (object_lookup, "FEW", _Few(object_lookup.FEW)),
        (commits, "latest_marks", _latest(earlier_marks.latest_marks)),
    ]


def _latest(real: Callable[..., Any]) -> Callable[..., Any]:
    """The earlier marks, in worlds that have some."""

    def latest(ctx: Any, *read: Any) -> Any:
        return real(ctx, *read) if world().earlier_marks else earlier_marks.EarlierMarks(ctx)

    return latest


@contextmanager
def installed() -> Iterator[None]:
    """Stand on simulated worlds; only for this thread's code."""
    assert threading.current_thread() is threading.main_thread()
    with ExitStack() as stack:
        # The few rows of a world are not worth the threads of Arrow, which take time to begin.
        stack.callback(pa.set_cpu_count, pa.cpu_count())
        pa.set_cpu_count(1)
        for replaced in _replaced():
            stack.enter_context(mock.patch.object(*replaced))
        yield
