"""Checks presigned URLs of AWS Signature Version 2, which ``aws s3 presign`` may still make.

Source: AWS's "Signing and authenticating REST requests", its section on query strings.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from typing import Final

from lakegc_assets.embedded.gateway.errors import (
    access_denied,
    signature_does_not_match,
    unknown_access_key,
)
from lakegc_assets.embedded.gateway.signature import UNSIGNED, Incoming, Signed

#: Headers that the query may contain, besides Amazon's own.
HEADERS: Final = frozenset({"content-md5", "content-type"})
#: Parameters of the query that only belong to the signature.
PARAMETERS: Final = frozenset({"AWSAccessKeyId", "Expires", "Signature"}) | HEADERS
_RESOURCES: Final = frozenset({
    b"acl", b"delete", b"lifecycle", b"location", b"logging", b"notification", b"partNumber",
    b"policy", b"requestPayment", b"response-cache-control", b"response-content-disposition",
    b"response-content-encoding", b"response-content-language", b"response-content-type",
    b"response-expires", b"tagging", b"torrent", b"uploadId", b"uploads", b"versionId",
    b"versioning", b"versions", b"website",
})  # fmt: skip


def is_presigned(incoming: Incoming) -> bool:
    """Return whether a request has a signature of this kind."""
    return any(name == b"AWSAccessKeyId" for name, _ in incoming.parameters())


def verify(incoming: Incoming, access_key: str, secret_key: str, now: float) -> Signed:
    """Check the signature of a presigned URL, and its expiry. ``now`` is in epoch seconds.

    Raises:
        S3Error: this user did not sign it, it has expired, or it was changed since.
    """
    parameters = incoming.parameters()
    query = dict(parameters)
    if len(query) < len(parameters):
        # With two values, one could be signed and the other one used.
        raise signature_does_not_match()
    expires = query.get(b"Expires", b"")
    signature = query.get(b"Signature")
    if signature is None or not re.fullmatch(rb"[0-9]{1,18}", expires):
        raise access_denied(
            "Query-string authentication requires the Signature, Expires and AWSAccessKeyId "
            "parameters"
        )
    if not hmac.compare_digest(query[b"AWSAccessKeyId"], access_key.encode()):
        raise unknown_access_key()
    if now > int(expires):
        raise access_denied("Request has expired")
    text = string_to_sign(incoming, query)
    digest = hmac.new(secret_key.encode(), text, hashlib.sha1).digest()
    if not hmac.compare_digest(base64.b64encode(digest), signature):
        raise signature_does_not_match()
    return Signed(UNSIGNED, digest.hex(), key=b"", time="", scope="", presigned=True)


def string_to_sign(incoming: Incoming, query: Mapping[bytes, bytes]) -> bytes:
    """The string that the secret key signs; headers in the query count like others."""
    headers: dict[bytes, Sequence[bytes]] = {}
    for name, value in (*query.items(), *incoming.headers):
        headers[name.lower()] = [*headers.get(name.lower(), ()), value.strip()]
    amazons = sorted(name for name in headers if name.startswith(b"x-amz-"))
    asked = sorted(
        name + (b"=" + value if value else b"")
        for name, value in query.items()
        if name in _RESOURCES
    )
    return b"\n".join(
        (
            incoming.method.encode(),
            *(b",".join(headers.get(name, ())) for name in (b"content-md5", b"content-type")),
            query[b"Expires"],
            *(name + b":" + b",".join(headers[name]) for name in amazons),
            incoming.path + (b"?" + b"&".join(asked) if asked else b""),
        )
    )
