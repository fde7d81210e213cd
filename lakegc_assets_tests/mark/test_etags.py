"""What a few objects that are read tell about a store's etags."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import cast

import pytest

from lakegc_assets.graveler.decode import etag_hash
from lakegc_assets.graveler.entry import AddressType, Entry
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.mark import etags
from lakegc_assets.mark.etags import agreement, content_hash, entries_are_checksums, md5_of
from lakegc_assets.run.connections import Connections
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
    readable = cast("ObjectStore", _Store(SAME))
    assert content_hash(readable, math.inf, ("data/a", len(CONTENT))) == etag_hash(MD5)
    assert content_hash(readable, math.inf, ("data/a", len(CONTENT) + 1)) is None


SIZE = len(CONTENT)
RIGHT = Entry("data/a", size=SIZE, e_tag=MD5)
OTHER = replace(RIGHT, e_tag="0" * 32)
FULL = AddressType.FULL


class _Objects:
    """A store of some objects; those without content are archived."""

    def get(self, key: str) -> bytes:
        content = {"data/a": CONTENT, "data/archived": None, "data/longer": CONTENT + b"!"}
        if key not in content:
            raise ObjectNotFoundError(key)
        if (found := content[key]) is None:
            raise ArchivedError(key)
        return found


@pytest.mark.parametrize(
    ("entries", "are"),
    [
        ([RIGHT], True),
        ([replace(RIGHT, address="s3://lab/repo/data/a", address_type=FULL)], True),
        ([RIGHT, replace(OTHER, address="data/longer", size=SIZE + 1)], True),
        ([RIGHT, replace(RIGHT, address="data/gone")], True),
        ([], False),
        ([replace(RIGHT, size=SIZE + 1)], False),
        ([OTHER], False),
        ([RIGHT, OTHER], False),
        ([OTHER, RIGHT], False),
        ([replace(RIGHT, address="data/gone")], False),
        ([replace(RIGHT, address="data/longer", e_tag=md5_of(CONTENT + b"!"))], False),
        ([RIGHT, replace(RIGHT, address="data/archived")], False),
        ([RIGHT, replace(RIGHT, address="s3://lab/other/a", address_type=FULL)], False),
        ([RIGHT, replace(RIGHT, address="mystery://lab/repo/data/a", address_type=FULL)], False),
    ],
)
def test_entries_have_checksums_only_where_what_they_name_proves_it(
    entries: list[Entry], monkeypatch: pytest.MonkeyPatch, *, are: bool
) -> None:
    """Else the content of a candidate does not tell it from the copy of such an entry."""
    monkeypatch.setattr(etags, "read_range", lambda *_: [(b"path", one) for one in entries])
    connections = SimpleNamespace(
        store=_Objects,
        namespace=lambda: StorageNamespace.parse("s3://lab/repo"),
        table_url=str,
        fetch_table=str.encode,
    )
    told = entries_are_checksums(cast("Connections", connections), ["range"], frozenset({SIZE}))
    assert told is are
