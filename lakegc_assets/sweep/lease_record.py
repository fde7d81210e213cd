"""The record of the lease of a repository, its key, and the test whether a task may go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lakegc_assets.errors import IntegrityError
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.sweep.lease_owner import describe, work_of

#: Below the namespace: what sweeps, backups and restores tell each other. No mark names it.
FOLDER: Final = "_lakefs/retention/gc/lakegc/"
LEASE: Final = f"{FOLDER}lease.json"
#: Objects that are written to see what a store does with them.
PROBES: Final = f"{FOLDER}probe-"
#: How much of a lease must be left for a batch to be sent.
_MARGIN: Final = timedelta(seconds=60)


@dataclass(frozen=True)
class LeaseRecord:
    """The content of the lease object.

    Attributes:
        token: random; that of the owner.
        owner: who that is (``lease_owner.owner_of``), and since when.
        expires: by the store's clock, UTC.
        renewed: how often it was written, so that no two of its contents are equal.
        round: which round of its sweep may delete; tasks of an earlier one must not. Below 0 while
            requests of an earlier owner may be on their way.
        released: whether its owner has given it back.
    """

    token: str
    owner: Mapping[str, str]
    expires: datetime
    renewed: int = 0
    round: int = 0
    released: bool = False

    def to_bytes(self) -> bytes:
        """As it is stored: JSON."""
        values = self.__dict__ | {"expires": self.expires.isoformat()}
        return json.dumps(values).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> LeaseRecord:
        """Read a stored lease.

        Raises:
            IntegrityError: it is damaged.
        """
        try:
            values = json.loads(data)
            expires = datetime.fromisoformat(values["expires"])
            whole = (
                isinstance(values["token"], str)
                and values["token"]
                and isinstance(values["owner"], dict)
                and all(type(values[name]) is int for name in ("renewed", "round"))
                and type(values["released"]) is bool
                and expires.tzinfo is not None
            )
            if not whole:
                raise ValueError("it is not a lease")  # noqa: TRY301 - it is damage
            return cls(**(values | {"expires": expires}))
        except (ValueError, KeyError, TypeError) as error:
            raise IntegrityError(
                f"{where} is damaged ({error}): nobody can tell who sweeps this repository. Make "
                "sure that nobody does, then remove it",
            ) from error

    def __str__(self) -> str:
        """Purpose, owner and start of the lease, for messages."""
        return f"{work_of(self.owner)} by {describe(self.owner)}"


def sweep_of(token: str) -> str:
    """The short name of what is done under the lease with this token."""
    return token[:16]


def read_lease(store: ObjectStore) -> LeaseRecord:
    """The lease of a repository.

    Args:
        store: rooted at the storage namespace.

    Raises:
        ObjectNotFoundError: there is none.
        IntegrityError: it is damaged.
    """
    return LeaseRecord.from_bytes(store.get(LEASE), f"{store.url}/{LEASE}")


def lost(store: ObjectStore, token: str, number: int, now: datetime) -> str:
    """Why a task must not delete any more; empty while the lease still holds long enough.

    Args:
        store: rooted at the storage namespace.
        token: of the lease under which the task was started.
        number: of the round to which it belongs.
        now: the store's time, as it was just before.

    Raises:
        StorageError: nobody can tell.
        IntegrityError: the lease is damaged.
    """
    try:
        record = read_lease(store)
    except ObjectNotFoundError:
        return f"{store.url}/{LEASE} is gone"
    if record.token != token or record.released:
        return f"the lease is another's: {record}"
    if record.round != number:
        return f"round {record.round} of this sweep has begun"
    if record.expires - now < _MARGIN:
        return f"the lease ran out, or is about to, at {record.expires.isoformat()}"
    return ""
