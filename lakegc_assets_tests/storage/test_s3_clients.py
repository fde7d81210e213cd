"""How S3 is reached: addresses, regions, credentials."""

from __future__ import annotations

import stat
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets import traffic
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.s3.client import clients, read_credentials_file, write_credentials_file
from lakegc_assets_tests.rclone import Rclone
from lakegc_assets_tests.storage.conftest import Script


@pytest.mark.parametrize(
    ("endpoint", "addressing", "expected"),
    [
        (None, "auto", "https://bkt.s3.amazonaws.com/k"),
        (None, "path", "https://s3.eu-west-1.amazonaws.com/bkt/k"),
        ("http://minio.example:9000", "auto", "http://minio.example:9000/bkt/k"),
        ("http://minio.example:9000", "virtual", "http://bkt.minio.example:9000/k"),
        (
            "https://s3.eu-west-1.amazonaws.com",
            "virtual",
            "https://bkt.s3.eu-west-1.amazonaws.com/k",
        ),
    ],
)
@pytest.mark.parametrize("by_variable", [False, True])
def test_addressing(
    s3_server: str,
    monkeypatch: pytest.MonkeyPatch,
    endpoint: str | None,
    addressing: str,
    expected: str,
    *,
    by_variable: bool,
) -> None:
    assert s3_server
    if by_variable and endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    config = StoreConfig(
        endpoint_url=None if by_variable else endpoint,
        region="eu-west-1",
        addressing=addressing,  # type: ignore[arg-type]
    )
    url = clients(config).usual.generate_presigned_url(
        "get_object", Params={"Bucket": "bkt", "Key": "k"}
    )
    assert url.partition("?")[0] == expected


@pytest.mark.parametrize("also", [None, "http://not-of-s3.example:9000"])
@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_rclone_asks_the_same_server_by_the_commands_of_its_page(
    s3_server: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    also: str | None,
) -> None:
    variables = {"AWS_REGION": "us-east-1"}
    variables |= {"AWS_ENDPOINT_URL": also} if also else {}
    variables[name] = s3_server
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    rclone = Rclone(tmp_path / "rclone", tmp_path, "S3", variables)
    found = rclone.run('echo "$RCLONE_CONFIG_STORE_ENDPOINT"').strip()
    assert found == clients(StoreConfig()).endpoint == s3_server


def test_the_region_comes_from_the_setting_or_the_variables(
    s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert s3_server
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.delenv("AWS_REGION")
    assert clients(StoreConfig()).usual.meta.region_name == "eu-west-1"
    monkeypatch.setenv("AWS_REGION", "eu-west-2")
    assert clients(StoreConfig()).usual.meta.region_name == "eu-west-2"
    assert clients(StoreConfig(region="eu-west-3")).usual.meta.region_name == "eu-west-3"
    with pytest.raises(ConfigurationError, match="no-such-profile"):
        clients(StoreConfig(profile="no-such-profile"))


def test_a_store_without_credentials_says_so(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(ConfigurationError, match="no credentials"):
        open_store("s3://bkt/ns", script.config()).get("k")


def test_clients_are_shared(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = StoreConfig(endpoint_url=s3_server)
    assert clients(config) is clients(StoreConfig(endpoint_url=s3_server))
    shared = clients(config)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    assert clients(config) is not shared


def test_each_request_is_counted(s3_server: str, s3_bucket: str) -> None:
    store = open_store(f"s3://{s3_bucket}/ns", StoreConfig(endpoint_url=s3_server))
    before = traffic.by_kind()
    store.put("k", b"x")
    assert store.get("k") == b"x"
    assert sum(traffic.since(before).values()) == 2


def test_a_credentials_file(tmp_path: Path, s3_server: str) -> None:
    path = tmp_path / "credentials.json"
    write_credentials_file(path, "key1", "secret1", "token1")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    config = StoreConfig(endpoint_url=s3_server, credentials_file=str(path))
    credentials: Any = clients(config).small.session.get_credentials()
    assert credentials.get_frozen_credentials() == ("key1", "secret1", "token1", None)
    write_credentials_file(path, "key2", "secret2")
    credentials._time_fetcher = lambda: datetime.now(timezone.utc) + timedelta(minutes=6)
    assert credentials.get_frozen_credentials()[:3] == ("key2", "secret2", None)
    assert "secret" not in repr(config) + repr(open_store("s3://b/p", config))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"access_key": "a"}', '{"access_key": "", "secret_key": "hidden"}']
)
def test_a_damaged_credentials_file_is_refused_without_quoting_it(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "credentials.json"
    write_credentials_file(path, "a", "b")
    path.write_text(content)
    with pytest.raises(ConfigurationError, match="write it again") as raised:
        read_credentials_file(path)
    assert "hidden" not in str(raised.value)


def test_a_credentials_file_that_others_can_read_is_refused(tmp_path: Path, s3_server: str) -> None:
    path = tmp_path / "credentials.json"
    write_credentials_file(path, "a", "b")
    path.chmod(0o640)
    store = open_store(
        "s3://bkt/ns", StoreConfig(endpoint_url=s3_server, credentials_file=str(path))
    )
    with pytest.raises(ConfigurationError, match="chmod 600"):
        store.get("k")
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_credentials_file(tmp_path / "missing")


def test_a_directory_bucket_is_refused_before_its_listing_is_trusted() -> None:
    with pytest.raises(ConfigurationError, match=r"in no order.*general purpose bucket"):
        open_store("s3://lake--use1-az4--x-s3/repo", StoreConfig())
