"""What a few objects that are read tell about a store's etags."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from datetime import datetime, timezone
from typing import cast

import pytest

from lakegc_assets.mark.etags import agreement, content_hash
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ArchivedError, ObjectNotFoundError
from lakegc_assets.storage.values import ObjectInfo
from lakegc_assets_tests.listings import listing

LISTED = datetime(2026, 11, 22, 1, 2, 3, 456_000, tzinfo=timezone.utc)
WHOLE_SECONDS = LISTED.replace(microsecond=0)
CONTENT = b"what is in it"
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


class _Store:
    """A store of one object, which answers HEAD as it is told to."""

    def __init__(self, answer: ObjectInfo | None, *, archived: bool = False) -> None:
        self.answer = answer
        self.archived = archived

    def get(self, key: str) -> bytes:
        if self.archived:
            raise ArchivedError(key)
        if self.answer is None:
            raise ObjectNotFoundError(key)
        return CONTENT

    def head(self, key: str) -> ObjectInfo:
        if self.answer is None:
            raise ObjectNotFoundError(key)
        return self.answer


def told(answer: ObjectInfo | None, etag: str = MD5) -> bool | None:
    table = listing([("data/a", len(CONTENT), LISTED, etag)])
    return agreement(cast("ObjectStore", _Store(answer)), table)[0]


SAME = ObjectInfo("data/a", len(CONTENT), LISTED, MD5)


def test_a_store_that_answers_head_with_whole_seconds_tells_as_much() -> None:
    assert told(SAME) is True
    assert told(replace(SAME, last_modified=WHOLE_SECONDS)) is True


@pytest.mark.parametrize(
    "answer",
    [
        None,
        replace(SAME, etag="0" * 32),
        replace(SAME, last_modified=WHOLE_SECONDS.replace(second=4)),
    ],
    ids=["gone", "another etag", "another time"],
)
def test_what_was_written_again_tells_nothing(answer: ObjectInfo | None) -> None:
    assert told(answer) is None


def test_an_etag_that_is_no_checksum_is_seen() -> None:
    other = "0" * 32
    assert told(replace(SAME, etag=other), other) is False


def test_what_cannot_be_read_now_may_have_an_etag_that_is_no_checksum() -> None:
    table = listing([("data/a", len(CONTENT), LISTED, MD5)])
    store = cast("ObjectStore", _Store(SAME, archived=True))
    assert agreement(store, table)[0] is False
    assert content_hash(store, math.inf, ("data/a", len(CONTENT))) is None
