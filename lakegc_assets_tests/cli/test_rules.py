"""``lakegc rules`` sets rules of many repositories when somebody says yes, and no others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lakegc_assets.cli import forecast as command
from lakegc_assets.lakefs.writes import LakeFSWriter
from lakegc_assets.retention.rules import Rules
from lakegc_assets_tests.cli.calling import lakegc, say
from lakegc_assets_tests.site import Site

TEXT = """\
- repositories: "ml-*"
  exclude: [ml-legal]
  default_retention_days: 14
- repositories: [ml-b, ml-c]
  default_retention_days: 7
  branches: [{branch_id: main, retention_days: 90}]
"""
WANTED = {"ml-a": Rules(14), "ml-b": Rules(7, {"main": 90}), "ml-c": Rules(7, {"main": 90})}
Held = Callable[[], dict[str, Rules | None]]


@pytest.fixture
def file(tmp_path: Path) -> str:
    found = tmp_path / "rules.yaml"
    found.write_text(TEXT)
    return str(found)


@pytest.fixture
def held(site: Site) -> Held:
    """Repositories of which one has no rules, one others, and one these already."""
    client: LakeFSWriter = site.client
    there = {one.id for one in client.repositories()}
    for name in ("ml-a", "ml-b", "ml-c", "ml-legal"):
        if name not in there:
            client.create_repository(name, f"local://{name}")
    client.delete_gc_rules("ml-a")
    client.set_gc_rules("ml-b", 3, {})
    client.set_gc_rules("ml-c", 7, {"main": 90})

    def rules() -> dict[str, Rules | None]:
        raw = {name: client.gc_rules(name) for name in ("ml-a", "ml-b", "ml-c", "ml-legal")}
        return {name: None if one is None else Rules.parse(one) for name, one in raw.items()}

    return rules


def test_what_would_be_set_is_shown_and_nothing_is_set(held: Held, file: str) -> None:
    before = held()
    say(
        lakegc("rules", file),
        0,
        "ml-a\tno rules -> default 14\tto be set",
        "ml-b\tdefault 3 -> default 7, main 90\thas others",
        "ml-c\tdefault 7, main 90 -> default 7, main 90\tsame",
    )
    no = lakegc("rules", file, "--apply", answer="n\n")
    assert (no.exit_code, held()) == (1, before)
    say(lakegc("rules", file, "--apply", "--json"), 3, "give --yes")
    assert held() == before


def test_rules_of_its_own_stay_unless_they_are_to_be_replaced(held: Held, file: str) -> None:
    yes = lakegc("rules", file, "--apply", answer="y\n")
    assert (yes.exit_code, held()) == (0, {**WANTED, "ml-b": Rules(3), "ml-legal": None})
    done = lakegc("rules", file, "--apply", "--replace", "--yes", "--json")
    assert json.loads(done.stdout)["applied"] == ["ml-b"]
    assert held() == {**WANTED, "ml-legal": None}
    say(lakegc("rules", file, "--apply"), 0, "no rules were set")


def test_rules_that_were_changed_meanwhile_stay(
    site: Site, held: Held, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm(*_: object, **__: object) -> bool:
        site.client.set_gc_rules("ml-a", 1000, {})
        return True

    monkeypatch.setattr(command, "confirm", confirm)
    say(lakegc("rules", file, "--apply"), 3, "'ml-a' were changed meanwhile", "nothing was set")
    assert held()["ml-a"] == Rules(1000)


def test_what_lakefs_takes_for_no_rules_is_not_set(held: Held, tmp_path: Path) -> None:
    before = held()
    file = tmp_path / "none.yaml"
    file.write_text("- repositories: ml-b\n  default_retention_days: 0")
    say(lakegc("rules", str(file), "--apply", "--replace", "--yes"), 2, "as no rules")
    assert held() == before


BROKEN = {
    "{}": "line 1: write a list of rules",
    "- default_retention_days: 1": "line 1: entry 1: repositories is missing",
    "- repositories: []\n  default_retention_days: 1": "line 1: entry 1: repositories names none",
    "- repositories: a\n- repositories: b": "line 1: entry 1: the rules: default_retention_days",
    "- repositories: a\n  days: 1": "line 2: entry 1: unknown key 'days'",
    "- repositories: [7]\n  default_retention_days: 1": "line 1: entry 1: repositories must be",
    "- repositories: a\n  default_retention_days: 1\n  branches: {main: 7}": (
        "line 3: entry 1: branches must be a list of rules"
    ),
}


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_what_nobody_can_parse_names_line_and_key(text: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    say(lakegc("rules", str(file)), 2, f"{file}, {BROKEN[text]}")
