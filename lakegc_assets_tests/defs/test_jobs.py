"""The jobs, run as Dagster runs them, on small repositories of an embedded lakeFS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakegc_assets.checks.invariants import NAMES, requests_of
from lakegc_assets.definitions import defs
from lakegc_assets.defs.connections import require_lasting
from lakegc_assets.defs.failures import Stopped
from lakegc_assets.defs.names import add_partition
from lakegc_assets.errors import (
    ConfigurationError,
    LakegcError,
    RefusedError,
)
from lakegc_assets.run.lock import repository_lock
from lakegc_assets.run.manifest import MARK_ASSETS
from lakegc_assets.sweep.approval import when
from lakegc_assets_tests.defs.running import QUIET, instance_of, mark_outside, run
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.site import Site

_RUN = "wave-1"


@pytest.fixture(scope="module")
def instance(site: Site) -> Iterator[dg.DagsterInstance]:
    with instance_of(site) as found:
        yield found


@pytest.fixture(scope="module")
def definitions(site: Site) -> dg.Definitions:  # noqa: ARG001 - it reads the environment
    return defs()


@pytest.fixture(scope="module")
def collected(
    site: Site, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> dg.ExecuteInProcessResult:
    """A repository after the job ``gc``, with one of its many settings given."""
    site.tell("collected")
    key = add_partition(instance, "collected", _RUN)
    return run(definitions, "gc", instance, key, max_candidate_share=0.45)


def _metadata(instance: dg.DagsterInstance, asset: str) -> dict[str, Any]:
    event = instance.get_latest_materialization_event(dg.AssetKey(asset))
    assert event is not None
    assert event.asset_materialization is not None
    return {k: v.value for k, v in event.asset_materialization.metadata.items()}


def test_a_person_who_asks_for_a_collection_gets_it_and_the_rest_stays(
    site: Site, collected: dg.ExecuteInProcessResult, instance: dg.DagsterInstance
) -> None:
    """Although a run that nobody asked for would wait for approval."""
    run = instance.get_run_by_id(collected.run_id)
    assert run is not None
    assert "lakegc/waits" not in run.tags
    reported = site.repositories["collected"]
    left = {
        str(p.relative_to(site.namespace("collected")))
        for p in site.namespace("collected").rglob("*")
        if p.is_file()
    }
    assert {reported.live, reported.staged, reported.young, reported.spared} <= left
    assert not {reported.expired, reported.unreferenced} & left


def test_every_asset_is_materialized_for_the_partition(
    collected: dg.ExecuteInProcessResult, instance: dg.DagsterInstance
) -> None:
    assert collected.success
    for asset in (*MARK_ASSETS, "swept_set"):
        materialized = instance.get_materialized_partitions(dg.AssetKey(asset))
        assert materialized == {f"collected|{_RUN}"}
        shown = _metadata(instance, asset)
        assert shown["namespace"] == "local://collected"
        assert shown["attempt"] == _metadata(instance, "store_listing")["attempt"]
        assert shown["cutoff"] == _metadata(instance, "store_listing")["cutoff"]


@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("asset", [*MARK_ASSETS, "storage_attribution", "swept_set"])
def test_a_materialization_says_what_it_is_a_version_of(
    site: Site, definitions: dg.Definitions, instance: dg.DagsterInstance, asset: str
) -> None:
    event = instance.get_latest_materialization_event(dg.AssetKey(asset))
    assert event is not None
    assert event.asset_materialization is not None
    attempt = site.root.attempt("collected", _RUN)
    manifest = attempt.recorded(asset)
    tags = event.asset_materialization.tags or {}
    assert tags["dagster/data_version"] == manifest.sha256
    assert tags["dagster/code_version"] == str(manifest.schema_version)
    spec = definitions.resolve_asset_graph().get(dg.AssetKey(asset))
    assert spec.code_version == str(manifest.schema_version)
    shown = _metadata(instance, asset)
    assert shown["dagster/row_count"] == manifest.rows
    assert shown["dagster/uri"] == f"{attempt.url}/{asset}"
    columns = shown["dagster/column_schema"]
    assert spec.metadata["dagster/column_schema"] == columns
    rows = attempt.read(asset)
    assert {one.name: one.type for one in columns.columns} == {
        one.name: str(one.type) for one in rows.schema
    }


def test_a_version_names_those_that_it_was_made_of(collected: dg.ExecuteInProcessResult) -> None:
    (event,) = collected.asset_materializations_for_node("deletion_candidates")
    prefix = "dagster/input_data_version/"
    made_of = {tag.removeprefix(prefix) for tag in event.tags or {} if tag.startswith(prefix)}
    assert made_of == set(MARK_ASSETS[:4])


def test_without_backup_url_nothing_says_that_there_is_a_backup_and_the_sweep_goes_on(
    collected: dg.ExecuteInProcessResult, instance: dg.DagsterInstance
) -> None:
    made = {event.asset_key for event in collected.get_asset_materialization_events()}
    assert dg.AssetKey("backup") not in made
    assert dg.AssetKey("swept_set") in made
    assert _metadata(instance, "swept_set")["backup"] == "none: backup_url is not set"


def test_a_collection_with_a_backup_shows_what_was_copied(
    site: Site, spark: Session, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    reported = site.tell("kept")
    before = {
        address: (site.namespace("kept") / address).read_bytes()
        for address in (reported.expired, reported.unreferenced)
    }
    backups = site.folder / "backups"
    key = add_partition(instance, "kept", _RUN)
    mark_outside(site, "kept", _RUN, spark)
    run(definitions, "gc_sweep", instance, key, backup_url=str(backups))
    shown = _metadata(instance, "backup")
    assert (shown["objects"], shown["bytes"], shown["size"]) == (2, 35, "35 B")
    assert shown["where"] == f"{backups}/kept/{_RUN}"
    assert [record.data["objects"] for record in shown["verified by"].records] == [2]
    assert shown["seconds"] >= 0
    assert _metadata(instance, "swept_set")["backup"] == f"file://{backups}/kept/{_RUN}"
    for address, content in before.items():
        assert not (site.namespace("kept") / address).exists()
        assert (backups / "kept" / _RUN / address).read_bytes() == content


def _shown(collected: dg.ExecuteInProcessResult, asset: str) -> dict[str, Any]:
    (event,) = collected.asset_materializations_for_node(asset)
    return {name: value.value for name, value in event.metadata.items()}


def test_the_report_shows_figures_tables_and_a_plot(
    site: Site, collected: dg.ExecuteInProcessResult
) -> None:
    shown = _shown(collected, "gc_report")
    size = len("the first a" + "staged, and staged again")
    figures = {
        "objects marked": 2,
        "bytes marked": size,
        "objects kept": 4,
        "objects spared": 1,
        "share marked": round(2 / 6, 6),
    }
    assert figures.items() <= shown.items()
    assert shown["bytes kept"] > 0
    assert shown["ranges decoded"] > 0
    assert shown["seconds of the mark"] >= shown["seconds"] >= 0
    pages = f"{site.server.endpoint.removesuffix('/api/v1')}/repositories/collected"
    assert shown["objects in lakeFS"] == f"{pages}/objects"
    assert shown["rules in lakeFS"] == f"{pages}/settings/retention"
    rows = [record.data for record in shown["by reason"].records]
    assert rows == [
        {"reason": "expired", "objects": 1, "size": "11 B"},
        {"reason": "unreferenced", "objects": 1, "size": "24 B"},
    ]
    assert {r.data["branch rule"] for r in shown["by branch rule"].records} == {
        "default, 20 days",
        "unreferenced",
    }
    assert {r.data["slice age"] for r in shown["by slice age"].records} == {
        "up to 30 days",
        "up to 180 days",
    }
    assert [r.data["size"] for r in shown["largest"].records] == ["24 B", "11 B"]
    assert sum(r.data["objects"] for r in shown["by age"].records) == 2
    assert [r.data["marked"] for r in shown["last marks"].records] == ["35 B"]
    assert "summary.json" in shown["files"]


@pytest.mark.usefixtures("collected")
def test_the_sweep_shows_its_outcomes(instance: dg.DagsterInstance) -> None:
    shown = _metadata(instance, "swept_set")
    assert [r.data for r in shown["outcomes"].records] == [
        {"what": "deleted", "objects": 2, "size": "35 B"}
    ]
    figures = {
        "objects deleted": 2,
        "bytes deleted": 35,
        "objects spared": 0,
        "bytes spared": 0,
        "objects kept": 4,
        "objects put back": 0,
        "objects already missing": 0,
        "share deleted": round(2 / 6, 6),
    }
    assert figures.items() <= shown.items()


def test_the_requests_of_a_mark_are_those_of_all_its_stages(
    site: Site, collected: dg.ExecuteInProcessResult
) -> None:
    attempt = site.root.attempt("collected", _RUN)
    stages = [attempt.recorded(asset).facts["requests"] for asset in MARK_ASSETS]
    assert all(stages)
    shown = _shown(collected, "gc_report")["requests sent"]
    assert shown == sum(stages) + requests_of(attempt)
    assert requests_of(attempt) > 0
    swept = _shown(collected, "swept_set")
    assert swept["requests sent"] == attempt.recorded("swept_set").facts["requests"] > 0


def test_every_check_is_recorded_as_passed(collected: dg.ExecuteInProcessResult) -> None:
    evaluations = {e.check_name: e for e in collected.get_asset_check_evaluations()}
    assert set(evaluations) == {*NAMES, "attribution_adds_up"}
    assert all(e.passed for e in evaluations.values()), evaluations
    assert evaluations["candidate_share"].metadata["limit"].value == 0.45


def test_what_a_run_logs_is_said_in_words(
    collected: dg.ExecuteInProcessResult, instance: dg.DagsterInstance
) -> None:
    logged = [
        entry.user_message
        for entry in instance.all_logs(collected.run_id)
        if entry.dagster_event is None
    ]
    assert any("key ranges" in line for line in logged)
    assert [line for line in logged if "None" in line or not line.strip()] == []


@pytest.mark.usefixtures("collected")
def test_settings_that_are_not_given_keep_their_defaults(site: Site) -> None:
    recorded = site.root.attempt("collected", _RUN).manifest("store_listing").settings
    assert recorded["max_candidate_share"] == 0.45
    assert recorded["min_age_hours"] == 24
    assert recorded["address_num_partitions"] == 200


@contextmanager
def _stopped(kind: type[LakegcError], said: str) -> Iterator[None]:
    """The run fails with an error of this kind, shown as Dagster shows it."""
    with pytest.raises(Stopped, match=said) as raised:
        yield
    assert type(raised.value.error) is kind
    assert not raised.value.allow_retries


@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize(
    ("asset", "said"),
    [
        ("store_listing", "exists already"),
        ("active_commits", "active_commits of 'wave-1' is finished"),
    ],
)
def test_an_asset_of_a_frozen_mark_is_not_made_again(
    definitions: dg.Definitions, instance: dg.DagsterInstance, asset: str, said: str
) -> None:
    with _stopped(RefusedError, said):
        run(definitions, "gc", instance, f"collected|{_RUN}", asset)


@pytest.mark.usefixtures("collected")
def test_sweeping_what_was_swept_gives_the_record_and_deletes_nothing(
    site: Site, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    reported = site.repositories["collected"]
    swept = site.root.attempt("collected", _RUN).manifest("swept_set")
    # Something is at a swept address again: a second sweep would delete it.
    again = site.namespace("collected") / reported.expired
    again.parent.mkdir(parents=True, exist_ok=True)
    again.write_text("the first a")
    os.utime(again, (again.stat().st_mtime - 100 * 86_400,) * 2)
    result = run(definitions, "gc_sweep", instance, f"collected|{_RUN}")
    assert result.success
    assert again.read_text() == "the first a"
    again.unlink()
    # Nothing was made, so nothing says that it was.
    assert result.get_asset_materialization_events() == []
    (event,) = result.get_asset_observation_events()
    seen = event.asset_observation_data.asset_observation
    assert (seen.asset_key, seen.partition) == (dg.AssetKey("swept_set"), f"collected|{_RUN}")
    assert seen.metadata["swept"].value == when(swept)
    assert when(swept).startswith(f"swept on {swept.finished:%Y-%m-%d}")
    assert site.root.attempt("collected", _RUN).manifest("swept_set") == swept


@pytest.mark.usefixtures("collected")
def test_an_asset_is_not_made_where_no_listing_began_its_chain(
    definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    key = add_partition(instance, "collected", "wave-2")
    with _stopped(RefusedError, "there is no mark 'wave-2'"):
        run(definitions, "gc", instance, key, "committed_addresses")


@pytest.mark.usefixtures("collected")
def test_a_run_refuses_a_repository_that_another_process_works_on(
    definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    key = add_partition(instance, "collected", "wave-4")
    lock = repository_lock("local://collected")
    # Another thread is kept out as another process is.
    with ThreadPoolExecutor(1) as other:
        other.submit(lock.__enter__).result()
        with _stopped(RefusedError, f"another run holds.*{os.getpid()}"):
            run(definitions, "gc", instance, key, "store_listing")
        other.submit(lock.__exit__, None, None, None).result()


@pytest.mark.usefixtures("collected")
def test_a_run_refuses_artifacts_that_end_with_its_container(
    definitions: dg.Definitions, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = add_partition(instance, "collected", "wave-5")
    monkeypatch.setenv("DAGSTER_RUN_JOB_NAME", "gc")
    monkeypatch.setattr("lakegc_assets.defs.connections.is_mounted", lambda _: False)
    with _stopped(ConfigurationError, "artifact_root is .*, a folder of the container of this run"):
        run(definitions, "gc", instance, key, "store_listing")
    # What a volume keeps is well.
    monkeypatch.undo()
    monkeypatch.setenv("DAGSTER_RUN_JOB_NAME", "gc")
    for lasting in ("s3://bucket/artifacts", "/proc/artifacts", None):
        require_lasting("artifact_root", lasting)
    with pytest.raises(ConfigurationError, match="backup_url is /no-such-folder/backups"):
        require_lasting("backup_url", "/no-such-folder/backups")


def test_a_link_to_a_volume_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_RUN_JOB_NAME", "gc")
    volume, link = tmp_path / "volume", tmp_path / "link"
    volume.mkdir()
    link.symlink_to(volume)
    monkeypatch.setattr(
        "lakegc_assets.defs.connections.is_mounted", lambda folder: volume in folder.parents
    )
    require_lasting("artifact_root", f"file://{link}/artifacts")


@pytest.mark.usefixtures("collected")
def test_nothing_is_restored_where_everything_is_materialized(
    site: Site, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    everything = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        partition_key=add_partition(instance, "collected", "wave-1"),
        instance=instance,
        asset_selection=[dg.AssetKey("policy_forecast"), dg.AssetKey("restored_set")],
        run_config=QUIET,
    )
    assert everything.success
    assert everything.get_asset_materialization_events() == []
    assert not (site.namespace("collected") / site.repositories["collected"].expired).exists()


@pytest.mark.usefixtures("collected")
def test_a_single_run_for_several_partitions_says_so(
    definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    """As the dialog of a backfill offers it."""
    add_partition(instance, "collected", "after")
    tags = {
        "dagster/asset_partition_range_start": f"collected|{_RUN}",
        "dagster/asset_partition_range_end": "collected|after",
    }
    with _stopped(ConfigurationError, "a single run for several.*launch them as multiple runs"):
        run(definitions, "gc", instance, None, tags=tags)


@pytest.mark.usefixtures("collected")
def test_a_run_without_its_partition_says_so(
    definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    """``dagster job launch`` starts one without a partition; and keys can be removed meanwhile."""
    with _stopped(ConfigurationError, "this run has no partition.*`lakegc run REPO --run ID`"):
        run(definitions, "gc", instance, None, "store_listing")
    tags = {
        "dagster/partition": "collected|removed",
        "dagster/partition/repository": "collected",
        "dagster/partition/run": "removed",
    }
    with _stopped(ConfigurationError, "Dagster has no partition key 'removed' of 'run'"):
        run(definitions, "gc", instance, None, "store_listing", tags=tags)
