"""REST: the server's configuration, its user's logins, and all else that clients call first."""

from __future__ import annotations

import base64
import hashlib
import json
from hmac import compare_digest, digest

from starlette.responses import Response

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.api.calls import Call, Endpoint, answer, done, one_page
from lakegc_assets.embedded.lake import Lake, catalog

VERSION = "1.84.0"
_LOGIN_SECONDS = 7 * 24 * 3600
_USER = {"creation_date": 0, "email": "", "friendly_name": "", "id": catalog.COMMITTER}


def version(_: Call) -> Response:
    """The version of lakeFS that has this API."""
    return answer(_version())


def storage(call: Call) -> Response:
    """The configuration of the block store."""
    return answer(_storage(call))


def config(call: Call) -> Response:
    """The whole configuration that the server returns."""
    return answer(
        {
            "capabilities_config": {},
            "storage_config": _storage(call),
            "storage_config_list": [],
            "ui_config": {},
            "version_config": _version(),
        }
    )


def garbage_collection(call: Call) -> Response:
    """The time for which an issued address can be linked."""
    return answer({"grace_period": call.lake.settings.grace_period})


def healthcheck(_: Call) -> Response:
    """Answer that the server runs."""
    return done()


def setup_state(_: Call) -> Response:
    """Answer that the server has its user from the start."""
    login = {
        "login_url": "",
        "login_failed_message": "The credentials don't match.",
        "login_cookie_names": [],
        "logout_url": "",
        "RBAC": "none",
    }
    return answer({"comm_prefs_missing": False, "login_config": login, "state": "initialized"})


def setup(_: Call) -> Response:
    """Refuse to set up a second user."""
    raise errors.conflict("lakeFS already initialized")


def statistics(call: Call) -> Response:
    """Accept statistics of clients, and discard them."""
    call.json("StatsEventsList").bodies("events", "StatsEvent")
    return done()


def log_in(call: Call) -> Response:
    """A token for the user's keys: a JSON web token signed with the secret, and not stored."""
    body = call.json("LoginInformation")
    access_key = body.text("access_key_id")
    if not are_keys(call.lake, f"{access_key}:{body.text('secret_access_key')}".encode()):
        raise errors.ApiError(401, "credentials are not valid")
    now = int(call.lake.now())
    expires = now + _LOGIN_SECONDS
    claims = {"aud": "login", "exp": expires, "iat": now, "sub": access_key}
    signed = f"{_encode({'alg': 'HS256', 'typ': 'JWT'})}.{_encode(claims)}"
    token = f"{signed}.{_signature(call.lake, signed)}"
    return answer({"token": token, "token_expiration": expires})


def user(_: Call) -> Response:
    """The one user."""
    return answer({"user": _USER})


def users(call: Call) -> Response:
    """A page of the users: there is one."""
    page = call.paging()
    name = catalog.COMMITTER
    found = [_USER] if name.startswith(page.prefix) and name > page.after else []
    return one_page(found, page.amount, key="id")


def _version() -> dict[str, object]:
    # lakectl warns about servers of another edition.
    return {"version": VERSION, "version_context": "lakeFS"}


def _storage(call: Call) -> dict[str, object]:
    settings = call.lake.settings
    regex = call.lake.stores.namespace_regex
    return {
        "blockstore_description": "",
        "blockstore_id": "",
        "blockstore_namespace_ValidityRegex": regex,
        "blockstore_namespace_example": f"{settings.blockstore_type}://example-bucket/",
        "blockstore_type": settings.blockstore_type,
        "default_namespace_prefix": settings.store or "local://",
        "import_support": True,
        "import_validity_regex": regex,
        "pre_sign_multipart_upload": False,
        "pre_sign_support": call.lake.stores.can_presign,
        "pre_sign_support_ui": False,
    }


def are_keys(lake: Lake, given: bytes) -> bool:
    """Return whether these are the keys of the one user, joined by a colon."""
    expected = f"{lake.settings.access_key}:{lake.settings.secret_key}".encode()
    return compare_digest(given, expected)


def is_valid_token(lake: Lake, token: str) -> bool:
    """Return whether this server's keys signed a token, and it has not expired."""
    signed, _, signature = token.rpartition(".")
    if not compare_digest(signature.encode(), _signature(lake, signed).encode()):
        return False
    part = signed.rpartition(".")[2]
    claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return bool(claims["sub"] == lake.settings.access_key and lake.now() < claims["exp"])


def _signature(lake: Lake, signed: str) -> str:
    key = lake.settings.secret_key.encode()
    return _base64(digest(key, signed.encode(), hashlib.sha256))


def _encode(content: object) -> str:
    return _base64(json.dumps(content, separators=(",", ":")).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


ENDPOINTS = (
    Endpoint("GET", "/config", config, newer=True),
    Endpoint("GET", "/config/version", version),
    Endpoint("GET", "/config/storage", storage),
    Endpoint("GET", "/config/garbage-collection", garbage_collection),
    Endpoint("GET", "/healthcheck", healthcheck, open_to_all=True),
    Endpoint("GET", "/setup_lakefs", setup_state, open_to_all=True),
    Endpoint("POST", "/setup_lakefs", setup, open_to_all=True),
    Endpoint("POST", "/statistics", statistics),
    Endpoint("POST", "/auth/login", log_in, open_to_all=True),
    Endpoint("GET", "/user", user),
    Endpoint("GET", "/auth/users", users),
)
