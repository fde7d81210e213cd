"""What real servers do beyond the contract: conditions, retention, directories, identities."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path

import boto3
import pytest
import requests
from azure.storage.blob import (
    AccountSasPermissions,
    BlobServiceClient,
    ResourceTypes,
    RetentionPolicy,
    generate_account_sas,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from lakegc_assets.storage.azure import auth
from lakegc_assets.storage.azure import service as azure_service
from lakegc_assets.storage.azure.auth import write_azure_credentials_file
from lakegc_assets.storage.azure.store import AzureStore
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import AzureAccess, StoreConfig
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import PreconditionFailedError
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.probes import probe_deadlines, probe_recovery
from lakegc_assets_tests.storage import servers
from lakegc_assets_tests.storage.conftest import Answer, Script, azure_client
from lakegc_assets_tests.storage.servers import (
    AZURE_ACCOUNT,
    AZURE_KEY,
    Server,
    ServerUnavailableError,
    azurite,
    versitygw,
)

pytestmark = pytest.mark.stores


@pytest.fixture
def azure_store(azure_container: tuple[str, StoreConfig]) -> ObjectStore:
    url, config = azure_container
    return open_store(f"{url}/ns", config)


@pytest.fixture
def gcs_store(gcs_bucket: tuple[str, StoreConfig]) -> ObjectStore:
    bucket, config = gcs_bucket
    return open_store(f"gs://{bucket}/ns", config)


@pytest.fixture
def s3_store(versitygw_server: Server) -> ObjectStore:
    return new_bucket(versitygw_server)


@pytest.fixture
def minio_store(minio_server: Server) -> ObjectStore:
    return new_bucket(minio_server)


def new_bucket(server: Server) -> ObjectStore:
    """A namespace in an empty bucket."""
    bucket = f"bucket-{uuid.uuid4().hex}"
    boto3.client("s3", endpoint_url=server.endpoint).create_bucket(Bucket=bucket)
    return open_store(f"s3://{bucket}/ns", StoreConfig(endpoint_url=server.endpoint))


@pytest.mark.parametrize("fixture", ["s3_store", "minio_store", "azure_store"])
def test_a_level_of_many_pages_is_whole(fixture: str, request: pytest.FixtureRequest) -> None:
    """The stand-in for Google's service gives all prefixes on each page, which is refused."""
    store: ObjectStore = request.getfixturevalue(fixture)
    folders = [f"l/{number}{end}" for number in range(4) for end in ("-", "")]
    keys = [*(f"{folder}/{n}" for folder in folders for n in range(3)), "l/1 x", "l/2.x", "l/3~"]
    for key in keys:
        store.put(key, b"x")
    for size in (1, 2, 3, 5):
        config: StoreConfig = replace(store.config, page_size=size)  # type: ignore[attr-defined]
        found = open_store(store.url, config).list_prefixes("l/")
        assert found.prefixes == sorted(f"{folder}/" for folder in folders)
        assert [info.key for info in found.objects] == ["l/1 x", "l/2.x", "l/3~"]


@pytest.mark.parametrize(
    ("fixture", "wrong", "honoured"),
    [
        ("s3_store", "0" * 32, {"singly"}),
        ("minio_store", "0" * 32, set()),
        ("azure_store", "0x8D0", {"singly", "in bulk"}),
        ("gcs_store", "1", set()),
    ],
)
def test_which_servers_honour_the_condition_of_a_delete(
    fixture: str, wrong: str, honoured: set[str], request: pytest.FixtureRequest
) -> None:
    """Google's own service honours it; its stand-in does not."""
    store: ObjectStore = request.getfixturevalue(fixture)
    found = set()
    for how in ("singly", "in bulk"):
        keys = [f"{how}/{number}" for number in range(3)]
        etags = {key: store.put(key, b"x") for key in keys}
        outcomes = store.delete_many(keys, dict.fromkeys(keys, wrong), singly=how == "singly")
        if {outcome.outcome for outcome in outcomes} == {"spared"}:
            found.add(how)
            outcomes = store.delete_many(keys, etags, singly=how == "singly")
        assert {outcome.outcome for outcome in outcomes} == {"deleted"}
    assert found == honoured


@pytest.mark.parametrize("fixture", ["versioned_gateway", "minio_server"])
def test_versions_of_a_bucket_are_told(fixture: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(fixture)
    store = new_bucket(server)
    assert store.recovery().kind == "nothing"
    boto3.client("s3", endpoint_url=server.endpoint).put_bucket_versioning(
        Bucket=store.url.split("/")[2], VersioningConfiguration={"Status": "Enabled"}
    )
    assert store.recovery().kind == "versions"
    assert "versioning is enabled" in store.recovery().notice


def test_no_write_meets_the_connection_that_a_refused_one_has_left(
    minio_store: ObjectStore,
) -> None:
    """MinIO closes it without saying so; now and then the next request was there first."""
    minio_store.put("there", b"first")
    for number in range(300):
        with pytest.raises(PreconditionFailedError):
            minio_store.put_if_absent("there", b"second")
        minio_store.put_if_absent(f"new/{number}", b"x")


def test_soft_delete_of_an_account_is_told(tmp_path: Path) -> None:
    with azurite(tmp_path) as server:
        client = azure_client(server)
        client.create_container("box")
        write_azure_credentials_file(tmp_path / "key", account_key=AZURE_KEY)
        access = AzureAccess(f"{server.endpoint}/{AZURE_ACCOUNT}", str(tmp_path / "key"))
        store = open_store(
            f"https://{AZURE_ACCOUNT}.blob.core.windows.net/box", StoreConfig(azure=access)
        )
        assert store.recovery().kind == "nothing"
        client.set_service_properties(delete_retention_policy=RetentionPolicy(True, 5))
        assert store.recovery()[:2] == ("soft_delete", 5.0)
        # Azurite takes the setting, and deletes for good: what does not come back is not relied on.
        found = probe_recovery(store, "_lakefs/probe-", None)
        assert found.kind == "nothing"
        assert "did not come back" in found.notice
        client.set_service_properties(delete_retention_policy=RetentionPolicy(False))
        assert store.recovery().kind == "nothing"


def test_soft_delete_that_cannot_be_read_is_told(
    azure_container: tuple[str, StoreConfig], azure_by_sas: StoreConfig
) -> None:
    """A SAS token of one container says nothing about the account."""
    found = open_store(azure_container[0], azure_by_sas).recovery()
    assert found.kind == "unknown"
    assert "not known whether deleted objects are kept" in found.notice


def test_versions_of_a_bucket_of_google_are_told(
    gcs_store: ObjectStore, fake_gcs_server: Server
) -> None:
    assert gcs_store.recovery().kind == "nothing"
    url = f"{fake_gcs_server.endpoint}/storage/v1/b"
    name = f"versions-{uuid.uuid4().hex}"
    content = {"name": name, "versioning": {"enabled": True}}
    requests.post(url, json=content, timeout=60).raise_for_status()
    config: StoreConfig = gcs_store.config  # type: ignore[attr-defined]
    found = open_store(f"gs://{name}", config).recovery()
    assert found[:2] == ("versions", None)
    assert "versioning is on" in found.notice


def test_directories_that_hadoop_made_are_neither_listed_nor_read(
    azure_store: ObjectStore, azurite_server: Server
) -> None:
    container = azure_store.url.split("/")[3]
    box = azure_client(azurite_server).get_container_client(container)
    box.upload_blob("ns/data", b"", metadata={"hdi_isfolder": "true"})
    box.upload_blob("ns/data/slice", b"", metadata={"hdi_isfolder": "true"})
    azure_store.put("data/slice/a", b"1")
    listed = [key for batch in azure_store.list() for key in batch["key"].to_pylist()]
    assert listed == ["data/slice/a"]
    assert azure_store.list_prefixes() == (["data/"], [])
    assert not azure_store.exists("data/slice")


def test_ranges_are_exact_where_the_service_cannot_start_at_a_name(
    azure_store: ObjectStore,
) -> None:
    for number in range(5):
        azure_store.put(f"data/{number}", b"1")
    batches = azure_store.list("data/", "data/1", "data/4")
    assert [key for batch in batches for key in batch["key"].to_pylist()] == ["data/2", "data/3"]
    assert isinstance(azure_store, AzureStore)
    assert not azure_store.service.starts_from_names


def test_a_batch_that_azurite_does_not_take_deletes_nothing(
    azure_store: ObjectStore, tmp_path: Path
) -> None:
    """It knows no batches in containers for SAS tokens of accounts; Azure does."""
    token = generate_account_sas(
        AZURE_ACCOUNT,
        AZURE_KEY,
        ResourceTypes(service=True, container=True, object=True),
        AccountSasPermissions(read=True, write=True, delete=True, list=True, create=True),
        datetime.now(timezone.utc) + timedelta(hours=1),
    )
    write_azure_credentials_file(tmp_path / "sas", sas_token=token)
    config: StoreConfig = azure_store.config  # type: ignore[attr-defined]
    access = replace(config.azure, credentials_file=str(tmp_path / "sas"))
    store = open_store(azure_store.url, replace(config, azure=access, max_attempts=1))
    for key in ("a", "b"):
        store.put(key, b"1")
    assert {o.error_code for o in store.delete_many(["a", "b"])} == {"500"}
    assert store.exists("a")
    assert {o.outcome for o in store.delete_many(["a", "b"], singly=True)} == {"deleted"}


@pytest.fixture
def azurite_with_tokens(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """URL of an account that takes tokens of Entra ID, and a managed identity that gives them."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(timezone.utc)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (tmp_path / "certificate.pem").write_bytes(certificate.public_bytes(pem))
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "certificate.pem"))
    expires = int(now.timestamp()) + 3600
    claims = {
        "aud": "https://storage.azure.com", "iss": "https://sts.windows.net/tenant/",
        "iat": expires - 7200, "nbf": expires - 7200, "exp": expires,
        "oid": "object", "tid": "tenant",
    }  # fmt: skip
    parts = (json.dumps(part).encode() for part in ({"alg": "none", "typ": "JWT"}, claims))
    token = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + ".eA"
    script.answers = [
        Answer(
            body=json.dumps(
                {
                    "access_token": token,
                    "expires_on": str(expires),
                    "resource": "r",
                    "token_type": "Bearer",
                }
            ),
            headers={"Content-Type": "application/json"},
        )
    ]
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{script.endpoint}/token")
    monkeypatch.setenv("IDENTITY_HEADER", "header")
    options = (
        "--oauth",
        "basic",
        "--cert",
        str(tmp_path / "certificate.pem"),
        "--key",
        str(tmp_path / "key.pem"),
    )
    with azurite(tmp_path, *options) as server:
        yield f"https://{server.address}/{AZURE_ACCOUNT}"


def test_a_managed_identity_is_enough(azurite_with_tokens: str, script: Script) -> None:
    """Also inside a batch, where each request is signed for itself."""
    BlobServiceClient(azurite_with_tokens, AZURE_KEY, api_version="2025-11-05").create_container(
        "box"
    )
    only = (("exclude_environment_credential", True), ("exclude_cli_credential", True))
    config = StoreConfig(azure=AzureAccess(azurite_with_tokens, identity=only))
    store = open_store(f"https://{AZURE_ACCOUNT}.blob.core.windows.net/box/ns", config)
    for key in ("a", "b", "c"):
        store.put(key, b"1")
    copy_object(store, "a", store, "d", size=1, etag=None, if_absent=False)
    etag = store.head("c").etag
    outcomes = store.delete_many(["a", "b", "c"], {"a": etag, "b": "0x1", "c": etag})
    assert [outcome.outcome for outcome in outcomes] == ["spared", "spared", "deleted"]
    listed = [key for batch in store.list() for key in batch["key"].to_pylist()]
    assert listed == ["a", "b", "d"]
    assert len(script.requests) == 1


def test_an_identity_keeps_deadlines_by_a_key_of_the_service(
    azurite_with_tokens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    BlobServiceClient(azurite_with_tokens, AZURE_KEY, api_version="2025-11-05").create_container(
        "box"
    )
    only = (("exclude_environment_credential", True), ("exclude_cli_credential", True))
    config = StoreConfig(azure=AzureAccess(azurite_with_tokens, identity=only))
    store = open_store(f"https://{AZURE_ACCOUNT}.blob.core.windows.net/box/n s/é", config)
    asked = []

    def wanted(now: datetime) -> bytes:
        asked.append(now)
        return auth.wanted(now)

    monkeypatch.setattr(azure_service, "wanted", wanted)
    assert probe_deadlines(store, "_lakefs/probe-")
    assert len(asked) == 1


def test_a_server_that_is_killed_comes_back_with_what_it_had(
    tmp_path: Path,
    aws_environment: None,  # noqa: ARG001
) -> None:
    with versitygw(tmp_path) as server:
        endpoint = server.endpoint
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="box")
        store = open_store("s3://box", StoreConfig(endpoint_url=endpoint, max_attempts=1))
        store.put("a", b"1")
        server.kill()
        assert [o.error_code for o in store.delete_many(["a"])] == ["ConnectionFailed"]
        server.start()
        assert server.endpoint == endpoint
        assert store.get("a") == b"1"


def test_a_missing_go_or_node_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "which", lambda _name: None)
    for start, name in ((servers.azurite_program, "node"), (servers.go_tool, "go")):
        with pytest.raises(ServerUnavailableError, match=rf"`{name}` is not on the PATH"):
            start()
