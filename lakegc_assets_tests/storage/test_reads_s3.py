"""Reads of S3: what breaks off goes on with the same object, or fails; what checksums are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import (
    ChangedError,
    ObjectNotFoundError,
    StorageError,
    StoreUnavailableError,
)
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.s3.objects import named_by
from lakegc_assets_tests.storage.conftest import Answer, Script
from lakegc_assets_tests.storage.s3_answers import error, found, md5


def rest(of: str, first: int, etag: str | None = None) -> Answer:
    end = len(of)
    headers = {
        "ETag": f'"{etag or md5(of)}"', "Content-Range": f"bytes {first}-{end - 1}/{end}"
    }  # fmt: skip
    return Answer(206, of[first:], headers=headers)


def test_a_read_that_breaks_off_goes_on_where_it_was(script: Script) -> None:
    data = "0123456789ABCDEF"
    script.answers = [found(data[:6], md5(data), cut=True), rest(data, 6)]
    store = open_store("s3://b/ns", script.config(2))
    with store.stream("k", md5(data)) as pieces:
        assert b"".join(pieces) == data.encode()
    assert script.headers[1]["range"] == "bytes=6-"
    assert script.headers[1]["if-match"] == f'"{md5(data)}"'


@pytest.mark.parametrize(
    ("second", "kind"),
    [
        (rest("0123456789ABCDEF", 6, "other"), ChangedError),
        (Answer(412, error("PreconditionFailed")), ChangedError),
        (Answer(404, error("NoSuchKey")), ObjectNotFoundError),
        (found("0123456789ABCDEF"), StoreUnavailableError),
        (rest("0123456789ABCDEF", 7), StoreUnavailableError),
    ],
)
def test_a_read_never_goes_on_with_something_else(
    script: Script, second: Answer, kind: type[StorageError]
) -> None:
    script.answers = [found("012345", md5("0123456789ABCDEF"), cut=True), second]
    store = open_store("s3://b/ns", script.config(2))
    with pytest.raises(kind), store.stream("k") as pieces:
        b"".join(pieces)


def test_a_read_that_ends_too_early_writes_nothing(script: Script, tmp_path: Path) -> None:
    source, local = open_store("s3://b/ns", script.config()), open_store(str(tmp_path / "local"))
    for answer in (
        found("012345", md5("0123456789ABCDEF"), cut=True),
        found("0123456789ABCDEF", "other"),
        found("x123456789ABCDEF", md5("0123456789ABCDEF")),
        found("0123", md5("0123456789ABCDEF")),
    ):
        script.answers = [answer]
        with pytest.raises(StorageError, match="s3://b/ns"):
            copy_object(
                source, "k", local, "k", size=16, etag=md5("0123456789ABCDEF"), if_absent=False
            )
    assert not local.exists("k")
    assert list(tmp_path.rglob(".lakegc*")) == []


def test_which_checksums_are_of_the_whole_content() -> None:
    etag, crc = "0" * 32, "AAAAAA=="
    assert named_by({"ETag": f'"{etag}"'}, "b") == {"md5": etag}
    assert named_by({"ETag": f'"{etag}-2"', "ChecksumCRC32C": crc}, "b") == {"crc32c": "00000000"}
    for told in ({"ServerSideEncryption": "aws:kms:dsse"}, {"SSECustomerAlgorithm": "AES256"}):
        assert named_by({"ETag": f'"{etag}"', **told}, "b") == {}
    assert named_by({"ETag": f'"{etag}"'}, "b--use1-az4--x-s3") == {}
    composite = {"ETag": '"x-2"', "ChecksumCRC32C": crc, "ChecksumType": "COMPOSITE"}
    assert named_by(composite, "b") == {}
    assert named_by({"ETag": '"x-2"', "ChecksumSHA256": "abc-2"}, "b") == {}
