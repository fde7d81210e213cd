"""Small objects of S3 by obstore: reads, also of tables, and puts at free keys, for copies.

boto3 needs 2.1 ms of CPU time for such a request and obstore 0.2 ms. This is most of the time of a
backup or restore of small objects (``bench/recovery.py``), and of reading metaranges. A request is
sent once, and only in the simplest case. After any failure the caller does the same by boto3, whose
PUT is conditional too, and finds an object that was written all the same. The signature covers the
SHA-256 of the content of a put, so a store refuses a content that was damaged on its way.

All other requests use boto3, because obstore changes some keys, follows redirects and hides the
store's codes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from os import getpid
from time import monotonic
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import boto3
import obstore
from botocore.httpsession import ProxyConfiguration
from botocore.utils import get_environ_proxies
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store

from lakegc_assets import traffic

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from obstore.store import S3Credential

#: Keys that obstore would change, or refuse: with components that are empty, ``.`` or ``..``.
_ODD: Final = re.compile(r"(^|/)(\.{0,2})(/|$)|[\x00-\x1f\x7f]")
#: The process in which obstore began: it would hang in a process that is forked from it.
_began_in: Final[list[int]] = []
#: Time after which credentials are read again; boto3 renews them in time.
_CREDENTIALS_LAST: Final = timedelta(minutes=2)
#: Seconds for which a bucket that has refused a put is left to boto3.
PAUSE_S: Final = 60.0
_PROBED: Final = ContextVar[list[Mapping[str, Any]] | None]("probed", default=None)


class AlreadyThereError(Exception):
    """The store answered that there is an object at the key."""


@dataclass(frozen=True)
class SmallObjects:
    """The small objects of all buckets that a client reaches; ``ca_bundle`` is a file or None."""

    session: boto3.Session
    client: S3Client
    connect_timeout_s: float
    read_timeout_s: float
    ca_bundle: str | None
    _paused: dict[str, float] = field(default_factory=dict)
    _stores: dict[str, S3Store | None] = field(default_factory=dict)

    def usable(self, *buckets: str) -> bool:
        """True if no pause is in effect for any of these buckets."""
        return all(self._paused.get(bucket, 0.0) <= monotonic() for bucket in buckets)

    def pause(self, bucket: str, seconds: float) -> None:
        """Leave copies from and to a bucket to boto3 for some seconds; ``inf`` is for good.

        Such a bucket has refused a put, or its etags are not the MD5s of its contents.
        """
        self._paused[bucket] = max(monotonic() + seconds, self._paused.get(bucket, 0.0))

    def get(
        self, bucket: str, key: str, etag: str | None = None, size: int | None = None
    ) -> bytes | None:
        """The content of an object, of any etag or size if none is given.

        None if the object has another etag or size, or after any failure.
        """
        store = self._store(bucket, key)
        if store is None:
            return None
        traffic.add(traffic.STORE, "GET")
        # boto3 then finds the cause.
        with suppress(Exception):
            found = obstore.get(store, key, options={"if_match": f'"{etag}"'} if etag else {})
            data = bytes(found.bytes())
            if len(data) == found.meta["size"] and size in {None, len(data)}:
                return data
        return None

    def put(self, bucket: str, key: str, data: bytes) -> str | None:
        """Put an object at a free key. Raises AlreadyThereError: the store reports an object there.

        Returns its etag; None if it may not have been written.
        """
        store = self._store(bucket, key)
        if store is None:
            return None
        traffic.add(traffic.STORE, "PUT")
        try:
            written = obstore.put(store, key, data, mode="create", use_multipart=False)
        except AlreadyExistsError as error:
            raise AlreadyThereError from error
        except Exception:  # noqa: BLE001 - as above
            return None
        return (written["e_tag"] or "").strip('"') or None

    def _store(self, bucket: str, key: str) -> S3Store | None:
        if _ODD.search(key) or not _began_here():
            return None
        # boto3 then finds the cause; without credentials now, there may be some later.
        with suppress(Exception):
            if bucket not in self._stores:
                self._stores[bucket] = self.open_bucket(bucket)
            return self._stores[bucket]
        return None

    def open_bucket(self, bucket: str) -> S3Store | None:
        """The store of a bucket; None if its requests need more than a signature in a header."""
        probed = _probe(self.client, bucket)
        signing = probed["context"].get("signing", {})
        url = str(probed["url"])
        simple = (
            self.client.meta.config.signature_version == "s3v4"  # type: ignore[attr-defined]
            and probed["context"].get("auth_type") == "v4"
            and signing.get("signing_name", "s3") == "s3"
            and url.endswith("/k")
            and self._is_direct(url)
            and self.session.get_credentials() is not None
        )
        if not simple:
            return None
        url = url.removesuffix("/k")
        by_path = urlsplit(url).path != ""
        return S3Store(
            bucket,
            endpoint=url.removesuffix(f"/{bucket}") if by_path else url,
            region=signing.get("region") or self.client.meta.region_name,
            virtual_hosted_style_request=not by_path,
            credential_provider=self.provide_credentials,
            client_options={
                "allow_http": True,
                "connect_timeout": timedelta(seconds=self.connect_timeout_s),
                "read_timeout": timedelta(seconds=self.read_timeout_s),
                "user_agent": "lakegc-assets",
            },
            retry_config={"max_retries": 0},
        )

    def _is_direct(self, url: str) -> bool:
        """True without a proxy, and without additional trusted certificates."""
        proxies = ProxyConfiguration(proxies=get_environ_proxies(self.client.meta.endpoint_url))
        own = self.ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE")
        return proxies.proxy_url_for(url) is None and not (own and url.startswith("https:"))

    def provide_credentials(self) -> S3Credential:
        """The session's current credentials. Raises ValueError: there are none."""
        found = self.session.get_credentials()
        now = None if found is None else found.get_frozen_credentials()
        if now is None or now.access_key is None or now.secret_key is None:
            raise ValueError("there are no credentials any more")
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": datetime.now(timezone.utc) + _CREDENTIALS_LAST,
        }


def _began_here() -> bool:
    """True if obstore may be used in this process."""
    if not _began_in:
        _began_in.append(getpid())
    return _began_in[0] == getpid()


def answer_probes(client: S3Client) -> None:
    """Make a client answer a probe with the request that it would have sent."""

    def answer(params: Mapping[str, Any], **_: object) -> tuple[object, dict[str, Any]] | None:
        probed = _PROBED.get()
        if probed is None:
            return None
        probed.append(params)
        return SimpleNamespace(status_code=200), {}

    client.meta.events.register("before-call.s3.HeadObject", answer)  # type: ignore[arg-type]


def _probe(client: S3Client, bucket: str) -> Mapping[str, Any]:
    """The URL and signing context of a request for the key ``k``, which is not sent."""
    probed: list[Mapping[str, Any]] = []
    token = _PROBED.set(probed)
    try:
        client.head_object(Bucket=bucket, Key="k")
    finally:
        _PROBED.reset(token)
    return probed[0]
