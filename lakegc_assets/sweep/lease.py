"""One sweep at a time on a repository, whoever starts it and wherever: a lease in the namespace.

``_lakefs/retention/gc/lakegc/lease.json`` names its owner and the time, by the store's own clock,
until which it holds. It is only ever written on the condition that nobody else has written it, so
of several sweeps that want it one gets it. Its owner renews it while it lives. Who dies leaves a
lease that ends by itself, and who was suspended longer than the lease holds has lost it, even if
nobody has taken it: a task that deletes reads it again before each batch.

A released lease stays in its place, and says so: not every store can delete on a condition.
"""

from __future__ import annotations

import getpass
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final

from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError, RefusedError
from lakegc_assets.run.telling import PROGRESS
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from lakegc_assets.sweep.lease_record import LEASE, PROBES, LeaseRecord, read_lease, sweep_of

#: How long a lease that nobody renews is waited for.
_PATIENCE: Final = timedelta(minutes=10)
_BEATS: Final = 6
_POLL_S: Final = 5.0
_TRIES: Final = 5
_LOG: Final = logging.getLogger("lakegc")


class LeaseLostError(RefusedError):
    """Somebody else may sweep this repository now: this sweep must not go on."""


def owner_of(**more: str | None) -> Mapping[str, str]:
    """Who this process is, as the lease names its owner."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    known = {
        "host": socket.gethostname(),
        "user": user,
        "pid": str(os.getpid()),
        "command": " ".join(sys.argv[:6]),
    }
    return known | {name: value for name, value in more.items() if value}


class Lease:
    """A lease that this process holds, and renews in a thread of its own."""

    def __init__(
        self, store: ObjectStore, record: LeaseRecord, etag: str, duration: timedelta
    ) -> None:
        self._store = store
        self._record = record
        self._etag = etag
        self._duration = duration
        self._lost = ""
        self._changing = threading.Lock()
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="lakegc-lease", daemon=True)
        self._heart.start()

    @property
    def token(self) -> str:
        """The owner's token, as tasks compare it."""
        return self._record.token

    @property
    def owner(self) -> Mapping[str, str]:
        """Who holds it, for people."""
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
        """Give the lease back; it ends by itself if that fails."""
        self._ended.set()
        self._heart.join()
        with self._changing, suppress(LakegcError):
            if not self._lost:
                self._write(replace(self._record, released=True))

    def _beat(self) -> None:
        pause = self._duration.total_seconds() / _BEATS
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
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[Lease]:
    """Hold the lease of a repository.

    A lease that nobody renews is waited for until it ends: its owner has died. One that is renewed
    meanwhile has an owner who lives.

    Args:
        store: rooted at the storage namespace.
        owner: who wants it, for people.
        duration: for how long it holds without being renewed.
        wait: how long to wait for an owner who lives.
        log: is told who is waited for, and for how long.
        pause: waits for so many seconds.

    Raises:
        ConfigurationError: the store keeps no leases.
        RefusedError: somebody else holds it; who.
        IntegrityError: the lease is damaged.
        StorageError: nobody can tell, or it could not be written.
    """
    lease = _acquire(store, owner, duration, wait, log, pause)
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
    pause: Callable[[float], None],
) -> Lease:
    token = secrets.token_hex(16)
    _require_conditional_puts(store, f"{PROBES}{token}/put")
    begun = store.server_time()
    first, paused = "", 0.0
    while True:
        now = store.server_time()
        try:
            etag, record = _look(store)
        except ObjectNotFoundError:
            etag, record = "", None
        if record is None or record.released or now >= record.expires:
            mine = LeaseRecord(token, owner, now + duration)
            if taken := _take(store, mine, etag):
                return Lease(store, mine, taken, duration)
            continue
        first = first or etag
        # Somebody may set the store's clock back meanwhile.
        waited = max(now - begun, timedelta(seconds=paused))
        most = wait if etag != first else max(wait, _PATIENCE)
        if waited >= most:
            raise RefusedError(
                f"another sweep of {store.url} holds its lease: {record}. This one has waited "
                f"{_seconds(waited)} for it. Sweep again when that has ended, or let this one wait "
                "for longer (lease_wait_seconds)",
            )
        telling = f"waiting for the lease of {store.url}, {_seconds(waited)} of {_seconds(most)}"
        for told in (log, PROGRESS):
            told.info("%s: %s", telling, record)
        seconds = min(_POLL_S, max(1.0, (record.expires - now).total_seconds()))
        pause(seconds)
        paused += seconds


def _seconds(time: timedelta) -> str:
    return f"{time.total_seconds():.0f} s"


def _require_conditional_puts(store: ObjectStore, key: str) -> None:
    """Try conditional writes with an object of our own: a store that ignores them keeps no lease.

    Raises:
        ConfigurationError: the store ignores them.
    """
    etag = store.put_if_absent(key, b"first")
    tries: list[Callable[[], str]] = [
        lambda: store.put_if_absent(key, b"second"),
        lambda: store.put_if_match(key, b"third", f"{etag}0"),
    ]
    for write in tries:
        try:
            write()
        except PreconditionFailedError:
            continue
        raise ConfigurationError(
            f"{store.url} ignores the condition of conditional writes, so no lease can keep two "
            "sweeps apart there: use a store, or a version of it, that honours If-None-Match and "
            "If-Match when an object is put",
        )
    store.delete_many([key])


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
