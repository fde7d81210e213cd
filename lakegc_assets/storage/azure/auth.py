"""Signers of requests to Azure: by an account key, a SAS token, or a token of Microsoft Entra ID.

A delete or a copy needs a shared access signature for one blob, which ends soon. It is made
by the key of an account, or by a key that the service gives to an identity (which needs the action
``generateUserDelegationKey`` for that). ``generate_blob_sas`` of azure-storage-blob signs for the
newest version of the service that it knows: services that are older, such as private clouds and
emulators, refuse a signature by the key of an identity then, and no delete would have a deadline
there.

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
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol
from urllib.parse import parse_qsl, quote, urlencode, urlsplit
from xml.etree import ElementTree as ET

from azure.core.credentials import TokenCredential
from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.identity import ClientSecretCredential, DefaultAzureCredential

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.config import AzureAccess
from lakegc_assets.storage.files import read_private_file, write_private_file
from lakegc_assets.storage.http import HttpFailure, Request

_SCOPE: Final = "https://storage.azure.com/.default"
#: The header that proves to the service that a copy may read its source.
_SOURCE: Final = "x-ms-copy-source-authorization"
#: A renewed file is noticed after so many seconds.
_REREAD_S: Final = 300.0
_SIGNED_HEADERS: Final = (
    "Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date",
    "If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range",
)  # fmt: skip
_FORMS: Final = (
    {"account_key"}, {"sas_token"}, {"tenant_id", "client_id", "client_secret"},
)  # fmt: skip
#: Of the service, in every request: old enough for private clouds and emulators.
VERSION: Final = "2021-12-02"
_LIFETIME: Final = timedelta(hours=1)
#: The most by which the clocks of this machine and of the service may differ.
_SKEW: Final = timedelta(minutes=5)
_NAMES: Final = {
    "skoid": "SignedOid", "sktid": "SignedTid", "skt": "SignedStart", "ske": "SignedExpiry",
    "sks": "SignedService", "skv": "SignedVersion",
}  # fmt: skip


def write_azure_credentials_file(path: str | os.PathLike[str], **fields: str) -> None:
    """Write a file for ``AzureAccess.credentials_file``, readable by its owner only, atomically.

    Writing it again renews the credentials of the stores that use it.

    Args:
        path: of the file.
        fields: ``account_key``, or ``sas_token``, or ``tenant_id``, ``client_id`` and
            ``client_secret`` of a service principal.

    Raises:
        ConfigurationError: these are not the fields of one form, or one is empty.
    """
    _require_form(fields, "azure credentials")
    write_private_file(path, json.dumps(fields))


class Signer(Protocol):
    """Adds to a request what proves who sends it; called for each try."""

    @property
    def key(self) -> bytes | None:
        """The account's, which can sign in the name of the account."""

    @property
    def delegated(self) -> bool:
        """True if the service may give an identity a key to sign with."""

    def __call__(self, request: Request) -> None:
        """Sign a request."""


def signer(access: AzureAccess, account: str) -> Signer:
    """The signer of the requests to an account.

    Raises:
        ConfigurationError: the credentials cannot be used.
    """
    if access.credentials_file is not None:
        return _FileSigner(access.credentials_file, account)
    if key := os.environ.get("AZURE_STORAGE_KEY"):
        return _KeySigner(account, key, "AZURE_STORAGE_KEY")
    if token := os.environ.get("AZURE_STORAGE_SAS_TOKEN"):
        return _SasSigner(token)
    return TokenSigner(DefaultAzureCredential(**dict(access.identity)))


class _KeySigner:
    delegated = False

    def __init__(self, account: str, key: str, source: str) -> None:
        self._account = account
        try:
            self.key = base64.b64decode(key, validate=True)
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
        digest = hmac.new(self.key, "\n".join(lines).encode(), hashlib.sha256).digest()
        signature = base64.b64encode(digest).decode()
        headers["Authorization"] = f"SharedKey {self._account}:{signature}"


class _SasSigner:
    key = None
    delegated = False

    def __init__(self, token: str) -> None:
        self._token = token.strip().removeprefix("?")

    def __call__(self, request: Request) -> None:
        request.url = self._signed(request.url)
        source = request.headers.get("x-ms-copy-source")
        if source is not None:
            request.headers["x-ms-copy-source"] = self._signed(source)

    def _signed(self, url: str) -> str:
        return f"{url}{'&' if '?' in url else '?'}{self._token}"


class TokenSigner:
    """azure-identity keeps a token, and renews it before it expires."""

    key = None
    delegated = True

    def __init__(self, source: TokenCredential) -> None:
        self._source = source

    def __call__(self, request: Request) -> None:
        if not request.url.startswith("https://"):
            raise ConfigurationError("account_url is not https: a token is not sent in the open")
        try:
            token = self._source.get_token(_SCOPE).token
        except ClientAuthenticationError as error:
            raise HttpFailure("NoAuthenticationInformation", error.message) from error
        except AzureError as error:
            raise HttpFailure("ConnectionFailed", f"no token came: {error.message}") from error
        request.headers["Authorization"] = f"Bearer {token}"
        if _SOURCE in request.headers:
            request.headers[_SOURCE] = f"Bearer {token}"


class _FileSigner:
    """Signs with what a private file holds, and reads it again after a while."""

    def __init__(self, path: str, account: str) -> None:
        self._path = path
        self._account = account
        self._fields: Mapping[str, str] = {}
        self._read_at = 0.0
        self._signer: Signer | None = None

    @property
    def key(self) -> bytes | None:
        return self._present().key

    @property
    def delegated(self) -> bool:
        return self._present().delegated

    def __call__(self, request: Request) -> None:
        self._present()(request)

    def _present(self) -> Signer:
        now = time.monotonic()
        if self._signer is None or now - self._read_at > _REREAD_S:
            fields = _read(self._path)
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


def _read(path: str) -> Mapping[str, str]:
    try:
        content = json.loads(read_private_file(Path(path)))
        fields = {str(name): str(value) for name, value in content.items()}
    except (ValueError, AttributeError):
        # The error is not chained: it could quote what the file holds.
        raise ConfigurationError(
            f"the credentials file {path} is damaged: write it again with "
            "write_azure_credentials_file"
        ) from None
    _require_form(fields, f"the credentials file {path}")
    return fields


def _require_form(fields: Mapping[str, str], what: str) -> None:
    if set(fields) not in _FORMS or not all(fields.values()):
        raise ConfigurationError(
            f"{what}: set account_key, or sas_token, or tenant_id, client_id and client_secret"
        )


class Delegation(NamedTuple):
    """A key that the service gave to an identity, the fields that name it, and when to ask anew.

    The fields are those of the query of a signature, in the order in which they are signed.
    """

    key: bytes
    fields: dict[str, str]
    renewed: datetime


def wanted(now: datetime) -> bytes:
    """The body of a request for a key."""
    start, end = (_written(moment) for moment in (now - _SKEW, now + _LIFETIME))
    return f"<KeyInfo><Start>{start}</Start><Expiry>{end}</Expiry></KeyInfo>".encode()


def read_delegation(body: bytes, now: datetime) -> Delegation:
    """The key in an answer. Raises HttpFailure: there is none."""
    try:
        root = ET.fromstring(body)  # noqa: S314 - the answer of a store that we trust with the data
        found = {element.tag: element.text or "" for element in root}
        fields = {name: found[tag] for name, tag in _NAMES.items()}
        key = base64.b64decode(found["Value"], validate=True)
    except (ET.ParseError, LookupError, ValueError) as error:
        raise HttpFailure("NoAnswer", f"the service gave no key to sign with: {error}") from error
    return Delegation(key, fields, now + _LIFETIME / 2)


def signature(
    key: bytes,
    resource: str,
    ends: datetime,
    fields: Mapping[str, str] | None = None,
    *,
    allowed: Literal["d", "r"] = "d",
) -> str:
    """The query that allows something with a blob until a moment.

    Args:
        key: of the account, or of an identity.
        resource: ``/blob/ACCOUNT/CONTAINER/NAME``, not encoded.
        ends: UTC; to the second.
        fields: of the key of an identity; None for the key of the account.
        allowed: to delete the blob, or to read it.
    """
    # A stored policy; or the fields of the key, another identity and a correlation id: all empty.
    key_fields = [""] if fields is None else [*fields.values(), *[""] * 3]
    # Addresses and protocol before the version, snapshot, scope and headers after it: all allowed.
    lines = [allowed, "", _written(ends), resource, *key_fields, "", "", VERSION, "b", *[""] * 7]
    digest = hmac.new(key, "\n".join(lines).encode(), hashlib.sha256).digest()
    query = {
        "sp": allowed, "se": _written(ends), "sv": VERSION, "sr": "b", **(fields or {}),
        "sig": base64.b64encode(digest).decode(),
    }  # fmt: skip
    return urlencode(query, quote_via=quote)


def _written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
