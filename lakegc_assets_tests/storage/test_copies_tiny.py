"""Tiny objects that are copied within S3 where something may be there: read and put, or copied."""

from __future__ import annotations

import hashlib
from time import monotonic

import pytest

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import ChangedError, ObjectNotFoundError, StorageError
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.storage.conftest import Answer, Script
from lakegc_assets_tests.storage.s3_answers import MISSING, copied, found, md5

_DATA = "data"
_PUT = Answer(headers={"ETag": f'"{md5(_DATA)}"'})
_KMS = {"x-amz-server-side-encryption": "aws:kms"}


@pytest.fixture
def two(script: Script) -> tuple[ObjectStore, ObjectStore]:
    """A store and a backup on the same server, which is asked once."""
    return open_store("s3://b/ns", script.config()), open_store("s3://backup/x", script.config())


def _copy(two: tuple[ObjectStore, ObjectStore], size: int = len(_DATA)) -> tuple[str, str]:
    source, target = two
    made = copy_object(source, "k", target, "k", size=size, etag=md5(_DATA), if_absent=False)
    return made.etag, made.verified_by


def _asked(script: Script) -> list[str]:
    asked = []
    for line, headers in zip(script.requests, script.headers, strict=True):
        method = line.split()[0]
        asked.append("COPY" if "x-amz-copy-source" in headers else method)
    return asked


def test_one_is_read_and_put_where_nothing_is(
    two: tuple[ObjectStore, ObjectStore], script: Script
) -> None:
    script.answers = [found(_DATA), _PUT]
    assert _copy(two) == (md5(_DATA), "md5")
    assert _asked(script) == ["GET", "PUT"]
    assert script.headers[0]["if-match"] == f'"{md5(_DATA)}"'
    assert script.headers[1]["if-none-match"] == "*"
    digest = hashlib.sha256(_DATA.encode()).hexdigest()
    assert script.headers[1]["x-amz-content-sha256"] == digest


def test_a_larger_one_is_copied_by_the_store(
    two: tuple[ObjectStore, ObjectStore], script: Script
) -> None:
    script.answers = [copied(md5(_DATA))]
    assert _copy(two, 32 * 1024 + 1) == (md5(_DATA), "md5")
    assert _asked(script) == ["COPY"]


@pytest.mark.parametrize("status", [409, 412])
def test_what_is_there_is_replaced_as_ever(
    two: tuple[ObjectStore, ObjectStore], script: Script, status: int
) -> None:
    """An earlier try of the backup made it, and could not record it any more."""
    script.answers = [found(_DATA), Answer(status), found("other"), copied(md5(_DATA))]
    assert _copy(two) == (md5(_DATA), "md5")
    assert _asked(script) == ["GET", "PUT", "HEAD", "COPY"]


@pytest.mark.parametrize("failing", [0, 1])
def test_what_goes_wrong_is_left_to_the_store(
    two: tuple[ObjectStore, ObjectStore], script: Script, failing: int
) -> None:
    script.answers = [*[found(_DATA), _PUT][:failing], Answer(503), copied(md5(_DATA))]
    assert _copy(two) == (md5(_DATA), "md5")
    assert _asked(script) == [*["GET", "PUT"][: failing + 1], "COPY"]


def test_a_store_that_refuses_such_puts_is_asked_for_one_once(
    two: tuple[ObjectStore, ObjectStore], script: Script
) -> None:
    """As where objects are locked, and each put is to name the MD5 of its content."""
    script.answers = [found(_DATA), Answer(400), copied(md5(_DATA)), copied(md5(_DATA))]
    assert [_copy(two), _copy(two)] == [(md5(_DATA), "md5")] * 2
    assert _asked(script) == ["GET", "PUT", "COPY", "COPY"]


def test_a_put_that_failed_is_forgotten_after_a_minute(
    two: tuple[ObjectStore, ObjectStore], script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer of 503 made all copies of a process of many hours take the longer way."""
    now = monotonic()
    monkeypatch.setattr("lakegc_assets.storage.s3.small_objects.monotonic", lambda: now)
    script.answers = [found(_DATA), Answer(503), copied(md5(_DATA))]
    _copy(two)
    now += 59
    script.answers = [copied(md5(_DATA))]
    _copy(two)
    now += 2
    script.answers = [found(_DATA), _PUT]
    assert _copy(two) == (md5(_DATA), "md5")
    assert [line.split()[0] for line in script.requests] == [
        "GET",
        "PUT",
        "PUT",
        "PUT",
        "GET",
        "PUT",
    ]


def test_one_that_changed_or_is_gone_is_told(
    two: tuple[ObjectStore, ObjectStore], script: Script
) -> None:
    script.answers = [Answer(412), Answer(412)]
    with pytest.raises(ChangedError):
        _copy(two)
    script.answers = [MISSING, MISSING, MISSING]
    with pytest.raises(ObjectNotFoundError):
        _copy(two)
    assert _asked(script)[:4] == ["GET", "COPY", "GET", "COPY"]


def test_where_etags_are_no_md5s_one_is_read_once(
    two: tuple[ObjectStore, ObjectStore], script: Script
) -> None:
    """The store may have checksums that say more than a size."""
    sum_ = {"x-amz-checksum-crc64nvme": "AAAAAAAAAAE=", "x-amz-checksum-type": "FULL_OBJECT"}
    sides = [found("same", md5(_DATA), sum_), found("same", "f" * 32, {**sum_, **_KMS})]
    by_store = [Answer(body=copied("f" * 32).body, headers=_KMS), *sides]
    script.answers = [found("same", md5(_DATA)), *by_store, *by_store]
    assert _copy(two) == ("f" * 32, "crc64nvme")
    assert _copy(two) == ("f" * 32, "crc64nvme")
    assert _asked(script) == ["GET", "COPY", "HEAD", "HEAD", "COPY", "HEAD", "HEAD"]


def test_where_a_backup_is_encrypted_with_a_key_one_is_put_once(
    two: tuple[ObjectStore, ObjectStore], script: Script
) -> None:
    sum_ = {"x-amz-checksum-crc64nvme": "AAAAAAAAAAE=", "x-amz-checksum-type": "FULL_OBJECT"}
    put, there = "e" * 32, found(_DATA, "e" * 32, _KMS)
    sides = [found(_DATA, None, sum_), found(_DATA, "f" * 32, {**sum_, **_KMS})]
    by_store = [Answer(body=copied("f" * 32).body, headers=_KMS), *sides]
    script.answers = [
        found(_DATA), Answer(headers={"ETag": f'"{put}"', **_KMS}), there, *by_store, *by_store
    ]  # fmt: skip
    assert _copy(two) == ("f" * 32, "crc64nvme")
    assert _copy(two) == ("f" * 32, "crc64nvme")
    assert _asked(script) == ["GET", "PUT", "HEAD", *["COPY", "HEAD", "HEAD"] * 2]


def test_other_bytes_at_the_store_are_no_copy(
    two: tuple[ObjectStore, ObjectStore], script: Script
) -> None:
    other = Answer(headers={"ETag": f'"{md5("dat")}"'})
    script.answers = [found(_DATA), other, found("dat")]
    with pytest.raises(StorageError, match="cut it short"):
        _copy(two)
