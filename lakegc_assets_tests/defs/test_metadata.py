"""What the UI shows: sizes for people, small tables, and a plot with few bars."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from lakegc_assets.defs.metadata import asked_for, of_rules, of_sweep, plain_lines, table, value_of
from lakegc_assets.estate.tables import breakdown
from lakegc_assets.retention.retain_rules import Retain
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.sweep.totals import space_facts
from lakegc_assets.wording import human_bytes
from lakegc_assets_tests.left import manifest_of


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (5 * 1024**4, "5.0 TiB"),
        (3 * 1024**6, "3,072.0 PiB"),
    ],
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_a_table_keeps_its_columns_and_their_types() -> None:
    shown = table(("key", "objects"), [("a | b\n", 3)])
    columns = [(column.name, column.type) for column in shown.schema.columns]
    assert columns == [("key", "string"), ("objects", "int")]
    assert [record.data for record in shown.records] == [{"key": "a | b\n", "objects": 3}]


def test_lines_are_shown_as_they_are() -> None:
    """Others choose paths and namespaces: a picture in one would call home from a browser."""
    shown = plain_lines(["`s3://lab/x`\n\n![](https://evil/)\r# b", "c"]).value
    assert shown == "    `s3://lab/x`\n    \n    ![](https://evil/)\n    # b\n    c"


def test_no_rows_are_reported_in_a_word() -> None:
    assert table(("key",), []) == "nothing"
    assert breakdown([["reason", "expired", 1, 1]], "slice age") == []


def test_slices_are_shown_by_classes_of_age() -> None:
    rows = [
        ["slice age", "not in a slice", 1, 10],
        ["slice age", "7 days", 2, 20],
        ["slice age", "8 days", 4, 40],
        ["slice age", "30 days", 8, 80],
        ["slice age", "5000 days", 16, 160],
        ["reason", "expired", 31, 310],
    ]
    assert breakdown(rows, "slice age") == [
        ("not in a slice", 1, "10 B"),
        ("up to 7 days", 2, "20 B"),
        ("up to 30 days", 12, "120 B"),
        ("older", 16, "160 B"),
    ]


def test_a_sweep_whose_mark_lacks_a_figure_has_fewer_figures() -> None:
    outcomes = {"deleted": {"objects": 2, "bytes": 30}, "spared": {"objects": 1, "bytes": 9}}
    attempt = AttemptArtifacts(ArtifactRoot("/nowhere", StoreConfig()), "repo", "m1", "a1")
    facts: dict[str, Any] = {
        "outcomes": outcomes,
        "recovery": {"kind": "nothing", "days": None, "notice": "no versions", "until": None},
        "put_back": [],
        "backup": None,
        "rounds": 1,
        "delete_deadlines": False,
        "space": {**space_facts([]), "notice": "it keeps nothing"},
        "warnings": [],
    }
    older = of_sweep(manifest_of(attempt, "swept_set", 0, facts))
    assert (older["objects deleted"], older["bytes spared"], older["bytes put back"]) == (2, 9, 0)
    assert not {"objects kept", "share deleted", "requests sent"} & older.keys()
    listed = {"objects": 8, "bytes": 100}
    newer = of_sweep(
        manifest_of(attempt, "swept_set", 0, {**facts, "listed": listed, "requests": 7})
    )
    assert (newer["objects kept"], newer["bytes kept"]) == (6, 70)
    assert (newer["share deleted"], newer["requests sent"]) == (0.25, 7)


def test_objects_are_shown_by_classes_of_age() -> None:
    rows = [["age in days", str(day), 1, 100] for day in (0, 7, 8, 4000)]
    assert breakdown(rows, "age in days") == [
        ("up to 7 days", 2, "200 B"),
        ("up to 30 days", 1, "100 B"),
        ("older", 1, "100 B"),
    ]


def test_lists_of_a_fact_are_tables() -> None:
    rows = value_of([{"path": "a", "after": "reads"}, {"path": "b", "after": "gone (410)"}])
    assert [record.data for record in rows.records] == [
        {"path": "a", "after": "reads"},
        {"path": "b", "after": "gone (410)"},
    ]
    assert [record.data for record in value_of(["c1", "c2"]).records] == [
        {"what": "c1"},
        {"what": "c2"},
    ]


@pytest.mark.parametrize(
    "fact",
    [[{"a": 1}, {"b": 2}], [{"a": [1]}], [{"a": None}], [{"a": 1}, "b"], [[1, 2]], {"a": [1]}],
)
def test_what_is_no_table_stays_as_it_is(fact: Any) -> None:
    assert value_of(fact) == dg.MetadataValue.json(fact)


@pytest.mark.parametrize(
    "rules",
    [
        {"tags": ["v*"]},
        {"branches": {"main": {"days": 9}}},
        {"metadata": {"hold": ["yes"]}},
        {"paths": {"legal/**": "forever", "logs/**": 90}},
        {"branches": {"main": {"last_commits": 2}}, "paths": {"**": 30}},
    ],
)
def test_rules_that_lakefs_does_not_have_are_shown(rules: dict[str, Any]) -> None:
    """As a fact of the active commits, whichever kinds of them there are."""
    assert value_of(Retain.parse(rules).to_json()) == dg.MetadataValue.json(rules)


def test_rules_are_a_table() -> None:
    rules = {
        "default_retention_days": 30,
        "branches": [
            {"branch_id": "main", "retention_days": 60},
            {"branch_id": "audit", "retention_days": 400},
        ],
    }
    assert [record.data for record in of_rules(rules).records] == [
        {"branch": "audit", "days": 400},
        {"branch": "main", "days": 60},
        {"branch": "all others", "days": 30},
    ]
    assert of_rules(None) == "none"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"everything": True}, "all that the mark names"),
        ({"addresses": ["data/a", "data/b"]}, "data/a\ndata/b"),
        ({"ref": "dev"}, "what dev shows"),
        ({"ref": "dev", "path": "a/b"}, "what dev shows at a/b"),
        ({"ref": "dev", "prefix": "a/"}, "what dev shows below a/"),
    ],
)
def test_what_a_restore_was_asked_for(asked: dict[str, Any], words: str) -> None:
    nothing = {"everything": False, "addresses": [], "ref": None, "path": None, "prefix": None}
    assert asked_for(nothing | asked) == words
