"""What the checks found is kept, and no mark is published without it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakegc_assets.checks.evaluation import check_candidates, read_results, requests_of
from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.mark.report import report
from lakegc_assets_tests.checks.handmade import Lab


def test_no_report_without_a_check_that_passed_about_these_candidates(lab: Lab) -> None:
    marked = lab.mark()
    check_candidates(marked.ctx)
    manifest, store = marked.manifest("deletion_candidates"), marked.attempt.store()
    key = "deletion_candidates/checks.json"
    record = json.loads(store.get(key))
    assert record["candidates"] == manifest.sha256

    def refuse(kind: type[Exception], match: str) -> None:
        with pytest.raises(kind, match=match):
            report(marked.ctx)
        assert not marked.attempt.has("gc_report")

    def keep(**changes: Any) -> None:
        store.put(key, json.dumps({**record, **changes}).encode())

    for index, result in enumerate(record["results"]):
        others = [r for i, r in enumerate(record["results"]) if i != index]
        keep(results=others)
        refuse(RefusedError, f"these checks were not evaluated: {result['name']}")
        if result["blocking"]:
            keep(results=[*others, {**result, "passed": False, "summary": "planted"}])
            refuse(RefusedError, f"{result['name']}: planted")
    keep(candidates="0" * 64)
    refuse(RefusedError, "are of other candidates")
    for damaged in (
        "",
        "{",
        "[]",
        "{}",
        '{"candidates": 1, "results": [{"name": 1}]}',
        "[" * 100_000,
    ):
        store.put(key, damaged.encode())
        refuse(IntegrityError, "is damaged")
        assert requests_of(marked.attempt) == 0
    store.delete_many([key])
    refuse(RefusedError, "were not run: nothing is published without them")


def test_results_are_read_as_they_were_kept(lab: Lab) -> None:
    marked = lab.mark()
    results = check_candidates(marked.ctx)
    assert read_results(marked.attempt, marked.manifest("deletion_candidates")) == results
