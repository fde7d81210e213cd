"""S3 credentials: boto3's own chain, or a file that only its owner can read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Final

import botocore.session
from botocore.credentials import CredentialProvider, Credentials, RefreshableCredentials
from botocore.exceptions import ProfileNotFound

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.files import read_private_file, write_private_file

# botocore asks for new credentials once these have less than 15 minutes left, so a file that was
# renewed is noticed after 5 minutes.
_LIFETIME: Final = timedelta(minutes=20)


def write_credentials_file(
    path: str | os.PathLike[str], access_key: str, secret_key: str, session_token: str | None = None
) -> None:
    """Write a file for ``StoreConfig.credentials_file``, readable by its owner only, atomically.

    It is JSON with the fields ``access_key``, ``secret_key`` and ``session_token``. Writing it
    again renews the credentials of the stores that use it.
    """
    content = {"access_key": access_key, "secret_key": secret_key, "session_token": session_token}
    write_private_file(path, json.dumps(content))


def read_credentials_file(path: str | os.PathLike[str]) -> Mapping[str, str | None]:
    """The fields of a file that ``write_credentials_file`` wrote.

    Raises:
        ConfigurationError: it is missing, damaged, or others can read it.
    """
    try:
        content = json.loads(read_private_file(path))
        if not (content["access_key"] and content["secret_key"]):
            raise ConfigurationError(
                f"the credentials file {path} has an empty key: write it again"
            )
        return {name: content.get(name) for name in ("access_key", "secret_key", "session_token")}
    except (ValueError, KeyError, TypeError, AttributeError):
        # The error is not chained: it could quote what the file holds.
        raise ConfigurationError(
            f"the credentials file {path} is damaged: write it again with write_credentials_file"
        ) from None


def open_session(profile: str | None, credentials_file: str | None) -> botocore.session.Session:
    """A session with credentials that renew themselves.

    Raises:
        ConfigurationError: there is no such profile, or the file cannot be used.
    """
    session = botocore.session.Session(profile=profile)
    try:
        session.get_scoped_config()
    except ProfileNotFound as error:
        raise ConfigurationError(f"{error}: see ~/.aws/config and AWS_PROFILE") from error
    if credentials_file is not None:
        read_credentials_file(credentials_file)
        chain = session.get_component("credential_provider")
        chain.providers.insert(0, _FileProvider(credentials_file))
    return session


class _FileProvider(CredentialProvider):
    """The place of a credentials file in botocore's chain: before all else."""

    METHOD = "lakegc-credentials-file"

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def load(self) -> Credentials:
        return RefreshableCredentials.create_from_metadata(
            metadata=self._fetch(), refresh_using=self._fetch, method=self.METHOD
        )

    def _fetch(self) -> dict[str, str | None]:
        content = read_credentials_file(self._path)
        return {
            "access_key": content["access_key"],
            "secret_key": content["secret_key"],
            "token": content["session_token"],
            "expiry_time": (datetime.now(timezone.utc) + _LIFETIME).isoformat(),
        }
