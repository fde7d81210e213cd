"""Signers of requests to Azure: by an account key, a SAS token, or a token of Microsoft Entra ID.

A delete or a copy needs a shared access signature for one blob that ends soon, made with an account
key or with a key that the service gives to an identity. ``generate_blob_sas`` of azure-storage-blob
signs for the newest version of the service. Older services, such as private clouds and emulators,
refuse such a signature by an identity's key, so no delete would have a deadline there.

Format: https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key,
https://learn.microsoft.com/rest/api/storageservices/create-service-sas and
https://learn.microsoft.com/rest/api/storageservices/create-user-delegation-sas
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from typing import Final, Literal, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit
from xml.etree import ElementTree as ET

from azure.core.credentials import TokenCredential
from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.identity import (
    ClientSecretCredential,
    CredentialUnavailableError,
    DefaultAzureCredential,
)

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.config import AzureAccess
from lakegc_assets.storage.errors import (
    StoreThrottledError,
    StoreUnavailableError,
    error_class,
)
from lakegc_assets.storage.files import read_private_fields, write_private_file
from lakegc_assets.storage.http import HttpFailure, Request

_SCOPE: Final = "https://storage.azure.com/.default"
#: The header that proves to the service that a copy may read its source.
_SOURCE: Final = "x-ms-copy-source-authorization"
#: Seconds after which a credentials file is read again.
REREAD_S: Final = 300.0
_SIGNED_HEADERS: Final = (
    "Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date",
    "If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range",
)  # fmt: skip
_FORMS: Final = (
    {"account_key"}, {"sas_token"}, {"tenant_id", "client_id", "client_secret"},
)  # fmt: skip
#: The service version in every request: old enough for private clouds and emulators.
VERSION: Final = "2021-12-02"
_LIFETIME: Final = timedelta(hours=1)
#: The largest accepted difference between the clocks of this machine and of the service.
_SKEW: Final = timedelta(minutes=5)
DELEGATION_FIELDS: Final = {
    "skoid": "SignedOid", "sktid": "SignedTid", "skt": "SignedStart", "ske": "SignedExpiry",
    "sks": "SignedService", "skv": "SignedVersion",
}  # fmt: skip


def write_azure_credentials_file(path: str | os.PathLike[str], **fields: str) -> None:
    """Write a file for ``AzureAccess.credentials_file``, readable by its owner only, atomically.

    A second write renews the credentials of the stores that use the file. The fields are
    ``account_key``, or ``sas_token``, or ``tenant_id``, ``client_id`` and ``client_secret`` of a
    service principal. Raises ConfigurationError: other fields, or an empty one.
    """
    _require_form(fields, "azure credentials")
    write_private_file(path, json.dumps(fields))


class Signer(ABC):
    """A signer of requests; called for each attempt.

    ``key`` is the account key, which can sign deadlines; ``delegated`` is True if the service may
    give this identity a key to sign deadlines.
    """

    key: bytes | None = None
    delegated = False

    @abstractmethod
    def __call__(self, request: Request) -> None:
        """Sign a request."""


def signers(access: AzureAccess, account: str) -> Callable[[], Signer]:
    """Return the function that gives the signer for an account. Raises ConfigurationError."""
    if access.credentials_file is not None:
        return _FileSigners(access.credentials_file, account)
    if key := os.environ.get("AZURE_STORAGE_KEY"):
        signer: Signer = _KeySigner(account, key, "AZURE_STORAGE_KEY")
    elif token := os.environ.get("AZURE_STORAGE_SAS_TOKEN"):
        signer = _SasSigner(token)
    else:
        signer = TokenSigner(DefaultAzureCredential(**dict(access.identity)))
    return lambda: signer


class _KeySigner(Signer):
    def __init__(self, account: str, key: str, source: str) -> None:
        self._account = account
        try:
            self._key = self.key = base64.b64decode(key, validate=True)
        except (binascii.Error, ValueError):
            raise ConfigurationError(
                f"the account key in {source} is not base64: copy it again"
            ) from None

    def __call__(self, request: Request) -> None:
        headers = request.headers
        headers["x-ms-date"] = format_datetime(datetime.now(timezone.utc), usegmt=True)
        known = {name.lower(): value for name, value in headers.items()}
        if request.body:
            known["content-length"] = str(len(request.body))
        lines = [request.method, *(known.get(name.lower(), "") for name in _SIGNED_HEADERS)]
        own = sorted((name, value) for name, value in known.items() if name.startswith("x-ms-"))
        lines += [f"{name}:{value}" for name, value in own]
        url = urlsplit(request.url)
        lines.append(f"/{self._account}{url.path}")
        query = sorted(parse_qsl(url.query, keep_blank_values=True))
        lines += [f"{name.lower()}:{value}" for name, value in query]
        digest = hmac.new(self._key, "\n".join(lines).encode(), hashlib.sha256).digest()
        signature = base64.b64encode(digest).decode()
        headers["Authorization"] = f"SharedKey {self._account}:{signature}"


class _SasSigner(Signer):
    def __init__(self, token: str) -> None:
        self._token = token.strip().removeprefix("?")

    def __call__(self, request: Request) -> None:
        request.url = self._signed(request.url)
        source = request.headers.get("x-ms-copy-source")
        if source is not None:
            request.headers["x-ms-copy-source"] = self._signed(source)

    def _signed(self, url: str) -> str:
        return f"{url}{'&' if '?' in url else '?'}{self._token}"


class TokenSigner(Signer):
    """A signer by Entra ID: azure-identity keeps a token, and renews it before it expires."""

    delegated = True

    def __init__(self, source: TokenCredential) -> None:
        self._source = source

    def __call__(self, request: Request) -> None:
        if not request.url.startswith("https://"):
            raise ConfigurationError(
                "account_url is not https, and a token is not sent in the open: set an https URL"
            )
        try:
            token = self._source.get_token(_SCOPE).token
        except ClientAuthenticationError as error:
            away = _is_away(error)
            code = "ConnectionFailed" if away else "NoAuthenticationInformation"
            raise HttpFailure(code, f"no token came: {error.message}") from error
        except AzureError as error:
            raise HttpFailure("ConnectionFailed", f"no token came: {error.message}") from error
        request.headers["Authorization"] = f"Bearer {token}"
        if _SOURCE in request.headers:
            request.headers[_SOURCE] = f"Bearer {token}"


def _is_away(error: ClientAuthenticationError) -> bool:
    """True if the source of tokens gave no answer: azure-identity calls that unauthenticated.

    Where it finds no source at all it raises the base class, without an answer.
    """
    kind = error_class(str(error.status_code))
    silent = kind in {StoreThrottledError, StoreUnavailableError}
    return silent or isinstance(error, CredentialUnavailableError)


class _FileSigners:
    """The signers by the content of a private file, which is read again after a while."""

    def __init__(self, path: str, account: str) -> None:
        self._path = path
        self._account = account
        self._fields: Mapping[str, str] = {}
        self._read_at = 0.0
        self._signer: Signer | None = None

    def __call__(self) -> Signer:
        now = time.monotonic()
        if self._signer is None or now - self._read_at > REREAD_S:
            found = read_private_fields(self._path, "write_azure_credentials_file")
            fields = {name: str(value) for name, value in found.items()}
            _require_form(fields, f"the credentials file {self._path}")
            if self._signer is None or fields != self._fields:
                self._signer = self._from(fields)
            self._fields, self._read_at = fields, now
        return self._signer

    def _from(self, fields: Mapping[str, str]) -> Signer:
        if "account_key" in fields:
            return _KeySigner(self._account, fields["account_key"], self._path)
        if "sas_token" in fields:
            return _SasSigner(fields["sas_token"])
        return TokenSigner(ClientSecretCredential(**fields))


def _require_form(fields: Mapping[str, str], what: str) -> None:
    if set(fields) not in _FORMS or not all(fields.values()):
        raise ConfigurationError(
            f"{what}: set account_key, or sas_token, or tenant_id, client_id and client_secret"
        )


class Delegation(NamedTuple):
    """A user delegation key, and the time to request the next one.

    The fields name the key, in the query of a signature and in the order in which they are signed.
    """

    key: bytes
    fields: dict[str, str]
    renewed: datetime


def wanted(now: datetime) -> bytes:
    """The body of a request for a user delegation key."""
    start, end = (_written(moment) for moment in (now - _SKEW, now + _LIFETIME))
    return f"<KeyInfo><Start>{start}</Start><Expiry>{end}</Expiry></KeyInfo>".encode()


def read_delegation(body: bytes, now: datetime) -> Delegation:
    """Read the key in an answer. Raises HttpFailure: there is none."""
    try:
        root = ET.fromstring(body)  # noqa: S314 - the answer of a store that we trust with the data
        found = {element.tag: element.text or "" for element in root}
        fields = {name: found[tag] for name, tag in DELEGATION_FIELDS.items()}
        key = base64.b64decode(found["Value"], validate=True)
    except (ET.ParseError, LookupError, ValueError) as error:
        raise HttpFailure("NoAnswer", f"the answer has no key to sign with: {error}") from error
    return Delegation(key, fields, now + _LIFETIME / 2)


def signature(
    key: bytes,
    resource: str,
    ends: datetime,
    fields: Mapping[str, str] | None = None,
    *,
    allowed: Literal["d", "r"] = "d",
) -> str:
    """The query that allows to delete (``d``) or read (``r``) a blob until a time, to the second.

    ``fields`` name the key of an identity; ``resource`` is ``/blob/ACCOUNT/CONTAINER/NAME``.
    """
    # Empty: the name of a stored policy; or, after the fields of the key, the ids of two identities
    # and of a correlation.
    key_fields = [""] if fields is None else [*fields.values(), *[""] * 3]
    # Empty fields restrict nothing: addresses and protocol before the version; snapshot, scope and
    # headers after it.
    lines = [allowed, "", _written(ends), resource, *key_fields, "", "", VERSION, "b", *[""] * 7]
    digest = hmac.new(key, "\n".join(lines).encode(), hashlib.sha256).digest()
    query = {
        "sp": allowed, "se": _written(ends), "sv": VERSION, "sr": "b", **(fields or {}),
        "sig": base64.b64encode(digest).decode(),
    }  # fmt: skip
    return urlencode(query, quote_via=quote)


def _written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
