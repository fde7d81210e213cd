"""What marks hand on: a commit that any of them knew by a date stays until that date is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.retention.active_commits import ActiveCommits, Reason, active_commits
from lakegc_assets.retention.commits import Commit, instant
from lakegc_assets.retention.retained_commits import raise_days
from lakegc_assets.retention.rules import MAX_DAYS, Rules
from lakegc_assets.retention.union import Previous, remember, still_inside, unite

from .graphs import NOW, History, commit, graph, histories
from .test_retained_commits import ancestry

DAY = timedelta(days=1)
BRANCHES = ("main", "dev", "tmp")


@dataclass(frozen=True)
class Moment:
    """A repository when it is marked; without rules all is active."""

    heads: Mapping[str, str]
    rules: Rules | None
    tagged: frozenset[str] = frozenset()


@dataclass
class Marks:
    """The marks of one repository after each other, by the functions that a mark calls."""

    commits: dict[str, Commit]
    previous: Previous = field(default_factory=lambda: Previous({}, NOW))
    last: Rules = field(default_factory=lambda: Rules(MAX_DAYS))

    def mark(self, at: Moment, now: datetime) -> set[str]:
        """Mark; ids of the commits that are active for what the marks before it knew, too."""
        self.last = dated = at.rules or self.last
        handed_on = dated if at.rules else raise_days(dated, MAX_DAYS)
        # Of the log nothing is known but by the branches: lakeFS's list is empty.
        own = active_commits(self.reached(at.heads), at.heads, dated, now)
        kept = still_inside([self.previous], heads=at.heads, rules=handed_on, now=now)
        shown = {commit_id: reasons[0] for commit_id, reasons in kept.items()}
        tags = {commit_id: Reason(None, "tag") for commit_id in at.tagged}
        with_tags = ActiveCommits({**tags, **own.active}, frozenset())
        recorded = unite((), with_tags, later_heads=at.heads, previous=shown).active
        if at.rules is None:
            recorded = dict.fromkeys(recorded, Reason(None, "no rules"))
        found = [own.active, own.dated]
        remembered = remember(
            [self.previous], found, recorded, heads=at.heads, rules=handed_on, now=now
        )
        reasons = {commit_id: [reason] for commit_id, reason in recorded.items()}
        heads = {
            (head, branch): Reason(branch, "head", None, self.date(head))
            for branch, head in at.heads.items()
        }
        for (head, _), reason in heads.items():
            reasons.setdefault(head, []).append(reason)
        for commit_id, more in remembered.items():
            reasons.setdefault(commit_id, []).extend(more)
        self.previous = Previous(reasons, now)
        return set(recorded)

    def date(self, commit_id: str) -> datetime:
        return instant(self.commits[commit_id].creation_date)

    def reached(self, heads: Mapping[str, str]) -> dict[str, Commit]:
        found = {one for head in heads.values() for one in ancestry(self.commits, head)}
        return {one: self.commits[one] for one in found}


@dataclass
class Specification:
    """All that marks ever knew by a date, as a plain set of branches and dates."""

    marks: Marks
    #: Commit, branch and the date from which its days count.
    known: set[tuple[str, str | None, datetime]] = field(default_factory=set)
    heads: Mapping[str, str] = field(default_factory=dict)
    marked_at: datetime = NOW

    def mark(self, at: Moment, dated: Rules, now: datetime) -> set[str]:
        """What must be active, whatever else is; ``dated``: rules of then, or the last ones."""
        for branch, head in self.heads.items():
            if at.heads.get(branch) != head:
                there = branch in at.heads
                date = self.marked_at if there else self.marks.date(head)
                self.known.add((head, branch, date))
        self.known = {
            # Of a branch that is gone without a rule of its own nothing is left but the commit.
            (one, branch if branch in {*at.heads, *dated.branches} else None, date)
            for one, branch, date in self.known
            if at.rules is None or self.days(at, at.rules, branch) * DAY > now - date
        }
        must = {one for one, _, _ in self.known}
        own = active_commits(self.marks.reached(at.heads), at.heads, dated, now)
        for reasons in (own.active, own.dated):
            for one, reason in reasons.items():
                if reason.kind != "head" and reason.counted_from is not None:
                    self.known.add((one, reason.branch, reason.counted_from))
        self.heads, self.marked_at = at.heads, now
        return must | set(at.heads.values()) | at.tagged

    @staticmethod
    def days(at: Moment, rules: Rules, branch: str | None) -> int:
        there = branch is not None and branch in at.heads
        return rules.days(branch) if there and branch else rules.default_retention_days


_days = st.integers(0, 20)
_rules = st.builds(Rules, _days, st.dictionaries(st.sampled_from(BRANCHES), _days))


@st.composite
def weeks(draw: st.DrawFn) -> tuple[dict[str, Commit], list[tuple[int, Moment]]]:
    """Commits, and some marks, each so many days after the one before."""
    history: History = draw(histories())
    ids = st.sampled_from(sorted(history.commits))
    moments = st.builds(
        Moment,
        st.dictionaries(st.sampled_from(BRANCHES), ids, min_size=1),
        st.none() | st.just(Rules(2, {"main": 15})) | _rules,
        st.frozensets(ids, max_size=2),
    )
    marks = draw(st.lists(st.tuples(st.integers(0, 8), moments), min_size=2, max_size=6))
    return dict(history.commits), marks


@given(weeks())
def test_what_a_mark_knew_by_a_date_stays_until_that_is_over(
    drawn: tuple[dict[str, Commit], list[tuple[int, Moment]]],
) -> None:
    commits, moments = drawn
    marks = Marks(commits)
    specified = Specification(marks)
    now, ever = NOW, set[str]()
    for later, at in moments:
        now += later * DAY
        active = marks.mark(at, now)
        must = specified.mark(at, at.rules or marks.last, now)
        assert must <= active
        # Nothing is kept that was never active, either.
        by_branches = active_commits(marks.reached(at.heads), at.heads, marks.last, now).active
        ever |= must | by_branches.keys()
        assert active <= ever


@given(histories(), st.integers(0, 10))
def test_a_head_has_the_date_too_for_which_it_would_be_active(history: History, days: int) -> None:
    rules = Rules(days, history.rules.branches)
    reached = Marks(history.commits).reached(history.heads)
    ends: dict[str, datetime] = {}
    for branch, head in history.heads.items():
        for one in ancestry(reached, head):
            until = instant(reached[one].creation_date) + rules.days(branch) * DAY
            for held in filter(None, (one, reached[one].main_parent)):
                ends[held] = max(until, ends.get(held, until))
    dated = active_commits(reached, history.heads, rules, NOW).dated
    assert {one: reason.until for one, reason in dated.items()} == {
        one: ends[one] for one in history.heads.values() if ends[one] > NOW
    }


def moments(*between: Moment) -> list[set[str]]:
    """What is active in marks of one day, of which the first and the last are given.

    The commit of 40 days ago was the HEAD of main at the first; main has 30 days.
    """
    rules = Rules(5, {"main": 30})
    before, after = Moment({"main": "c2"}, rules), Moment({"main": "c1"}, rules)
    marks = Marks(graph(commit("c1", 60), commit("c2", 40, "c1")))
    return [marks.mark(at, NOW) for at in (before, *between, after)]


RULES = Rules(5, {"main": 30})
RESET = {"main": "c1"}


def test_nothing_in_between_hides_the_date() -> None:
    for between in (
        (),
        (Moment(RESET, RULES),),
        (Moment(RESET, RULES, frozenset({"c2"})),),
        (Moment({**RESET, "tmp": "c2"}, RULES),),
        (Moment({"main": "c2"}, None),),
        (Moment(RESET, None),),
        (Moment({**RESET, "tmp": "c2"}, None), Moment(RESET, None, frozenset({"c2"}))),
        (Moment(RESET, RULES), Moment({**RESET, "tmp": "c2"}, RULES), Moment(RESET, RULES)),
        (Moment({**RESET, "tmp": "c2"}, RULES),) * 3,
        (Moment(RESET, Rules(5, {"main": 30, "tmp": 99})), Moment(RESET, Rules(1, {"main": 2}))),
    ):
        assert "c2" in moments(*between)[-1], between


def test_a_rule_that_was_shorter_for_a_mark_ends_it_for_good() -> None:
    marks = Marks(graph(commit("c1", 60), commit("c2", 40, "c1")))
    assert "c2" in marks.mark(Moment({"main": "c2"}, RULES), NOW)
    for days, active in ((3, True), (2, False), (30, False)):
        at = Moment(RESET, Rules(1, {"main": days}))
        assert ("c2" in marks.mark(at, NOW + 2 * DAY)) is active


def test_the_head_of_several_branches_is_known_of_each() -> None:
    marks = Marks(graph(commit("c1", 60), commit("c2", 40, "c1")))
    rules = Rules(5, {"main": 30, "dev": 10})
    marks.mark(Moment({"main": "c2", "dev": "c2"}, rules), NOW)
    assert "c2" in marks.mark(Moment({"dev": "c1"}, rules), NOW + 9 * DAY)
    assert "c2" not in marks.mark(Moment({"dev": "c1"}, rules), NOW + 10 * DAY)


def test_a_reason_by_another_branch_hides_none() -> None:
    """Which of them holds longer, only the rules of the day tell."""
    marks = Marks(graph(commit("c1", 60), commit("c2", 40, "c1")))
    rules = Rules(5, {"main": 30, "dev": 10})
    for head in ("c2", "c1"):
        marks.mark(Moment({"main": head, "dev": head}, rules), NOW)
    assert "c2" in marks.mark(Moment({"dev": "c1"}, Rules(5, {"dev": 10})), NOW + 9 * DAY)


def test_a_branch_that_comes_back_has_its_rule_again() -> None:
    marks = Marks(graph(commit("c1", 60), commit("c2", 40, "c1")))
    rules = Rules(50, {"main": 90})
    marks.mark(Moment({"main": "c2"}, rules), NOW)
    marks.mark(Moment({"dev": "c1"}, rules, frozenset({"c2"})), NOW)
    assert "c2" in marks.mark(Moment({"main": "c1"}, rules), NOW + 20 * DAY)


def test_a_head_with_a_date_to_come_holds_from_that_on() -> None:
    marks = Marks(graph(commit("c1", 60), commit("c2", -20, "c1")))
    marks.mark(Moment({"main": "c2"}, RULES), NOW)
    assert "c2" in marks.mark(Moment(RESET, RULES), NOW + 40 * DAY)


def test_of_two_times_at_which_it_was_the_head_the_later_one_counts() -> None:
    marks = Marks(graph(commit("c1", 60), commit("c2", 40, "c1")))
    for days, tagged in ((0, ()), (10, ("c2",))):
        marks.mark(Moment({"main": "c2"}, RULES), NOW + days * DAY)
        marks.mark(Moment(RESET, RULES, frozenset(tagged)), NOW + days * DAY)
    assert "c2" in marks.mark(Moment(RESET, RULES), NOW + 35 * DAY)
