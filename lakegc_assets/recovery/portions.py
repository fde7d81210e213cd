"""Cuts the work of a backup or a restore into portions for tasks, and portions into batches.

Also decides when a task stops, since its errors would affect every other object as well.
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

#: Least work of a task, in seconds of one core.
TASK_S: Final = 2.0
#: Seconds to read the row of an object from a file.
_READ_S: Final = 1e-7
#: Errors that affect every other object as well.
HOPELESS: Final[tuple[type[LakegcError], ...]] = (
    AccessDeniedError,
    StoreFullError,
    StoreThrottledError,
    StoreUnavailableError,
    ConfigurationError,
    RefusedError,
)
#: Refused objects in a row that stop a task; fewer may be refused for reasons of their own.
REFUSED_IN_A_ROW: Final = 16


class Cost(NamedTuple):
    """The work for each object, in seconds of one core, as a function of some columns."""

    columns: Sequence[str]
    of: Callable[[pa.Table], npt.NDArray[np.float64]]


class Portion(NamedTuple):
    """A numbered part of the work of a round."""

    number: int
    stretch: Stretch


def costs_of(space: Workspace, rows: Dataset, cost: Cost) -> list[float]:
    """Return the work for each file of a dataset, in seconds of one core."""
    task = partial(_cost_of, space.connections, rows.url, cost)
    return space.ctx.tasks.run_or_call("add the work up", task, rows.parts, rows.rows * _READ_S)


def cut_portions(
    space: Workspace, rows: Dataset, cost: Cost, costs: Sequence[float], count: float
) -> list[Portion]:
    """Cut a dataset into about ``count`` portions of about equal work, each one stretch of rows.

    ``costs``: the result of ``costs_of`` for the dataset.
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
    """Return begin and length of at most ``most`` non-empty stretches of about equal cost."""
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
    """Yield rows in batches, each of which is recorded as one.

    A batch has at most ``most`` rows and ``most_bytes`` bytes to copy; a row with more bytes is a
    batch of its own. ``sizes``: bytes to copy for each row.
    """
    at = 0
    while at < rows.num_rows:
        ends = np.cumsum(sizes[at : at + most])
        count = max(1, int(np.searchsorted(ends, most_bytes, side="right")))
        yield rows.slice(at, count)
        at += count


def hopeless(error: LakegcError) -> LakegcError:
    """Convert an error to its class in ``HOPELESS``, which any process can unpickle."""
    return next(kind(str(error)) for kind in HOPELESS if isinstance(error, kind))


def hopeless_code(code: str) -> bool:
    """Return True if a store's code, or the name of an error of ours, stops every object."""
    named = any(code == kind.__name__.removesuffix("Error") for kind in HOPELESS)
    return named or error_class(code) in HOPELESS


class CircuitBreaker:
    """Counts failures in a row that may affect every object; threads may share it."""

    def __init__(self) -> None:
        self._met = 0
        self._counting = Lock()

    def met(self, objects: int = 1) -> bool:
        """Count failed objects; True if so many in a row failed that every object is affected."""
        with self._counting:
            self._met += objects
            return self._met >= REFUSED_IN_A_ROW

    def end(self) -> None:
        """Reset the count, since an object did not fail in this way."""
        with self._counting:
            self._met = 0
