"""Cuts the work of a backup or a restore into portions for tasks, and these into batches.

And judges when such a task stops: when no other object fares better than those that it has met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil
from threading import Lock
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakegc_assets.engine.datasets import Part, read_part
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import ConfigurationError, LakegcError, RefusedError
from lakegc_assets.mark.marked_objects import Stretch
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run.connections import Connections
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    StoreFullError,
    StoreThrottledError,
    StoreUnavailableError,
    error_class,
)

#: A task is worth so many seconds of work on one core at least.
TASK_S: Final = 2.0
#: To read of an object in a file, in seconds.
_READ_S: Final = 1e-7
#: What no other object gets past either.
HOPELESS: Final[tuple[type[LakegcError], ...]] = (
    AccessDeniedError,
    StoreFullError,
    StoreThrottledError,
    StoreUnavailableError,
    ConfigurationError,
    RefusedError,
)
#: One object may be kept from us alone; so many in a row are not.
REFUSED_IN_A_ROW: Final = 16


class Cost(NamedTuple):
    """A function of rows with some columns: work for each object, in seconds of one core."""

    columns: Sequence[str]
    of: Callable[[pa.Table], npt.NDArray[np.float64]]


class Portion(NamedTuple):
    """A part of the work of a round, with its number."""

    number: int
    stretch: Stretch


def costs_of(space: Workspace, rows: Dataset, cost: Cost) -> list[float]:
    """The work for each file of a dataset."""
    task = partial(_cost_of, space.connections, rows.url, cost)
    return space.ctx.tasks.run_or_call("add the work up", task, rows.parts, rows.rows * _READ_S)


def cut_portions(
    space: Workspace, rows: Dataset, cost: Cost, costs: Sequence[float], count: float
) -> list[Portion]:
    """Cut a dataset into some ``count`` portions of about equal work, each of one stretch of rows.

    ``costs``: what ``costs_of`` gives for it.
    """
    total = sum(costs)
    inputs = [(p, max(1, ceil(c * count / total))) for p, c in zip(rows.parts, costs, strict=True)]
    task = partial(_cut, space.connections, rows.url, cost)
    cuts = space.ctx.tasks.run_or_call("cut the work", task, inputs, rows.rows * _READ_S)
    return [Portion(*one) for one in enumerate(stretch for cut in cuts for stretch in cut)]


def _costs(connections: Connections, url: str, cost: Cost, part: Part) -> npt.NDArray[np.float64]:
    return cost.of(read_part(connections.open(url), part, cost.columns))


def _cost_of(connections: Connections, url: str, cost: Cost, part: Part) -> float:
    return float(_costs(connections, url, cost, part).sum())


def _cut(connections: Connections, url: str, cost: Cost, share: tuple[Part, int]) -> list[Stretch]:
    part, most = share
    costs = _costs(connections, url, cost, part)
    return [Stretch(part, at, count) for at, count in equal_stretches(costs, most)]


def equal_stretches(costs: npt.NDArray[np.float64], most: int) -> list[tuple[int, int]]:
    """Begin and length of stretches of about equal cost, none of them empty; so many at most."""
    if not len(costs):
        return []
    ends = np.cumsum(costs)
    marks = ends[-1] * np.arange(1, most) / most
    starts = np.unique([0, *np.searchsorted(ends, marks, side="left") + 1])
    starts = starts[starts < len(costs)]
    return [(int(a), int(b - a)) for a, b in zip(starts, [*starts[1:], len(costs)], strict=True)]


def batches(
    rows: pa.Table, sizes: npt.NDArray[np.int64], most: int, most_bytes: int
) -> Iterator[pa.Table]:
    """Rows, with the bytes to copy for each, in batches that are recorded together."""
    at = 0
    while at < rows.num_rows:
        ends = np.cumsum(sizes[at : at + most])
        count = max(1, int(np.searchsorted(ends, most_bytes, side="right")))
        yield rows.slice(at, count)
        at += count


def hopeless(error: LakegcError) -> LakegcError:
    """An error by its class in ``HOPELESS``: one that any process can unpickle."""
    return next(kind(str(error)) for kind in HOPELESS if isinstance(error, kind))


def hopeless_code(code: str) -> bool:
    """True for a store's code, or the name of an error of ours, that stops every object."""
    named = any(code == kind.__name__.removesuffix("Error") for kind in HOPELESS)
    return named or error_class(code) in HOPELESS


class CircuitBreaker:
    """Counts objects in a row that failed for a reason that may stop all; threads may share it."""

    def __init__(self) -> None:
        self._met = 0
        self._counting = Lock()

    def met(self, objects: int = 1) -> bool:
        """Count objects that met it; whether they are so many that it is not theirs alone."""
        with self._counting:
            self._met += objects
            return self._met >= REFUSED_IN_A_ROW

    def end(self) -> None:
        """Begin anew: some object did not meet it."""
        with self._counting:
            self._met = 0
