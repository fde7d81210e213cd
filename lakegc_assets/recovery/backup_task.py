"""Copies marked objects to a backup in a task, portion by portion, and records each batch."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Final

import pyarrow as pa

from lakegc_assets.engine.tasks import interrupted, thread_map
from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.mark.marked_objects import read_stretches
from lakegc_assets.recovery import journal
from lakegc_assets.recovery.backups import FOLDER, MANIFEST
from lakegc_assets.recovery.journal import Outcome
from lakegc_assets.recovery.portions import (
    HOPELESS,
    CircuitBreaker,
    Portion,
    batches,
    hopeless,
)
from lakegc_assets.run.artifacts import LISTING
from lakegc_assets.run.connections import Connections
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    ChangedError,
    InvalidKeyError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from lakegc_assets.storage.values import Copied

#: Columns of the objects to copy.
MARKED: Final = pa.schema([LISTING.field(name) for name in ("address", "size", "etag")])
#: Objects that a task copies at a time.
THREADS: Final = 8
#: Objects, and bytes, in one batch: a batch is recorded when all of it is copied.
BATCH: Final = 256
BATCH_BYTES: Final = 256 << 20
#: Tries to copy an object whose copy is not as expected.
_TRIES: Final = 2


@dataclass(frozen=True)
class Orders:
    """The input of all copying tasks of a round: picklable, and without secrets."""

    connections: Connections
    artifacts_url: str
    backup_url: str
    #: URL of the folder for logs; None for no logs.
    log_url: str | None
    #: Unique name of this round of the backup.
    name: str
    #: Bytes a second for one task; None for no limit.
    rate: float | None


def copy_portions(orders: Orders, portions: Sequence[Portion]) -> LakegcError | None:
    """The task: take one portion after the other, and copy it.

    Returns the error that stopped the task, or None. Returned errors are not retried.
    """
    try:
        task = CopyingTask(orders)
        for portion in portions:
            if task.begin(portion):
                task.copy(portion)
    except HOPELESS as error:
        return hopeless(error)
    return None


class BandwidthLimiter:
    """Delays the start of each object, so that the bytes copied so far never exceed the rate.

    An object begins once the time for its own bytes has passed. However fast its copy is, the bytes
    copied since the beginning then stay within the rate, in bytes a second (None for no limit).
    """

    def __init__(
        self,
        rate: float | None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._pause = pause
        self._lock = Lock()
        self._paid = clock()

    def wait(self, size: int) -> None:
        """Wait until ``size`` bytes may be copied; several threads may call this."""
        if self._rate is None:
            return
        with self._lock:
            self._paid = max(self._paid, self._clock()) + size / self._rate
            until = self._paid
        while (left := until - self._clock()) > 0:
            self._pause(left)


class CopyingTask:
    """One attempt of a copying task."""

    def __init__(self, orders: Orders) -> None:
        to = orders.connections
        self._orders = orders
        self._source = to.store()
        self._target = to.open(orders.backup_url)
        self._artifacts = to.open(orders.artifacts_url)
        self._log = None if orders.log_url is None else to.open(orders.log_url)
        self._pace = BandwidthLimiter(orders.rate)
        self._denied = CircuitBreaker()

    def begin(self, portion: Portion) -> bool:
        """Take a portion; False if another task, or another attempt of this task, has it."""
        try:
            key = f"{notes(self._orders.name)}{portion.number:06d}"
            self._artifacts.create(key, secrets.token_hex(8).encode())
        except PreconditionFailedError:
            return False
        return True

    def copy(self, portion: Portion) -> None:
        """Copy the objects of a portion, and record the outcome of each.

        Raises LakegcError: nothing can be copied now; finished copies are recorded.
        """
        rows = read_stretches(self._artifacts, [portion.stretch], MARKED.names)
        sizes = rows["size"].to_numpy()
        for number, batch in enumerate(batches(rows, sizes, BATCH, BATCH_BYTES)):
            self._copy_batch(f"{self._orders.name}-{portion.number:06d}-{number:06d}", batch)

    def _copy_batch(self, name: str, batch: pa.Table) -> None:
        if interrupted():
            raise RefusedError(f"the backup {self._target.url} was interrupted")
        # A sweep may rely on the copies of a finished backup: none of them is replaced.
        if self._target.exists(MANIFEST):
            raise RefusedError(f"another process has finished the backup {self._target.url}")
        errors: list[LakegcError] = []
        objects = [tuple(row.values()) for row in batch.to_pylist()]
        outcomes = thread_map(partial(self._copied, errors), objects, THREADS)
        journal.record(self._target, name, outcomes)
        if self._log is not None:
            journal.write_log(self._log, name, outcomes)
        if errors:
            raise errors[0]

    def _copied(self, errors: list[LakegcError], row: tuple[str, int, str]) -> Outcome:
        """Copy one object and return its outcome; append an error that stops all objects."""
        address, size, etag = row
        failed = partial(Outcome, address, size, etag, None, None)
        if errors:
            return failed("failed", "NotTried", "a store refused another object of the batch")
        try:
            made = self._copy(address, size, etag)
        except ObjectNotFoundError as error:
            return failed("missing", None, str(error))
        except ChangedError as error:
            return failed("changed", None, str(error))
        except LakegcError as error:
            alone = isinstance(error, AccessDeniedError) and not self._denied.met()
            if isinstance(error, HOPELESS) and not alone:
                errors.append(error)
            return failed("failed", type(error).__name__.removesuffix("Error"), str(error))
        self._denied.end()
        return Outcome(address, size, etag, made.etag, made.verified_by, "copied")

    def _copy(self, address: str, size: int, etag: str) -> Copied:
        if address.startswith(FOLDER):
            raise InvalidKeyError(
                f"{address!r} cannot be copied to a backup, whose own files are below {FOLDER}"
            )
        self._pace.wait(size)
        for tries in range(1, _TRIES + 1):
            try:
                return copy_object(
                    self._source, address, self._target, address,
                    size=size, etag=etag, if_absent=False,
                )  # fmt: skip
            except ObjectNotFoundError:
                if not self._source.exists(address):
                    raise
                if tries == _TRIES:
                    raise StorageError(
                        f"{self._target.url}: the copy {address!r} was gone right after it was "
                        "written: a process or a rule removes objects there"
                    ) from None
            except StorageError as error:
                # For all subclasses another try is of no use.
                if type(error) is not StorageError or tries == _TRIES:
                    raise
        raise AssertionError(address)


def notes(name: str) -> str:
    """Return the folder in which the tasks of a round note the portions that they took."""
    return f"backup/tasks/{name}/"
