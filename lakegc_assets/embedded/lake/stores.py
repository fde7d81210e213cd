"""The object stores of the server: local files below its data directory, or S3."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from threading import Lock
from time import time

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.lake.catalog import Repository
from lakegc_assets.embedded.lake.settings import ServerSettings
from lakegc_assets.embedded.lake.trees import Breaks, Trees
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from lakegc_assets.storage.opening import open_store

DUMMY_KEY = "_lakefs/dummy"
_DUMMY = b"this is dummy data - created by lakeFS to check accessibility"
_OPEN_STORES = 256


class Stores:
    """Opens namespaces, and caches the trees of each."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        config = replace(settings.store_config, local_root=str(settings.objects_dir))
        self._open = lru_cache(maxsize=_OPEN_STORES)(partial(open_store, config=config))
        self._trees: dict[str, Trees] = {}
        self._lock = Lock()

    @property
    def namespace_regex(self) -> str:
        """The pattern of valid namespaces, as the server's configuration reports it."""
        return f"^{'s3' if self._settings.store else 'local'}://"

    def open(self, url: str) -> ObjectStore:
        """The store rooted at a namespace or a prefix."""
        return self._open(url)

    def trees(self, repository: Repository) -> Trees:
        """The committed trees of a repository, with one cache for each namespace."""
        with self._lock:
            found = self._trees.get(repository.namespace)
            if found is None:
                breaks = Breaks(self._settings.range_raggedness, self._settings.range_max_bytes)
                found = Trees(self.open(repository.namespace), breaks)
                self._trees[repository.namespace] = found
            return found

    def claim(self, namespace: str) -> None:
        """Create lakeFS's dummy object in a namespace, which claims it.

        Raises:
            ApiError: 400 for a namespace of the wrong kind, in use, or not accessible.
        """
        if not re.match(self.namespace_regex, namespace):
            raise errors.bad_request(
                f"failed to match required regex {self.namespace_regex}: invalid namespace"
            )
        try:
            store = self.open(namespace)
            with suppress(PreconditionFailedError):
                try:
                    store.head(DUMMY_KEY)
                except ObjectNotFoundError:
                    store.put_if_absent(DUMMY_KEY, _DUMMY)
                    return
        except (ConfigurationError, StorageError):
            raise errors.bad_request(
                "failed to create repository: failed to access storage"
            ) from None
        raise errors.bad_request(
            f"failed to create repository: found lakeFS objects in the storage (:{namespace}) "
            f"key({DUMMY_KEY}): storage namespace already in use"
        )

    def write(
        self,
        repository: Repository,
        address: str,
        data: bytes,
        moment: float,
        *,
        dated: bool = False,
    ) -> None:
        """Write an object; local files get the server's time if it differs from the machine's.

        ``moment`` is in epoch seconds. It is ``dated`` if a trial or a test has requested the time.

        Raises:
            ApiError: 400 when a time was asked for on S3, which keeps its own times.
        """
        if dated and self._settings.store:
            raise errors.bad_request("a modification time can only be given on local files")
        self.open(repository.namespace).put(address, data)
        self.set_time(repository, address, moment, dated=dated)

    def set_time(
        self, repository: Repository, address: str, moment: float, *, dated: bool = False
    ) -> None:
        """Set the time of a new local file, if requested or if the clock is not the machine's."""
        if dated or (self._settings.clock is not time and not self._settings.store):
            place = repository.place
            path = self._settings.objects_dir / place.authority / place.prefix / address
            os.utime(path, (moment, moment))
