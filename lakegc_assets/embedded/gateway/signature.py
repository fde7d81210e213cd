"""Checks AWS's signatures: version 4, and presigned URLs of version 2.

Source: AWS's documentation of version 4 for S3. There a path is percent-encoded once, and each
request declares its payload.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from calendar import timegm
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from time import strftime, strptime
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from lakegc_assets.embedded.gateway.errors import (
    S3Error,
    access_denied,
    signature_does_not_match,
    unknown_access_key,
)

UNSIGNED = "UNSIGNED-PAYLOAD"
_ALGORITHM = "AWS4-HMAC-SHA256"
_TIME = "%Y%m%dT%H%M%SZ"
_MAX_SKEW_SECONDS = 15 * 60
_MAX_EXPIRES_SECONDS = 7 * 24 * 3600
_SCOPE = re.compile(r"(\d{8})/[^/]+/s3/aws4_request")
_HEADER = re.compile(
    r"AWS4-HMAC-SHA256\s+Credential=([^\s,]+?)/([^\s,/]+/[^\s,/]+/[^\s,/]+/[^\s,/]+)"
    r"\s*,\s*SignedHeaders=([^\s,]+)\s*,\s*Signature=([^\s,]+)"
)
_PRESIGNED = (
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
    "X-Amz-Signature",
)
#: Headers that the query may contain, besides Amazon's own, with a signature of version 2.
V2_HEADERS: Final = frozenset({"content-md5", "content-type"})
#: Parameters of the query that only belong to a signature of version 2.
V2_PARAMETERS: Final = frozenset({"AWSAccessKeyId", "Expires", "Signature"}) | V2_HEADERS
_V2_RESOURCES: Final = frozenset({
    b"acl", b"delete", b"lifecycle", b"location", b"logging", b"notification", b"partNumber",
    b"policy", b"requestPayment", b"response-cache-control", b"response-content-disposition",
    b"response-content-encoding", b"response-content-language", b"response-content-type",
    b"response-expires", b"tagging", b"torrent", b"uploadId", b"uploads", b"versionId",
    b"versioning", b"versions", b"website",
})  # fmt: skip


class Incoming(NamedTuple):
    """The signed parts of a request.

    Attributes:
        method: in upper case.
        path: unchanged, percent-encoded.
        query: unchanged, percent-encoded, without the question mark.
        headers: names in lower case.
    """

    method: str
    path: bytes
    query: bytes
    headers: Sequence[tuple[bytes, bytes]]

    def header(self, name: str) -> str | None:
        """The values of a header, joined as they are signed; None if it is missing."""
        wanted = name.encode()
        values = [_trimmed(value) for key, value in self.headers if key == wanted]
        return b",".join(values).decode("latin-1") if values else None

    def parameters(self) -> list[tuple[bytes, bytes]]:
        """The query's names and values, with ``+`` unchanged: signers send spaces as ``%20``."""
        pairs = (item.partition(b"=") for item in self.query.split(b"&") if item)
        return [(unquote_to_bytes(name), unquote_to_bytes(value)) for name, _, value in pairs]


class Signed(NamedTuple):
    """A valid signature, with the data for the chunks of a payload.

    Attributes:
        payload: the SHA-256 that the payload must have, ``UNSIGNED-PAYLOAD``, or ``STREAMING-...``.
        signature: hexadecimal.
        key: for signing chunks.
        time: of the request, in its signed form.
        scope: date, region, service.
        presigned: true if the query had the signature.
    """

    payload: str
    signature: str
    key: bytes
    time: str
    scope: str
    presigned: bool = False

    def of(self, kind: str, previous: str, *digests: str) -> str:
        """The signature of a chunk or of the trailers: ``kind`` is PAYLOAD or TRAILER."""
        text = "\n".join((f"{_ALGORITHM}-{kind}", self.time, self.scope, previous, *digests))
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()


class _Claim(NamedTuple):
    access_key: str
    scope: str
    headers: str
    signature: str
    time: str
    payload: str
    expires: int | None


def verify(incoming: Incoming, access_key: str, secret_key: str, now: float) -> Signed:
    """Check the signer and the time of a request. ``now`` is in epoch seconds.

    Raises:
        S3Error: it is not signed, this user did not sign it, its time is wrong, or it was changed.
    """
    if any(name == b"AWSAccessKeyId" for name, _ in incoming.parameters()):
        return _verify_v2(incoming, access_key, secret_key, now)
    query = {
        name.decode("latin-1"): value.decode("latin-1") for name, value in incoming.parameters()
    }
    presigned = "X-Amz-Algorithm" in query
    claim = _in_query(incoming, query) if presigned else _in_header(incoming)
    if not hmac.compare_digest(claim.access_key.encode("latin-1"), access_key.encode()):
        raise unknown_access_key()
    _check_time(claim, now)
    names = claim.headers.split(";")
    _check_headers(incoming, names)
    key = _signing_key(secret_key, claim.scope)
    text = _string_to_sign(
        claim.time, claim.scope, _canonical_request(incoming, names, claim.payload)
    )
    expected = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    if not hmac.compare_digest(expected.encode(), claim.signature.encode("latin-1")):
        raise signature_does_not_match()
    return Signed(claim.payload, expected, key, claim.time, claim.scope, presigned)


def _canonical_request(incoming: Incoming, names: Sequence[str], payload: str) -> str:
    """The canonical request, the input of the hash; ``names`` are the signed headers."""
    parameters = sorted(
        (quote(name, safe=""), quote(value, safe=""))
        for name, value in incoming.parameters()
        if name != b"X-Amz-Signature"
    )
    return "\n".join(
        (
            incoming.method,
            quote(unquote_to_bytes(incoming.path), safe="/"),
            "&".join(f"{name}={value}" for name, value in parameters),
            *(f"{name}:{incoming.header(name) or ''}" for name in names),
            "",
            ";".join(names),
            payload,
        )
    )


def _string_to_sign(time: str, scope: str, canonical: str) -> str:
    """The string that the signing key signs."""
    digest = hashlib.sha256(canonical.encode("latin-1")).hexdigest()
    return f"{_ALGORITHM}\n{time}\n{scope}\n{digest}"


def _signing_key(secret_key: str, scope: str) -> bytes:
    """The key for one date, region and service."""
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode("latin-1"), hashlib.sha256).digest()
    return key


def _in_header(incoming: Incoming) -> _Claim:
    header = incoming.header("authorization")
    if (header or "").startswith("AWS "):
        raise S3Error(
            400,
            "InvalidRequest",
            "The authorization mechanism you have provided is not supported. Please use "
            f"{_ALGORITHM}.",
        )
    if header is None:
        raise access_denied()
    found = _HEADER.fullmatch(header)
    payload = incoming.header("x-amz-content-sha256")
    if not found or not _SCOPE.fullmatch(found[2]):
        raise _malformed("the Authorization header", "AuthorizationHeaderMalformed")
    if payload is None:
        raise S3Error(
            400,
            "InvalidRequest",
            "Missing required header for this request: x-amz-content-sha256",
        )
    access_key, scope, headers, signature = found.groups()
    return _Claim(access_key, scope, headers, signature, _time(incoming), payload, None)


def _in_query(incoming: Incoming, query: dict[str, str]) -> _Claim:
    access_key, _, scope = query.get("X-Amz-Credential", "").partition("/")
    expires = query.get("X-Amz-Expires", "")
    right = (
        all(name in query for name in _PRESIGNED)
        and query["X-Amz-Algorithm"] == _ALGORITHM
        and _SCOPE.fullmatch(scope)
        and re.fullmatch(r"\d{1,6}", expires)
        and int(expires) <= _MAX_EXPIRES_SECONDS
    )
    if not right:
        raise _malformed("the signature in the query", "AuthorizationQueryParametersError")
    headers = query["X-Amz-SignedHeaders"]
    payload = query.get("X-Amz-Content-Sha256", UNSIGNED)
    if "x-amz-content-sha256" in headers.split(";"):
        payload = incoming.header("x-amz-content-sha256") or payload
    return _Claim(
        access_key,
        scope,
        headers,
        query["X-Amz-Signature"],
        query["X-Amz-Date"],
        payload,
        int(expires),
    )


def _time(incoming: Incoming) -> str:
    """The time of a request, in its signed form."""
    time = incoming.header("x-amz-date")
    if time is not None:
        return time
    try:
        made = parsedate_to_datetime(incoming.header("date") or "")
        return strftime(_TIME, made.utctimetuple())
    except (IndexError, OverflowError, TypeError, ValueError):
        raise access_denied(
            "AWS authentication requires a valid Date or x-amz-date header"
        ) from None


def _check_time(claim: _Claim, now: float) -> None:
    try:
        made = timegm(strptime(claim.time, _TIME))
    except ValueError:
        raise access_denied(
            "AWS authentication requires a valid Date or x-amz-date header"
        ) from None
    if claim.time[:8] != claim.scope[:8]:
        raise _malformed("the date of the credential", "AuthorizationHeaderMalformed")
    if claim.expires is None:
        if abs(now - made) > _MAX_SKEW_SECONDS:
            raise S3Error(
                403,
                "RequestTimeTooSkewed",
                "The difference between the request time and the server's time is too large.",
            )
    elif made - now > _MAX_SKEW_SECONDS:
        raise access_denied("Request is not valid yet")
    elif now > made + claim.expires:
        raise access_denied("Request has expired")


def _check_headers(incoming: Incoming, names: Sequence[str]) -> None:
    """Refuse headers that may have been added to a request after it was signed.

    The payload's hash is signed even if the signed headers do not name its header.
    """
    needed = {"host"} | {
        name.decode("latin-1") for name, _ in incoming.headers if name.startswith(b"x-amz-")
    }
    if not needed - {"x-amz-content-sha256"} <= set(names):
        raise access_denied("There were headers present in the request which were not signed")


def _malformed(what: str, code: str) -> S3Error:
    return S3Error(
        400, code, f"{what} is malformed; expecting <access key>/YYYYMMDD/<region>/s3/aws4_request"
    )


def _trimmed(value: bytes) -> bytes:
    return re.sub(rb" +", b" ", value.strip(b" \t"))


def _verify_v2(incoming: Incoming, access_key: str, secret_key: str, now: float) -> Signed:
    """The same for a presigned URL of version 2, which ``aws s3 presign`` may still make.

    Source: AWS's "Signing and authenticating REST requests", its section on query strings.
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
    text = _string_to_sign_v2(incoming, query)
    digest = hmac.new(secret_key.encode(), text, hashlib.sha1).digest()
    if not hmac.compare_digest(base64.b64encode(digest), signature):
        raise signature_does_not_match()
    return Signed(UNSIGNED, digest.hex(), key=b"", time="", scope="", presigned=True)


def _string_to_sign_v2(incoming: Incoming, query: Mapping[bytes, bytes]) -> bytes:
    """The string that the secret key signs; headers in the query count like others."""
    headers: dict[bytes, Sequence[bytes]] = {}
    for name, value in (*query.items(), *incoming.headers):
        headers[name.lower()] = [*headers.get(name.lower(), ()), value.strip()]
    amazons = sorted(name for name in headers if name.startswith(b"x-amz-"))
    asked = sorted(
        name + (b"=" + value if value else b"")
        for name, value in query.items()
        if name in _V2_RESOURCES
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
