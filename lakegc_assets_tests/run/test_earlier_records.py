"""Records are read as versions of some days ago have written them, whatever fields came since.

The texts were written by those versions. One that is not read any more stops sweeps, or is an undo
that is lost: a new field of a record needs a version of the record, or a form that reads both.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from lakegc_assets.engine.datasets import Part
from lakegc_assets.leftovers.removal import Removal
from lakegc_assets.mark.installation import Server
from lakegc_assets.recovery.backups import Record, Subject
from lakegc_assets.recovery.restore_record import RestoreRequest
from lakegc_assets.run.json_record import JsonRecord
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.sweep.approval import Approval
from lakegc_assets.sweep.lease_record import LeaseRecord
from lakegc_assets.sweep.status import SweepTry
from lakegc_assets.sweep.totals import PrunedTotals

_AT = datetime(2026, 11, 25, 17, 30, 0, 1234, tzinfo=timezone.utc)
_END = datetime(2026, 11, 25, 17, 30, tzinfo=timezone.utc)
_PART = Part("a.parquet", 1, 2, "ff")
_SUBJECT = Subject("repo", "m", "a", "local://repo", "ab", "1-2")
_SUBJECT_TEXT = """\
{"attempt": "a", "digest": "1-2", "mark": "ab", "namespace": "local://repo",
"repository": "repo", "run": "m"}"""
_RECORDS: list[tuple[JsonRecord, str]] = [
    (
        Approval("repo", "m", "ab", "1-2", "Ada", _AT, _END + timedelta(days=7), 1),
        """{"at": "2026-11-25 17:30:00.001234+00:00", "by": "Ada", "digest": "1-2",
        "ends": "2026-12-02 17:30:00+00:00", "mark": "ab", "max_candidate_share": 1,
        "repository": "repo", "run": "m"}""",
    ),
    (
        LeaseRecord("t", {"pid": "1"}, _END, 3, -1),
        """{"token": "t", "owner": {"pid": "1"}, "expires": "2026-11-25T17:30:00+00:00",
        "renewed": 3, "round": -1, "released": false}""",
    ),
    (
        LeaseRecord("t", {"command": "lakegc a?"}, _END, 3, 1, released=True),
        r"""{"token": "t", "owner": {"command": "lakegc a\udcff"}, "renewed": 3, "round": 1,
        "expires": "2026-11-25T17:30:00+00:00", "released": true}""",
    ),
    (
        SweepTry(_AT, "lakegc sweep repo"),
        """{"begun": "2026-11-25 17:30:00.001234+00:00", "command": "lakegc sweep repo",
        "ended": null, "error": ""}""",
    ),
    (
        RestoreRequest({"addresses": [], "everything": True, "ref": None}, "1-2", _AT),
        """{"at": "2026-11-25T17:30:00.001234+00:00", "objects": "1-2",
        "choice": {"addresses": [], "everything": true, "ref": null}}""",
    ),
    (
        Record(_SUBJECT, _AT, parts=[]),
        f"""{{"begun": "2026-11-25T17:30:00.001234+00:00", "digest": "", "finished": null,
        "objects": 0, "outcomes": null, "parts": [], "size": 0, "subject": {_SUBJECT_TEXT},
        "verified": null, "version": 1}}""",
    ),
    (
        Record(
            _SUBJECT, _AT, _END, 1, 2, "1-2", {"copied": {"objects": 1, "bytes": 2}}, {"md5": 1},
            [_PART],
        ),
        f"""{{"begun": "2026-11-25T17:30:00.001234+00:00", "digest": "1-2",
        "finished": "2026-11-25T17:30:00+00:00", "objects": 1,
        "outcomes": {{"copied": {{"bytes": 2, "objects": 1}}}},
        "parts": [["a.parquet", 1, 2, "ff"]], "size": 2, "subject": {_SUBJECT_TEXT},
        "verified": {{"md5": 1}}, "version": 1}}""",
    ),
    (
        Removal("20261125T173000Z-ab", "namespaces", "repo", "s3://b/r", "Ada", 1, 2, ""),
        """{"id": "20261125T173000Z-ab", "kind": "namespaces", "where": "repo",
        "url": "s3://b/r", "by": "Ada", "objects": 1, "size": 2, "backup": ""}""",
    ),
    (
        PrunedTotals(1, 2, {"m/a": _AT}),
        """{"bytes": 2, "counted": {"m/a": "2026-11-25T17:30:00.001234+00:00"}, "objects": 1}""",
    ),
    (
        Server(None, "repo", 1764178659),
        """{"installation_id": null, "repository": "repo", "creation_date": 1764178659}""",
    ),
    (
        Manifest(
            "gc_report", "repo", "m", "a", "local://repo", _END, _AT, _AT, 1, "1-2",
            {"data": [_PART]}, "ab", {"mode": "unified"}, {"objects": 1}, 5,
        ),
        """{"asset": "gc_report", "attempt": "a", "cutoff": "2026-11-25T17:30:00+00:00",
        "digest": "1-2", "facts": {"objects": 1}, "namespace": "local://repo",
        "finished": "2026-11-25T17:30:00.001234+00:00", "previous": "ab", "rows": 1,
        "parts": {"data": [["a.parquet", 1, 2, "ff"]]}, "repository": "repo", "run": "m",
        "schema_version": 5, "settings": {"mode": "unified"},
        "started": "2026-11-25T17:30:00.001234+00:00"}""",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("record", "text"), _RECORDS, ids=[type(record).__name__ for record, _ in _RECORDS]
)
def test_a_record_of_an_earlier_version_is_read(record: JsonRecord, text: str) -> None:
    assert type(record).from_bytes(text.encode(), "here") == record
