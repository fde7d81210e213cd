"""What Dagster loads: the graph, its checks, jobs and partitions."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path

import dagster as dg
import pytest
import yaml

from lakegc_assets.checks.invariants import NAMES
from lakegc_assets.definitions import component, defs
from lakegc_assets.defs.assets import MARK, STAGES
from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.names import OTHER_JOBS, PLAIN, RUN_JOBS, add_partition, partition_key
from lakegc_assets.defs.schedules import last_tick, next_tick
from lakegc_assets.defs.stages import contract
from lakegc_assets.defs.staleness import CHECK, REPOSITORIES
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.run.manifest import MARK_ASSETS
from lakegc_assets_tests.defs.running import QUIET

_PROJECT = Path(__file__).parents[2]
_INSTANCE = _PROJECT / "lakegc_assets/dagster.yaml"
_GRAPH = [*MARK_ASSETS, "backup", "swept_set"]
_CONTRACT = ["**Reads", "**Writes", "**Guarantees"]
#: With what takes it back, which no collection does.
_WHOLE = [*_GRAPH, "restored_set"]
#: About all repositories, and fed by no asset.
_BESIDE = {"repositories", "estate", "estate_leftovers"}
#: Beside the report: nothing depends on them.
_ATTRIBUTION = "storage_attribution"
_FORECAST = "policy_forecast"


@pytest.fixture(scope="module")
def definitions() -> dg.Definitions:
    return defs()


@pytest.fixture(scope="module")
def graph(definitions: dg.Definitions) -> dg.AssetGraph:
    return definitions.resolve_asset_graph()


def test_the_workspace_names_what_dagster_can_load(definitions: dg.Definitions) -> None:
    """What its own commands do, in this process."""
    (place,) = yaml.safe_load((_PROJECT / "workspace.yaml").read_text())["load_from"]
    assert import_module(place["python_module"]["module_name"]).defs is defs
    assert place["python_module"]["location_name"] == "lakegc_assets"
    dg.Definitions.validate_loadable(definitions)


def test_a_process_without_the_ui_has_the_same_graph(graph: dg.AssetGraph) -> None:
    definitions = component().definitions()
    ours = definitions.resolve_asset_graph()
    assert ours.asset_check_keys == graph.asset_check_keys
    assert ours.toposorted_asset_keys_by_level == graph.toposorted_asset_keys_by_level
    assert sorted(definitions.resources or {}) == sorted(defs().resources or {})
    more = ("gc_backup", "gc_restore", "gc_forecast", "gc_estate", "gc_leftovers", "gc_prune")
    for job in ("gc", "gc_mark", "gc_approve", "gc_sweep", *more):
        assert definitions.resolve_job_def(job).name == job


def test_the_assets_follow_each_other_in_the_order_of_the_graph(graph: dg.AssetGraph) -> None:
    levels = [{k.to_user_string() for k in level} for level in graph.toposorted_asset_keys_by_level]
    beside = {*_BESIDE, _ATTRIBUTION, _FORECAST}
    assert [level - beside for level in levels] == [{name} for name in _WHOLE]
    for name in (_ATTRIBUTION, _FORECAST):
        assert not graph.get(dg.AssetKey(name)).child_keys
    for before, after in itertools.pairwise(_WHOLE):
        assert dg.AssetKey(before) in graph.get(dg.AssetKey(after)).parent_keys


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("store_listing", []),
        ("uncommitted_snapshot", MARK_ASSETS[:1]),
        ("active_commits", MARK_ASSETS[1:2]),
        ("committed_addresses", MARK_ASSETS[2:3]),
        ("deletion_candidates", MARK_ASSETS[:4]),
        ("gc_report", ["deletion_candidates"]),
        # What comes behind the report reads the mark as a whole, which the report publishes.
        (_ATTRIBUTION, ["gc_report"]),
        (_FORECAST, ["gc_report"]),
        ("backup", ["gc_report"]),
        ("swept_set", ["gc_report", "backup"]),
        ("restored_set", ["swept_set"]),
    ],
)
def test_an_asset_depends_on_what_it_reads_and_on_what_must_come_before(
    graph: dg.AssetGraph, name: str, before: Sequence[str]
) -> None:
    parents = graph.get(dg.AssetKey(name)).parent_keys
    assert parents == {dg.AssetKey(one) for one in before}


@pytest.mark.parametrize(
    ("cron", "zone", "at", "last", "following"),
    [
        ("0 2 * * 0", "UTC", "2026-03-01T02:00+00:00", "2026-03-01T02:00", "2026-03-08T02:00"),
        ("0 2 * * 0", "UTC", "2026-03-01T01:59+00:00", "2026-02-22T02:00", "2026-03-01T02:00"),
        # The hour that is left out in spring, and the one that comes twice in autumn.
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-29T01:00+00:00",
            "2026-03-29T01:00",
            "2026-03-30T00:30",
        ),
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-10-25T00:45+00:00",
            "2026-10-24T00:30",
            "2026-10-25T01:30",
        ),
    ],
)
def test_the_times_of_a_schedule_are_those_at_which_dagster_ticks(
    cron: str, zone: str, at: str, last: str, following: str
) -> None:
    moment = datetime.fromisoformat(at)
    found = (last_tick(cron, zone, moment), next_tick(cron, zone, moment))
    shown = [f"{one.astimezone(timezone.utc):%Y-%m-%dT%H:%M}" for one in found]
    assert shown == [last, following]


def test_every_asset_is_of_one_repository_and_one_run(graph: dg.AssetGraph) -> None:
    for name in (*_WHOLE, _ATTRIBUTION, _FORECAST):
        node = graph.get(dg.AssetKey(name))
        assert node.partitions_def == PLAIN.repository_run
    for name in _BESIDE - {"repositories"}:
        assert graph.get(dg.AssetKey(name)).partitions_def is None
        assert graph.get(dg.AssetKey(name)).parent_keys == set()


def test_every_asset_shows_the_contract_of_its_docstring(graph: dg.AssetGraph) -> None:
    for name in (*_WHOLE, _ATTRIBUTION, _FORECAST, "estate", "estate_leftovers"):
        described = graph.get(dg.AssetKey(name)).description or ""
        what, *parts = described.split("\n\n")
        assert what.endswith(".")
        assert what[0].isupper()
        assert [part.partition(":** ")[0] for part in parts] == _CONTRACT, name
        assert not [part for part in parts if "``" in part or "\n" in part]


def test_a_contract_is_read_from_a_docstring() -> None:
    doc = """Objects of ``it``.

    Reads: a; b,
    and c. Writes are no part.
    Writes: d: e.
    More of it.
    Guarantees: f.
    """
    assert contract(doc) == (
        "Objects of `it`.\n\n**Reads:** a; b, and c. Writes are no part.\n\n"
        "**Writes:** d: e. More of it.\n\n**Guarantees:** f."
    )
    assert contract(None) == ""


def test_every_invariant_is_a_check_and_all_but_one_block(graph: dg.AssetGraph) -> None:
    keys = graph.asset_check_keys - {dg.AssetCheckKey(PLAIN.key(REPOSITORIES), CHECK)}
    checks = {key.name: graph.get(key) for key in keys}
    adds_up = checks.pop("attribution_adds_up")
    assert adds_up.key.asset_key == dg.AssetKey(_ATTRIBUTION)
    assert not adds_up.blocking
    assert set(checks) == set(NAMES)
    for name, check in checks.items():
        assert check.key.asset_key == dg.AssetKey("deletion_candidates")
        assert check.blocking == (name != "tagged_commits_whole")
        assert check.partitions_def == PLAIN.repository_run
        assert check.description


@pytest.mark.parametrize(
    ("name", "assets", "checks"),
    [
        ("gc", [*_GRAPH, _ATTRIBUTION], (*NAMES, "attribution_adds_up")),
        ("gc_mark", [*_GRAPH[:-2], _ATTRIBUTION], (*NAMES, "attribution_adds_up")),
        ("gc_backup", ["backup"], ()),
        ("gc_sweep", _GRAPH[-2:], ()),
        ("gc_restore", ["restored_set"], ()),
        ("gc_forecast", ["policy_forecast"], ()),
    ],
)
def test_a_job_is_a_part_of_the_graph(
    definitions: dg.Definitions, name: str, assets: list[str], checks: tuple[str, ...]
) -> None:
    job = definitions.resolve_job_def(name)
    assert {k.to_user_string() for k in job.asset_layer.selected_asset_keys} == set(assets)
    assert {key.name for key in job.asset_layer.asset_graph.asset_check_keys} == set(checks)
    assert job.executor_def is dg.in_process_executor
    assert job.partitions_def == PLAIN.repository_run


@pytest.mark.parametrize(
    ("name", "asset"), [("gc_estate", "estate"), ("gc_leftovers", "estate_leftovers")]
)
def test_what_is_about_all_repositories_is_a_job_of_its_own(
    definitions: dg.Definitions, name: str, asset: str
) -> None:
    job = definitions.resolve_job_def(name)
    assert {k.to_user_string() for k in job.asset_layer.selected_asset_keys} == {asset}
    assert job.executor_def is dg.in_process_executor
    assert job.partitions_def is None
    schedule = definitions.resolve_schedule_def(f"{name}_schedule")
    assert schedule.job_name == name


def test_to_load_the_component_changes_no_environment() -> None:
    """A Spark of somebody else in the same code location would listen for its cluster in vain."""
    before = dict(os.environ)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
            patch.delenv(name, raising=False)
            before.pop(name, None)
        GarbageCollection().definitions()
        assert dict(os.environ) == before


def test_a_project_keeps_the_executor_of_its_own_jobs() -> None:
    """One for the whole code location would clash with it, or hold for all that is there."""

    @dg.asset
    def mine() -> None: ...

    ours, theirs = GarbageCollection().definitions(), dg.define_asset_job("theirs", [mine])
    for executor in (None, dg.multiprocess_executor):
        project = dg.Definitions(assets=[mine], jobs=[theirs], executor=executor)
        merged = dg.Definitions.merge(ours, project)
        assert merged.resolve_job_def("theirs").executor_def is not dg.in_process_executor
        for job in (*RUN_JOBS, *OTHER_JOBS):
            assert merged.resolve_job_def(job).executor_def is dg.in_process_executor
    assert ours.executor is None


@pytest.mark.parametrize("repository", ["", "a|b", "a/b", "..", "_cache", "a b", "x" * 300, "a\nb"])
def test_a_name_that_cannot_be_a_repository_is_refused(repository: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name of a repository"):
        partition_key(repository, "run")


@pytest.mark.parametrize("run", ["", "a|b", "a/b", "..", ".a", "a b", "x" * 129, "a\n", "_a"])
def test_a_name_that_cannot_be_a_run_is_refused(run: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the id of a run"):
        partition_key("repository", run)


def test_a_partition_is_known_to_dagster_once_it_is_added() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        key = add_partition(instance, "repo-1", "run.1")
        add_partition(instance, "repo-1", "run.1")
        add_partition(instance, "repo-2", "run.1")
        assert key == "repo-1|run.1"
        assert instance.get_dynamic_partitions("repository") == ["repo-1", "repo-2"]
        assert instance.get_dynamic_partitions("run") == ["run.1"]
        keys = PLAIN.repository_run.get_partition_keys(dynamic_partitions_store=instance)
        assert sorted(keys) == ["repo-1|run.1", "repo-2|run.1"]


def test_a_refused_name_is_not_added() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        with pytest.raises(ConfigurationError):
            add_partition(instance, "repository", "a|b")
        assert instance.get_dynamic_partitions("repository") == []


def test_jobs_of_one_step_are_started_again_by_dagster(
    definitions: dg.Definitions, tmp_path: Path
) -> None:
    """Where their process died; of what has failed by itself nothing is tried again."""
    (tmp_path / "dagster.yaml").write_text(_INSTANCE.read_text())
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert instance.run_retries_enabled
        assert not instance.run_retries_retry_on_asset_or_op_failure
        assert instance.run_retries_max_retries == 0
    retries = {job: definitions.resolve_job_def(job).tags for job in (*RUN_JOBS, *OTHER_JOBS)}
    tried = {job for job, tags in retries.items() if int(tags.get("dagster/max_retries", "0"))}
    assert tried == {
        *("gc_backup", "gc_sweep", "gc_restore", "gc_forecast"),
        *("gc_prune", "gc_estate", "gc_leftovers"),
    }
    assert {retries[job]["dagster/retry_strategy"] for job in tried} == {"ALL_STEPS"}


def test_what_a_person_waits_for_leaves_the_queue_before_a_wave(
    definitions: dg.Definitions,
) -> None:
    tags = {job: definitions.resolve_job_def(job).tags for job in (*RUN_JOBS, *OTHER_JOBS)}
    first = {job for job, has in tags.items() if int(has.get("dagster/priority", "0")) > 0}
    assert first == {"gc_approve", "gc_accept_hold", "gc_sweep", "gc_restore"}


@pytest.mark.parametrize("job", ["gc", "gc_sweep", "gc_approve", "gc_accept_hold"])
def test_what_has_failed_by_itself_is_not_tried_again_whatever_the_instance_says(
    definitions: dg.Definitions, tmp_path: Path, job: str
) -> None:
    """Dagster's chart for Kubernetes turns retries on, which then try such runs again."""
    (tmp_path / "dagster.yaml").write_text(
        "run_retries: {enabled: true, max_retries: 3}\ntelemetry: {enabled: false}\n"
    )
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert instance.run_retries_retry_on_asset_or_op_failure
        # It is on no partition, which is refused.
        ended = definitions.resolve_job_def(job).execute_in_process(
            instance=instance, raise_on_error=False, run_config=QUIET
        )
        (run,) = instance.get_runs()
    assert not ended.success
    assert run.tags["dagster/will_retry"] == "false"


def test_the_instance_keeps_one_run_at_a_time_for_a_repository(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text(_INSTANCE.read_text())
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        queue = instance.get_concurrency_config().run_queue_config
    assert queue is not None
    assert queue.max_concurrent_runs == 2
    assert queue.tag_concurrency_limits == [
        {"key": key, "value": {"applyLimitPerUniqueValue": True}, "limit": 1}
        for key in ("dagster/partition/repository", "lakegc/repository")
    ]


def test_an_approval_waits_in_the_queue_for_a_mark_of_its_repository(
    definitions: dg.Definitions,
) -> None:
    """Whichever came second was refused: both would hold the repository."""
    tags = {}
    for name in (*RUN_JOBS, "gc_accept_hold"):
        config = definitions.resolve_job_def(name).partitioned_config
        assert config is not None
        key = "alpha" if name == "gc_accept_hold" else "alpha|w1"
        tags[name] = config.get_tags_for_partition_key(key)["lakegc/repository"]
    assert set(tags.values()) == {"alpha"}


def test_the_documentation_has_the_columns_of_the_artifacts() -> None:
    page = (_PROJECT / "docs/operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)[^`]*` \| ([^|]*) \|", page, re.MULTILINE)
    documented = {asset: re.sub(r"\([^)]*\)", "", columns) for asset, columns in rows}
    listed = documented["store_listing"]
    stages = [*MARK, *(one for one in STAGES if one.name in {"swept_set", "restored_set"})]
    for stage in stages:
        assert stage.columns is not None
        said = documented[stage.name].partition(";")[0].partition(":")[0]
        said = said.replace("those of `store_listing`", listed)
        assert re.findall(r"\w+", said) == stage.columns.names, stage.name
