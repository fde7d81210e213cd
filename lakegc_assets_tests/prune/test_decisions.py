"""Whatever an estate of runs looks like: after a prune, the next mark finds what it found before.

The questions of a mark are asked here in the words of ``mark.incremental_listing``,
``mark.commits`` and ``mark.candidates``, of all runs and of those that stay, and of any that a
killed prune leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.prune.decisions import SUCCESS, SUCCESSES, Listing, Run, judge
from lakegc_assets.run.manifest import MARK_ASSETS

NOW = datetime(2026, 11, 22, 6, tzinfo=timezone.utc)
KEEP = timedelta(days=30)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)


@dataclass(frozen=True)
class Made:
    """A run as it was made; times are in hours before now.

    Attributes:
        run: as a prune knows it.
        began: of the listing.
        swept: when its sweep was finished; None where it was not.
    """

    run: Run
    began: datetime
    swept: datetime | None


@dataclass(frozen=True)
class Found:
    """What the next mark takes from the runs before it."""

    carried: tuple[Any, ...]
    swept: tuple[str, ...]
    restored: bool
    commits: str | None
    parts: tuple[str | None, str | None]
    grown: str | None


def latest(runs: list[Made], asset: str, before: datetime) -> str | None:
    having = [m.run for m in runs if m.run.finished.get(asset, before) < before]
    return max(having, key=lambda r: r.finished[asset]).id if having else None


def next_mark(runs: list[Made], at: datetime, clean_every: timedelta, gap: timedelta) -> Found:
    listings = [m for m in runs if m.run.listing is not None and m.run.listing.finished < at]
    whole = [m for m in listings if m.run.listing and m.run.listing.whole]
    last = max(whole, key=lambda m: m.began, default=None)
    clean_at = last.run.listing.clean_at if last and last.run.listing else None
    carried: tuple[Any, ...] = ()
    swept: list[str] = []
    restored = False
    if last is not None and clean_at is not None and at - clean_at <= clean_every:
        carried = (last.run.id, clean_at, SUCCESS in last.run.finished)
        since = [m for m in listings if m.began >= clean_at]
        swept = sorted(m.run.id for m in since if m.swept is not None and m.swept < at)
        restored = any(m.run.restored and m.run.restored >= clean_at for m in listings)

    def seen(some: list[Made]) -> str | None:
        old = [m.run for m in some if m.run.listing and m.run.listing.finished < at - gap]
        return max(old, key=lambda r: r.finished["store_listing"]).id if old else None

    return Found(
        carried,
        tuple(swept),
        restored,
        latest(runs, "active_commits", at),
        (seen(whole), seen(listings)),
        latest(runs, SUCCESS, at),
    )


@st.composite
def estates(draw: st.DrawFn) -> tuple[list[Made], timedelta, timedelta]:
    """Runs one after the other, as the graph makes them; clean_every; and the age of cutoffs."""
    clean_every = draw(st.sampled_from([DAY, 7 * DAY, 400 * DAY]))
    gap = draw(st.sampled_from([26 * HOUR, 40 * DAY]))
    hours = sorted(draw(st.sets(st.integers(2, 24 * 120), min_size=1, max_size=12)), reverse=True)
    made: list[Made] = []
    for number, ago in enumerate(hours):
        began = NOW - ago * HOUR
        count = draw(st.sampled_from([0, 1, 3, 5, *[len(MARK_ASSETS)] * 4]))
        finished = {
            asset: began + timedelta(minutes=1 + at) for at, asset in enumerate(MARK_ASSETS[:count])
        }
        by_name = draw(st.integers(0, 4)) == 0
        listing = swept = restored = None
        if finished:
            before = next_mark(made, began, clean_every, gap)
            takes = bool(before.carried) and before.carried[2] and not before.restored
            takes = takes and not by_name
            listing = Listing(
                start=began,
                finished=finished["store_listing"],
                cutoff=began - gap,
                whole=not by_name,
                clean_at=None if by_name else before.carried[1] if takes else began,
                swept_since=frozenset((i, f"a-{i}") for i in before.swept)
                if takes
                else frozenset(),
            )
        if SUCCESS in finished and draw(st.booleans()):
            swept = began + draw(st.integers(1, max(1, ago - 1))) * HOUR
            finished["swept_set"] = swept
            if draw(st.integers(0, 3)) == 0:
                left = max(1, int((NOW - swept) / HOUR))
                restored = swept + draw(st.integers(0, left)) * HOUR
        last = max([began, *finished.values(), *([restored] if restored else [])])
        needed = draw(st.sampled_from(["", "", "", "", "its sweep is approved"]))
        run = Run(f"run-{number:02d}", f"a-run-{number:02d}", last, finished, listing)
        made.append(Made(replace(run, restored=restored, needed=needed), began, swept))
    return made, clean_every, gap


@given(estates(), st.data())
def test_the_next_mark_finds_what_it_found_before(
    estate: tuple[list[Made], timedelta, timedelta], data: st.DataObject
) -> None:
    made, clean_every, gap = estate
    kept = judge([m.run for m in made], KEEP, NOW)
    goes = [m.run.id for m in made if not kept[m.run.id]]
    # A prune may be killed after any of them, and in any order.
    gone = data.draw(st.sets(st.sampled_from(goes))) if goes else set()
    left = [m for m in made if m.run.id not in gone]
    for later in (timedelta(0), DAY, 35 * DAY, 300 * DAY):
        before = next_mark(made, NOW + later, clean_every, gap)
        assert next_mark(left, NOW + later, clean_every, gap) == before
    # The next prune needs no more than this one has left.
    again = judge([m.run for m in left], KEEP, NOW)
    assert {i for i in again if again[i]} == {i for i in kept if kept[i]}


@given(estates())
def test_what_stays_can_be_swept_restored_and_looked_at(
    estate: tuple[list[Made], timedelta, timedelta],
) -> None:
    made, _, _ = estate
    kept = judge([m.run for m in made], KEEP, NOW)
    stays = {m.run.id for m in made if kept[m.run.id]}
    for m in made:
        if m.run.id in stays and m.run.listing is not None:
            assert {run for run, _ in m.run.listing.swept_since} <= stays
    assert {m.run.id for m in made if m.run.needed} <= stays
    assert {m.run.id for m in made if NOW - m.run.last < KEEP} <= stays
    marks = [m.run for m in made if SUCCESS in m.run.finished]
    marks.sort(key=lambda run: run.finished[SUCCESS])
    assert {run.id for run in marks[-SUCCESSES:]} <= stays


@given(estates(), st.data())
def test_runs_that_a_listing_does_not_show_make_no_other_go(
    estate: tuple[list[Made], timedelta, timedelta], data: st.DataObject
) -> None:
    made, clean_every, gap = estate
    shown = data.draw(st.sets(st.sampled_from([m.run.id for m in made])))
    kept = judge([m.run for m in made if m.run.id in shown], KEEP, NOW)
    left = [m for m in made if m.run.id not in shown or kept[m.run.id]]
    for later in (timedelta(0), 35 * DAY):
        before = next_mark(made, NOW + later, clean_every, gap)
        found = next_mark(left, NOW + later, clean_every, gap)
        assert found == replace(before, parts=found.parts)


def run(name: str, days: float, **more: Any) -> Run:
    """A run that was swept so many days ago."""
    start = NOW - days * DAY
    finished = dict.fromkeys((*MARK_ASSETS, "swept_set"), start)
    listing = Listing(start, start, start - 26 * HOUR, clean_at=start)
    known = {"last": start, "finished": finished, "listing": listing, **more}
    return Run(name, f"a-{name}", **known)


def test_of_old_runs_that_nothing_needs_the_last_three_stay() -> None:
    runs = [run(f"{days}", days) for days in range(100, 30, -10)]
    kept = judge(runs, KEEP, NOW)
    assert [name for name, why in kept.items() if not why] == ["100", "90", "80", "70"]
    assert kept["50"] == "it is one of the last 3 marks"
    runs += [run("5", 5), run("1", 1), run("0", 0.1)]
    kept = judge(runs, KEEP, NOW)
    assert [name for name, why in kept.items() if not why] == [str(d) for d in range(100, 30, -10)]
    assert kept["5"] == "it is 5 days old"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"needed": "its sweep is approved by Ada"}, "its sweep is approved by Ada"),
        ({"restored": NOW - 0.05 * DAY}, "run '5' relies on listings and sweeps since"),
        ({"last": NOW - DAY}, "it is 1 day old"),
    ],
)
def test_what_is_needed_is_told(change: dict[str, Any], why: str) -> None:
    runs = [replace(run("60", 60), **change), run("5", 5), run("4", 4), run("3", 3)]
    assert judge(runs, KEEP, NOW)["60"].startswith(why)


def test_a_sweep_that_a_kept_mark_leaves_out_stays_with_what_it_leaves_out() -> None:
    def leaving(name: str, days: float, *others: str) -> Run:
        found = run(name, days)
        assert found.listing is not None
        since = frozenset((other, f"a-{other}") for other in others)
        return replace(found, listing=replace(found.listing, swept_since=since))

    approved = replace(leaving("80", 80, "82"), needed="its sweep is approved")
    runs = [leaving("90", 90), leaving("84", 84), leaving("82", 82, "84"), approved]
    kept = judge([*runs, run("5", 5), run("4", 4), run("3", 3)], KEEP, NOW)
    assert kept["82"] == "the listing of run '80' leaves out objects that it deleted"
    assert kept["84"] == "the listing of run '82' leaves out objects that it deleted"
    assert kept["90"] == ""


def test_a_mark_that_was_cut_off_stays_until_a_later_one_has_finished() -> None:
    half = run("60", 60, finished={"store_listing": NOW - 60 * DAY})
    kept = judge([run("90", 90), half], KEEP, NOW)
    assert kept["60"]
    kept = judge([run("90", 90), half, run("59", 59), run("58", 58), run("57", 57)], KEEP, NOW)
    assert kept["60"] == ""


def test_a_run_of_which_nothing_is_finished_stays_until_a_mark_has_followed() -> None:
    """Clocks may differ by an hour."""
    for hours, stays in ((-2, True), (0.5, True), (2, False)):
        begun = Run("begun", "a-begun", NOW - 60 * DAY - hours * HOUR)
        kept = judge([begun, *(run(f"{days}", days) for days in (90, 80, 70, 60))], KEEP, NOW)
        assert kept["begun"] == ("its mark did not finish, and no later one has" if stays else "")


def test_the_last_marks_are_those_that_were_made_last_not_swept_last() -> None:
    late = replace(run("100", 100), last=NOW - 60 * DAY)
    kept = judge([late, run("90", 90), run("80", 80), run("70", 70)], KEEP, NOW)
    assert (kept["100"], kept["90"]) == ("", "it is one of the last 3 marks")


def test_the_latest_commits_stay_though_their_mark_was_overtaken() -> None:
    """Two marks at once: the one that read the commits later was killed before the other ended."""
    began = NOW - 60 * DAY
    killed = run("60", 60, finished={"active_commits": began + HOUR}, listing=None)
    killed = replace(killed, last=began + HOUR)
    others = [run("70", 70), run("65", 65)]
    overtaking = {"active_commits": began, SUCCESS: began + 9 * HOUR}
    others.append(replace(run("61", 60), finished=overtaking, last=began + 9 * HOUR))
    assert judge([killed, *others], KEEP, NOW)["60"] == "its active_commits is the latest"


def test_what_was_restored_since_the_last_clean_run_stays_where_others_look_by_name() -> None:
    clean = run("100", 100)
    taken = run("60", 60)
    assert taken.listing is not None
    clean_at = NOW - 100 * DAY
    taken = replace(taken, listing=replace(taken.listing, clean_at=clean_at))
    restored = replace(run("200", 200), restored=NOW - 90 * DAY)
    by_name = []
    for days in (50, 45, 40):
        found = run(f"{days}", days)
        assert found.listing is not None
        by_name.append(replace(found, listing=replace(found.listing, whole=False, clean_at=None)))
    # What was begun in the same hour may be of either side.
    beside = run("101", 100 + 1 / 48)
    before = run("102", 100 + 1 / 12)
    kept = judge([restored, before, beside, clean, taken, *by_name], KEEP, NOW)
    assert kept["101"] == kept["100"]
    assert kept["102"] == ""
    assert kept["60"] == "its listing is the latest"
    assert kept["100"].startswith("run '60' relies on listings and sweeps since")
    assert kept["200"].startswith("run '60' relies on listings and sweeps since")


def test_listings_stay_that_later_marks_search_for_uploads_in_parts() -> None:
    """Those since the oldest cutoff that a mark may have, and the last before it of each kind."""

    def listed(name: str, days: float, took: float = 0, **more: Any) -> Run:
        found = run(name, days)
        assert found.listing is not None
        listing = replace(
            found.listing,
            start=found.listing.start - took * HOUR,
            cutoff=found.listing.start - 40 * DAY,
            **more,
        )
        return replace(found, listing=listing)

    runs = [
        listed("60", 60),
        listed("45, begun last", 45.1, took=1),
        listed("45, ended last", 45, took=9),
        listed("44, by name", 44, whole=False),
        listed("40, within the hour", 40 + 1 / 48),
        listed("35", 35),
        *(run(f"{days}", days) for days in (5, 4, 3)),
    ]
    kept = judge(runs, KEEP, NOW)
    because = "a later mark searches its listing for uploads in parts"
    searched = ("45, ended last", "44, by name", "40, within the hour", "35")
    assert [name for name, why in kept.items() if why == because] == [*searched]
    assert [name for name, why in kept.items() if not why] == ["60", "45, begun last"]
