"""``lakegc leftovers`` says what no collection finds, and goes on where it may not look."""

from __future__ import annotations

import json

import pytest

from lakegc_assets.lakefs.transport import path_of
from lakegc_assets_tests.cli.calling import lakegc, say
from lakegc_assets_tests.site import Site

# Dagster itself makes nested resources (S3Resource) in this way.
pytestmark = pytest.mark.filterwarnings(
    "ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"
)


@pytest.fixture(scope="module")
def told(site: Site) -> Site:
    """One repository, and one that was deleted."""
    site.tell("lasting")
    site.calendar.days_ago = 0
    site.client.create_repository("gone", "local://team/gone")
    site.client.upload_object("gone", "main", "x", b"1234")
    site.client._transport.call("DELETE", path_of("repositories", "gone"))
    return site


def test_leftovers_are_shown(told: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    say(lakegc("leftovers"), 0, "no root of namespaces is set", "nothing is left over")
    shown = lakegc("leftovers", "--root", "local://team")
    say(
        shown, 0, "namespace\tlocal://team/gone\tnobody knows whose\t2 objects", "stays: its newest"
    )
    monkeypatch.setenv("LAKEGC_NAMESPACE_ROOTS", "local://team, local://no-such")
    found = json.loads(lakegc("leftovers", "--json").stdout)
    assert [one["objects"] for one in found["namespaces"]] == [2]
    say(lakegc("leftovers", "--repository", "lasting"), 0, "nothing is left over")
    say(lakegc("leftovers", "--repository", "gone"), 2, "there is no repository 'gone'")
    assert told.repositories.keys() == {"lasting"}


def test_a_place_that_cannot_be_looked_at_is_named_and_the_others_are_shown(told: Site) -> None:
    assert told.repositories
    shown = lakegc("leftovers", "--root", "mem://x", "--root", "local://team")
    say(shown, 1, "could not be looked at: mem://x", "namespace\tlocal://team/gone")
