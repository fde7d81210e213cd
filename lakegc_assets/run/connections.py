"""Connections of tasks to lakeFS, the store and the caches, as plain values."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import ParamSpec, TypeVar

from pyspark import TaskContext

from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import ArchivedError, ObjectNotFoundError
from lakegc_assets.storage.opening import open_store

P = ParamSpec("P")
T = TypeVar("T")

_own = threading.local()


@dataclass(frozen=True)
class Connections:
    """Connections of a task to lakeFS, the store and the caches. Picklable, without secrets."""

    lakefs: LakeFSConfig
    stores: StoreConfig
    namespace_url: str
    cache_url: str
    #: The time of the repository's creation, in seconds since 1970; None if it is unknown.
    made: int | None = None

    def __getstate__(self) -> dict[str, object]:
        """Return the fields with the store's server found here: a task may find another."""
        return {**vars(self), "stores": self.stores.settled()}

    def namespace(self) -> StorageNamespace:
        """Return the repository's storage namespace."""
        return StorageNamespace.parse(self.namespace_url)

    def open(self, url: str) -> ObjectStore:
        """Return the store at a URL, for example of artifacts."""
        stores = self.stores
        if stores.wait_s and _is_repeated():
            stores = replace(stores, wait_s=0.0)
        return open_store(url, stores)

    def store(self) -> ObjectStore:
        """Return the object store, rooted at the storage namespace."""
        return self.open(self.namespace_url)

    def cache(self) -> ObjectStore:
        """Return the store of the caches of this repository."""
        return self.open(self.cache_url)

    def table_url(self, table_id: str) -> str:
        """Return the URL of the file of a range or metarange, for messages."""
        return f"{self.namespace_url}/_lakefs/{table_id}"

    def fetch_table(self, table_id: str) -> bytes:
        """Fetch the file of a range or metarange.

        Raises:
            IntegrityError: it is missing, or archived.
        """
        # The mark and its checks share only this request: neither a cache nor a reader.
        try:
            return self.store().fetch(f"_lakefs/{table_id}")
        except ObjectNotFoundError as error:
            raise IntegrityError(
                f"{self.table_url(table_id)}, which a commit needs, is missing: what that commit "
                "keeps alive cannot be known. Restore the file, then run again"
            ) from error
        except ArchivedError as error:
            raise IntegrityError(
                f"{self.table_url(table_id)}, which a commit needs, is in an archive: what that "
                "commit keeps alive cannot be known. Bring it back to a storage class that can be "
                "read, and keep archives away from _lakefs/; then run again"
            ) from error

    def without_waiting(self) -> Connections:
        """Return connections that do not wait for a server or a store that is away."""
        stores = replace(self.stores, wait_s=0.0)
        return replace(self, lakefs=self.lakefs.without_waiting(), stores=stores)

    def client(self) -> LakeFSClient:
        """Return a client of lakeFS, the same for every task in this thread.

        Raises:
            ConfigurationError: endpoint or credentials are missing or malformed.
        """
        lakefs = self.lakefs.without_waiting() if _is_repeated() else self.lakefs
        # Credentials may be renewed in a worker's lifetime, and a fork must share no connection.
        key = (os.getpid(), lakefs, lakefs.access())
        known: tuple[object, LakeFSClient] | None = getattr(_own, "client", None)
        if known is None or known[0] != key:
            known = _own.client = (key, lakefs.connect())
        return known[1]


def _is_repeated() -> bool:
    """Return True in a repeated task, whose last attempt has waited as long as that is worth it."""
    task = TaskContext.get()
    return task is not None and task.attemptNumber() > 0


def reads_tables(read: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that ``StoreConfig.tables``, if set, answers in its place.

    ``read`` reads ranges or metaranges. The method of the same name answers. One argument of
    ``read`` is a ``Connections``, or has one as an attribute.
    """

    @wraps(read)
    def answer(*args: P.args, **kwargs: P.kwargs) -> T:
        for one in args:
            connections = getattr(one, "connections", one)
            if isinstance(connections, Connections) and connections.stores.tables is not None:
                own: Callable[P, T] = getattr(connections.stores.tables, read.__name__.strip("_"))
                return own(*args, **kwargs)
        return read(*args, **kwargs)

    return answer
