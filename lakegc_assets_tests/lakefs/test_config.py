"""Where endpoint and key pair come from, and what is said when they do not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.lakefs.config import (
    ENDPOINT_VARIABLE,
    FILE_VARIABLE,
    KEY_VARIABLE,
    SECRET_VARIABLE,
    LakeFSConfig,
    normal_endpoint,
)
from lakegc_assets.lakefs.transport import Access

HOME = """
server:
  endpoint_url: https://home.example.com/api/v1
credentials:
  access_key_id: home-key
  secret_access_key: home-secret
metastore: {type: glue}
"""
VARIABLES = {
    ENDPOINT_VARIABLE: "http://variables:8000",
    KEY_VARIABLE: "variable-key",
    SECRET_VARIABLE: "variable-secret",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def resolved(endpoint: str | None, file: str | None, environ: Mapping[str, str]) -> Access:
    """What is found where only these of lakectl's variables are set."""
    with pytest.MonkeyPatch.context() as patch:
        for name in (*VARIABLES, FILE_VARIABLE):
            patch.delenv(name, raising=False)
        for name, value in environ.items():
            patch.setenv(name, value)
        return LakeFSConfig(endpoint=endpoint, credentials_file=file).access()


def test_lakectls_own_file_is_enough(home: Path) -> None:
    (home / ".lakectl.yaml").write_text(HOME)
    access = resolved(None, None, {})
    assert access.endpoint == "https://home.example.com/api/v1"
    assert (access.access_key_id, access.secret_access_key) == ("home-key", "home-secret")
    assert "home-secret" not in repr(access)


def test_variables_come_before_lakectls_own_file(home: Path) -> None:
    (home / ".lakectl.yaml").write_text(HOME)
    access = resolved(None, None, VARIABLES)
    assert access.endpoint == "http://variables:8000/api/v1"
    assert (access.access_key_id, access.secret_access_key) == ("variable-key", "variable-secret")
    access = resolved(None, None, {ENDPOINT_VARIABLE: "http://variables:8000"})
    assert (access.endpoint, access.access_key_id) == ("http://variables:8000/api/v1", "home-key")


def test_what_is_named_comes_before_all(home: Path) -> None:
    named = home / "named.yaml"
    named.write_text("credentials: {access_key_id: named-key, secret_access_key: named-secret}")
    access = resolved("https://named", str(named), VARIABLES)
    assert (access.endpoint, access.access_key_id) == ("https://named/api/v1", "named-key")
    assert resolved(None, "~/named.yaml", VARIABLES).endpoint == "http://variables:8000/api/v1"
    named.write_text(HOME)
    assert resolved(None, str(named), VARIABLES).endpoint == "https://home.example.com/api/v1"


def test_lakectls_variable_names_another_file(home: Path) -> None:
    (home / "other.yaml").write_text(HOME)
    assert (
        resolved(None, None, {FILE_VARIABLE: str(home / "other.yaml")}).access_key_id == "home-key"
    )
    with pytest.raises(ConfigurationError, match="cannot be read"):
        resolved(None, None, {FILE_VARIABLE: str(home / "missing.yaml")})


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, ENDPOINT_VARIABLE),
        ({ENDPOINT_VARIABLE: "http://x"}, SECRET_VARIABLE),
        ({ENDPOINT_VARIABLE: "http://x", KEY_VARIABLE: "k"}, "secret_access_key is missing"),
        ({ENDPOINT_VARIABLE: "http://x", SECRET_VARIABLE: "hush"}, "access_key_id is missing"),
        ({**VARIABLES, ENDPOINT_VARIABLE: ""}, ENDPOINT_VARIABLE),
    ],
)
def test_what_is_missing_is_named(environ: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        resolved(None, None, environ)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "holds no credentials"),
        ("", "holds no credentials"),
        ("server: {endpoint_url: http://x}", "holds no credentials"),
        ("credentials: {access_key_id: a}", "secret_access_key is missing"),
        ("credentials: {access_key_id: 12, secret_access_key: hush}", "quoted text"),
        ("credentials: hush", "must be a section"),
        ("hush", "must be a section"),
        ("credentials: [hush]", "quoted text"),
        ("credentials: {secret_access_key: hush", "line 1: not valid YAML"),
        ("a: !!python/object:os.system hush", "not valid YAML"),
    ],
)
def test_a_named_file_must_hold_a_key_pair(home: Path, text: str, said: str) -> None:
    (home / "named.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=said) as caught:
        resolved("http://x", str(home / "named.yaml"), VARIABLES)
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_missing_named_file_is_not_replaced_by_another_place(home: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"missing\.yaml"):
        LakeFSConfig("http://x", str(home / "missing.yaml")).connect()


@pytest.mark.parametrize("tail", ["", "/", "/api/v1", "/api/v1/", "//"])
@pytest.mark.parametrize("base", ["http://127.0.0.1:8000", "https://lakefs.example.com/behind/it"])
def test_every_way_to_write_an_endpoint_is_the_same_one(base: str, tail: str) -> None:
    assert normal_endpoint(base + tail) == f"{base}/api/v1"


@given(
    st.from_regex(r"https?://[a-z]{1,8}(:[1-9][0-9]{1,3})?(/[a-z0-9]{1,5}){0,3}/?", fullmatch=True)
)
def test_a_normal_endpoint_stays_as_it_is(url: str) -> None:
    once = normal_endpoint(url)
    assert once.endswith("/api/v1")
    assert normal_endpoint(once) == once


@pytest.mark.parametrize(
    "url",
    [
        "lakefs.example.com",
        "s3://bucket",
        "http://",
        "",
        "https://user:hush@lakefs.example.com",
        "https://hush@lakefs.example.com",
        "user:hush@lakefs.example.com",
        "http://lakefs.example.com:port",
        "http://lakefs.example.com:123456",
        "http://[::1",
        "https://lakefs.example.com/?a=b",
        "https://lakefs.example.com/#x",
    ],
)
def test_what_is_no_endpoint_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        normal_endpoint(url)
    assert "hush" not in str(caught.value)
