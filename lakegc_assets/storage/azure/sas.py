"""Shared access signatures for one blob, which end soon.

They are signed by the key of an account, or by a key that the service gives to an identity of
Microsoft Entra ID (which needs the action ``generateUserDelegationKey`` for that).

``generate_blob_sas`` of azure-storage-blob signs for the newest version of the service that it
knows. Services that are older, such as private clouds and emulators, refuse a signature by the key
of an identity then, and no delete would have a deadline there.

Format: https://learn.microsoft.com/rest/api/storageservices/create-service-sas and
https://learn.microsoft.com/rest/api/storageservices/create-user-delegation-sas
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple
from urllib.parse import quote, urlencode
from xml.etree import ElementTree as ET

from lakegc_assets.storage.http import HttpFailure

VERSION: Final = "2021-12-02"
_LIFETIME: Final = timedelta(hours=1)
#: What the clocks of this machine and of the service may differ by.
_SKEW: Final = timedelta(minutes=5)
_NAMES: Final = {
    "skoid": "SignedOid", "sktid": "SignedTid", "skt": "SignedStart", "ske": "SignedExpiry",
    "sks": "SignedService", "skv": "SignedVersion",
}  # fmt: skip


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
