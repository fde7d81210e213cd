"""Rules in a file: JSON as lakeFS has it, or YAML; who made a mistake is told the line."""

from __future__ import annotations

import json

import pytest

from lakegc_assets.retention.rules import Rules, RulesError
from lakegc_assets.retention.rules_file import parse_rules

RULES = Rules(14, {"main": 90, "exp-7": 0})


@pytest.mark.parametrize("indent", [None, 2])
def test_json_as_lakefs_has_it(indent: int | None) -> None:
    assert parse_rules(json.dumps(RULES.to_json(), indent=indent), "f") == RULES


def test_yaml() -> None:
    text = """\
default_retention_days: 14
branches:
  - {branch_id: main, retention_days: 90}
  - branch_id: exp-7
    retention_days: 0
"""
    assert parse_rules(text, "f") == RULES


BROKEN = {
    "": "f is empty",
    "default_retention_days: 14\nbranches: [\n": "f, line 3: ",
    "default_retention_days: 14\nbranches: []\ndays: 3": "f, line 3: the rules: unknown key 'days'",
    "branches: []\n": "f, line 1: the rules: default_retention_days is missing",
    "[1]": "f, line 1: the rules must have keys with values",
    '{"default_retention_days": 14,\n\n "branches": {}}': "f, line 3: branches must be a list",
    "branches: null\ndefault_retention_days: -1": "f, line 2: default_retention_days must be betw",
    "default_retention_days: 1\nbranches:\n- branch_id: a\n  retention_days: '7'": (
        "f, line 4: branches[0].retention_days of branch 'a' must be a whole number"
    ),
    "default_retention_days: 1\nbranches:\n- branch_id: 7\n  retention_days: 7": (
        "f, line 3: branches[0].branch_id must name a branch, not 7"
    ),
    "default_retention_days: 1\nbranches:\n- {retention_days: 7}": (
        "f, line 3: branches[0]: branch_id is missing"
    ),
    "default_retention_days: 1\nbranches: []\ndefault_retention_days: 2": (
        "f, line 3: default_retention_days is given twice"
    ),
    "default_retention_days: \x00": "f: ",
    "? [a]\n: 1\n? [a]\n: 2": "f, line 1: found unhashable key",
    "&a [*a]": "f, line 1: the rules must have keys with values",
}


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_what_nobody_can_parse_names_line_and_key(text: str) -> None:
    with pytest.raises(RulesError) as found:
        parse_rules(text, "f")
    assert str(found.value).startswith(BROKEN[text])
