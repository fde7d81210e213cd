"""One sweep at a time on a repository, whoever starts it and wherever: a lease in the namespace.

``_lakefs/retention/gc/lakegc/lease.json`` names its owner and the time, by the store's own clock,
until which it holds. It is only ever written on the condition that nobody else has written it, so
of several sweeps that want it one gets it. Its owner renews it while it lives. Who dies leaves a
lease that ends by itself, and who was suspended longer than the lease holds has lost it, even if
nobody has taken it: a task that deletes reads it again before each batch.

A lease whose owner was a process of this machine that has ended is taken over at once, if it was
held for a sweep or a restore. No task of the owner, wherever it still runs, begins another batch
then, since the lease is another's; and who takes it over from a sweep that may have deleted goes on
only when all requests that were allowed before have ended. So it holds even if the owner lives.

A released lease stays in its place, and says so: not every store can delete on a condition.
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
    StoreUnavailableError,
)
from lakegc_assets.sweep.hold import require_no_hold
from lakegc_assets.sweep.lease_record import (
    LEASE,
    PROBES,
    LeaseRecord,
    is_gone,
    lost,
    owner_of,
    read_lease,
    sweep_of,
)
from lakegc_assets.sweep.liveness_look import CHECK_LIFETIME

#: How long a lease that nobody renews is waited for.
PATIENCE: Final = timedelta(minutes=10)
#: How often a lease is renewed in the time for which it holds.
RENEWALS: Final = 6
#: Between two looks at a lease that is waited for, in seconds.
POLL_S: Final = 5.0
#: Seconds between two lines that say how long somebody has waited.
_QUIET_S: Final = 30.0
_TRIES: Final = 5
#: In place of the number of a round, while requests of an earlier owner may be on their way.
_UNSETTLED: Final = -1
#: What leases are held for that are taken over at once: tasks of a sweep and of a restore ask for
#: the lease before each batch, and a restore changes nothing that is there. Others are waited for.
_FENCED: Final = frozenset({None, "restore"})
_LOG: Final = logging.getLogger("lakegc")


class LeaseLostError(RefusedError):
    """Somebody else may sweep this repository now: this sweep must not go on."""


class Lease:
    """A lease that this process holds, and renews in a thread of its own."""

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
        """The owner's token, as tasks compare it."""
        return self._record.token

    @property
    def owner(self) -> Mapping[str, str]:
        """The owner, for people."""
        return self._record.owner

    @property
    def sweep(self) -> str:
        """A short name for what is done under this lease, which nothing else has."""
        return sweep_of(self.token)

    @property
    def round(self) -> int:
        """The round whose tasks may delete."""
        return self._record.round

    def require(self) -> None:
        """Go on only while the lease is held.

        Raises:
            LeaseLostError: it is lost, and why.
        """
        if self._lost:
            raise LeaseLostError(
                f"the lease on {self._store.url} was lost: {self._lost}. Nothing is deleted "
                "without it; what was done is recorded. Sweep again",
            )

    def require_held(self, store: ObjectStore | None = None) -> None:
        """Ask the store whether a prune may go on: this process may have been suspended unnoticed.

        ``store``: rooted at the namespace, as it is known now; None for that of the lease.

        Raises:
            LeaseLostError: somebody else may be at work.
            LakegcError: nobody can tell.
        """
        store = store or self._store
        if why := lost(store, self.token, self.round, store.server_time()):
            raise LeaseLostError(
                f"the lease on {store.url} was lost: {why}. What was not removed yet stays: prune "
                "again"
            )

    def begin_round(self, number: int) -> None:
        """Let only tasks of this round delete from now on.

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
                raise StoreUnavailableError(f"{self._store.url}/{LEASE} cannot be written")

    def release(self) -> None:
        """Give the lease back, unless it was abandoned; it ends by itself if that fails."""
        if self._abandoned:
            return
        self._ended.set()
        self._heart.join()
        with self._changing, suppress(LakegcError):
            if not self._lost:
                self._write(replace(self._record, released=True))

    def abandon(self) -> None:
        """Neither renew the lease nor give it back: what was done under it may not have ended."""
        self._abandoned = True
        self._ended.set()
        self._heart.join()

    def _beat(self) -> None:
        pause = self._duration.total_seconds() / RENEWALS
        while not self._ended.wait(pause) and not self._lost:
            # Until it expires there is time for other tries.
            with self._changing, suppress(LakegcError):
                self._renew(self._record)

    def _renew(self, record: LeaseRecord) -> None:
        """Write the lease with a new expiry, unless it has expired: then it is lost.

        Raises:
            StorageError: it is not known to be written, and not known to be lost.
        """
        now = self._store.server_time()
        if now >= self._record.expires:
            self._lost = f"it ran out at {self._record.expires.isoformat()}, and it is {now} there"
            return
        try:
            self._write(replace(record, expires=now + self._duration))
        except PreconditionFailedError:
            self._look_after_conflict()
        except StoreUnavailableError:
            # A write without an answer may have been carried out.
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
        """After a write that failed, or may have: is the lease still this one?"""
        try:
            etag, record = _look(self._store)
        except ObjectNotFoundError:
            self._lost = f"{LEASE} is gone"
            return
        except IntegrityError as error:
            self._lost = str(error)
            return
        if record.token != self.token or record.released:
            self._lost = f"it is another's: {record}"
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

    A lease that nobody renews is waited for until it ends: its owner has died. One that is renewed
    meanwhile has an owner who lives. Of an owner on this machine it is known at once.

    ``duration``: for how long it holds without being renewed. ``wait``: how long to wait for an
    owner who lives. ``log`` is told who is waited for, and for how long.

    Raises:
        ConfigurationError: the store keeps no leases.
        RefusedError: somebody else holds it; who.
        IntegrityError: the lease is damaged.
        StorageError: nobody can tell, or it could not be written.
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
        if record is None or over or _was_left(record):
            settled = record is None or over or record.round == 0
            since = f"{now:%Y-%m-%d %H:%M:%S} UTC"
            mine = LeaseRecord(
                token, {**owner, "since": since}, now + duration, round=0 if settled else _UNSETTLED
            )
            if not (taken := _take(store, mine, etag)):
                continue
            lease = Lease(store, mine, taken, duration, clocks)
            if record is not None and not over:
                waiting.tell(f"the lease of {store.url} is taken over from who is gone: {record}")
            return lease if settled else wait_for_requests(lease, waiting, clocks.sleep)
        first = first or etag
        # Somebody may set the store's clock back meanwhile.
        waited = max(now - begun, timedelta(seconds=paused))
        most = wait if etag != first else max(wait, PATIENCE)
        if waited >= most:
            raise RefusedError(
                f"somebody else holds the lease of {store.url}: {record}. This one has waited "
                f"{_seconds(waited)} for it. Try again when that has ended, or let this one wait "
                "for longer (lease_wait_seconds). Unless it is renewed it runs out at "
                f"{record.expires:%Y-%m-%d %H:%M:%S} UTC, by the store's clock",
            )
        left = record.expires - now
        waiting.how_long(waited, min(most, waited + left) if etag == first else most, record)
        seconds = min(POLL_S, max(1.0, left.total_seconds()))
        clocks.sleep(seconds)
        paused += seconds


def _was_left(record: LeaseRecord) -> bool:
    """Return whether a lease may be taken over: its owner has ended, its requests are fenced."""
    return record.owner.get("doing") in _FENCED and is_gone(record.owner)


def wait_for_requests(lease: Lease, waiting: _Waiting, pause: Callable[[float], None]) -> Lease:
    """Wait until all requests have ended that were allowed before a lease was taken over.

    Who is killed meanwhile leaves a lease that says so, and whoever comes then waits as well.

    Raises:
        LeaseLostError: somebody else has the lease by now.
        StorageError: the lease could not be written.
    """
    try:
        waiting.tell(f"waiting {CHECK_LIFETIME:.0f} s until the last requests of that sweep ended")
        pause(CHECK_LIFETIME)
        lease.begin_round(0)
    except BaseException:
        lease.abandon()
        raise
    return lease


class _Waiting:
    """Says whose lease is waited for, once for each owner, and then now and then for how long."""

    def __init__(self, url: str, log: logging.Logger) -> None:
        self._url = url
        self._log = log
        self._owner = ""
        self._told = timedelta(0)

    def tell(self, text: str) -> None:
        """Say something in the log, and to who watches this process."""
        for told in (self._log, PROGRESS):
            told.info("%s", text)

    def how_long(self, waited: timedelta, most: timedelta, record: LeaseRecord) -> None:
        """Say for whom somebody waits, and how long at most."""
        text = f"waiting for the lease of {self._url}, {_seconds(waited)} of {_seconds(most)}"
        if record.token != self._owner:
            self.tell(f"{text} at most: {record}")
        elif (waited - self._told).total_seconds() >= _QUIET_S:
            self.tell(text)
        else:
            return
        self._owner, self._told = record.token, waited


def _seconds(time: timedelta) -> str:
    return f"{time.total_seconds():.0f} s"


def require_conditional_puts(store: ObjectStore, key: str) -> None:
    """Try conditional writes with an object of our own: a store that ignores them keeps no lease.

    Raises:
        ConfigurationError: the store ignores them.
        RefusedError: the store locks what is written, so that no lease could be renewed.
    """
    # A sweep that has the lease removes all probes, this one too, which may be in the middle of it.
    if _honours_conditions(store, key) or _honours_conditions(store, f"{key}-again"):
        return
    raise ConfigurationError(
        f"{store.url} ignores the condition of conditional writes, so no lease can keep two "
        "sweeps apart there: use a store, or a version of it, that honours If-None-Match and "
        "If-Match when an object is put",
    )


def _honours_conditions(store: ObjectStore, key: str) -> bool:
    """Return whether writes on a condition that does not hold are refused.

    Raises:
        RefusedError: the store locks what is written.
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
    for outcome in store.delete_many([key]):
        if outcome.outcome == "locked":
            raise _locked(store, str(outcome.detail))
    return honoured == len(tries)


def _locked(store: ObjectStore, why: str) -> RefusedError:
    return RefusedError(
        f"{store.url} locks each object that is written there, so that no lease could be renewed, "
        "and without one nothing is deleted, restored or pruned. Nothing was deleted. End the "
        "retention policy, the default hold or the immutability policy of the whole bucket, or "
        "container; locks of single objects, and S3's Object Lock on a bucket with versions, may "
        f"stay. The store says: {why}"
    )


def _take(store: ObjectStore, mine: LeaseRecord, etag: str) -> str:
    """Write the lease in place of one that has ended, or of none; its etag, or nothing."""
    try:
        if etag:
            return store.put_if_match(LEASE, mine.to_bytes(), etag)
        return store.put_if_absent(LEASE, mine.to_bytes())
    except PreconditionFailedError:
        return ""
    except StoreUnavailableError:
        # It may have been written all the same.
        with suppress(ObjectNotFoundError):
            etag, record = _look(store)
            if record.token == mine.token:
                return etag
        raise


def _look(store: ObjectStore) -> tuple[str, LeaseRecord]:
    """The lease and its etag, which is not newer than what the lease says."""
    return store.head(LEASE).etag, read_lease(store)


def leased(
    ctx: RunContext, store: ObjectStore, *, doing: str | None = None, run: str | None = None
) -> AbstractContextManager[Lease]:
    """Hold the lease of the repository. See ``repository_lease`` for what it raises.

    ``doing``: what it is held for, for people who wait; None for a sweep.
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
    """Keep sweeps and restores of a repository from beginning meanwhile, from wherever.

    Gives what raises LeaseLostError once it does not (``Lease.require_held``).

    Raises:
        RefusedError: somebody is at work, or an alarm has not been looked at.
        LakegcError: nobody can tell.
    """
    ctx = ctx.connect()
    store = ctx.connections.store()
    with leased(ctx, store, doing="prune") as lease:
        require_no_hold(ctx, store)
        yield lease.require_held


def back_up(ctx: RunContext) -> Record | None:
    """As ``make_backup``, under the lease of the repository, for which it waits as a sweep does.

    Raises:
        RefusedError: somebody else holds the lease; or as ``make_backup``.
        LakegcError: as ``make_backup`` and ``repository_lease``.
    """
    if ctx.settings.backup_url is None:
        return None
    ctx = ctx.connect()
    with leased(ctx, ctx.connections.store(), doing="backup", run=ctx.run):
        return make_backup(ctx)
