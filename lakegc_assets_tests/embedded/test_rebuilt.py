"""Histories rebuilt through the API give the recorded logs, diffs, active commits and garbage."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.embedded.faults import Fault
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.conformance.recorder import RECORDED, conforms
from lakegc_assets_tests.embedded.api import Api
from lakegc_assets_tests.embedded.conftest import Clock
from lakegc_assets_tests.embedded.rebuilding import Rebuilt, rebuild_from_trees, recorded_calls
from lakegc_assets_tests.embedded.test_recorded_history import lost_by_lakefs, prepared
from lakegc_assets_tests.embedded.test_recorded_trees import GOLDEN, bodies
from lakegc_assets_tests.recorded import set_aside

BUCKET = "lab"


@pytest.fixture
def lab(s3_server: str, tmp_path: Path, clock: Clock) -> Iterator[EmbeddedLakeFS]:
    """A server on the bucket of the recording, that takes addresses inside the namespace as it did.

    The recording holds such entries; they are what the collector has to cope with.
    """
    config = StoreConfig(endpoint_url=s3_server)
    faults = frozenset({Fault.STAGE_INSIDE_NAMESPACE})
    with (
        set_aside(),
        EmbeddedLakeFS(
            tmp_path, f"s3://{BUCKET}", store_config=config, clock=clock, faults=faults
        ) as server,
    ):
        yield server


def rebuilt_on(lab: EmbeddedLakeFS, api: Api, clock: Clock, name: str) -> Rebuilt:
    return Rebuilt(api, open_store(f"s3://{BUCKET}/{name}", lab.store_config), clock, name)


def set_recorded_rules(rebuilt: Rebuilt) -> None:
    (rules,) = bodies(rebuilt.name, "gc_rules_settings")
    body = {**rules, "branches": rules["branches"] or []}
    rebuilt.api.call("PUT", f"/repositories/{rebuilt.name}/settings/gc_rules", 204, json=body)


def assert_active_and_garbage(rebuilt: Rebuilt) -> None:
    """Every commit that lakeFS lists, and those that its walk loses; and so the garbage."""
    recorded = prepared(rebuilt.name)
    path = GOLDEN / rebuilt.name / "prepare" / "files" / recorded["file"]
    with path.open(newline="") as lines:
        theirs = {rebuilt.known[row["commit_id"]] for row in csv.DictReader(lines)}
    active = rebuilt.active(recorded["sent_at"])
    assert theirs <= active
    assert active - theirs == {rebuilt.known[each] for each in lost_by_lakefs(rebuilt.name)}
    rebuilt.put_what_others_wrote()
    assert rebuilt.garbage(active) == rebuilt.expected_garbage()


@pytest.mark.conformance
@conforms(
    RECORDED,
    "Histories of small and orderhz",
    client="recording",
    checked="rebuilt by uploads and commits with their dates: commits, logs, diffs, listings, "
    "branches, active commits and garbage",
    differs="active commits follow the definition; lakeFS's walk loses some",
)
@pytest.mark.parametrize("name", ["small", "orderhz"])
def test_a_history_rebuilt_from_its_trees(lab: EmbeddedLakeFS, clock: Clock, name: str) -> None:
    with Api.of(lab) as api:
        rebuilt = rebuilt_on(lab, api, clock, name)
        rebuild_from_trees(rebuilt)
        set_recorded_rules(rebuilt)
        answers = ("commit.*", "log*", "branch*", "diff_uncommitted.*", "tags", "*range.*")
        # Contents were not recorded, and all objects are written now.
        compared = rebuilt.assert_answers(answers)
        compared += rebuilt.assert_answers(("ls.*", "stat.*"), {"checksum", "mtime"})
        assert compared > 30
        assert_active_and_garbage(rebuilt)


def moment(call: dict[str, Any]) -> float:
    """When a recorded call was handled, to the second that its answer tells."""
    answer = call["answer"]
    if isinstance(answer, dict) and call["method"] != "GET":
        told = float(answer.get("mtime") or answer.get("creation_date") or 0)
        if abs(told - call["t"]) < 2:
            return told
    return float(call["t"])


@pytest.mark.conformance
@conforms(
    RECORDED,
    "The calls that made retention",
    client="recording",
    checked="all 116 calls, replayed at their times, get the recorded status and answer; so do "
    "the single calls afterwards; active commits and garbage are the recorded ones",
    differs="a copy of a staged object within its branch shares its address; presigned URLs differ",
)
def test_the_recorded_calls_are_answered_as_recorded(lab: EmbeddedLakeFS, clock: Clock) -> None:
    with Api.of(lab) as api:
        rebuilt = rebuilt_on(lab, api, clock, "retention")
        calls = recorded_calls(GOLDEN / "retention" / "api_calls.jsonl")
        assert len(calls) == 116
        for call in calls:
            clock.now = moment(call)
            if call["method"] == "PUT" and call["path"].endswith("/staging/backing"):
                address = rebuilt.known[call["json"]["staging"]["physical_address"]]
                rebuilt.store.put(address.removeprefix(f"{rebuilt.namespace}/"), b"linked")
            if isinstance(call["answer"], str):
                assert rebuilt.known[call["answer"]]
                call["answer"] = None
                response = rebuilt.api.send(
                    call["method"],
                    call["path"],
                    json=rebuilt.translated(call["json"]),
                )
                assert response.text == rebuilt.known[call["json"]["source"]]
                continue
            ours = rebuilt.send(call, learn=True)
            rebuilt.assert_same(call["answer"], ours)
        answers = (
            *("commit.*", "log*", "branch*", "diff_uncommitted.*", "ls.*", "stat.*", "tags"),
            *("*range.*", "gc_rules*", "repository*"),
        )
        assert rebuilt.assert_answers(answers) > 60
        assert_active_and_garbage(rebuilt)
