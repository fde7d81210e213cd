"""Sizes that clients declare and lakeFS does not verify: nothing that it serves is lost by them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.checks.invariants import evaluate
from lakegc_assets.embedded.faults import Fault
from lakegc_assets.embedded.objects import linking, objects
from lakegc_assets.mark.signature_relations import SERVED, UNVERIFIED
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests import recorded
from lakegc_assets_tests.lake import REPOSITORY, SmallLake, candidates, running
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.others import mark

FAULTS = frozenset({Fault.SHADOWED_UPLOADS, Fault.STATELESS_LINK_TOKENS})
BODY = b"published twice, with the size of nothing"
DEAD = "data/dead/object"


@pytest.fixture
def declaring(tmp_path: Path) -> Iterator[SmallLake]:
    """A repository with some commits, a dead object, and clients who declare sizes."""
    with running(tmp_path / "declaring", faults=FAULTS) as lake:
        lake.calendar.days_ago = 30
        lake.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        lake.rules(5)
        for n in range(6):
            lake.upload("main", f"keep/{n}", f"kept {n} and so on")
        lake.commit("main")
        dead = lake.objects / DEAD
        dead.parent.mkdir(parents=True)
        dead.write_text("nobody needs this")
        yield lake


def publish(lake: SmallLake, path: str, size: int, body: bytes = BODY) -> str:
    """Upload an object and link it with a size; its address."""
    entry = objects.upload(lake.server.lake, REPOSITORY, "main", path, body).entry
    objects.stage_entry(lake.server.lake, REPOSITORY, "main", path, replace(entry, size=size))
    return entry.address


def publish_twice(lake: SmallLake, size: int) -> str:
    """Publish the same content again behind a commit of it; the address that is served then."""
    publish(lake, "p", size)
    lake.commit("main")
    address = publish(lake, "p", size)
    assert lake.client.stat(REPOSITORY, "main", "p").physical_address.endswith(address)
    assert not list(lake.client.diff_branch(REPOSITORY, "main"))
    return address


def grown_old(lake: SmallLake) -> None:
    """Let all objects be a minute old, and the server's clock right."""
    lake.calendar.days_ago = 0
    old = time.time() - 60
    for path in (lake.objects / "data").rglob("*"):
        os.utime(path, (old, old))


def spared(ctx: Any) -> dict[str, str]:
    rows = ctx.root.attempt(REPOSITORY, ctx.run).read("deletion_candidates", "spared").to_pylist()
    return {row["address"]: row["why"] for row in rows}


@pytest.mark.parametrize(
    "size",
    [
        len(BODY) + 16,
        *(pytest.param(n, marks=pytest.mark.conformance) for n in (-1, 0, len(BODY), 2**40)),
    ],
)
def test_what_is_served_is_spared_whatever_its_size_is_said_to_be(
    size: int, declaring: SmallLake, spark: Session
) -> None:
    served = publish_twice(declaring, size)
    grown_old(declaring)
    ctx = mark(declaring, spark, publish=True)
    assert spared(ctx) == {served: SERVED}
    assert candidates(ctx) == {DEAD}
    sweep(ctx)
    assert declaring.client.get_object(REPOSITORY, "main", "p") == BODY
    assert not (declaring.objects / DEAD).exists()


def test_what_is_served_since_the_mark_is_spared_by_the_sweep(
    declaring: SmallLake, spark: Session
) -> None:
    entry = objects.upload(declaring.server.lake, REPOSITORY, "main", "p", BODY).entry
    declaring.client.delete_object(REPOSITORY, "main", "p")
    publish(declaring, "p", 0)
    declaring.commit("main")
    grown_old(declaring)
    ctx = mark(declaring, spark, publish=True)
    assert candidates(ctx) == {DEAD, entry.address}
    again = replace(entry, size=0)
    objects.stage_entry(declaring.server.lake, REPOSITORY, "main", "p", again)
    assert not list(declaring.client.diff_branch(REPOSITORY, "main"))
    sweep(ctx)
    rows = ctx.root.attempt(REPOSITORY, ctx.run).read("swept_set").to_pylist()
    outcomes = {row["address"]: (row["outcome"], row["detail"]) for row in rows}
    assert outcomes[entry.address] == ("spared", SERVED)
    assert outcomes[DEAD][0] == "deleted"
    assert declaring.client.get_object(REPOSITORY, "main", "p") == BODY


def test_the_checks_ask_for_it_themselves(declaring: SmallLake, spark: Session) -> None:
    served = publish_twice(declaring, 0)
    grown_old(declaring)
    ctx = mark(declaring, spark)
    assert [c.summary for c in evaluate(ctx) if c.blocking and not c.passed] == []
    listing = ctx.root.attempt(REPOSITORY, ctx.run).read("store_listing").to_pylist()
    (planted,) = (row for row in listing if row["address"] == served)

    def plant(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*rows, {**rows[0], **planted}]

    recorded.rewrite(ctx, "deletion_candidates", "data", plant, manifests=True)
    failed = [c for c in evaluate(ctx) if c.blocking and not c.passed]
    assert [c.name for c in failed] == ["none_shadowed"]
    assert repr(served) in failed[0].summary


def test_where_not_all_of_it_may_be_asked_nothing_goes(
    declaring: SmallLake, spark: Session
) -> None:
    served = publish_twice(declaring, 0)
    grown_old(declaring)
    ctx = mark(declaring, spark, max_served_lookups=0)
    assert candidates(ctx) == set()
    assert spared(ctx) == dict.fromkeys([DEAD, served], UNVERIFIED)


def test_one_wrong_size_makes_all_count_that_the_listing_does_not_confirm(
    declaring: SmallLake, spark: Session
) -> None:
    """What lies elsewhere, too: a copy of it that lakeFS makes has the size that was declared."""
    entry = objects.upload(declaring.server.lake, REPOSITORY, "main", "q", BODY).entry
    elsewhere = replace(entry, address="s3://elsewhere/object", size=5)
    linking.stage_outside(declaring.server.lake, REPOSITORY, "main", "q", elsewhere)
    publish(declaring, "wrong", 0, b"another one")
    declaring.commit("main")
    objects.stage_entry(declaring.server.lake, REPOSITORY, "main", "q", replace(entry, size=5))
    assert not list(declaring.client.diff_branch(REPOSITORY, "main"))
    grown_old(declaring)
    ctx = mark(declaring, spark, publish=True)
    assert spared(ctx) == {entry.address: SERVED}
    assert candidates(ctx) == {DEAD}


@pytest.mark.parametrize(
    ("committed", "off"),
    [
        (False, 16),
        (True, 16),
        pytest.param(False, 0, marks=pytest.mark.conformance),
        pytest.param(True, 0, marks=pytest.mark.conformance),
    ],
)
def test_what_lakefs_lost_from_its_list_is_found_by_the_diff_whatever_its_size(
    *, off: int, committed: bool, tmp_path: Path, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the number of what is staged; or since a size at a HEAD is wrong, too."""
    with running(tmp_path / "early", faults=frozenset({Fault.SCAN_ENDS_EARLY})) as lake:
        lake.calendar.days_ago = 30
        lake.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        lake.rules(5)
        if committed:
            publish(lake, "committed", len(BODY) + off)
        for n in range(6):
            lake.upload("main", f"keep/{n}", f"kept {n} and so on")
        lake.commit("main")
        staged = {}
        for n in range(4):
            body = b"staged %d" % n
            staged[publish(lake, f"staged/{n}", len(body) + off, body)] = body
        if committed:
            # So that numbers do not tell.
            monkeypatch.setattr("lakegc_assets.mark.candidates.listed_once", lambda *_: 10**9)
        dead = lake.objects / DEAD
        dead.parent.mkdir(parents=True)
        dead.write_text("nobody needs this")
        grown_old(lake)
        ctx = mark(lake, spark, publish=True)
        assert candidates(ctx) & staged.keys() == set()
        assert set(spared(ctx).values()) == {SERVED}
        sweep(ctx)
        assert staged.keys() <= lake.keys()
        assert not dead.exists()


def test_the_checks_ask_where_the_object_that_would_tell_a_size_is_lost(
    declaring: SmallLake, spark: Session
) -> None:
    """The listing tells no size of what is not there, and all others are true."""
    first = publish(declaring, "p", 0)
    declaring.commit("main")
    served = publish(declaring, "p", 0)
    grown_old(declaring)
    (declaring.objects / first).unlink()
    ctx = mark(declaring, spark)
    assert candidates(ctx) == {DEAD, served}
    wrong = {check.name: check.summary for check in evaluate(ctx) if not check.passed}
    assert wrong.keys() == {"listing_holds_heads", "none_shadowed"}
    assert served in wrong["none_shadowed"]
