"""The settings of a lakeFS connection: they hold no secret, so they can be sent to Spark tasks.

Endpoint and key pair come from the same places as for lakectl: its variables, and the YAML file
``~/.lakectl.yaml`` (or the file that ``LAKECTL_CONFIG_FILE`` names) with ``server.endpoint_url``,
``credentials.access_key_id`` and ``credentials.secret_access_key``
(https://docs.lakefs.io/latest/reference/cli).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.transport import Access, Limits
from lakegc_assets.lakefs.writes import LakeFSWriter

API_PATH = "/api/v1"
ENDPOINT_VARIABLE = "LAKECTL_SERVER_ENDPOINT_URL"
KEY_VARIABLE = "LAKECTL_CREDENTIALS_ACCESS_KEY_ID"
# The name of a variable, not a secret.
SECRET_VARIABLE = "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY"  # noqa: S105
FILE_VARIABLE = "LAKECTL_CONFIG_FILE"


@dataclass(frozen=True)
class _Source:
    name: str
    endpoint: str | None
    access_key_id: str | None
    secret_access_key: str | None = field(repr=False)

    def has_key(self) -> bool:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            missing = "access_key_id" if self.access_key_id is None else "secret_access_key"
            raise ConfigurationError(
                f"{self.name} has one half of a lakeFS key pair: {missing} is missing there"
            )
        return self.access_key_id is not None


@dataclass(frozen=True)
class LakeFSConfig(Limits):
    """Connection settings of a server; the secret is read when the connection is made.

    Attributes:
        endpoint: URL of the server, with or without ``/api/v1``; None to look it up.
        credentials_file: a YAML file in lakectl's form; None to look in the environment
            (``LAKECTL_*``) and in ``~/.lakectl.yaml``.
    """

    endpoint: str | None = None
    credentials_file: str | None = None

    def settled(self) -> LakeFSConfig:
        """Add the endpoint that this process finds, so that tasks elsewhere ask the same server."""
        return replace(self, endpoint=self.access().endpoint)

    def without_waiting(self) -> LakeFSConfig:
        """The same settings, without waits for a server that is away."""
        return replace(self, wait_s=0.0)

    def access(self) -> Access:
        """Endpoint and key pair as found now, each in the first place that has it.

        The places are the settings, the variables, and lakectl's own file. Both halves of a key
        pair come from one place, and a named file must hold a key pair. Raises ConfigurationError,
        which says what to set: a value is missing or malformed.
        """
        sources = []
        if self.credentials_file is not None:
            named = _read_file(Path(self.credentials_file).expanduser())
            if not named.has_key():
                raise ConfigurationError(
                    f"{named.name} holds no credentials: access_key_id and secret_access_key"
                )
            sources.append(named)
        names = (ENDPOINT_VARIABLE, KEY_VARIABLE, SECRET_VARIABLE)
        sources.append(
            _Source("the environment", *(os.environ.get(name) or None for name in names))
        )
        default = _own_file()
        if FILE_VARIABLE in os.environ or default.is_file():
            sources.append(_read_file(default))
        found = self.endpoint or next((s.endpoint for s in sources if s.endpoint), None)
        if found is None:
            raise ConfigurationError(
                f"no lakeFS endpoint: set {ENDPOINT_VARIABLE}, or server.endpoint_url in "
                "~/.lakectl.yaml, or endpoint in the lakeFS resource's config"
            )
        pair = next((s for s in sources if s.has_key()), None)
        if pair is None or pair.access_key_id is None or pair.secret_access_key is None:
            raise ConfigurationError(
                f"no lakeFS credentials: set {KEY_VARIABLE} and {SECRET_VARIABLE}, or write "
                "credentials.access_key_id and .secret_access_key to ~/.lakectl.yaml, or name such "
                "a file in credentials_file"
            )
        return Access(normal_endpoint(found), pair.access_key_id, pair.secret_access_key)

    def connect(self) -> LakeFSClient:
        """A client for the calls of a collector. Raises ConfigurationError."""
        return LakeFSClient(self.access(), self)

    def connect_writer(self) -> LakeFSWriter:
        """Connect as ``connect``, with a client that can also change repositories."""
        return LakeFSWriter(self.access(), self)


def is_configured() -> bool:
    """Return whether any value that ``access`` looks for is present, complete or not."""
    names = (ENDPOINT_VARIABLE, KEY_VARIABLE, SECRET_VARIABLE, FILE_VARIABLE)
    return any(os.environ.get(name) for name in names) or _own_file().is_file()


def _own_file() -> Path:
    return Path(os.environ.get(FILE_VARIABLE) or "~/.lakectl.yaml").expanduser()


def normal_endpoint(url: str) -> str:
    """The base URL of the API, for any form of the server's URL. Raises ConfigurationError."""
    if "@" in url:
        raise ConfigurationError(
            "the lakeFS endpoint must not carry a user or password: remove what is before the '@'"
        )
    try:
        parts = urlsplit(url.strip())
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment:
        raise ConfigurationError(
            f"the lakeFS endpoint {url!r} is not a URL like https://lakefs.example.com"
        )
    path = parts.path.rstrip("/").removesuffix(API_PATH).rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}{API_PATH}"


def _read_file(path: Path) -> _Source:
    try:
        content = _parsed(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigurationError(f"{path}: cannot be read ({why})") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        # YAML's own message quotes the file, and with it the secret.
        raise ConfigurationError(f"{path}{line}: not valid YAML") from None
    names = (
        ("server", "endpoint_url"),
        ("credentials", "access_key_id"),
        ("credentials", "secret_access_key"),
    )
    content = {} if content is None else content
    return _Source(str(path), *(_text(path, content, *name) for name in names))


@lru_cache(maxsize=4)
def _parsed(text: str) -> object:
    """Parse a YAML file. No caller changes the result: each task reads the same one."""
    parsed: object = yaml.safe_load(text)
    return parsed


def _text(path: Path, content: object, section: str, name: str) -> str | None:
    part = content.get(section) if isinstance(content, dict) else content
    value = part.get(name) if isinstance(part, dict) else part
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise ConfigurationError(f"{path}: {section}.{name} must be a quoted text")
    if not isinstance(part, dict) or not isinstance(content, dict):
        raise ConfigurationError(f"{path}: {section} must be a section with {name} in it")
    return value
