"""The whole mark on what a real lakeFS recorded: exactly what may go is marked."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakegc_assets.checks.invariants import NAMES, check_candidates
from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.graveler.namespace import new_slice_name
from lakegc_assets.lakefs.errors import UnexpectedAnswerError
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.commits import find_active_commits
from lakegc_assets.mark.committed_addresses import read_committed_addresses
from lakegc_assets.mark.metaranges import pairs_of
from lakegc_assets.mark.publication import mark_folder
from lakegc_assets.mark.report import report
from lakegc_assets.mark.uncommitted_snapshot import snapshot_uncommitted
from lakegc_assets.sweep.lease_record import LEASE
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests import recorded
from lakegc_assets_tests.mark import foreign
from lakegc_assets_tests.mark.conftest import Goldens
from lakegc_assets_tests.recorded import Marked
from lakegc_assets_tests.replay import GOLDEN, Answer, ReplayServer, Request
from lakegc_assets_tests.sessions import Session

COLLECTED = ["small", "retention", "orderhz", "identical"]
#: Below a slice that was made before it was written, as ``recorded.plant`` dates it.
ORPHAN = f"data/{new_slice_name(datetime(2026, 11, 1, tzinfo=timezone.utc), b'abc', 7, 1)}/orphan"


def manifest_of(repository: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / repository / "manifest.json").read_text())
    return found


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def published(repository: str, run: str = "run1") -> list[str]:
    return [key for key in recorded.keys(repository) if key.startswith(mark_folder(run))]


@pytest.mark.parametrize("repository", COLLECTED)
def test_exactly_what_may_go_is_marked(repository: str, golden: Goldens) -> None:
    marked = golden(repository).marked
    assert marked.candidates == recorded.expected(repository)
    assert [check.name for check in marked.checks] == list(NAMES)
    assert [check.name for check in marked.checks if not check.passed] == []


@pytest.mark.parametrize("repository", COLLECTED)
def test_the_mark_is_published_in_lakefs_own_forms(repository: str, golden: Goldens) -> None:
    marked = golden(repository).marked
    keys = published(repository)
    folders = {key.removeprefix(mark_folder("run1")).partition("/")[0] for key in keys}
    assert folders == {"deleted", "deleted.text", "summary.json"}
    expected = sorted(recorded.expected(repository))

    bodies = [recorded.content(repository, key) for key in keys if key.endswith(".parquet")]
    tables = [pq.read_table(pa.BufferReader(body)) for body in bodies]
    assert {table.schema.to_string() for table in tables} == {"address: string"}
    assert sorted(a for table in tables for a in table["address"].to_pylist()) == expected
    texts = [recorded.content(repository, key).decode() for key in keys if key.endswith(".txt")]
    assert sorted("".join(texts).splitlines()) == expected
    assert all(text.endswith("\n") for text in texts if text)

    summary = json.loads(recorded.content(repository, mark_folder("run1") + "summary.json"))
    (path,) = (GOLDEN / repository).glob("peer_mark/files/**/summary.json")
    theirs = json.loads(path.read_text())
    assert summary.keys() == theirs.keys()
    assert (summary["run_id"], summary["success"]) == ("run1", True)
    assert summary["num_deleted_objects"] == len(expected)
    # lakeFS takes an object directly below data/ for a slice; there is one in this recording.
    assert theirs["first_slice"] in (summary["first_slice"], "legacy-flat-object")
    assert re.fullmatch("[0-9a-v]{20}", summary["first_slice"])
    assert summary["start_time"] == theirs["start_time"][:23] + "Z"
    age = instant(summary["start_time"]) - instant(summary["cutoff_time"])
    assert abs(age - timedelta(seconds=1)) <= timedelta(milliseconds=1)
    facts = marked.manifests["gc_report"].facts
    assert facts["objects"] == len(expected)
    assert [f.removeprefix(f"s3://lab/{repository}/") for f in facts["files"]][-1] in keys


@pytest.mark.parametrize(
    "repository",
    [
        "retention",
        *(pytest.param(one, marks=pytest.mark.conformance) for one in ("small", "identical")),
    ],
)
def test_a_sweep_leaves_exactly_the_rest(repository: str, golden: Goldens, tmp_path: Path) -> None:
    marked = recorded.rewind(golden(repository).marked, tmp_path, "swept_set")
    with recorded.preserved(repository):
        before = set(recorded.keys(repository))
        sweep(marked.ctx)
        assert before - set(recorded.keys(repository)) == recorded.expected(repository)
        assert set(recorded.keys(repository)) <= before | {LEASE}


class MovedServer(ReplayServer):
    """What was recorded, of a repository that was made at ``s3://lab/my%20lake``.

    lakeFS reads that as ``my lake``, writes there, and names it so.
    """

    def answer(self, request: Request) -> Answer:
        answer = super().answer(request)
        text = json.dumps(answer.body).replace(f"s3://lab/{self.repository}", "s3://lab/my lake")
        text = re.sub(r'("storage_namespace": )"s3://lab/my lake"', r'\1"s3://lab/my%20lake"', text)
        return replace(answer, body=json.loads(text))


def test_a_namespace_that_lakefs_decodes_is_collected(
    spark: Session, s3_server: str, tmp_path: Path
) -> None:
    recorded.load("orderhz")
    for key in recorded.keys("orderhz"):
        stored = recorded.backend().buckets[recorded.BUCKET].keys[f"orderhz/{key}"]
        recorded.plant("my lake", key, stored.value, stored.last_modified, stored.etag.strip('"'))
    recorded.plant("my lake", ORPHAN)
    with MovedServer("orderhz") as server:
        marked = recorded.mark(recorded.context(server, s3_server, tmp_path, spark), publish=True)
    assert marked.candidates == {ORPHAN}
    assert [check.name for check in marked.checks if not check.passed] == []


def test_the_report_says_why_each_object_goes(golden: Goldens) -> None:
    facts = golden("retention").marked.manifests["gc_report"].facts
    totals: dict[str, list[int]] = {}
    for dimension, _, objects, size in facts["breakdown"]:
        total = totals.setdefault(dimension, [0, 0])
        total[0] += objects
        total[1] += size
    assert set(totals) == {"reason", "branch rule", "slice age", "age in days"}
    assert list(totals.values()) == [[11, facts["bytes"]]] * 4
    attempt = golden("retention").marked.attempt
    rows = attempt.read("deletion_candidates").to_pylist()
    expired = manifest_of("retention")["expected_expired"]
    commits = manifest_of("retention")["commits"]
    held = {row["commit_id"] for row in rows if row["reason"] == "expired"}
    assert held
    assert held <= {commits[name]["id"] for name in expired}


def test_every_commit_is_active_or_expired_as_the_rules_have_it(golden: Goldens) -> None:
    marked = golden("retention").marked
    found = {
        part: {row["commit_id"] for row in marked.attempt.read("active_commits", part).to_pylist()}
        for part in ("data", "expired")
    }
    told = manifest_of("retention")
    ids = {name: commit["id"] for name, commit in told["commits"].items()}
    assert found["data"] == {ids[name] for name in told["expected_active"]}
    # Commits that only a deleted branch held are not found, and so hold nothing, either.
    assert found["expired"]
    assert found["expired"] <= {ids[name] for name in told["expected_expired"]}


# What lakeFS's own collector destroyed when these were recorded


def test_the_order_of_commit_ids_expires_no_commit(golden: Goldens) -> None:
    marked = golden("orderhz").marked
    sources = marked.attempt.read("active_commits").to_pylist()
    active = {row["commit_id"]: row["source"] for row in sources}
    facts = marked.manifests["active_commits"].facts
    assert facts["expired"] == 0
    rows = manifest_of("orderhz")["rows"]
    lost = {row["P"] for row in rows if not row["P_active_in_csv"]}
    assert len(lost) == 4, "half of the parents are missing from the list that lakeFS wrote"
    assert {active[commit] for commit in lost} == {"own computation"}
    assert lost <= set(facts["only_own"])
    assert marked.commits_hold({row["object_of_P"] for row in rows})
    assert marked.candidates == set()


def test_an_upload_equal_to_head_is_not_marked(golden: Goldens) -> None:
    marked = golden("identical").marked
    served = {
        address
        for address in manifest_of("identical")["served_by_stat"].values()
        if isinstance(address, str)
    }
    assert len(served) > 4
    assert not served & marked.candidates
    unlisted = {
        address
        for address in served - marked.addresses("uncommitted_snapshot")
        if not marked.commits_hold({address})
    }
    assert unlisted, "they are live although no list names them"
    assert {marked.spared[address] for address in unlisted} == {"lakeFS serves it"}


def test_a_last_page_without_location_marks_no_staged_object(
    spark: Session, s3_server: str, tmp_path: Path
) -> None:
    recorded.load("paged", "prepare_interval_9ms")
    recorded.plant("paged", ORPHAN)
    with ReplayServer("paged", prepare="prepare_interval_9ms") as server:
        marked = recorded.mark(recorded.context(server, s3_server, tmp_path, spark), publish=True)
    facts = marked.manifests["uncommitted_snapshot"].facts
    assert (facts["pages"], facts["pages_without_location"], facts["tries"]) == (8, 1, 1)
    staged = json.loads((GOLDEN / "paged" / "staged.json").read_text())
    assert {a for names in staged.values() for a in names} <= marked.addresses(
        "uncommitted_snapshot"
    )
    assert marked.candidates == {ORPHAN}


def test_a_404_from_the_async_call_expires_no_commit(golden: Goldens, tmp_path: Path) -> None:
    server = golden("small").server
    marked = recorded.rewind(golden("small").marked, tmp_path, "active_commits")
    server.has_async = False
    asked = len(server.asked("POST", r".*/gc/prepare_commits"))
    for stage in (find_active_commits, read_committed_addresses, find_candidates):
        stage(marked.ctx)
    assert len(server.asked("POST", r".*/gc/prepare_commits")) == asked + 1
    assert marked.candidates == recorded.expected("small")


# Answers that are cut, and files that are not what they should be


@pytest.mark.parametrize("variant", ["prepare", "prepare_interval_14ms"])
def test_every_page_of_the_staged_objects_is_kept(
    variant: str, spark: Session, s3_server: str, tmp_path: Path
) -> None:
    recorded.load("paged", variant)
    with ReplayServer("paged", prepare=variant) as server:
        ctx = recorded.context(server, s3_server, tmp_path, spark)
        recorded.STAGES[0](ctx)
        snapshot = snapshot_uncommitted(ctx)
    staged = json.loads((GOLDEN / "paged" / "staged.json").read_text())
    found = Marked(ctx, {}, []).addresses("uncommitted_snapshot")
    assert found == {a for names in staged.values() for a in names}
    assert snapshot.facts["pages_without_location"] == 0


def test_a_token_that_does_not_advance_stops_the_run(
    spark: Session, s3_server: str, tmp_path: Path
) -> None:
    recorded.load("paged", "prepare_max_file_size_3")
    with ReplayServer("paged", prepare="prepare_max_file_size_3") as server:
        ctx = recorded.context(server, s3_server, tmp_path, spark)
        recorded.STAGES[0](ctx)
        with pytest.raises(UnexpectedAnswerError, match="does not advance"):
            snapshot_uncommitted(ctx)
        with pytest.raises(IntegrityError, match="uncommitted_snapshot did not finish"):
            find_active_commits(ctx)


def csv_key(repository: str) -> str:
    async_answer = json.loads((GOLDEN / repository / "prepare" / "answers.json").read_text())
    (result,) = [c["body"]["result"] for c in async_answer if "result" in (c["body"] or {})]
    location: str = result["gc_commits_location"]
    return location.removeprefix(f"s3://lab/{repository}/")


def without(lines: list[str], wanted: Callable[[str], bool]) -> bytes:
    kept = [line for line in lines if not wanted(line)]
    assert len(kept) == len(lines) - 1
    return "".join(kept).encode()


def test_half_a_line_of_the_list_of_commits_stops_the_run(golden: Goldens, tmp_path: Path) -> None:
    marked = recorded.rewind(golden("small").marked, tmp_path, "active_commits")
    body = recorded.content("small", csv_key("small"))
    with recorded.preserved("small"):
        recorded.plant("small", csv_key("small"), body[:-40])
        with pytest.raises(IntegrityError, match=r"commits\.csv does not end with a whole line"):
            find_active_commits(marked.ctx)


def test_a_list_of_commits_without_a_head_stops_the_run(golden: Goldens, tmp_path: Path) -> None:
    marked = recorded.rewind(golden("small").marked, tmp_path, "active_commits")
    head = golden("small").server.recording.refs["main"]
    lines = recorded.content("small", csv_key("small")).decode().splitlines(keepends=True)
    with recorded.preserved("small"):
        recorded.plant("small", csv_key("small"), without(lines, lambda x: x.startswith(head)))
        with pytest.raises(IntegrityError, match="'main' for one, are not in the list of active"):
            find_active_commits(marked.ctx)


def test_a_whole_line_too_few_is_made_good_by_our_own_computation(
    golden: Goldens, tmp_path: Path
) -> None:
    marked = recorded.rewind(golden("retention").marked, tmp_path, "active_commits")
    lines = recorded.content("retention", csv_key("retention")).decode().splitlines(keepends=True)
    heads = golden("retention").server.recording.refs
    named = {heads[b["id"]] for b in golden("retention").server.recording.branches()}
    lost = [line for line in lines[1:] if line[:64] not in named]
    before = golden("retention").marked.attempt.read("active_commits")
    active = set(before["commit_id"].to_pylist())
    assert lost
    in_logs = {
        c["id"]
        for head in named
        for c in golden("retention").server.recording.log(head, first_parent=False)
    }
    line = next(line for line in lost if line[:64] in in_logs)
    with recorded.preserved("retention"):
        recorded.plant("retention", csv_key("retention"), without(lines, lambda x: x == line))
        manifest = find_active_commits(marked.ctx)
    rows = marked.attempt.read("active_commits").to_pylist()
    assert {row["commit_id"] for row in rows} == active
    assert line[:64] in manifest.facts["only_own"]


def cold(golden: Goldens, folder: Path) -> Marked:
    """A mark of ``small`` before it reads ranges, without a cache."""
    marked = recorded.rewind(golden("small").marked, folder, "committed_addresses")
    shutil.rmtree(Path(marked.ctx.root.url) / "small" / "_cache")
    return marked


@pytest.mark.parametrize("which", [0, 1], ids=["metarange", "range"])
def test_a_missing_table_stops_the_run(which: int, golden: Goldens, tmp_path: Path) -> None:
    table = marked_pairs(golden("small").marked)[0][which]
    marked = cold(golden, tmp_path)
    with recorded.preserved("small"):
        recorded.remove("small", f"_lakefs/{table}")
        with pytest.raises(IntegrityError, match=f"_lakefs/{table}, which a commit needs, is mi"):
            read_committed_addresses(marked.ctx)
    assert not marked.attempt.has("committed_addresses")


@pytest.mark.parametrize(("which", "damage"), [(0, "flipped"), (1, "cut"), (1, "another")], ids=str)
def test_a_damaged_or_foreign_table_stops_the_run(
    which: int, damage: str, golden: Goldens, tmp_path: Path
) -> None:
    pairs = marked_pairs(golden("small").marked)
    table = pairs[0][which]
    body = recorded.content("small", f"_lakefs/{table}")
    marked = cold(golden, tmp_path)
    other = next(pair[which] for pair in pairs if pair[which] != table)
    changed = {
        "cut": body[: len(body) // 2],
        "flipped": body[:30] + bytes([body[30] ^ 1]) + body[31:],
        "another": recorded.content("small", f"_lakefs/{other}"),
    }[damage]
    with recorded.preserved("small"):
        recorded.plant("small", f"_lakefs/{table}", changed)
        with pytest.raises(FormatError, match=table):
            read_committed_addresses(marked.ctx)
    assert not marked.attempt.has("committed_addresses")


def marked_pairs(marked: Marked) -> list[tuple[str, str]]:
    ids = marked.attempt.read("active_commits")["metarange_id"].to_pylist()
    rows = pairs_of(marked.ctx.connect(), set(ids)).to_pylist()
    return [(row["metarange_id"], row["range_id"]) for row in rows]


@pytest.mark.parametrize("damage", ["missing", "cut", "no parquet"])
def test_a_list_of_staged_objects_that_is_no_list_stops_the_run(
    damage: str, golden: Goldens, tmp_path: Path
) -> None:
    marked = recorded.rewind(golden("small").marked, tmp_path, "uncommitted_snapshot")
    (key,) = golden("small").marked.manifests["uncommitted_snapshot"].facts["files"]
    body = recorded.content("small", key)
    with recorded.preserved("small"):
        if damage == "missing":
            recorded.remove("small", key)
            with pytest.raises(
                IntegrityError,
                match=r"there are 0 files .*: correct endpoint.* percent signs",
            ):
                snapshot_uncommitted(marked.ctx)
        else:
            recorded.plant("small", key, body[:-20] if damage == "cut" else b"a,b\n1,2\n")
            with pytest.raises(IntegrityError, match="is no list of staged objects"):
                snapshot_uncommitted(marked.ctx)
    assert not marked.attempt.has("uncommitted_snapshot")


def test_a_second_mark_of_an_unchanged_repository_decodes_nothing(
    golden: Goldens, tmp_path: Path
) -> None:
    first = recorded.rewind(golden("retention").marked, tmp_path)
    again = recorded.mark(replace(first.ctx, run="run2"))
    facts = again.manifests["committed_addresses"].facts
    assert (facts["ranges_decoded"], facts["metaranges_decoded"]) == (0, 0)
    decoded = first.manifests["committed_addresses"].facts
    assert facts["ranges_from_cache"] == decoded["ranges_decoded"] > 0
    assert facts["metaranges_from_cache"] == decoded["metaranges_decoded"] > 0
    assert again.candidates == recorded.expected("retention")


# Repositories without rules


def test_an_empty_repository_has_nothing_to_mark(
    spark: Session, s3_server: str, tmp_path: Path
) -> None:
    recorded.load("emptyrepo")
    with ReplayServer("emptyrepo") as server:
        marked = recorded.mark(recorded.context(server, s3_server, tmp_path, spark), publish=True)
    assert marked.candidates == set()
    assert [check.name for check in marked.checks if not check.passed] == []
    summary = json.loads(recorded.content("emptyrepo", mark_folder("run1") + "summary.json"))
    assert (summary["success"], summary["num_deleted_objects"]) == (True, 0)


def test_nothing_is_published_when_a_check_fails(golden: Goldens, tmp_path: Path) -> None:
    marked = recorded.rewind(golden("small").marked, tmp_path)
    (key,) = marked.manifests["uncommitted_snapshot"].facts["files"]
    staged = foreign.parquet([min(marked.candidates)], "physical_address")
    with recorded.preserved("small"):
        for published_key in published("small"):
            recorded.remove("small", published_key)
        recorded.plant("small", key, staged)
        failed = [check.name for check in check_candidates(marked.ctx) if not check.passed]
        assert failed == ["none_staged"]
        with pytest.raises(RefusedError, match="none_staged: 1 candidate: each is staged"):
            report(marked.ctx)
        assert published("small") == []
    assert not marked.attempt.has("gc_report")


def test_an_error_answer_of_the_server_is_not_read_as_no_rules(
    golden: Goldens, tmp_path: Path
) -> None:
    marked = recorded.rewind(golden("small").marked, tmp_path, "active_commits")
    path = r"/repositories/small/settings/gc_rules"
    golden("small").server.overrides["GET", path] = Answer(200, {"message": "not found"})
    with pytest.raises(UnexpectedAnswerError, match="not with retention rules"):
        find_active_commits(marked.ctx)
