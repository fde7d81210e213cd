"""Connections to S3 servers, made as botocore makes its own: timeouts, certificates, proxies."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from threading import Lock
from typing import Final
from urllib.parse import urlsplit

from botocore.httpsession import ProxyConfiguration, create_urllib3_context, get_cert_path
from botocore.utils import get_environ_proxies
from urllib3 import HTTPConnectionPool, PoolManager, ProxyManager, Timeout

CONNECTIONS: Final = 64


@dataclass(frozen=True)
class Pools:
    """Pools of connections that threads share, one for each server.

    Attributes:
        connect_timeout_s: seconds.
        read_timeout_s: seconds without a byte.
        ca_bundle: file of the certificates that are trusted; None for the usual ones.
    """

    connect_timeout_s: float
    read_timeout_s: float
    ca_bundle: str | None
    _managers: dict[str | None, PoolManager] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def to(self, url: str, endpoint: str) -> tuple[HTTPConnectionPool, str]:
        """The pool for a URL, and what comes before a path in what is asked of it.

        Args:
            url: of an object.
            endpoint: of its server, which may be one that no proxy is for.
        """
        proxies = _proxies(endpoint)
        proxy = proxies.proxy_url_for(url)
        with self._lock:
            if proxy not in self._managers:
                headers = proxies.proxy_headers_for(proxy) if proxy else None
                self._managers[proxy] = self._manager(proxy, headers)
            pool = self._managers[proxy].connection_from_url(url)
        parts = urlsplit(url)
        # Else the proxy makes a tunnel, and sees nothing of it.
        through = proxy is not None and parts.scheme == "http"
        return pool, f"{parts.scheme}://{parts.netloc}" if through else ""

    def plain(self, url: str, endpoint: str) -> bool:
        """Whether no proxy is between, and no certificates of one's own are trusted; as ``to``."""
        trusts = url.startswith("https:") and self._bundle()
        return _proxies(endpoint).proxy_url_for(url) is None and not trusts

    def _bundle(self) -> str | None:
        return self.ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE")

    def _manager(self, proxy: str | None, headers: dict[str, str] | None) -> PoolManager:
        bundle = self._bundle()
        usual = {
            "timeout": Timeout(connect=self.connect_timeout_s, read=self.read_timeout_s),
            "maxsize": CONNECTIONS,
            "ssl_context": create_urllib3_context(),
            "cert_reqs": "CERT_REQUIRED",
            "ca_certs": bundle or get_cert_path(verify=True),
        }
        if proxy is None:
            return PoolManager(**usual)
        return ProxyManager(proxy, proxy_headers=headers, **usual)


def _proxies(endpoint: str) -> ProxyConfiguration:
    return ProxyConfiguration(proxies=get_environ_proxies(endpoint))
