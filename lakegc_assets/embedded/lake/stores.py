"""The object stores of the server: local files below its data directory, or S3."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from threading import Lock
from time import time
from typing import TYPE_CHECKING, Literal, NamedTuple

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.lake.catalog import Repository
from lakegc_assets.embedded.lake.settings import ServerSettings
from lakegc_assets.embedded.lake.trees import Breaks, Trees
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from lakegc_assets.storage.opening import open_store

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

DUMMY_KEY = "_lakefs/dummy"
_DUMMY = b"this is dummy data - created by lakeFS to check accessibility"
_OPEN_STORES = 256


class PresignedUrl(NamedTuple):
    """A URL for requests without credentials, and its expiry by the server's clock."""

    url: str
    expires: int


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

    @property
    def can_presign(self) -> bool:
        """True if clients can get URLs for requests to the store: local files have none."""
        return bool(self._settings.store)

    def require_presigning(self) -> None:
        """400 if the block store does not support such URLs, as lakeFS answers for local files."""
        if not self.can_presign:
            raise errors.bad_request(
                f"{self._settings.blockstore_type} adapter: operation not supported"
            )

    def presigned_url(
        self, operation: Literal["get_object", "put_object"], base: str, key: str
    ) -> PresignedUrl:
        """A URL for one request; the key is relative to the URL ``base`` of a bucket or a prefix.

        Raises:
            ApiError: 400 if the block store does not support such URLs.
        """
        self.require_presigning()
        # Loading boto3 takes longer than most work on local files.
        from lakegc_assets.storage.s3.client import clients, translated  # noqa: PLC0415

        place = StorageNamespace.parse(base)
        config, seconds = self._settings.store_config, self._settings.presign_seconds
        where = {"Bucket": place.authority, "Key": place.key(key)}
        with translated(f"{base}: signing a URL for {key!r}"):
            client = _signing_client(config, clients(config).usual)
            url = client.generate_presigned_url(operation, Params=where, ExpiresIn=seconds)
        return PresignedUrl(url, int(self._settings.clock()) + seconds)

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


@lru_cache(maxsize=4)
def _signing_client(config: StoreConfig, usual: S3Client) -> S3Client:
    """A client like the store's, but signing by version 4, which boto3 does not in all regions."""
    import boto3  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415

    from lakegc_assets.storage.s3.client import open_session  # noqa: PLC0415

    session = boto3.Session(botocore_session=open_session(config.profile, config.credentials_file))
    return session.client(
        "s3",
        endpoint_url=usual.meta.endpoint_url,
        region_name=usual.meta.region_name,
        config=usual.meta.config.merge(Config(signature_version="s3v4")),
    )
