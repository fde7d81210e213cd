"""Stores to test: every kind behind one fixture, and a server that answers what it is told."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import boto3
import pytest
import requests
from azure.storage.blob import BlobServiceClient, ContainerSasPermissions, generate_container_sas
from botocore.retries.standard import ExponentialBackoff
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from lakegc_assets.storage import http
from lakegc_assets.storage.azure.auth import write_azure_credentials_file
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import AzureAccess, GcsAccess, StoreConfig
from lakegc_assets.storage.gcs.store import GcsStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.values import DeleteOutcome
from lakegc_assets_tests import http_server
from lakegc_assets_tests.http_server import Asked, serving
from lakegc_assets_tests.storage.servers import AZURE_ACCOUNT, AZURE_KEY, Server

Plant = Callable[[Iterable[str]], None]

AZURE_URL = "https://acc.blob.core.windows.net/box/ns"
_STORES = pytest.mark.stores
#: Keys in a page of a listing of a real server.
_PAGE = 100


@dataclass(frozen=True)
class Kind:
    """What a store cannot do.

    Attributes:
        files: an object cannot hold others, as a directory does.
        refused: characters that keys cannot have.
        unlisted: characters that the server's listings cannot carry, so that they are refused.
        many: keys that make some pages and some calls that delete.
        dots: a prefix may have ``..`` in it.
    """

    many: int = 300
    files: bool = False
    refused: str = ""
    unlisted: str = ""
    dots: bool = True

    def takes(self, key: str) -> bool:
        return not set(key) & set(self.refused + self.unlisted)


_AZURE = Kind(refused="\\\x01\r")
# It does not know ``encoding-type=url``.
_VERSITYGW = Kind(files=True, unlisted="\t\n\r\x01")
_KINDS = {
    "local": Kind(2500, files=True),
    "s3": Kind(2500),
    "versitygw": _VERSITYGW,
    "versitygw whole bucket": _VERSITYGW,
    "minio": Kind(files=True, dots=False),
    "azurite": _AZURE,
    "azurite whole container": _AZURE,
    "azurite sas": _AZURE,
    "fake gcs": Kind(),
    "fake gcs whole bucket": Kind(),
}
_REAL_S3 = ("versitygw", "minio")
_NEED_SERVERS = (*_REAL_S3, "azurite", "fake gcs")


KINDS = [
    pytest.param(name, marks=_STORES if name.startswith(_NEED_SERVERS) else ()) for name in _KINDS
]


@pytest.fixture(params=KINDS)
def kind_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kind(kind_name: str) -> Kind:
    return _KINDS[kind_name]


@pytest.fixture
def store(kind_name: str, request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store of each kind."""
    return empty_store(kind_name, request, tmp_path)


def empty_store(kind_name: str, request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store of some kind."""
    if kind_name == "local":
        root = tmp_path / "root %41"
        root.mkdir(exist_ok=True)
        return open_store(str(root))
    whole = "whole" in kind_name
    if kind_name.startswith("azurite"):
        root_url: str
        config: StoreConfig
        root_url, config = request.getfixturevalue("azure_container")
        if "sas" in kind_name:
            config = request.getfixturevalue("azure_by_sas")
        return open_store(root_url if whole else f"{root_url}/n s/%2541é/", config)
    if kind_name.startswith("fake gcs"):
        bucket, config = request.getfixturevalue("gcs_bucket")
        return open_store(f"gs://{bucket}" if whole else f"gs://{bucket}/n s/%41é/", config)
    real = kind_name.startswith(_REAL_S3)
    if real:
        server: Server = request.getfixturevalue(f"{kind_name.split(maxsplit=1)[0]}_server")
        endpoint = server.endpoint
        bucket = f"bucket-{uuid.uuid4().hex}"
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=bucket)
    else:
        endpoint = request.getfixturevalue("s3_server")
        bucket = request.getfixturevalue("s3_bucket")
    page_size = _PAGE if real else 1000
    config = StoreConfig(endpoint_url=endpoint, page_size=page_size, read_timeout_s=60)
    return open_store(f"s3://{bucket}" if whole else f"s3a://{bucket}/n s/%41é/", config)


@pytest.fixture
def azure_container(azurite_server: Server, tmp_path: Path) -> tuple[str, StoreConfig]:
    """URL of a new container, and a configuration that reaches it by the account's key."""
    path = tmp_path / "azure.json"
    write_azure_credentials_file(path, account_key=AZURE_KEY)
    name = f"box-{uuid.uuid4().hex}"
    azure_client(azurite_server).create_container(name)
    access = AzureAccess(f"{azurite_server.endpoint}/{AZURE_ACCOUNT}", str(path))
    return f"https://{AZURE_ACCOUNT}.blob.core.windows.net/{name}", StoreConfig(
        azure=access, page_size=_PAGE, read_timeout_s=60
    )


@pytest.fixture
def azure_by_sas(azure_container: tuple[str, StoreConfig], tmp_path: Path) -> StoreConfig:
    """A configuration that reaches the same container by a SAS token."""
    url, config = azure_container
    token = generate_container_sas(
        AZURE_ACCOUNT,
        url.rsplit("/", 1)[-1],
        AZURE_KEY,
        permission=ContainerSasPermissions(
            read=True, write=True, delete=True, list=True, create=True
        ),
        expiry=datetime.now(timezone.utc) + timedelta(hours=1),
    )
    path = tmp_path / "sas.json"
    write_azure_credentials_file(path, sas_token=token)
    return replace(config, azure=replace(config.azure, credentials_file=str(path)))


def azure_client(server: Server) -> BlobServiceClient:
    """Microsoft's own client, for what is done behind a store's back."""
    return BlobServiceClient(
        f"{server.endpoint}/{AZURE_ACCOUNT}", AZURE_KEY, api_version="2025-11-05"
    )


@pytest.fixture
def gcs_bucket(fake_gcs_server: Server) -> tuple[str, StoreConfig]:
    """Name of a new bucket, and a configuration that reaches it."""
    name = f"bucket-{uuid.uuid4().hex}"
    url = f"{fake_gcs_server.endpoint}/storage/v1/b"
    requests.post(url, json={"name": name}, timeout=60).raise_for_status()
    access = GcsAccess(endpoint=fake_gcs_server.endpoint)
    return name, StoreConfig(gcs=access, page_size=_PAGE, read_timeout_s=60)


@pytest.fixture
def plant(store: ObjectStore, request: pytest.FixtureRequest, tmp_path: Path) -> Plant:
    """Put many or odd keys into the store behind its back."""
    scheme, _, rest = store.url.partition("://")

    def plant_files(keys: Iterable[str]) -> None:
        for key in keys:
            path = tmp_path / "root %41" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")

    def plant_objects(keys: Iterable[str]) -> None:
        bucket, _, prefix = rest.partition("/")
        backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        for key in keys:
            backend.put_object(bucket, f"{prefix}/{key}" if prefix else key, b"x")

    def plant_blobs(keys: Iterable[str]) -> None:
        _, container, *prefix = (unquote(part) for part in rest.split("/"))
        client = azure_client(request.getfixturevalue("azurite_server"))
        box = client.get_container_client(container)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: box.upload_blob("/".join([*prefix, key]), b"x"), keys))

    def plant_by_itself(keys: Iterable[str]) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put(key, b"x"), keys))

    if scheme == "https":
        return plant_blobs
    if scheme == "file":
        return plant_files
    moto = scheme == "s3" and not request.getfixturevalue("kind_name").startswith(_REAL_S3)
    return plant_objects if moto else plant_by_itself


@dataclass
class Answer:
    status: int = 200
    body: str = ""
    date: str = "Sat, 21 Nov 2026 07:00:00 GMT"
    cut: bool = False
    #: The connection answers nothing from then on, and did not say so.
    dead: bool = False
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def sent(self) -> http_server.Answer:
        body, headers = self.body.encode(), [("Date", self.date), *self.headers.items()]
        if self.cut:
            return http_server.Answer(self.status, body + bytes(10), headers, cut=len(body))
        return http_server.Answer(self.status, body, headers, last=self.dead)


@dataclass
class Script:
    """An HTTP server whose answers a test writes beforehand; the last one is repeated."""

    endpoint: str = ""
    answers: list[Answer] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def config(self, max_attempts: int = 1) -> StoreConfig:
        return StoreConfig(endpoint_url=self.endpoint, max_attempts=max_attempts)

    def respond(self, asked: Asked) -> http_server.Answer:
        self.requests.append(f"{asked.method} {asked.target}")
        self.headers.append({name.lower(): value for name, value in asked.headers})
        self.bodies.append(asked.body)
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]).sent


@pytest.fixture
def script(aws_environment: None) -> Iterator[Script]:  # noqa: ARG001 - it is wanted to be there
    told = Script()
    with pytest.MonkeyPatch.context() as patch, serving(told.respond) as told.endpoint:
        # It needs no time to recover.
        patch.setattr(http, "LONGEST_PAUSE_S", 0.01)
        patch.setattr(ExponentialBackoff, "delay_amount", lambda *_: 0.01)
        yield told


def codes(outcomes: Sequence[DeleteOutcome]) -> list[str | None]:
    return [outcome.error_code for outcome in outcomes]


def listed(store: ObjectStore, *args: str | None) -> list[str]:
    return [key for b in store.list(*args) for key in b["key"].to_pylist()]  # type: ignore[arg-type]


def query_of(request: str) -> dict[str, str]:
    query = parse_qs(urlsplit(request).query, keep_blank_values=True)
    return {name: value for name, (value,) in query.items()}


@pytest.fixture
def azure_key_file(tmp_path: Path) -> str:
    path = tmp_path / "azure.json"
    write_azure_credentials_file(path, account_key=AZURE_KEY)
    return str(path)


@pytest.fixture
def azure(script: Script, azure_key_file: str) -> Callable[..., ObjectStore]:
    """Opens a store of Azure whose server gives these answers."""

    def opened(*answers: Answer, tries: int = 1, url: str = AZURE_URL) -> ObjectStore:
        script.answers = list(answers)
        access = AzureAccess(f"{script.endpoint}/acc", azure_key_file)
        return open_store(url, StoreConfig(max_attempts=tries, azure=access))

    return opened


@pytest.fixture
def gcs(script: Script) -> Callable[..., GcsStore]:
    """Opens a store of Google whose server gives these answers."""

    def opened(*answers: Answer, tries: int = 1) -> GcsStore:
        script.answers = list(answers)
        config = StoreConfig(max_attempts=tries, gcs=GcsAccess(endpoint=script.endpoint))
        store = open_store("gs://bkt/ns", config)
        assert isinstance(store, GcsStore)
        return store

    return opened
