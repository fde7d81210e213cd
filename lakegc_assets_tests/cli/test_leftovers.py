"""``lakegc leftovers`` says what no collection finds, and goes on where it may not look."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.hold import write_hold
from lakegc_assets_tests.cli.calling import lakegc, say
from lakegc_assets_tests.files import age
from lakegc_assets_tests.leftovers.conftest import orphan
from lakegc_assets_tests.site import Site


@pytest.fixture(scope="module")
def reported(site: Site) -> Site:
    """One repository, and one that was deleted."""
    site.tell("lasting")
    site.calendar.days_ago = 0
    site.client.create_repository("gone", "local://team/gone")
    site.client.upload_object("gone", "main", "x", b"1234")
    site.client.call("DELETE", "repositories", "gone")
    return site


def test_leftovers_are_shown(reported: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    say(lakegc("leftovers"), 0, "no root of namespaces is set", "nothing is left over")
    assert lakegc("leftovers", "--server").stdout == lakegc("leftovers").stdout
    both = lakegc("leftovers", "--server", "--repository", "lasting")
    say(both, 2, "--server reads all repositories")
    shown = lakegc("leftovers", "--root", "local://team")
    say(shown, 0, "  local://team/gone\tnot known\t", "\t2\t", "\tits newest")
    monkeypatch.setenv("LAKEGC_NAMESPACE_ROOTS", "local://team, local://no-such")
    found = json.loads(lakegc("leftovers", "--json").stdout)
    assert [one["objects"] for one in found["namespaces"]] == [2]
    say(lakegc("leftovers", "--repository", "lasting"), 0, "nothing is left over")
    say(lakegc("leftovers", "--repository", "gone"), 2, "there is no repository 'gone'")
    assert reported.repositories.keys() == {"lasting"}


def test_a_place_that_cannot_be_looked_at_is_named_and_the_others_are_shown(reported: Site) -> None:
    assert reported.repositories
    shown = lakegc("leftovers", "--root", "mem://x", "--root", "local://team")
    say(shown, 1, "could not be read: mem://x", "  local://team/gone\t")


def test_a_namespace_is_removed_by_who_says_so(reported: Site, tmp_path: Path) -> None:
    age(reported.namespace("team/gone"), 31)
    options: tuple[str, ...] = ("leftovers", "remove", "namespace", "local://team/gone")
    say(lakegc(*options, "--dry-run"), 3, "nothing in it shows that this server had it")
    options = (*options, "--unclaimed", "--backup", str(tmp_path / "copies"))
    dry = lakegc(*options, "--dry-run", "--json")
    say(dry, 0)
    plan = json.loads(dry.stdout)
    assert (plan["objects"], len(plan["first"])) == (2, 2)
    say(
        lakegc(*options, "--json"),
        3,
        "--json asks for no confirmation: give --dry-run, or --yes --id ID",
    )
    say(lakegc(*options, "--yes", "--id", "another"), 3, "are not those that were confirmed")
    aborted = lakegc(*options, answer="n\n")
    assert "Remove it?" in aborted.output
    assert lakegc(*options, "--dry-run", "--json").stdout == dry.stdout
    done = lakegc(*options, "--json", "--yes", "--id", plan["id"], "--by", "somebody")
    say(done, 0)
    assert json.loads(done.stdout)["outcomes"] == {"deleted": 2}
    (begun,) = (reported.folder / "artifacts/_leftover-removals").glob("*/begin.json")
    assert json.loads(begun.read_text())["by"] == "somebody"
    say(lakegc("leftovers", "--root", "local://team"), 0, "nothing is left over")


def test_the_hold_of_a_deleted_repository_is_shown_and_ended(reported: Site) -> None:
    client, url = reported.client, "local://team/held"
    client.create_repository("was-held", url)
    client.call("DELETE", "repositories", "was-held")
    write_hold(open_store(url, reported.server.store_config), {"alarm": "something is lost"})
    age(reported.namespace("team/held"), 31)
    shown = lakegc("leftovers", "--root", "local://team")
    say(shown, 0, "it is on hold (", f"`lakegc hold {url}` shows why")
    say(lakegc("hold", url), 0, f"{url} is on hold, and no repository", "something is lost")
    hold = json.loads(lakegc("hold", url, "--json").stdout)["id"]
    accepting = ("hold", url, "--accept", "--unclaimed", "--unverified")
    say(lakegc(*accepting, answer="n\n"), 1, "Accept the loss")
    say(lakegc(*accepting, "--yes", "--id", "0" * 16), 3, "Read it first: ")
    say(lakegc("hold", url, "--accept", "--yes"), 3, "stays")
    say(lakegc(*accepting, "--yes", "--by", "ada"), 0, "ada has accepted it")
    say(lakegc(*accepting, "--yes"), 3, "is not on hold: nothing to accept")
    say(lakegc(*accepting, "--yes", "--id", hold), 0, "ada has accepted it")
    assert "on hold" not in lakegc("leftovers", "--root", "local://team").stdout
    shutil.rmtree(reported.namespace("team/held"))


def test_metadata_is_reported_only(reported: Site) -> None:
    assert reported.repositories
    lost = orphan(reported.namespace("lasting"), "lost")
    age(reported.namespace("lasting/_lakefs"), 31)
    found = lakegc("leftovers", "--repository", "lasting", "--json")
    say(found, 0)
    (table,) = json.loads(found.stdout)["metadata"]
    assert set(table["keys"]) == {*lost}
    shown = lakegc("leftovers", "--repository", "lasting")
    words = ("  lasting\t1\t1\t", "docs/safety.md#tables-that-nothing-names")
    say(shown, 0, "repository, metaranges, ranges, of, size", *words)
    say(lakegc("leftovers", "remove", "metadata", "lasting"), 2, "'metadata' is not one of")
    say(lakegc("leftovers", "remove", "uploads", "lasting"), 0, "local://lasting: 0 uploads")
