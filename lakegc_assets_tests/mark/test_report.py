"""What is published is exactly what was marked, in however many files, and however often killed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.mark import publication
from lakegc_assets.mark.publication import mark_folder
from lakegc_assets.mark.report import report, rule_in_words
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import key_digest
from lakegc_assets.run.manifest import Manifest
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked, SmallLake, copy_of, running
from lakegc_assets_tests.sessions import Session


@pytest.fixture
def lake(told: Marked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallLake]:
    monkeypatch.setattr("lakegc_assets.mark.report.read_results", lambda *_: [])
    monkeypatch.setattr("lakegc_assets.mark.report.require_passed", lambda _: None)
    monkeypatch.setattr(publication, "ROWS_PER_FILE", 3)
    with running(copy_of(told, tmp_path)) as found:
        yield found


def published(lake: SmallLake) -> dict[str, bytes]:
    """The files of the mark, by their names below its folder."""
    folder = lake.objects / mark_folder(RUN)
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def require_exact(lake: SmallLake, candidates: frozenset[str]) -> None:
    files = published(lake)
    lists = sorted(name for name in files if name.startswith("deleted/"))
    texts = sorted(name for name in files if name.startswith("deleted.text/"))
    assert lists == [f"deleted/part-{n:05}.snappy.parquet" for n in range(len(lists))]
    assert texts == [f"deleted.text/part-{n:05}.txt" for n in range(len(lists))]
    for parquet, text in zip(lists, texts, strict=True):
        addresses = pq.read_table(pa.BufferReader(files[parquet]))["address"].to_pylist()
        assert files[text].decode().splitlines() == addresses
        assert len(addresses) <= 3
    found = [line for text in texts for line in files[text].decode().splitlines()]
    assert sorted(found) == sorted(candidates)
    assert json.loads(files["summary.json"])["num_deleted_objects"] == len(candidates)
    assert files.keys() == {*lists, *texts, "summary.json"}


def test_lists_of_a_limited_length_hold_each_candidate_once(
    lake: SmallLake, told: Marked, spark: Session
) -> None:
    ctx = lake.context(spark)
    manifest = ctx.root.attempt(REPOSITORY, RUN).manifest("deletion_candidates")
    assert len(manifest.parts["data"]) > 1
    facts = report(ctx).facts
    require_exact(lake, told.candidates)
    assert facts["files"][-1].endswith("summary.json")
    own = [url for url in facts["files"] if mark_folder(RUN) in url]
    assert len(own) == len(published(lake))


def rows_of(manifest: Manifest, dimension: str) -> list[tuple[str, int]]:
    return [(key, objects) for d, key, objects, _ in manifest.facts["breakdown"] if d == dimension]


def test_candidates_are_counted_by_what_tells_of_them(
    lake: SmallLake, told: Marked, spark: Session
) -> None:
    ctx = lake.context(spark)
    manifest = report(ctx)
    attempt = ctx.root.attempt(REPOSITORY, RUN)
    rows = attempt.read("deletion_candidates").to_pylist()
    expired = [row for row in rows if row["reason"] == "expired"]
    by_main = told.groups["replaced"] | told.groups["second"] | told.groups["removed"]
    assert {row["address"] for row in expired if row["branch"] == "main"} <= by_main
    assert {row["commit_id"] for row in expired} <= set(told.commits.values())
    found = dict(rows_of(manifest, "reason"))
    assert found == {"expired": len(expired), "unreferenced": len(rows) - len(expired)}
    rules = {"unreferenced", "main, 10 days", "default, 20 days"}
    assert {key for key, _ in rows_of(manifest, "branch rule")} <= rules
    assert [key for key, _ in rows_of(manifest, "slice age")] == sorted(
        (key for key, _ in rows_of(manifest, "slice age")), key=lambda key: int(key.split()[0])
    )
    assert rows_of(manifest, "age in days") == [("30", 4), ("90", 10), ("100", 4)]
    assert len(manifest.facts["largest"]) == min(20, len(rows))
    by_size = sorted(rows, key=lambda row: (-row["size"], row["address"]))[:20]
    assert [row[0] for row in manifest.facts["largest"]] == [row["address"] for row in by_size]
    size = sum(row["size"] for row in rows)
    assert manifest.facts["bytes"] == size
    for dimension in ("reason", "branch rule", "slice age", "age in days"):
        counted = [row for row in manifest.facts["breakdown"] if row[0] == dimension]
        assert (sum(row[2] for row in counted), sum(row[3] for row in counted)) == (len(rows), size)
    assert attempt.read("gc_report").num_rows == len(manifest.facts["breakdown"])


def publishing(ctx: RunContext, match: str, kind: type[Exception] = IntegrityError) -> None:
    with pytest.raises(kind, match=match):
        report(ctx)
    assert not ctx.root.attempt(REPOSITORY, RUN).has("gc_report")


def test_a_list_that_does_not_read_back_is_not_published(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = publication.write_lists

    def short(store: Any, run: str, texts: Any, number: int, addresses: pa.Array) -> None:
        whole(store, run, texts, number, addresses.slice(1) if number == 0 else addresses)

    monkeypatch.setattr("lakegc_assets.mark.report.write_lists", short)
    publishing(lake.context(spark), "the mark is not published")
    assert "summary.json" not in published(lake)


def test_candidates_of_another_digest_are_not_published(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their files are those of the manifest, and what they hold together is not."""
    monkeypatch.setattr(
        "lakegc_assets.mark.report.key_digest", lambda addresses: key_digest(addresses.slice(1))
    )
    publishing(lake.context(spark), "and its manifest says")
    assert "summary.json" not in published(lake)


def test_a_file_of_candidates_that_changed_is_not_published(
    lake: SmallLake, spark: Session
) -> None:
    ctx = lake.context(spark)
    attempt = ctx.root.attempt(REPOSITORY, RUN)
    part = attempt.manifest("deletion_candidates").parts["data"][0]
    path = Path(attempt.url.removeprefix("file://")) / part.key
    body = path.read_bytes()
    path.write_bytes(body[:20] + bytes([body[20] ^ 1]) + body[21:])
    publishing(ctx, "is not what its manifest says")
    assert "summary.json" not in published(lake)


def test_an_id_that_another_mark_has_is_refused(lake: SmallLake, spark: Session) -> None:
    report(lake.context(spark))
    files = published(lake)
    path = lake.objects / mark_folder(RUN) / "summary.json"
    path.write_text(
        re.sub(r'"num_deleted_objects":\d+', '"num_deleted_objects":1', path.read_text())
    )
    attempt = lake.context(spark).root.attempt(REPOSITORY, RUN)
    (Path(attempt.url.removeprefix("file://")) / "gc_report" / "manifest.json").unlink()
    publishing(lake.context(spark), "is in use in .* by another mark", RefusedError)
    assert published(lake).keys() == files.keys()


@pytest.mark.parametrize(
    ("rules", "held", "words"),
    [
        (None, "unreferenced", "unreferenced"),
        (None, "/", "no rules"),
        ({"default_retention_days": 7, "branches": []}, "/main", "default, 7 days"),
        ({"default_retention_days": 7, "branches": []}, "unreferenced", "unreferenced"),
    ],
)
def test_what_was_never_committed_has_no_rule_to_blame(
    rules: dict[str, Any] | None, held: str, words: str
) -> None:
    assert rule_in_words(rules, held) == words
