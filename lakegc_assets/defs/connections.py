"""The resources by which a run reaches lakeFS and the object stores, and their keys."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import dagster as dg
import yaml
from dagster_aws.s3 import S3Resource
from dagster_azure.blob import (
    AzureBlobStorageDefaultCredential,
    AzureBlobStorageKeyCredential,
    AzureBlobStorageResource,
    AzureBlobStorageSASTokenCredential,
)
from pydantic import BaseModel, Field

from lakegc_assets.engine.folders import temporary_files
from lakegc_assets.engine.spark_session import is_cluster
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.config import ENDPOINT_VARIABLE, LakeFSConfig
from lakegc_assets.run.bounds import Bounds
from lakegc_assets.storage.azure.auth import write_azure_credentials_file
from lakegc_assets.storage.config import AzureAccess, GcsAccess, StoreConfig
from lakegc_assets.storage.files import write_private_file
from lakegc_assets.storage.s3.client import write_credentials_file

#: Paths of files with keys, by the function that wrote the file and by the keys.
private_files: dict[tuple[Any, ...], str] = {}
_writing: Final = threading.Lock()


def _private_file(write: Callable[..., None], **keys: str | None) -> str:
    """The path of a file with these keys that only this user can read; one in each process.

    Each tick requests it, in a process that lives for weeks and removes the file at its end. A
    cleaner of temporary files may remove it earlier; then it is written again.
    """
    known = (write, *sorted(keys.items()))
    with _writing:
        path = private_files.get(known)
        if path is None or not Path(path).exists():
            with temporary_files():
                folder = tempfile.mkdtemp(prefix="lakegc-")
                atexit.register(_remove, folder, os.getpid())
                path = str(Path(folder, "keys"))
                write(path, **keys)
            private_files[known] = path
    return path


def _remove(folder: str, made_by: int) -> None:
    """Remove a folder at the end of the process that made it, but not at the end of its forks."""
    if os.getpid() == made_by:
        shutil.rmtree(folder, ignore_errors=True)


def _write_lakectl(path: str, endpoint_url: str | None, **keys: str) -> None:
    """Write a file in the form of ``~/.lakectl.yaml``."""
    values = {"credentials": keys, "server": {"endpoint_url": endpoint_url}}
    write_private_file(path, yaml.safe_dump(values))


def require_keys_on_nodes(master: str, *files: str | None) -> None:
    """Refuse keys that are set in a resource where tasks may run on another machine."""
    if is_cluster(master) and not {*private_files.values()}.isdisjoint(files):
        raise ConfigurationError(
            f"keys that are set in the resources stay on this machine, and tasks run on {master}: "
            "let its workers find their credentials (environment, files, roles), as "
            "docs/clusters.md says, and set no keys here"
        )


#: Variable of each container that Dagster starts for one run or step (Kubernetes, Docker, ECS).
_OF_ONE_RUN: Final = "DAGSTER_RUN_JOB_NAME"


def require_lasting(name: str, place: str | None) -> None:
    """Refuse to keep lasting data in a container that is removed after this run.

    ``place``: a URL or an absolute path. ``name``: the name of its setting.

    Raises:
        ConfigurationError: the place is a folder of the container itself, and not a mounted one.
    """
    if not place or _OF_ONE_RUN not in os.environ:
        return
    found = StorageNamespace.parse(place)
    if found.scheme != "file" or is_mounted(Path("/", found.prefix).resolve()):
        return
    raise ConfigurationError(
        f"{name} is {place}, a folder of the container of this run, which ends with it: no other "
        "run could sweep its mark, or restore what it has swept. Let it be a URL (s3://, abfss://, "
        "gs://), or a folder of a volume that is mounted in all containers of runs and code servers"
    )


def is_mounted(folder: Path) -> bool:
    """True if a folder is, or may be, in another file system than the container's root."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return True
    mounts = {re.sub(r"\\([0-7]{3})", lambda o: chr(int(o[1], 8)), x.split()[4]) for x in lines}
    return any(str(one) in mounts for one in (folder, *folder.parents) if one != Path("/"))


_TimeoutSeconds = Annotated[float, Bounds(0, above=True, unit="seconds")]


class Timeouts(BaseModel):
    """Timeouts of requests, for each single try."""

    connect_timeout_seconds: _TimeoutSeconds = Field(
        default=10.0, description="the longest time to connect to a server"
    )
    read_timeout_seconds: _TimeoutSeconds = Field(
        default=10.0, description="the longest time without a byte of an answer"
    )


class LakeFSResource(Timeouts, dg.ConfigurableResource):  # type: ignore[type-arg]
    """A lakeFS server. Fields that are not set come from the sources that ``lakectl`` uses."""

    endpoint: str | None = Field(
        default=None, description="URL of the server; else LAKECTL_SERVER_ENDPOINT_URL"
    )
    access_key_id: str | None = Field(
        default=None, description="else LAKECTL_CREDENTIALS_ACCESS_KEY_ID, or ~/.lakectl.yaml"
    )
    secret_access_key: str | None = Field(
        default=None,
        repr=False,
        description="give it as EnvVar; else LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY",
    )
    credentials_file: str | None = Field(
        default=None, description="a file in the form of ~/.lakectl.yaml"
    )
    max_attempts: Annotated[int, Bounds(1)] = Field(
        default=5, description="the most attempts of a call that may be repeated"
    )

    def config(self) -> LakeFSConfig:
        """The connection for tasks, without secrets: keys that are set go to a private file.

        Raises:
            ConfigurationError: one key is set without the other.
        """
        if bool(self.access_key_id) != bool(self.secret_access_key):
            raise ConfigurationError(
                "access_key_id and secret_access_key of the lakeFS resource go together: set both, "
                "or neither"
            )
        file = self.credentials_file
        if self.access_key_id and self.secret_access_key and not file:
            file = _private_file(
                _write_lakectl,
                endpoint_url=self.endpoint or os.environ.get(ENDPOINT_VARIABLE),
                access_key_id=self.access_key_id,
                secret_access_key=self.secret_access_key,
            )
        return LakeFSConfig(
            endpoint=self.endpoint,
            credentials_file=file,
            connect_timeout_s=self.connect_timeout_seconds,
            read_timeout_s=self.read_timeout_seconds,
            max_attempts=self.max_attempts,
        )


class ObjectStoreResource(Timeouts, dg.ConfigurableResource):  # type: ignore[type-arg]
    """The object stores of namespaces and artifacts.

    S3 and Azure are configured as everywhere in Dagster: see dagster-aws and dagster-azure.
    """

    s3: S3Resource
    azure: AzureBlobStorageResource | None = Field(
        default=None,
        description="credentials for Azure; an empty account_url means the account of the "
        "namespace",
    )
    gcs_credentials_file: str | None = Field(
        default=None,
        description="key file of a Google service account; else application default credentials",
    )
    gcs_endpoint: str | None = Field(
        default=None, description="replaces https://storage.googleapis.com"
    )
    addressing: Literal["auto", "path", "virtual"] = Field(
        default="auto", description="the place of the bucket's name in an S3 URL"
    )
    local_root: str | None = Field(
        default=None,
        description="the folder in which a lakeFS with local storage keeps local:// namespaces",
    )

    def config(self) -> StoreConfig:
        """The stores for tasks, without secrets: keys that are set go to a private file."""
        key, secret, file = self.s3.aws_access_key_id, self.s3.aws_secret_access_key, None
        if key and secret:
            token = self.s3.aws_session_token
            file = _private_file(
                write_credentials_file, access_key=key, secret_key=secret, session_token=token
            )
        return StoreConfig(
            endpoint_url=self.s3.endpoint_url,
            region=self.s3.region_name,
            addressing=self.addressing,
            profile=self.s3.profile_name,
            credentials_file=file,
            local_root=self.local_root,
            connect_timeout_s=self.connect_timeout_seconds,
            read_timeout_s=self.read_timeout_seconds,
            max_attempts=self.s3.max_attempts,
            azure=self._azure(),
            gcs=GcsAccess(self.gcs_endpoint, self.gcs_credentials_file),
        )

    def _azure(self) -> AzureAccess:
        """The access to Azure: a key or a SAS token goes to a private file, too."""
        if self.azure is None:
            return AzureAccess()
        credential = self.azure.credential
        identity: tuple[tuple[str, Any], ...] = ()
        secret: dict[str, str] = {}
        if isinstance(credential, AzureBlobStorageDefaultCredential):
            identity = tuple(
                (name, tuple(value) if isinstance(value, list) else value)
                for name, value in sorted(credential.kwargs.items())
            )
        elif isinstance(credential, AzureBlobStorageKeyCredential):
            secret = {"account_key": credential.key or ""}
        elif isinstance(credential, AzureBlobStorageSASTokenCredential):
            secret = {"sas_token": credential.token or ""}
        else:
            raise ConfigurationError(
                "the anonymous credential of `azure` cannot delete objects: configure a key, a SAS "
                "token, or the default credential"
            )
        file = _private_file(write_azure_credentials_file, **secret) if secret else None
        return AzureAccess(self.azure.account_url or None, file, identity)
