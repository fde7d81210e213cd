"""Tests for records that are stored as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pytest

from lakegc_assets.engine.datasets import Part
from lakegc_assets.errors import IntegrityError
from lakegc_assets.run.json_record import JsonRecord, Moment


@dataclass(frozen=True)
class Within:
    count: int


@dataclass(frozen=True)
class Thing(JsonRecord, damaged="make another one"):
    name: str
    at: Moment
    within: Within
    parts: Mapping[str, Sequence[Part]]
    ended: Moment | None = None
    share: float = 0.5


THING = Thing(
    "é", datetime(2026, 1, 1, tzinfo=timezone.utc), Within(3), {"data": [Part("key", 1, 2, "ab")]}
)


def changed(**values: object) -> bytes:
    return json.dumps(json.loads(THING.to_bytes()) | values).encode()


def test_what_was_written_is_read() -> None:
    assert Thing.from_bytes(THING.to_bytes(), "here") == THING
    # As earlier versions wrote some.
    assert Thing.from_bytes(changed(at="2026-01-01 00:00:00+00:00"), "here") == THING


@pytest.mark.parametrize(
    "values",
    [
        {"at": "2026-01-01T00:00:00"},
        {"at": 3},
        {"at": None},
        {"ended": ""},
        {"name": 3},
        {"name": None},
        {"share": "0.5"},
        {"within": {}},
        {"within": {"count": "3"}},
        {"within": {"count": 3, "more": 1}},
        {"within": [3]},
        {"parts": {"data": [["key", 1, 2]]}},
        {"parts": {"data": [["key", 1, 2, "ab", 3]]}},
        {"parts": {"data": 1}},
        {"more": 1},
    ],
)
def test_no_other_value_is_read(values: Mapping[str, Any]) -> None:
    with pytest.raises(IntegrityError, match=r"^here is damaged \(.+\): make another one$"):
        Thing.from_bytes(changed(**values), "here")


@pytest.mark.parametrize("values", [{"more": 1}, {"within": {"count": 3, "more": 1}}])
def test_a_field_of_a_later_version_is_said_to_be_one(values: Mapping[str, Any]) -> None:
    with pytest.raises(IntegrityError, match=r"more is unknown here: .*, update lakegc\)"):
        Thing.from_bytes(changed(**values), "here")


@pytest.mark.parametrize("name", ["name", "ended", "share"])
def test_a_record_that_lacks_a_field_is_damaged(name: str) -> None:
    values = json.loads(THING.to_bytes())
    del values[name]
    with pytest.raises(IntegrityError, match="make another one"):
        Thing.from_bytes(json.dumps(values).encode(), "here")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"3", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_object_is_damaged(data: bytes) -> None:
    with pytest.raises(IntegrityError, match="here is damaged"):
        Thing.from_bytes(data, "here")


def test_a_command_line_that_is_no_text_makes_no_damaged_record() -> None:
    odd = Thing("a\udcff", THING.at, THING.within, {})
    assert Thing.from_bytes(odd.to_bytes(), "here").name == "a?"
