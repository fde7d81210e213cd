"""Objects that came back to life between a mark and its sweep are spared, and no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.estate.explanation import explain as why
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark import relations
from lakegc_assets.mark.live_ranges import read_live
from lakegc_assets.mark.references import References
from lakegc_assets.mark.relations import AMBIGUOUS
from lakegc_assets.mark.uncommitted_snapshot import Staged
from lakegc_assets.run.clocks import Moment
from lakegc_assets.run.pins import PINS, Pin, write_pin
from lakegc_assets.sweep import delta, ledger_state
from lakegc_assets.sweep.batch_guard import Fingerprint, Look, judge, seen_now
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, Marked, SmallLake
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.outcomes import check_swept, spared

STAGED = "it is staged on a branch now"
HELD = "an active commit holds it now"
REWRITTEN = "it was written again since it was listed"


def test_revert_branch_link_commit_and_write(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """Each of them brings back objects of its own; a deleted branch brings back none."""
    linked, committed, rewritten, *_ = sorted(marked.groups["orphans"])
    lake.client.revert(REPOSITORY, "main", marked.commits["removal"])
    lake.client.create_branch(REPOSITORY, "rescue", marked.commits["first"])
    lake.stage("main", "late/link", linked)
    lake.stage("busy", "late/commit", committed)
    lake.commit("busy")
    lake.client.delete_branch(REPOSITORY, "dev")
    (lake.objects / rewritten).unlink()
    (lake.objects / rewritten).write_text("for a link that will come")

    manifest = sweep(lake.context(spark))

    spared = dict.fromkeys(marked.groups["removed"] | marked.groups["replaced"], HELD)
    spared |= {linked: STAGED, committed: HELD, rewritten: REWRITTEN}
    check_swept(lake, marked, spared)
    explained = why(lake.context(spark), linked)
    assert explained.because.endswith(f"; the sweep: spared ({STAGED})")
    assert manifest.facts["conditional_deletes"] == "bulk"
    assert manifest.rows == len(marked.candidates)
    assert manifest.facts["rounds"] == 1
    for n in range(4):
        content = lake.client.get_object(REPOSITORY, "rescue", f"a/{n}")
        assert content == f"first a {n}".encode()


@pytest.mark.parametrize("loses", ["what came back", "what is spared"])
def test_an_engine_that_loses_rows_of_what_came_back_is_noticed(
    loses: str, lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No HEAD has them, and no check reads what older commits hold."""
    lake.client.create_branch(REPOSITORY, "rescue", marked.commits["first"])
    for n in range(4):
        lake.client.delete_object(REPOSITORY, "rescue", f"a/{n}")
    lake.commit("rescue")
    if loses == "what came back":
        whole = relations.came_back

        def losing(objects: Any, live: Any, *more: Any) -> Any:
            return whole(objects, [(rows.where("hash % 2 = 0"), why) for rows, why in live], *more)

        monkeypatch.setattr(relations, "came_back", losing)
    else:
        monkeypatch.setattr(ledger_state, "without", lambda objects, _spared: objects)
    with pytest.raises(IntegrityError, match="has lost rows"):
        sweep(lake.context(spark))
    assert lake.keys() == marked.live | marked.candidates


def test_what_was_restored_is_spared_while_it_is_pinned(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """Another restore named them; one of them is gone again, which is no alarm."""
    kept, gone, linked, ended, *_ = sorted(marked.candidates)
    store = lake.store
    now = datetime.now(timezone.utc)
    pin = Pin("other", now + timedelta(days=1), "mark-0", "restored from run 'mark-0'", 3)
    write_pin(store, pin, pa.array([kept, gone, linked]))
    write_pin(store, replace(pin, id="ended", until=now), pa.array([ended]))
    (lake.objects / gone).unlink()
    lake.stage("main", "late/link", linked)
    sweep(lake.context(spark))
    # What is certain counts before a pin, so that an alarm looks at it.
    assert spared(lake) == {kept: pin.reason, gone: pin.reason, linked: STAGED}
    assert lake.keys() == marked.live | {kept, linked}


@pytest.mark.parametrize("by", ["a pin", "its last part"])
def test_what_alone_is_alive_in_a_repository_that_rests_is_spared(
    by: str, lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is staged, and no branch has moved since the mark."""
    kept = min(marked.candidates)
    pin = Pin("other", datetime.now(timezone.utc) + timedelta(days=1), "mark-0", "restored", 1)
    unresolved = frozenset({kept.rsplit("/", 1)[1]})
    if by == "a pin":
        write_pin(lake.store, pin, pa.array([kept]))
        unresolved = frozenset()
    monkeypatch.setattr(delta, "read_staged", lambda *_: Staged(unresolved=unresolved))
    sweep(lake.context(spark))
    assert spared(lake) == {kept: pin.reason if by == "a pin" else AMBIGUOUS}
    assert lake.keys() == marked.live | {kept}


def test_an_address_that_nobody_can_place_spares_what_ends_like_it(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a commit names it, or another repository."""
    by_commit, by_other = kept = sorted(marked.candidates)[:2]
    of_commit, of_other = (frozenset({one.rsplit("/", 1)[1]}) for one in kept)
    lake.upload("busy", "late/more", "more")
    lake.commit("busy")
    monkeypatch.setattr(
        delta, "read_live", lambda *of, **how: replace(read_live(*of, **how), unresolved=of_commit)
    )
    monkeypatch.setattr(delta, "read_references", lambda *_: References(unresolved=of_other))
    sweep(lake.context(spark))
    assert {spared(lake)[by_commit], spared(lake)[by_other]} == {AMBIGUOUS}
    assert lake.keys() >= {*kept}


@pytest.mark.parametrize("step", ["prepare_uncommitted", "read_references", "inquire"])
def test_what_a_delta_mark_cannot_read_stops_a_sweep(
    step: str, lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the look after a sweep goes on without it."""

    def fail(*_: Any) -> Any:
        raise IntegrityError("it is cut")

    monkeypatch.setattr(delta, step, fail)
    with pytest.raises(IntegrityError, match="it is cut"):
        sweep(lake.context(spark))
    assert lake.keys() == marked.live | marked.candidates


def test_a_pin_that_cannot_be_read_stops_a_sweep(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    lake.store.put(f"{PINS}torn.parquet", b"PAR1")
    with pytest.raises(IntegrityError, match=r"pins/torn\.parquet is damaged"):
        sweep(lake.context(spark))
    assert lake.keys() == marked.live | marked.candidates


def test_a_longer_rule_of_a_branch(lake: SmallLake, marked: Marked, spark: Session) -> None:
    lake.rules(20, main=10, dev=1000)
    sweep(lake.context(spark))
    groups = marked.groups
    back = groups["replaced"] | groups["second"] | groups["removed"]
    check_swept(lake, marked, dict.fromkeys(back, HELD))
    with pytest.raises(RefusedError, match="was swept already"):
        sweep(lake.context(spark))


def test_a_new_branch_with_a_longer_rule_and_a_tag(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """The rule reaches back from HEAD to the second commit; the tag holds what no branch does."""
    lake.client.create_branch(REPOSITORY, "archive", "main")
    lake.rules(20, main=10, archive=85)
    lake.client.create_tag(REPOSITORY, "v0", marked.commits["given up"])
    sweep(lake.context(spark, protect_tags=True))
    groups = marked.groups
    back = groups["second"] | groups["removed"] | groups["given up"]
    check_swept(lake, marked, dict.fromkeys(back, HELD))


def test_rules_that_were_removed(lake: SmallLake, marked: Marked, spark: Session) -> None:
    """Every range that is there counts, also those of commits that no log reaches."""
    lake.client.delete_gc_rules(REPOSITORY)
    sweep(lake.context(spark))
    back = marked.candidates - marked.groups["orphans"]
    check_swept(lake, marked, dict.fromkeys(back, HELD))


def _commit(lake: SmallLake) -> None:
    lake.commit("dev")


def _new_branch(lake: SmallLake) -> None:
    lake.client.create_branch(REPOSITORY, "other", "main")


def _new_rules(lake: SmallLake) -> None:
    lake.rules(20, main=11)


def _no_rules(lake: SmallLake) -> None:
    lake.client.delete_gc_rules(REPOSITORY)


def _lost_branch(lake: SmallLake) -> None:
    lake.client.delete_branch(REPOSITORY, "dev")


@pytest.mark.parametrize("change", [_commit, _new_branch, _new_rules, _no_rules, _lost_branch])
def test_a_fingerprint_tells_of_heads_and_rules(
    lake: SmallLake, change: Callable[[SmallLake], None]
) -> None:
    client: LakeFSClient = lake.client
    before = seen_now(client, REPOSITORY, protect_tags=False)[1]
    assert seen_now(client, REPOSITORY, protect_tags=False)[1] == before
    change(lake)
    after = seen_now(client, REPOSITORY, protect_tags=False)[1]
    rules = change in (_new_rules, _no_rules)
    # A moved branch can be followed, other rules cannot.
    assert (after.heads != before.heads, after.rules != before.rules) == (not rules, rules)


def test_a_fingerprint_tells_of_tags_where_they_protect(lake: SmallLake) -> None:
    both = [seen_now(lake.client, REPOSITORY, protect_tags=p)[1] for p in (False, True)]
    lake.client.create_tag(REPOSITORY, "v0", "main")
    after = [seen_now(lake.client, REPOSITORY, protect_tags=p)[1] for p in (False, True)]
    assert after[0] == both[0]
    assert after[1].heads == both[1].heads
    assert after[1].rules != both[1].rules


SEEN = Fingerprint("heads", "rules")
MOVED, RULED = SEEN._replace(heads="others"), SEEN._replace(rules="others")


def later(seconds: float, stood: float = 0) -> Moment:
    by_store = datetime(2026, 5, 1, tzinfo=timezone.utc) + timedelta(seconds=seconds)
    return Moment("boot", seconds - stood, by_store)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "send"),
        ({"took": 15.0}, "look again"),
        ({"seen": MOVED}, "extend"),
        ({"seen": RULED}, "stale"),
        ({"seen": RULED._replace(heads="others")}, "stale"),
        ({"now": later(540)}, "stale"),
        ({"now": later(500, stood=100)}, "stale"),
        ({"held": True}, "lost"),
        ({"lost": "gone"}, "lost"),
        ({"lost": "gone", "seen": RULED}, "lost"),
        ({"held": True, "seen": MOVED}, "lost"),
    ],
)
def test_each_guard_of_a_batch_stops_it_alone(change: dict[str, Any], verdict: str) -> None:
    look = Look(seen=SEEN, heads={}, now=later(539), lost="", held=False, took=14.0)
    assert judge(look, SEEN, later(0))[0] == "send"
    assert judge(replace(look, **change), SEEN, later(0))[0] == verdict
