"""Access settings of object stores: plain values that can be sent to a Spark task."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

from typing_extensions import Self

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.graveler.namespace import StorageNamespace

#: Variables that name a server, as boto3 reads them, and the variable that disables them.
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_IGNORED: Final = "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"
#: Variables that name a region: the usual one, then boto3's.
_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")


@dataclass(frozen=True)
class AzureAccess:
    """Access to Azure Blob Storage; None means the value of the Azure tools' variables.

    Attributes:
        account_url: of the blob service, if it is not ``https://ACCOUNT.blob.DOMAIN``.
        credentials_file: written by ``write_azure_credentials_file``; read again while it is used.
            None for ``AZURE_STORAGE_KEY`` or ``AZURE_STORAGE_SAS_TOKEN``; if neither is set,
            azure-identity's ``DefaultAzureCredential``.
        identity: options of ``DefaultAzureCredential``, as pairs of name and value; no secrets.
    """

    account_url: str | None = None
    credentials_file: str | None = None
    identity: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class GcsAccess:
    """Access to Google Cloud Storage.

    Attributes:
        endpoint: instead of Google's; None for ``STORAGE_EMULATOR_HOST``, which is used without
            credentials, or Google's.
        credentials_file: key of a service account. None for the application default credentials.
    """

    endpoint: str | None = None
    credentials_file: str | None = None


@dataclass(frozen=True)
class S3Access:
    """Access to one S3-compatible server.

    Attributes:
        endpoint_url: of the server; None for AWS itself.
        region: of the bucket.
        addressing: of the bucket; ``auto`` is ``path`` for every endpoint outside amazonaws.com,
            because few of them resolve ``bucket.host``.
        profile: in ``~/.aws``.
        credentials_file: written by ``write_credentials_file``; read again while it is used. None
            for boto3's credentials.
    """

    endpoint_url: str | None = None
    region: str | None = None
    addressing: Literal["auto", "path", "virtual"] = "auto"
    profile: str | None = None
    credentials_file: str | None = None

    def settled(self) -> Self:
        """Add the values of this process's variables, so that other processes ask the same."""
        names = () if os.environ.get(_IGNORED, "").lower() == "true" else _ENDPOINTS
        found = next(filter(None, map(os.environ.get, names)), None)
        region = next(filter(None, (self.region, *map(os.environ.get, _REGIONS))), None)
        return replace(self, endpoint_url=self.endpoint_url or found, region=region)


@dataclass(frozen=True)
class StoreConfig(S3Access):
    """Access to object stores, without secrets: secrets are read when a store is opened.

    Fields that are None come from the AWS variables and from ``~/.aws``.

    Attributes:
        local_root: directory in which a lakeFS with local storage keeps ``local://`` namespaces.
        connect_timeout_s: seconds, for each attempt.
        read_timeout_s: seconds without a byte, for each attempt.
        max_attempts: attempts of a request that may be repeated; 1 turns retries off.
        wait_s: seconds for which a read, or a write that replaces, is repeated beyond
            ``max_attempts`` while the service is away; all requests of a process wait together.
            Deletes, conditional writes and Google's writes, which are POSTs, never are.
        page_size: keys in a page of a listing, 1 to 1,000.
        azure: for ``https``, ``abfss`` and ``wasbs`` URLs.
        gcs: for ``gs`` URLs.
        elsewhere: names of buckets on other S3 servers, and the access to them.
        opener: opens every store; called with a URL and this config, returns an ``ObjectStore``.
            Picklable.
        tables: reads ranges and metaranges if they are no files: has a method for each function
            that ``run.connections.reads_tables`` marks. Picklable.
    """

    local_root: str | None = None
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 10.0
    max_attempts: int = 5
    wait_s: float = 0.0
    page_size: int = 1000
    azure: AzureAccess = AzureAccess()
    gcs: GcsAccess = GcsAccess()
    elsewhere: tuple[tuple[str, S3Access], ...] = ()
    opener: Callable[[str, StoreConfig], Any] | None = None
    tables: object = None

    def settled(self) -> Self:
        """See ``S3Access``."""
        elsewhere = tuple((bucket, access.settled()) for bucket, access in self.elsewhere)
        return replace(super().settled(), elsewhere=elsewhere)

    def at(self, url: str) -> StoreConfig:
        """The access to a URL: this config, unless its bucket is in ``elsewhere``."""
        if not self.elsewhere:
            return self
        place = StorageNamespace.parse(url)
        for bucket, access in self.elsewhere:
            if (place.scheme, place.authority) == ("s3", bucket):
                own = {field.name: getattr(access, field.name) for field in fields(S3Access)}
                return replace(self, **own, elsewhere=())
        return self

    def __post_init__(self) -> None:
        """Refuse values out of their range. Raises ConfigurationError."""
        if self.addressing not in {"auto", "path", "virtual"}:
            raise ConfigurationError(
                f"addressing is {self.addressing!r}: it is 'auto', 'path' or 'virtual'"
            )
        if self.max_attempts < 1:
            raise ConfigurationError(f"max_attempts is {self.max_attempts}: it must be 1 or more")
        if not 0 <= self.wait_s < float("inf"):
            raise ConfigurationError(f"wait_s is {self.wait_s}: it must be 0 or more, and end")
        if not 1 <= self.page_size <= 1000:  # noqa: PLR2004 - the most that S3 gives
            raise ConfigurationError(f"page_size is {self.page_size}: it is from 1 to 1,000")
        for name in ("connect_timeout_s", "read_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} is {getattr(self, name)}: it must be positive")
