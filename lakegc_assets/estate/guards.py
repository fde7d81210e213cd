"""The guards in the namespace of a repository: the hold, and the owner of the lease."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lakegc_assets.errors import LakegcError
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.hold import HOLD, read_hold
from lakegc_assets.sweep.lease_record import LeaseRecord, is_gone, read_lease, sweep_of


@dataclass(frozen=True)
class Guards:
    """Hold and lease of a repository."""

    url: str = ""
    #: Content of the hold as JSON values, empty for any other content; None without one.
    hold: Mapping[str, object] | None = None
    #: The lease that is held now; None without one.
    lease: LeaseRecord | None = None
    #: Reason why the hold is unreadable; empty if it was read.
    problem: str = ""
    #: Reason why the lease is unreadable; empty if it was read, or there is none.
    lease_problem: str = ""

    def hold_is_about(self, run: str) -> bool:
        """True if the hold names this run."""
        return self.hold is not None and self.hold.get("run") == run

    def sweep_of(self, run: str) -> str:
        """The short name of the sweep of this run that holds the lease; empty without one."""
        if self.lease is None or self.lease.owner.get("run") != run or "doing" in self.lease.owner:
            return ""
        return sweep_of(self.lease.token)


def read_guards(namespace: str, stores: StoreConfig) -> Guards:
    """Read the hold and the lease of a repository, each once; an error becomes a problem."""
    url = f"{namespace.rstrip('/')}/{HOLD}"
    try:
        store = open_store(namespace, replace(stores, max_attempts=1))
        hold = read_hold(store)
    except (LakegcError, OSError) as error:
        return Guards(url, problem=str(error))
    found = Guards(url, None if hold is None else hold.values)
    try:
        return replace(found, lease=_held_lease(store))
    except (LakegcError, OSError) as error:
        return replace(found, lease_problem=str(error))


def _held_lease(store: ObjectStore) -> LeaseRecord | None:
    """The lease if it is held now; None if there is none, or its owner has ended.

    Raises:
        LakegcError: the lease is unreadable.
    """
    try:
        lease = read_lease(store)
    except ObjectNotFoundError:
        return None
    over = lease.released or lease.expires <= store.server_time()
    return None if over or is_gone(lease.owner) else lease
