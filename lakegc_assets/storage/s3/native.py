"""Reads small objects and puts them where nothing is, without Python's part of each request.

Most of what such a request costs is what Python does before and after it, so obstore sends it, once
and in the simplest case only. What goes wrong here is never told: whoever asks does the same in the
usual way, which knows what to repeat and what to say of it. A put may have been carried out all the
same; that way's put is conditional, too, and finds it. The signature covers the SHA-256 of what is
put, so that a store refuses what was damaged on its way.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from os import getpid
from time import monotonic
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import boto3
import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store

from lakegc_assets import traffic
from lakegc_assets.storage.s3.fast_requests import Quick

if TYPE_CHECKING:
    from obstore.store import S3Credential

#: Keys that obstore would take for others, or refuse: parts that are empty, ``.`` or ``..``.
_ODD: Final = re.compile(r"(^|/)(\.{0,2})(/|$)|[\x00-\x1f\x7f]")
#: The process in which obstore began: what is forked from it afterwards would wait for ever.
_began_in: Final[list[int]] = []
#: For so long credentials are taken to be good; boto3 renews them in time.
_GOOD: Final = timedelta(minutes=2)


class AlreadyThereError(Exception):
    """The store says that something is at the key."""


@dataclass(frozen=True)
class Native:
    """Sends each request once.

    Attributes:
        session: has the credentials, which renew themselves.
        quick: knows where a bucket is.
        connect_timeout_s: seconds.
        read_timeout_s: seconds without a byte.
        unfit: buckets that have failed a put, or whose etags are not the MD5s of what they hold:
            what may be done in another way there is, until a time of ``monotonic``.
    """

    session: boto3.Session
    quick: Quick
    connect_timeout_s: float
    read_timeout_s: float
    unfit: dict[str, float] = field(default_factory=dict)
    _stores: dict[str, S3Store | None] = field(default_factory=dict)

    def fits(self, *buckets: str) -> bool:
        """Whether nothing is known against some buckets."""
        return all(self.unfit.get(bucket, 0.0) <= monotonic() for bucket in buckets)

    def give_up(self, bucket: str, seconds: float) -> None:
        """Let a bucket be unfit for some seconds; ``inf`` for as long as this process lives."""
        self.unfit[bucket] = max(monotonic() + seconds, self.unfit.get(bucket, 0.0))

    def get(self, bucket: str, key: str, etag: str, size: int) -> bytes | None:
        """The content of an object that has an etag and a size; None if not, or in another way."""
        store = self._store(bucket, key)
        if store is None:
            return None
        traffic.add(traffic.STORE, "GET")
        # Whatever it is, the usual way says it.
        with suppress(Exception):
            found = obstore.get(store, key, options={"if_match": f'"{etag}"'})
            if found.meta["size"] == size:
                return bytes(found.bytes())
        return None

    def put(self, bucket: str, key: str, data: bytes) -> str | None:
        """Put an object where nothing is: its etag; None where it is not known to be written.

        Raises:
            AlreadyThereError: the store says so.
        """
        store = self._store(bucket, key)
        if store is None:
            return None
        traffic.add(traffic.STORE, "PUT")
        try:
            told = obstore.put(store, key, data, mode="create", use_multipart=False)
        except AlreadyExistsError as error:
            raise AlreadyThereError from error
        except Exception:  # noqa: BLE001 - whatever it is, the usual way says it
            return None
        return (told["e_tag"] or "").strip('"') or None

    def _store(self, bucket: str, key: str) -> S3Store | None:
        if _ODD.search(key) or not _here():
            return None
        # As above; and who has no credentials now may have some later.
        with suppress(Exception):
            if bucket not in self._stores:
                self._stores[bucket] = self._opened(bucket)
            return self._stores[bucket]
        return None

    def _opened(self, bucket: str) -> S3Store | None:
        """The store of a bucket; None where a request takes more than a signature in its header."""
        reached = self.quick.directly(bucket)
        if reached is None or self.session.get_credentials() is None:
            return None
        url, region = reached
        by_path = urlsplit(url).path != ""
        return S3Store(
            bucket,
            endpoint=url.removesuffix(f"/{bucket}") if by_path else url,
            region=region,
            virtual_hosted_style_request=not by_path,
            credential_provider=self._credentials,
            client_options={
                "allow_http": True,
                "connect_timeout": timedelta(seconds=self.connect_timeout_s),
                "read_timeout": timedelta(seconds=self.read_timeout_s),
                "user_agent": "lakegc-assets",
            },
            retry_config={"max_retries": 0},
        )

    def _credentials(self) -> S3Credential:
        found = self.session.get_credentials()
        now = None if found is None else found.get_frozen_credentials()
        if now is None or now.access_key is None or now.secret_key is None:
            raise ValueError("there are no credentials any more")
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": datetime.now(timezone.utc) + _GOOD,
        }


def _here() -> bool:
    """Whether obstore may be used in this process."""
    if not _began_in:
        _began_in.append(getpid())
    return _began_in[0] == getpid()
