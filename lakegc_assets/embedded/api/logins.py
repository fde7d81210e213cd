"""Tokens for users who log in with their keys: signed with the secret, and not stored."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any, NamedTuple

from lakegc_assets.embedded.errors import ApiError
from lakegc_assets.embedded.lake import Lake

_HEADER = {"alg": "HS256", "typ": "JWT"}
_SECONDS = 7 * 24 * 3600


class Login(NamedTuple):
    """A JSON web token, and when it expires in epoch seconds."""

    token: str
    expires: int


def log_in(lake: Lake, access_key: str, secret_key: str) -> Login:
    """A token for the one user; 401 for other keys."""
    given = f"{access_key}:{secret_key}".encode()
    expected = f"{lake.settings.access_key}:{lake.settings.secret_key}".encode()
    if not hmac.compare_digest(given, expected):
        raise ApiError(401, "credentials are not valid")
    now = int(lake.now())
    claims = {"aud": "login", "exp": now + _SECONDS, "iat": now, "sub": access_key}
    signed = f"{_encode(_HEADER)}.{_encode(claims)}"
    return Login(f"{signed}.{_signature(lake, signed)}", now + _SECONDS)


def is_valid(lake: Lake, token: str) -> bool:
    """Return whether this server's keys signed a token, and it has not expired."""
    signed, _, signature = token.rpartition(".")
    if not hmac.compare_digest(signature.encode(), _signature(lake, signed).encode()):
        return False
    claims = _decode(signed.rpartition(".")[2])
    return bool(claims["sub"] == lake.settings.access_key and lake.now() < claims["exp"])


def _signature(lake: Lake, signed: str) -> str:
    key = lake.settings.secret_key.encode()
    return _base64(hmac.digest(key, signed.encode(), hashlib.sha256))


def _encode(content: object) -> str:
    return _base64(json.dumps(content, separators=(",", ":")).encode())


def _decode(part: str) -> Any:  # noqa: ANN401 - JSON
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
