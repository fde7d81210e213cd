"""Many dead objects that look like what many branches hold: all may go, and nothing else does."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame

from lakegc_assets.embedded.faults import Fault
from lakegc_assets.engine.datasets import write_part
from lakegc_assets.engine.tasks import Tasks
from lakegc_assets.errors import IntegrityError
from lakegc_assets.mark import etags, relations, signatures
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.commits import find_active_commits
from lakegc_assets.mark.committed_addresses import read_committed_addresses
from lakegc_assets.mark.etags import Evidence, etag_files
from lakegc_assets.mark.listing import list_store
from lakegc_assets.mark.lookups import Inquiry
from lakegc_assets.mark.report import report
from lakegc_assets.mark.served_candidates import SPARED, served_candidates
from lakegc_assets.mark.signature_relations import SERVED, UNVERIFIED
from lakegc_assets.mark.signatures import NOTHING_COMPARED, HeadMatches
from lakegc_assets.mark.uncommitted_snapshot import snapshot_uncommitted
from lakegc_assets.run.artifacts import LISTING, AttemptArtifacts
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import Manifest
from lakegc_assets_tests.lake import REPOSITORY, RUN, SmallLake, copy_lake, running
from lakegc_assets_tests.sessions import Session

BRANCHES, DEAD = 100, 400
#: All objects are of one size, and the store's etags are no checksums: they name files.
CONTENT = "{:05} of one size".format
BEFORE = (list_store, snapshot_uncommitted, find_active_commits, read_committed_addresses)


@dataclass(frozen=True)
class Crowded:
    """A lake up to its live sets.

    Attributes:
        folder: of the lake; no server runs on it.
        dead: planted, and served nowhere.
        copies: of these, the ones whose content is that of what HEADs hold.
        shadows: served by one branch, and named by no list.
    """

    folder: Path
    dead: frozenset[str]
    copies: frozenset[str]
    shadows: frozenset[str]


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory, spark: Session) -> Crowded:
    folder = tmp_path_factory.mktemp("crowded")
    with running(folder, faults=frozenset({Fault.SHADOWED_UPLOADS})) as lake:
        lake.calendar.days_ago = 30
        lake.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        for n in range(20):
            lake.upload("main", f"path/{n}", CONTENT(n))
        lake.commit("main")
        for n in range(BRANCHES):
            lake.client.create_branch(REPOSITORY, f"b{n}", "main")
        for n in range(0, BRANCHES, 10):
            lake.upload(f"b{n}", "own", CONTENT(1000 + n))
            lake.commit(f"b{n}")
        shadows = {
            lake.upload("b7", "path/3", CONTENT(3)),
            lake.upload("b20", "own", CONTENT(1020)),
        }
        contents = {f"data/dead/{n:04}": CONTENT(5000 + n) for n in range(DEAD)}
        copies = {"data/dead/copy-1": CONTENT(3), "data/dead/copy-2": CONTENT(1030)}
        for address, content in (contents | copies).items():
            path = lake.objects / address
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        old = time.time() - 60
        for address in (*contents, *copies, *shadows):
            os.utime(lake.objects / address, (old, old))
        lake.calendar.days_ago = 0
        lake.upload("b5", "new", "staged, and of another size")
        for stage in BEFORE:
            stage(lake.context(spark))
    dead = frozenset(contents) | frozenset(copies)
    return Crowded(folder, dead, frozenset(copies), frozenset(shadows))


@pytest.fixture
def lake(crowded: Crowded, tmp_path: Path) -> Iterator[SmallLake]:
    faults = frozenset({Fault.SHADOWED_UPLOADS})
    with running(copy_lake(crowded.folder, tmp_path / "lake"), faults=faults) as found:
        yield found


def attempt_of(ctx: RunContext) -> AttemptArtifacts:
    return ctx.root.attempt(REPOSITORY, RUN)


def found(ctx: RunContext) -> tuple[set[str], dict[str, str]]:
    """The candidates, and what was spared."""
    attempt = attempt_of(ctx)
    rows = attempt.read("deletion_candidates", "spared").to_pylist()
    candidates = attempt.read("deletion_candidates")["address"].to_pylist()
    return set(candidates), {row["address"]: row["why"] for row in rows}


def requests(lake: SmallLake) -> list[str]:
    seen: list[str] = []
    lake.on_request = lambda _method, path: seen.append(path)
    return seen


def test_all_of_one_size_go_but_what_is_served(
    lake: SmallLake, crowded: Crowded, spark: Session
) -> None:
    ctx, seen = lake.context(spark), requests(lake)
    manifest = find_candidates(ctx)
    candidates, spared = found(ctx)
    assert candidates == crowded.dead
    assert spared == dict.fromkeys(crowded.shadows, SERVED)
    # One page answers for all paths of a branch, whatever the number of candidates.
    assert sum(path.endswith("/objects/ls") for path in seen) <= BRANCHES + 20
    # And one that has something staged is asked for what follows.
    assert sum("/diff/" in path for path in seen) == BRANCHES + 1 + 1
    listing = attempt_of(ctx).read("store_listing")
    rows = attempt_of(ctx).read("deletion_candidates")
    assert pc.all(pc.is_in(rows["address"], listing["address"].combine_chunks())).as_py()
    facts = manifest.facts
    assert facts["listed"] == listing.num_rows
    assert facts["listed_bytes"] == pc.sum(listing["size"]).as_py()
    size = len(CONTENT(0))
    counts = {"objects": len(crowded.dead), "bytes": len(crowded.dead) * size}
    assert facts["by_reason"] == {"unreferenced": counts}
    assert facts["spared"] == {SERVED: len(crowded.shadows)}
    assert rows.schema.field("branch").type == pa.string()


def test_what_may_not_be_asked_is_known_by_its_content(
    lake: SmallLake, crowded: Crowded, spark: Session
) -> None:
    """Of a path that all branches hold only what has its content is in doubt."""
    ctx, seen = lake.context(spark, max_served_lookups=50), requests(lake)
    find_candidates(ctx)
    candidates, spared = found(ctx)
    assert len(candidates) >= 0.99 * len(crowded.dead)
    # One branch alone holds the content of these: it is asked.
    (alone,) = (c for c in crowded.copies if (lake.objects / c).read_text() == CONTENT(1030))
    assert candidates == crowded.dead - crowded.copies | {alone}
    assert spared.keys() == crowded.shadows | crowded.copies - {alone}
    assert sorted(spared.values()) == [SERVED, UNVERIFIED, UNVERIFIED]
    assert sum(path.endswith("/objects/ls") for path in seen) <= 10


def test_an_entry_whose_etag_is_no_checksum_makes_contents_say_nothing(
    lake: SmallLake, crowded: Crowded, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakegc_assets.mark.etags.md5_of", lambda data: data.hex())
    ctx = lake.context(spark, max_served_lookups=50)
    find_candidates(ctx)
    candidates, spared = found(ctx)
    assert candidates == set()
    assert spared == dict.fromkeys(crowded.dead | crowded.shadows, UNVERIFIED)


def test_entries_with_the_etags_of_the_store_make_contents_say_nothing(
    lake: SmallLake, crowded: Crowded, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that lakeFS makes of such an object keeps an etag that no content tells."""
    evidence_of = etags.evidence_of

    def mixed(*args: Any) -> Evidence:
        return replace(evidence_of(*args), small_agree=True)

    monkeypatch.setattr(signatures, "evidence_of", mixed)
    ctx = lake.context(spark, max_served_lookups=50)
    find_candidates(ctx)
    candidates, spared = found(ctx)
    assert candidates == set()
    assert spared == dict.fromkeys(crowded.dead | crowded.shadows, UNVERIFIED)


def test_when_time_is_over_what_was_not_asked_stays(
    lake: SmallLake, crowded: Crowded, spark: Session
) -> None:
    ctx = lake.context(spark)
    find_candidates(ctx)
    attempt = attempt_of(ctx)
    manifest, store = attempt.manifest("deletion_candidates"), attempt.store()
    staged = min(crowded.dead)
    lake.stage("b1", "late", staged, size=len(CONTENT(0)))

    def ask(seconds: float) -> dict[str, str]:
        rows, _ = served_candidates(
            ctx.connect(),
            Inquiry(store.url, "test/", time.time() + seconds),
            attempt.read("active_commits", "heads"),
            manifest.parts["data"],
            etag_files(attempt.manifest("store_listing")),
        )
        return {row["address"]: row["why"] for row in rows.to_pylist()}

    # What a branch's diff names is asked for in any case.
    rest = dict.fromkeys(crowded.dead - {staged}, UNVERIFIED)
    assert ask(-1) == {staged: SERVED} | rest
    assert ask(60) == {staged: SERVED}


@pytest.mark.parametrize("asset", ["committed_addresses/data", "uncommitted_snapshot/hashes"])
@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_a_set_of_live_addresses_that_is_not_whole_stops_the_run(
    asset: str, damage: str, lake: SmallLake, spark: Session
) -> None:
    ctx = lake.context(spark)
    name, part = asset.split("/")
    run = attempt_of(ctx).manifest(name).parts[part][0]
    path = Path(attempt_of(ctx).url.removeprefix("file://")) / run.key
    body = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(body[:-1] if damage == "cut" else body[:50] + b"\xff" + body[51:])
    with pytest.raises(IntegrityError, match=r"[Mm]ark again"):
        find_candidates(ctx)
    assert not attempt_of(ctx).has("deletion_candidates")


def test_live_ranges_without_an_address_stop_the_run(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = lake.context(spark)
    whole = AttemptArtifacts.chain

    def emptied(self: AttemptArtifacts, *args: Any) -> dict[str, Manifest]:
        chain = whole(self, *args)
        manifest = chain["committed_addresses"]
        parts = {**manifest.parts, "data": []}
        return {**chain, "committed_addresses": replace(manifest, parts=parts, rows=0)}

    monkeypatch.setattr(AttemptArtifacts, "chain", emptied)
    with pytest.raises(IntegrityError, match=r"has rows of '.*', but no live address"):
        find_candidates(ctx)


def test_an_object_that_is_listed_twice_stops_the_run(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = lake.context(spark)
    whole = AttemptArtifacts.chain

    def doubled(self: AttemptArtifacts, *args: Any) -> dict[str, Manifest]:
        chain = whole(self, *args)
        manifest = chain["store_listing"]
        parts = {**manifest.parts, "data": [*manifest.parts["data"]] * 2}
        return {**chain, "store_listing": replace(manifest, parts=parts)}

    monkeypatch.setattr(AttemptArtifacts, "chain", doubled)
    with pytest.raises(IntegrityError, match="lists an object twice"):
        find_candidates(ctx)


def test_an_object_of_which_one_row_is_spared_stops_the_run(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other row of the object may be that of an upload in parts, which no run has seen."""
    ctx = lake.context(spark)
    whole = AttemptArtifacts.chain
    attempt = attempt_of(ctx)
    listed = attempt.read("store_listing", "data")
    etags_of_parts = pa.array([f"{'a' * 32}-2"] * listed.num_rows)
    listed = listed.set_column(listed.column_names.index("etag"), "etag", etags_of_parts)
    other = write_part(attempt.store(), "store_listing/data/", listed.cast(LISTING))

    def doubled(self: AttemptArtifacts, *args: Any) -> dict[str, Manifest]:
        chain = whole(self, *args)
        manifest = chain["store_listing"]
        parts = {**manifest.parts, "data": [*manifest.parts["data"], other]}
        return {**chain, "store_listing": replace(manifest, parts=parts)}

    monkeypatch.setattr(AttemptArtifacts, "chain", doubled)
    with pytest.raises(IntegrityError, match="lists an object twice"):
        find_candidates(ctx)


def test_an_engine_that_loses_rows_of_a_live_set_is_noticed(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a look at what HEADs hold, which older commits have not."""
    subtract = relations.dead_hashes

    def losing(store: DataFrame, committed: DataFrame, *others: Any) -> DataFrame:
        return subtract(store, committed.where("hash % 2 = 0"), *others)

    def unserved(*_: object) -> tuple[pa.Table, HeadMatches]:
        return SPARED.empty_table(), NOTHING_COMPARED

    monkeypatch.setattr(relations, "dead_hashes", losing)
    monkeypatch.setattr("lakegc_assets.mark.candidates.served_candidates", unserved)
    ctx = lake.context(spark)
    with pytest.raises(IntegrityError, match="live objects were taken for dead"):
        find_candidates(ctx)
    assert not attempt_of(ctx).has("deletion_candidates")


def test_few_jobs_whatever_the_size(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[str] = []
    run = Tasks.run

    def counted(self: Tasks, what: str, *args: Any) -> list[Any]:
        jobs.append(what)
        # As Spark sends them, and what they answer.
        sent = pickle.loads(pickle.dumps(args))
        answers: list[Any] = pickle.loads(pickle.dumps(run(self, what, *sent)))
        return answers

    monkeypatch.setattr(Tasks, "run", counted)
    monkeypatch.setattr("lakegc_assets.mark.report.read_results", lambda *_: [])
    monkeypatch.setattr("lakegc_assets.mark.report.require_passed", lambda _: None)
    monkeypatch.setattr("lakegc_assets.engine.datasets.ROWS_EACH", 10)
    ctx = lake.context(spark, max_served_lookups=50, address_num_partitions=200)
    find_candidates(ctx)
    assert len(jobs) <= 11
    report(ctx)
    assert len(jobs) <= 13
