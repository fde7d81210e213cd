"""StageObject takes what lies outside the namespace, and nothing inside in any spelling."""

from __future__ import annotations

import random
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.embedded.objects import linking
from lakegc_assets.embedded.objects.linking import why_not_outside
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets_tests.embedded.api import Api, Repo

PLACE = StorageNamespace.parse("s3://bucket/lake/repo")
SEGMENT = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=8)
INSIDE = st.lists(
    st.one_of(SEGMENT, st.sampled_from(["data", "_lakefs", "%2F", "a b", "ü", "%"])), max_size=3
)


def _encoded(text: str, source: random.Random) -> str:
    """Some characters percent-encoded, slashes and dots too, in either case."""
    return "".join(
        "".join(
            f"%{byte:02x}" if source.random() < 0.5 else f"%{byte:02X}" for byte in char.encode()
        )
        if source.random() < 0.3
        else char
        for char in text
    )


def _with_detours(segments: list[str], source: random.Random) -> list[str]:
    """The same path with ``.``, ``x/..`` and empty segments."""
    found: list[str] = []
    for segment in segments:
        found += source.choice([[], [], [], ["."], ["x", ".."], [""], ["", ""]])
        found.append(segment)
    return found


def _spelled(segments: list[str], source: random.Random, *, times_encoded: int) -> str:
    scheme = "".join(
        source.choice((c.lower(), c.upper())) for c in source.choice(("s3", "s3a", "s3n"))
    )
    path = "/".join(_with_detours(["lake", "repo", *segments], source))
    for _ in range(times_encoded):
        path = _encoded(path, source)
    end = source.choice(["", "", "/", "//", "?versionId=1", "#part"])
    return f"{scheme}://bucket/{source.choice(['', '', '/'])}{path}{end}"


@given(INSIDE, st.randoms(use_true_random=False), st.integers(0, 3))
def test_no_spelling_of_an_inside_address_is_taken_for_outside(
    segments: list[str], source: random.Random, times_encoded: int
) -> None:
    address = _spelled(segments, source, times_encoded=times_encoded)
    assert why_not_outside(PLACE, address), address


@given(
    st.sampled_from(["s3://other", "S3A://bucket", "s3n://bucket/lake", "s3://bucket/lake/repo2"]),
    st.lists(st.sampled_from(["data", "ü", "a b", "x,y", "50 percent", "repo", "~"]), min_size=1),
)
def test_what_is_clearly_elsewhere_is_outside(base: str, segments: list[str]) -> None:
    path = "/".join(["elsewhere", *segments])
    for spelled in (path, quote(path)):
        assert why_not_outside(PLACE, f"{base}/{spelled}") is None


@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket/lake/repo",
        "s3://bucket/lake/repo/",
        "S3A://bucket/lake/repo/data/x/y",
        "s3n://bucket//lake///repo/data/x",
        "s3://bucket/lake/other/../repo/data/x",
        "s3://bucket/lake%2Frepo/data/x",
        "s3://bucket/lake/%2572epo/data/x",
        "s3://Bucket/lake/repo/data/x",
        "s3://buck%65t/lake/repo/data/x",
        "s3://bucket:443/lake/repo/data/x",
        "s3://user@bucket/lake/repo/data/x",
        "s3:///bucket/lake/repo/data/x",
        "s3:/bucket/lake/repo/data/x",
        "https://bucket.s3.amazonaws.com/lake/repo/data/x",
        "arn:aws:s3:::bucket/lake/repo/data/x",
        "lake/repo/data/x",
        " s3://bucket/lake/repo/data/x",
        "s3://bucket/lake/%FF",
        "",
    ],
)
def test_what_might_be_inside_is_not_outside(address: str) -> None:
    assert why_not_outside(PLACE, address)


@pytest.mark.parametrize("address", ["s3://whole/", "s3a://whole/x", "s3://whole//x", "s3://whole"])
def test_all_of_a_bucket_may_be_the_namespace(address: str) -> None:
    assert why_not_outside(StorageNamespace.parse("s3://whole"), address)


@pytest.mark.parametrize(
    ("address", "refused"),
    [
        ("s3://elsewhere/one.bin", False),
        ("local://repo2/data/x", False),
        ("local://repo/data/x", True),
        ("LOCAL://repo/data/x/", True),
        ("local://repo//data//x", True),
        ("local://repo", True),
        ("local://repo/../repo/x", True),
        ("local://repo2/../repo/x", True),
        ("local://repo/%64ata/x", True),
        ("file:///anywhere/repo/data/x", True),
        ("ftp://unknown/x", True),
    ],
)
def test_the_api_stages_only_what_is_outside(repo: Repo, address: str, refused: bool) -> None:  # noqa: FBT001
    body = {"physical_address": address, "checksum": "c0ffee", "size_bytes": 8, "mtime": 5}
    where: dict[str, Any] = {"params": {"path": "a"}, "json": body}
    if refused:
        message = repo.call("PUT", "/branches/main/objects", 400, **where)["message"]
        assert repr(address) in message
        assert repo.staged() == {}
    else:
        answer = repo.call("PUT", "/branches/main/objects", 201, **where)
        assert (answer["physical_address"], answer["mtime"]) == (address, 5)
        assert repo.stat("a")["physical_address"] == address
        assert repo.call("POST", "/gc/prepare_uncommited", 201)["gc_uncommitted_location"] == ""


def test_a_repository_made_anew_meanwhile_stages_nothing(
    api: Api, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address was outside of the old namespace, and is inside the new one."""

    def make_anew_first(*args: Any) -> str | None:
        reason = why_not_outside(*args)
        repo.call("DELETE", "", 204)
        api.repository(repo.name, "local://elsewhere")
        return reason

    monkeypatch.setattr(linking, "why_not_outside", make_anew_first)
    body = {"physical_address": "local://elsewhere/data/x", "checksum": "c0ffee", "size_bytes": 8}
    repo.call("PUT", "/branches/main/objects", 404, params={"path": "a"}, json=body)
    assert repo.staged() == {}


def test_what_is_elsewhere_is_read_where_the_server_can(server: EmbeddedLakeFS, api: Api) -> None:
    other = api.repository("other").put("a", b"there")["physical_address"]
    repo = api.repository()
    for path, address in (("readable", other), ("not", "s3://elsewhere/x")):
        body = {"physical_address": address, "checksum": "c", "size_bytes": 5}
        repo.call("PUT", "/branches/main/objects", 201, params={"path": path}, json=body)
    assert repo.read("readable") == b"there"
    assert repo.read("not") == 400
    (server.objects_dir / other.removeprefix("local://")).unlink()
    assert repo.read("readable") == 410
    for path in ("readable", "not"):
        head = api.send("HEAD", f"{repo.path}/refs/main/objects", params={"path": path})
        assert (head.status_code, head.headers["Content-Length"]) == (200, "5")
