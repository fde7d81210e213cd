"""For each object the mark tells why it goes, or why it stays."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import ForbiddenError
from lakegc_assets.mark import explanation as module
from lakegc_assets.mark import listing_pages
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.explanation import explain_object
from lakegc_assets.mark.relations import CONTROL
from lakegc_assets.run.hashing import Hashes, address_hashes
from lakegc_assets_tests.lake import REPOSITORY, STAGES, SmallLake, running, tell_history
from lakegc_assets_tests.sessions import Session


@dataclass(frozen=True)
class Told:
    lake: SmallLake
    groups: dict[str, frozenset[str]]
    commits: dict[str, str]
    head: str
    staged: str


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, spark: Session) -> Iterator[Told]:
    with running(tmp_path_factory.mktemp("told")) as lake:
        groups, commits = tell_history(lake)
        for name in ("elsewhere/x", "data/li\nne", "data/in/doubt"):
            path = lake.objects / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("planted")
            os.utime(path, (time.time() - 7200,) * 2)
        (lake.objects / "data" / "young").write_text("just written")
        for stage in STAGES[: STAGES.index(find_candidates) + 1]:
            stage(lake.context(spark, min_age_hours=1))
        addresses = [
            lake.client.stat(REPOSITORY, "main", "a/0"),
            lake.client.stat(REPOSITORY, "dev", "s/0"),
        ]
        head, staged = (
            a.physical_address.removeprefix(f"local://{REPOSITORY}/") for a in addresses
        )
        yield Told(lake, groups, commits, head, staged)


def ask(told: Told, spark: Session, address: str) -> tuple[str, str]:
    found = explain_object(told.lake.context(spark), address)
    return found.verdict, found.because


def test_candidates_tell_who_held_them_last(told: Told, spark: Session) -> None:
    (orphan, *_), (removed, *_) = told.groups["orphans"], told.groups["removed"]
    assert ask(told, spark, orphan)[0] == "candidate"
    assert ask(told, spark, orphan)[1].startswith("it was never committed")
    verdict, because = ask(told, spark, removed)
    assert verdict == "candidate"
    assert because.startswith(
        f"the expired commit {told.commits['second']} in the first-parent history of"
    )
    assert ask(told, spark, f"local://{REPOSITORY}/{removed}") == (verdict, because)


def test_what_only_a_deleted_branch_had_tells_its_path_and_commit(
    told: Told, spark: Session
) -> None:
    paths = set()
    for address in told.groups["given up"]:
        verdict, because = ask(told, spark, address)
        assert verdict == "candidate"
        before, by, after = because.partition(f" by {told.commits['given up']}, of a branch that ")
        assert by, because
        assert after.startswith("was deleted")
        paths.add(before.removeprefix("it was committed at "))
    assert paths == {"'try/0'", "'try/1'", "'try/2'"}


def test_a_server_that_lists_no_commits_still_tells_the_path(
    told: Told, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(_client: LakeFSClient, _repository: str) -> str:
        raise ForbiddenError("not allowed")

    monkeypatch.setattr(LakeFSClient, "dump_refs", forbidden)
    because = ask(told, spark, min(told.groups["given up"]))[1]
    assert because.startswith("it was committed at 'try/")
    assert "by a commit that lakeFS does not list" in because


def test_a_range_that_cannot_be_read_hides_no_answer(
    told: Told, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object) -> None:
        raise IntegrityError("it is damaged")

    monkeypatch.setattr(module, "unreachable_holder", damaged)
    verdict, because = ask(told, spark, min(told.groups["orphans"]))
    assert verdict == "candidate"
    assert because.startswith("no commit that the mark knew held it, ")
    assert because.endswith("if another commit held it: it is damaged")


def test_a_candidate_that_was_staged_since_says_so(told: Told, spark: Session) -> None:
    """Whatever size the client said when it staged the address."""
    address = max(told.groups["orphans"])
    told.lake.stage("dev", "linked/again", address, size=7)
    try:
        found = explain_object(told.lake.context(spark), address)
    finally:
        told.lake.client.delete_object(REPOSITORY, "dev", "linked/again")
    assert found.verdict == "candidate"
    assert found.because == (
        "it was never committed, and when it was marked, it was staged nowhere; since then it was "
        "staged on branch 'dev' at 'linked/again'"
    )
    assert found.facts["staged"] == {"branch": "dev", "path": "linked/again"}


def test_what_stays_tells_why(told: Told, spark: Session) -> None:
    head = told.lake.head("main")
    verdict, because = ask(told, spark, told.head)
    assert verdict == "live"
    assert because.startswith(f"the active commit {head} of branch ")
    assert ask(told, spark, told.staged) == ("live", "it is staged on branch 'dev' at 's/0'")
    assert ask(told, spark, "data/li\nne") == ("spared", CONTROL)
    assert ask(told, spark, "data/young")[0] == "too young"
    assert ask(told, spark, "elsewhere/x")[0] == "outside data"
    assert ask(told, spark, "_lakefs/x")[0] == "outside data"
    assert ask(told, spark, "data/nowhere")[0] == "unknown"
    assert ask(told, spark, "local://another/x")[0] == "unknown"


@pytest.mark.parametrize(
    ("live", "of"), [("head", "a live address"), ("staged", "a staged address")]
)
def test_an_address_that_only_has_the_hash_of_a_live_one_says_so(
    live: str, of: str, told: Told, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays, although nobody holds it: hashes only ever keep objects."""
    wanted, twin = getattr(told, live), "data/in/doubt"

    def colliding(addresses: pa.Array | pa.ChunkedArray) -> Hashes:
        texts = [wanted if text == twin else text for text in addresses.to_pylist()]
        return address_hashes(pa.array(texts, pa.string()))

    monkeypatch.setattr(module, "address_hashes", colliding)
    monkeypatch.setattr(listing_pages, "address_hashes", colliding)
    ctx = told.lake.context(spark, run="colliding")
    for stage in STAGES[: STAGES.index(find_candidates) + 1]:
        stage(ctx)
    assert twin not in set(
        ctx.root.attempt(REPOSITORY, ctx.run).read("deletion_candidates")["address"].to_pylist()
    )
    found = explain_object(ctx, twin)
    assert (found.verdict, found.because) == ("live", f"its hash is that of {of}: it stays")
