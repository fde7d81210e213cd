"""One sweep at a time on a repository, on any machine: a lease in the namespace.

``_lakefs/retention/gc/lakegc/lease.json`` names its owner and its expiry by the store's own clock.
It is only written by conditional writes, so if several sweeps want it, only one gets it. Its owner
renews it while the owner lives. The lease of a dead owner expires. An owner that was suspended for
longer than the lease holds has lost it, even if nobody has taken it: a deleting task reads the
lease again before each batch.

If the owner was a process of this machine that has ended, and held the lease for a sweep or a
restore, the lease is taken over at once. Then no task of the old owner, on any machine, begins
another batch, since the lease has another token. The new owner of a sweep's lease that may have
deleted waits until all requests that were allowed before have ended. So this is safe even if the
old owner lives.

A released lease stays in its place, marked as released: not every store has conditional deletes.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final

from lakegc_assets.engine.progress import PROGRESS
from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError, RefusedError
from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.backups import Record
from lakegc_assets.run.clocks import SYSTEM_CLOCKS, Clocks
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import (
    ObjectLockedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreUnavailableError,
)
from lakegc_assets.sweep.batch_guard import CHECK_LIFETIME
from lakegc_assets.sweep.hold import require_no_hold
from lakegc_assets.sweep.lease_record import (
    LEASE,
    PROBES,
    LeaseRecord,
    ended,
    is_gone,
    lost,
    owner_of,
    read_lease,
    sweep_of,
)

#: Time for which a process waits for a lease that its owner does not renew.
PATIENCE: Final = timedelta(minutes=10)
#: Renewals of a lease within its duration.
RENEWALS: Final = 6
#: Seconds between two reads of a lease that a process waits for.
POLL_S: Final = 5.0
#: Seconds between two log lines of a waiting process.
_LOG_PAUSE_S: Final = 30.0
_TRIES: Final = 5
#: Round number of a lease while requests of an earlier owner may be in flight.
_UNSETTLED: Final = -1
#: Work of the leases that are taken over at once: tasks of a sweep or a restore read the lease
#: before each batch, and a restore does not change existing objects. Other leases are waited for.
_FENCED: Final = frozenset({None, "restore"})
_LOG: Final = logging.getLogger("lakegc")


class LeaseLostError(RefusedError):
    """Another process may sweep this repository now: this sweep must not continue."""


class Lease:
    """A lease that this process holds, and renews in its own thread."""

    def __init__(
        self,
        store: ObjectStore,
        record: LeaseRecord,
        etag: str,
        duration: timedelta,
        clocks: Clocks = SYSTEM_CLOCKS,
    ) -> None:
        self._store = store
        self._record = record
        self._etag = etag
        self._duration = duration
        self._lost = ""
        self._abandoned = False
        threads = clocks.threads
        self._changing, self._ended = threads.Lock(), threads.Event()
        self._heart = threads.Thread(target=self._beat, name="lakegc-lease", daemon=True)
        self._heart.start()

    @property
    def token(self) -> str:
        """The owner's token, which tasks compare."""
        return self._record.token

    @property
    def owner(self) -> Mapping[str, str]:
        """The owner, for messages."""
        return self._record.owner

    @property
    def sweep(self) -> str:
        """A short and unique name of the work under this lease."""
        return sweep_of(self.token)

    @property
    def round(self) -> int:
        """The round in which tasks may delete."""
        return self._record.round

    def require(self) -> None:
        """Continue only while the lease is held.

        Raises:
            LeaseLostError: it is lost, with the reason.
        """
        if self._lost:
            raise LeaseLostError(
                f"the lease on {self._store.url} was lost: {self._lost}. This process changes "
                "nothing more: run the same command again",
            )

    def require_held(self, store: ObjectStore | None = None) -> None:
        """Read the lease before a prune continues: this process may have been suspended unnoticed.

        ``store``: the current store of the namespace; None for the store of the lease.

        Raises:
            LeaseLostError: another process may be at work.
            LakegcError: the store did not answer.
        """
        store = store or self._store
        if why := lost(store, self.token, self.round, store.server_time()):
            raise LeaseLostError(
                f"the lease on {store.url} was lost: {why}. What was not removed yet stays: prune "
                "again"
            )

    def begin_round(self, number: int) -> None:
        """From now on allow deletes only to tasks of this round.

        Raises:
            LeaseLostError: the lease is lost.
            StorageError: the lease could not be written.
        """
        with self._changing:
            for _ in range(_TRIES):
                self.require()
                self._renew(replace(self._record, round=number))
                if self._record.round == number:
                    break
            self.require()
            if self._record.round != number:
                raise StoreUnavailableError(
                    f"{self._store.url}/{LEASE}: the store confirmed no write in {_TRIES} tries. "
                    "Run the same command again when it answers"
                )

    def release(self) -> None:
        """Give the lease back, unless it was abandoned; it expires if that fails."""
        if self._abandoned:
            return
        self._ended.set()
        self._heart.join()
        with self._changing, suppress(LakegcError):
            if not self._lost:
                self._write(replace(self._record, released=True))

    def abandon(self) -> None:
        """Neither renew the lease nor give it back: requests under it may be in flight."""
        self._abandoned = True
        self._ended.set()
        self._heart.join()

    def _beat(self) -> None:
        pause = self._duration.total_seconds() / RENEWALS
        while not self._ended.wait(pause) and not self._lost:
            # A failed renewal is tried again before the lease expires.
            with self._changing, suppress(LakegcError):
                self._renew(self._record)

    def _renew(self, record: LeaseRecord) -> None:
        """Write the lease with a new expiry, unless it has expired: then it is lost.

        Raises:
            StorageError: it is unknown if the lease was written, and it is not known to be lost.
        """
        now = self._store.server_time()
        if now >= self._record.expires:
            expired = self._record.expires.isoformat()
            self._lost = f"it expired at {expired}, and it is {now} by the store's clock"
            return
        try:
            self._write(replace(record, expires=now + self._duration))
        except PreconditionFailedError:
            self._look_after_conflict()
        except StoreUnavailableError:
            # The store may have carried out a write that it did not answer.
            before = self._record.renewed
            self._look_after_conflict()
            if self._record.renewed == before and not self._lost:
                raise
        except IntegrityError as error:
            self._lost = str(error)

    def _write(self, record: LeaseRecord) -> None:
        record = replace(record, renewed=self._record.renewed + 1)
        self._etag = self._store.put_if_match(LEASE, record.to_bytes(), self._etag)
        self._record = record

    def _look_after_conflict(self) -> None:
        """Read the lease after a write that failed, or may have failed: is it still this one?"""
        try:
            etag, record = _look(self._store)
        except ObjectNotFoundError:
            self._lost = f"{LEASE} is gone"
            return
        except IntegrityError as error:
            self._lost = str(error)
            return
        if why := ended(record, self.token):
            self._lost = why
            return
        self._etag, self._record = etag, record


@contextmanager
def repository_lease(
    store: ObjectStore,
    owner: Mapping[str, str],
    *,
    duration: timedelta,
    wait: timedelta = timedelta(0),
    log: logging.Logger = _LOG,
    clocks: Clocks = SYSTEM_CLOCKS,
) -> Iterator[Lease]:
    """Hold the lease of a repository.

    A lease that is not renewed is waited for until it expires: its owner has died. The owner of a
    lease that is renewed meanwhile lives. The death of an owner on this machine is known at once.

    ``duration``: time for which the lease holds without renewal. ``wait``: time to wait for a
    living owner. ``log``: receives the owner that is waited for, and the time.

    Raises:
        ConfigurationError: the store ignores conditional writes.
        RefusedError: another owner holds it, which the message names.
        IntegrityError: the lease is damaged.
        StorageError: the lease could not be read or written.
    """
    lease = _acquire(store, owner, duration, wait, log, clocks)
    try:
        yield lease
    finally:
        lease.release()


def _acquire(
    store: ObjectStore,
    owner: Mapping[str, str],
    duration: timedelta,
    wait: timedelta,
    log: logging.Logger,
    clocks: Clocks,
) -> Lease:
    token = secrets.token_hex(16)
    require_conditional_puts(store, f"{PROBES}{token}/put")
    begun = store.server_time()
    first, paused, waiting = "", 0.0, _Waiting(store.url, log)
    while True:
        now = store.server_time()
        try:
            etag, record = _look(store)
        except ObjectNotFoundError:
            etag, record = "", None
        over = record is None or record.released or now >= record.expires
        if record is None or over or _may_take_over(record):
            settled = record is None or over or record.round == 0
            since = f"{now:%Y-%m-%d %H:%M:%S} UTC"
            mine = LeaseRecord(
                token, {**owner, "since": since}, now + duration, round=0 if settled else _UNSETTLED
            )
            if not (taken := _take(store, mine, etag)):
                continue
            lease = Lease(store, mine, taken, duration, clocks)
            if record is not None and not over:
                waiting.tell(
                    f"the lease of {store.url} is taken over, since its owner has ended: {record}"
                )
            return lease if settled else wait_for_requests(lease, waiting, clocks.sleep)
        first = first or etag
        # The store's clock may be set back meanwhile.
        waited = max(now - begun, timedelta(seconds=paused))
        most = wait if etag != first else max(wait, PATIENCE)
        if waited >= most:
            raise RefusedError(
                f"another process holds the lease of {store.url}: {record}. This process has "
                f"waited {_seconds(waited)} for it. Run it again when that work has ended, or let "
                "it wait longer (lease_wait_seconds). If the lease is not renewed, it expires at "
                f"{record.expires:%Y-%m-%d %H:%M:%S} UTC by the store's clock",
            )
        remaining = record.expires - now
        waiting.how_long(waited, min(most, waited + remaining) if etag == first else most, record)
        seconds = min(POLL_S, max(1.0, remaining.total_seconds()))
        clocks.sleep(seconds)
        paused += seconds


def _may_take_over(record: LeaseRecord) -> bool:
    """Return True if a lease may be taken over: its owner has ended, and its tasks read it."""
    return record.owner.get("doing") in _FENCED and is_gone(record.owner)


def wait_for_requests(lease: Lease, waiting: _Waiting, pause: Callable[[float], None]) -> Lease:
    """Wait until all requests have ended that were allowed before a lease was taken over.

    If this process is killed meanwhile, the lease shows that, and the next owner waits as well.

    Raises:
        LeaseLostError: another process has the lease by now.
        StorageError: the lease could not be written.
    """
    try:
        waiting.tell(
            f"waiting {CHECK_LIFETIME:.0f} s until the last requests of that sweep have ended"
        )
        pause(CHECK_LIFETIME)
        lease.begin_round(0)
    except BaseException:
        lease.abandon()
        raise
    return lease


class _Waiting:
    """Logs the owner of the lease that is waited for, once per owner, and regularly the time."""

    def __init__(self, url: str, log: logging.Logger) -> None:
        self._url = url
        self._log = log
        self._owner = ""
        self._told = timedelta(0)

    def tell(self, text: str) -> None:
        """Log a message, and show it as progress."""
        for logger in (self._log, PROGRESS):
            logger.info("%s", text)

    def how_long(self, waited: timedelta, most: timedelta, record: LeaseRecord) -> None:
        """Log the lease that is waited for, and the longest time."""
        text = f"waiting for the lease of {self._url}, {_seconds(waited)} of {_seconds(most)}"
        if record.token != self._owner:
            self.tell(f"{text} at most: {record}")
        elif (waited - self._told).total_seconds() >= _LOG_PAUSE_S:
            self.tell(text)
        else:
            return
        self._owner, self._told = record.token, waited


def _seconds(time: timedelta) -> str:
    return f"{time.total_seconds():.0f} s"


def require_conditional_puts(store: ObjectStore, key: str) -> None:
    """Probe conditional writes with an object of our own: without them there can be no lease.

    Raises:
        ConfigurationError: the store ignores the conditions, or refuses them.
        RefusedError: the store locks every object, so that no lease could be renewed.
    """
    # The owner of the lease removes all probes, perhaps this one in the middle of the probe. So a
    # probe that fails is repeated once.
    if _honours_conditions(store, key) or _honours_conditions(store, f"{key}-again"):
        return
    raise ConfigurationError(
        f"{store.url} ignores or refuses the condition of conditional writes, so no lease can keep "
        "two sweeps apart there: use a store, or a version of it, that honours If-None-Match and "
        "If-Match when an object is put",
    )


def _honours_conditions(store: ObjectStore, key: str) -> bool:
    """Return True if conditional writes are refused when their condition does not hold.

    Raises:
        RefusedError: the store locks every object.
    """
    etag = store.put_if_absent(key, b"first")
    tries: list[Callable[[], str]] = [
        lambda: store.put_if_absent(key, b"second"),
        lambda: store.put_if_match(key, b"third", f"{etag}0"),
    ]
    honoured = 0
    for write in tries:
        try:
            write()
        except PreconditionFailedError:
            honoured += 1
        except ObjectLockedError as error:
            raise _locked(store, str(error)) from error
        except StorageError as error:
            # A server may refuse a condition that it does not know; other errors have a class.
            if type(error) is not StorageError:
                raise
    for outcome in store.delete_many([key]):
        if outcome.outcome == "locked":
            raise _locked(store, str(outcome.detail))
    return honoured == len(tries)


def _locked(store: ObjectStore, message: str) -> RefusedError:
    return RefusedError(
        f"{store.url} locks each object that is written there, so that no lease could be renewed, "
        "and without one nothing is deleted, restored or pruned. Nothing was deleted. End the "
        "retention policy, the default hold or the immutability policy of the whole bucket, or "
        "container; locks of single objects, and S3's Object Lock on a bucket with versions, may "
        f"stay. The store says: {message}"
    )


def _take(store: ObjectStore, mine: LeaseRecord, etag: str) -> str:
    """Write the lease in place of an expired lease, or of none; return its etag, or nothing."""
    try:
        if etag:
            return store.put_if_match(LEASE, mine.to_bytes(), etag)
        return store.put_if_absent(LEASE, mine.to_bytes())
    except PreconditionFailedError:
        return ""
    except StoreUnavailableError:
        # The store may have carried out the write.
        with suppress(ObjectNotFoundError):
            etag, record = _look(store)
            if record.token == mine.token:
                return etag
        raise


def _look(store: ObjectStore) -> tuple[str, LeaseRecord]:
    """Return the etag of the lease, and the lease, which is not older than the etag."""
    return store.head(LEASE).etag, read_lease(store)


def leased(
    ctx: RunContext, store: ObjectStore, *, doing: str | None = None, run: str | None = None
) -> AbstractContextManager[Lease]:
    """Hold the lease of the repository. Raises as ``repository_lease``.

    ``doing``: the work under the lease, for people who wait; None for a sweep.
    """
    return repository_lease(
        store,
        owner_of(doing=doing, repository=ctx.repository, run=run, started_by=ctx.started_by),
        duration=ctx.settings.lease_duration,
        wait=ctx.settings.lease_wait,
        log=ctx.log,
        clocks=ctx.clocks,
    )


@contextmanager
def leased_to_prune(ctx: RunContext) -> Iterator[Callable[[], None]]:
    """Keep sweeps and restores of a repository from beginning, on any machine.

    Yields a function that raises LeaseLostError if the lease is lost (``Lease.require_held``).

    Raises:
        RefusedError: another process is at work, or an alarm was not accepted.
        LakegcError: lakeFS or the store did not answer.
    """
    ctx = ctx.connect()
    store = ctx.connections.store()
    with leased(ctx, store, doing="prune") as lease:
        require_no_hold(ctx, store)
        yield lease.require_held


def back_up(ctx: RunContext) -> Record | None:
    """Run ``make_backup`` under the lease of the repository, waiting for it as a sweep does.

    Raises:
        RefusedError: another process holds the lease; or as ``make_backup``.
        LakegcError: as ``make_backup`` and ``repository_lease``.
    """
    if ctx.settings.backup_url is None:
        return None
    ctx = ctx.connect()
    with leased(ctx, ctx.connections.store(), doing="backup", run=ctx.run):
        return make_backup(ctx)
