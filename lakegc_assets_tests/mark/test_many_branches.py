"""What branches and rules cost, in requests: a diff for each branch, and nothing that grows faster.

Most branches have the HEAD of another one, as in repositories where each job has a branch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakegc_assets.embedded.lake import catalog
from lakegc_assets.lakefs.transport import LARGEST_PAGE
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.files import age
from lakegc_assets_tests.lake import REPOSITORY, STAGES, SmallLake, running
from lakegc_assets_tests.sessions import Session

#: Of so many branches one has a commit of its own, and one has something staged.
_COMMITTED, _STAGED = 20, 50
_NAMES = re.compile(r"\b(branches|refs|commits|diff)/[^/]+")


@dataclass(frozen=True)
class Branches:
    """A repository with many branches, each with a rule of its own.

    Attributes:
        lake: the lakeFS server.
        number: of branches besides main.
        garbage: what an old commit of main held, and what was staged and staged again.
    """

    lake: SmallLake
    number: int
    garbage: frozenset[str]

    @property
    def own_commits(self) -> int:
        return -(-self.number // _COMMITTED)

    @property
    def pages(self) -> int:
        """Requests for one whole list of branches, with the one behind the last."""
        return self.number // LARGEST_PAGE + 2


@contextmanager
def branched(folder: Path, number: int, *, alike: bool) -> Iterator[Branches]:
    """A lake with so many branches.

    Args:
        folder: of the lake.
        number: of branches.
        alike: whether garbage has the size of what every branch holds.
    """
    with running(folder) as lake:
        lake.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        lake.rules(20, **{f"b{n}": 5 + n % 40 for n in range(number)})
        lake.calendar.days_ago = 90
        garbage = {lake.upload("main", f"a/{n}", f"the first {n}") for n in range(5)}
        lake.commit("main")
        lake.calendar.days_ago = 80
        for n in range(5):
            lake.upload("main", f"a/{n}", f"a second {n}" + ("!" if alike else "?!"))
        lake.commit("main")
        head = lake.head("main")
        with lake.server.lake.state.write() as db:
            repository = catalog.repository(db, REPOSITORY)
            for n in range(number):
                catalog.insert_branch(db, repository, f"b{n}", head, hidden=n % 7 == 0)
        for n in range(0, number, _COMMITTED):
            lake.upload(f"b{n}", "own", f"what branch {n} has committed")
            lake.commit(f"b{n}")
        for n in range(0, number, _STAGED):
            garbage.add(
                lake.upload(
                    f"b{n}", "staged", f"this branch {n} has staged before it has staged another"
                )
            )
            lake.upload(f"b{n}", "staged", f"what branch {n} has staged at last")
        lake.calendar.days_ago = 0
        age(lake.objects / "data", days=1)
        yield Branches(lake, number, frozenset(garbage))


def require_few(asked: Counter[str], found: Branches, diffs: int, *, alike: bool) -> None:
    """Fail where requests grow faster than they must.

    Args:
        asked: how often each path was asked for, without names of branches and commits.
        found: the repository.
        diffs: how often each branch's is read.
        alike: whether every branch holds what looks like garbage.
    """
    each = found.number + 1
    # Where something is staged, what follows is asked for, too.
    staged = len(range(0, found.number, _STAGED))
    assert asked["refs/X/diff/X"] == diffs * (each + staged)
    # One for each HEAD that no other's history holds, and for main; not one for each branch.
    assert asked["refs/X/commits"] <= 2 * (found.own_commits + 2)
    assert asked["commits/X"] <= 2 * (found.own_commits + 1)
    assert asked["branches"] <= 25 * found.pages
    # By the mark or sweep once, and by the checks for each range with something like that.
    looked = asked["refs/X/objects/ls"] + asked["refs/X/objects/stat"]
    assert looked <= (8 * diffs * each if alike else 0)
    counted = (
        "refs/X/diff/X",
        "refs/X/commits",
        "commits/X",
        "branches",
        "refs/X/objects/ls",
        "refs/X/objects/stat",
    )
    assert asked.total() - sum(asked[path] for path in counted) <= 70


def collect(found: Branches, spark: Session, *, alike: bool) -> None:
    """Mark and sweep, and look at what was asked for and what is gone."""
    asked: Counter[str] = Counter()

    def count(_method: str, path: str) -> None:
        asked[_NAMES.sub(r"\1/X", path.partition(f"/repositories/{REPOSITORY}/")[2])] += 1

    lake, before = found.lake, found.lake.keys()
    lake.on_request = count
    ctx = lake.context(spark)
    for stage in STAGES:
        stage(ctx)
    require_few(asked, found, 1, alike=alike)
    rows = ctx.root.attempt(REPOSITORY, ctx.run).read("deletion_candidates")
    assert set(rows["address"].to_pylist()) == found.garbage
    asked.clear()
    sweep(ctx)
    # Before the deletes, and afterwards.
    require_few(asked, found, 2, alike=alike)
    assert lake.keys() == before - found.garbage


@pytest.mark.parametrize("alike", [pytest.param(False, marks=pytest.mark.conformance), True])
def test_a_branch_costs_its_diff_and_what_looks_like_garbage_on_it(
    tmp_path: Path, spark: Session, *, alike: bool
) -> None:
    with branched(tmp_path, 60, alike=alike) as found:
        collect(found, spark, alike=alike)


@pytest.mark.conformance
def test_three_thousand_branches_with_a_rule_for_each(tmp_path: Path, spark: Session) -> None:
    with branched(tmp_path, 3_000, alike=False) as found:
        collect(found, spark, alike=False)
