"""The settings of a lakeFS connection, which hold no secret and so may travel to Spark tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.credentials import Access, resolve
from lakegc_assets.lakefs.transport import Limits, Transport
from lakegc_assets.lakefs.writes import LakeFSWriter

_Client = TypeVar("_Client", bound=LakeFSClient)


@dataclass(frozen=True)
class LakeFSConfig(Limits):
    """Connection settings of a server; the secret is looked up where the connection is made.

    Attributes:
        endpoint: URL of the server, with or without ``/api/v1``; None to look it up.
        credentials_file: a YAML file in lakectl's form; None to look in the environment
            (``LAKECTL_*``) and in ``~/.lakectl.yaml``.
        prepare_read_timeout_s: seconds that one prepare call may work.
        prepare_commits_timeout_s: seconds until the active commits must be computed.
    """

    endpoint: str | None = None
    credentials_file: str | None = None
    prepare_read_timeout_s: float = 300.0
    prepare_commits_timeout_s: float = 3600.0

    def __post_init__(self) -> None:
        """Refuse what would wait for ever or never try."""
        super().__post_init__()
        if min(self.prepare_read_timeout_s, self.prepare_commits_timeout_s) <= 0:
            raise ConfigurationError(f"timeouts must be above 0 s: {self}")

    def settled(self) -> LakeFSConfig:
        """With the endpoint that is found here, so that tasks elsewhere ask the same server.

        Raises:
            ConfigurationError: endpoint or credentials are missing or malformed.
        """
        return replace(self, endpoint=resolve(self.endpoint, self.credentials_file).endpoint)

    def without_waiting(self) -> LakeFSConfig:
        """For who has no time, or has waited already."""
        return replace(self, wait_s=0.0)

    def access(self) -> Access:
        """Endpoint and keys as they are found now; they hold a secret.

        Raises:
            ConfigurationError: endpoint or credentials are missing or malformed.
        """
        return resolve(self.endpoint, self.credentials_file)

    def connect(self) -> LakeFSClient:
        """A client for the calls of a collector.

        Raises:
            ConfigurationError: endpoint or credentials are missing or malformed.
        """
        return self._connect(LakeFSClient)

    def connect_writer(self) -> LakeFSWriter:
        """As ``connect``, a client that can change repositories too."""
        return self._connect(LakeFSWriter)

    def _connect(self, client: type[_Client]) -> _Client:
        return client(
            Transport(self.access(), self),
            prepare_read_timeout_s=self.prepare_read_timeout_s,
            prepare_commits_timeout_s=self.prepare_commits_timeout_s,
        )
