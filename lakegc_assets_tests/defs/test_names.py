"""Several components in one Dagster: their names, and what a translation changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dagster as dg
import pydantic
import pytest
from dagster.components.resolved.errors import ResolutionException

import lakegc_assets
from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.execution import Resources
from lakegc_assets.defs.names import ASSETS, OTHER_JOBS, PLAIN, RUN_ASSETS, RUN_JOBS, Names
from lakegc_assets.defs.policy import StoresSection
from lakegc_assets.errors import ConfigurationError

_RESOURCES = ("collector", "lakefs", "stores", "pyspark")
_SENSORS = (
    "approvals", "failures", "repositories", "resume", "rules", "staleness", "waiting", "waves",
)  # fmt: skip


def _of_somebody_else() -> dg.Definitions:
    """What a platform has before it hears of garbage collection."""

    @dg.asset
    def backup() -> None: ...

    @dg.op
    def approve() -> None: ...

    @dg.job
    def gc() -> None:
        approve()

    return dg.Definitions(assets=[backup], jobs=[gc], resources={"pyspark": 7, "stores": "own"})


def test_two_components_load_in_one_location_beside_equal_names_of_ones_own() -> None:
    merged = dg.Definitions.merge(
        _of_somebody_else(),
        GarbageCollection(name="eu").definitions(),
        GarbageCollection(name="us", cron="0 3 * * *").definitions(),
    )
    dg.Definitions.validate_loadable(merged)
    keys = {key.to_user_string() for key in merged.resolve_asset_graph().get_all_asset_keys()}
    assert keys == {"backup", *(f"{name}/{asset}" for name in ("eu", "us") for asset in ASSETS)}


def test_a_component_without_a_name_loads_beside_one_that_has_one() -> None:
    merged = dg.Definitions.merge(
        GarbageCollection().definitions(), GarbageCollection(name="eu").definitions()
    )
    dg.Definitions.validate_loadable(merged)


def _named(definitions: dg.Definitions) -> dict[str, Any]:
    graph = definitions.resolve_asset_graph()
    nodes = [graph.get(key) for key in graph.get_all_asset_keys()]
    return {
        "assets": {node.key.to_user_string() for node in nodes},
        "groups": {node.group_name for node in nodes},
        "jobs": {one.name for one in definitions.jobs or ()},
        "schedules": {one.name for one in definitions.schedules or ()},
        "sensors": {one.name for one in definitions.sensors or ()},
        "resources": set(definitions.resources or ()),
        "ops": {
            op.name for key in graph.get_all_asset_keys() - {_of_no_op(definitions)}
            if (op := definitions.resolve_assets_def(key).node_def)
        },
    }  # fmt: skip


def _of_no_op(definitions: dg.Definitions) -> dg.AssetKey:
    """The asset that nothing here makes."""
    keys = definitions.resolve_asset_graph().get_all_asset_keys()
    (found,) = (key for key in keys if key.path[-1] == "repositories")
    return found


def test_a_name_reaches_all_that_is_defined_and_none_changes_nothing() -> None:
    plain = {
        "assets": {*ASSETS},
        "groups": {"gc"},
        "jobs": {*RUN_JOBS, *OTHER_JOBS},
        "schedules": {
            "gc_schedule",
            "gc_estate_schedule",
            "gc_leftovers_schedule",
            "gc_prune_schedule",
        },
        "sensors": {f"gc_{one}" for one in _SENSORS},
        "resources": {*_RESOURCES},
        # A backup and its sweep are one step.
        "ops": {*RUN_ASSETS, "estate", "estate_leftovers"} - {"backup"},
    }
    assert _named(GarbageCollection().definitions()) == plain
    named = {kind: {f"eu_{one}" for one in names} for kind, names in plain.items()}
    named["assets"] = {f"eu/{one}" for one in ASSETS}
    assert _named(GarbageCollection(name="eu").definitions()) == named


@pytest.mark.parametrize(
    ("name", "repository", "run"), [("", "repository", "run"), ("eu", "eu_repository", "eu_run")]
)
def test_each_component_has_partitions_of_its_own(name: str, repository: str, run: str) -> None:
    definitions = GarbageCollection(name=name or None).definitions()
    names = Names(name)
    for asset in RUN_ASSETS:
        partitions = definitions.resolve_assets_def(names.key(asset)).partitions_def
        assert isinstance(partitions, dg.MultiPartitionsDefinition)
        found = {one.name: one.partitions_def for one in partitions.partitions_defs}
        assert found == {
            "repository": dg.DynamicPartitionsDefinition(name=repository),
            "run": dg.DynamicPartitionsDefinition(name=run),
        }
    job = definitions.resolve_job_def(names.of("gc"))
    assert job.partitions_def == names.repository_run


@pytest.mark.parametrize("name", ["e u", "eu/west", "eu-1", "1eu", "", "é", "x" * 41, "__eu"])
def test_a_name_that_dagster_would_not_take_everywhere_is_refused(name: str) -> None:
    with pytest.raises((pydantic.ValidationError, ResolutionException)) as refused:
        GarbageCollection.resolve_from_yaml(f"running: false\nname: '{name}'\n")
    assert "cannot be a name: write a letter" in str(refused.value)
    assert "<string>:2" in str(refused.value)


_TRANSLATION = """
name: eu
owners: ["team:data"]
translation:
  key: "lake/{{ asset }}"
  group_name: storage
  kinds: [lake]
  tags: {cost: "{{ asset }}"}
  metadata: {runbook: https://example.com}
  description: "garbage: {{ spec.description }}"
"""


def test_a_translation_changes_what_assets_are_called_and_leaves_their_order() -> None:
    definitions = GarbageCollection.resolve_from_yaml(_TRANSLATION).definitions()
    dg.Definitions.validate_loadable(definitions)
    graph = definitions.resolve_asset_graph()
    plain = GarbageCollection().definitions().resolve_asset_graph()
    for asset in ASSETS:
        node = graph.get(dg.AssetKey(["lake", asset]))
        before = plain.get(PLAIN.key(asset))
        assert {key.path[-1] for key in node.parent_keys} == {
            key.path[-1] for key in before.parent_keys
        }
        assert (node.group_name, node.owners, node.tags["cost"]) == (
            "storage",
            ["team:data"],
            asset,
        )
        assert (node.kinds, node.metadata["runbook"]) == ({"lake"}, "https://example.com")
        assert (node.description or "").startswith(f"garbage: {before.description}"[:30])
    swept = definitions.resolve_job_def("eu_gc_sweep").asset_layer.selected_asset_keys
    assert swept == {dg.AssetKey(["lake", "backup"]), dg.AssetKey(["lake", "swept_set"])}
    checks = {key.asset_key.to_user_string() for key in graph.asset_check_keys}
    checked = ("deletion_candidates", "repositories", "storage_attribution")
    assert checks == {f"lake/{asset}" for asset in checked}


@pytest.mark.parametrize(
    "wrong",
    ["deps: [another]", "skippable: true", "partitions_def: {type: static, partition_keys: [a]}"],
)
def test_a_translation_cannot_change_what_runs_before_what(wrong: str) -> None:
    component = GarbageCollection.resolve_from_yaml(f"translation: {{{wrong}}}")
    with pytest.raises(
        ConfigurationError, match=rf"translation: {wrong.partition(':')[0]}.* cannot be"
    ):
        component.definitions()


def test_a_translation_that_calls_two_assets_the_same_is_refused() -> None:
    component = GarbageCollection.resolve_from_yaml("translation: {key: lake/gc}")
    said = r"store_listing and uncommitted_snapshot have the same key, lake/gc: write {{ asset }}"
    with pytest.raises(ConfigurationError, match=said):
        component.definitions()


@pytest.mark.parametrize("wrong", [{"deps": ["mine"]}, {"skippable": True}])
def test_a_subclass_cannot_change_what_runs_before_what(wrong: dict[str, Any]) -> None:
    class Ours(GarbageCollection):
        def get_asset_spec(self, spec: dg.AssetSpec, asset: str) -> dg.AssetSpec:
            return super().get_asset_spec(spec, asset).replace_attributes(**wrong)

    with pytest.raises(ConfigurationError, match=f"{next(iter(wrong))} of .* cannot be changed"):
        Ours().definitions()


def test_a_subclass_may_change_specs_and_do_more_than_an_asset_does() -> None:
    class Ours(GarbageCollection):
        def get_asset_spec(self, spec: dg.AssetSpec, asset: str) -> dg.AssetSpec:
            return super().get_asset_spec(spec, asset).replace_attributes(group_name="ours")

    assert _named(Ours(name="eu").definitions())["groups"] == {"ours"}


def test_the_documented_subclass_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs/automation.md").read_text()
    (example,) = re.findall(r"```python\n(class .*?)```", page, re.DOTALL)
    known: dict[str, Any] = {"lakegc_assets": lakegc_assets}
    exec(example, known)
    monkeypatch.setenv("LAKEGC_ARTIFACT_ROOT", str(tmp_path))
    definitions = known["Collection"]().definitions()
    assert definitions.resolve_asset_graph().get(PLAIN.key("swept_set")).owners == ["team:storage"]
    with dg.DagsterInstance.ephemeral() as instance:
        made = definitions.resolve_job_def("gc_estate").execute_in_process(instance=instance)
    assert len(made.asset_materializations_for_node("estate")) == 1
    assert "estate begins" in capsys.readouterr().err


def test_runs_are_of_the_component_whose_jobs_or_assets_they_run() -> None:
    eu, us = Names("eu"), Names("us", {"backup": dg.AssetKey("archive")})

    def run(job: str, *keys: str) -> dg.DagsterRun:
        chosen = {dg.AssetKey.from_user_string(key) for key in keys} or None
        return dg.DagsterRun(job_name=job, asset_selection=chosen)

    owned = [
        (run("eu_gc_sweep"), [eu]),
        (run("us_gc_prune"), [us]),
        (run("gc"), [PLAIN]),
        (run("__ASSET_JOB", "eu/swept_set", "eu/backup"), [eu]),
        (run("__ASSET_JOB", "archive"), [us]),
        (run("__ASSET_JOB", "eu/swept_set", "us/swept_set"), []),
        (run("__ASSET_JOB", "swept_set", "somebody/else"), []),
        (run("__ASSET_JOB"), []),
        (run("eu_report"), []),
    ]
    for one, components in owned:
        assert [names for names in (PLAIN, eu, us) if names.owns(one)] == components


def test_artifacts_of_components_do_not_mix_where_nobody_says_where_they_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Repositories of two servers may have one name, and their waves one id."""
    monkeypatch.setenv("LAKEGC_ARTIFACT_ROOT", "s3://bucket/")
    said = StoresSection(artifact_root="s3://mine/lakegc")
    roots = {}
    for component in (
        GarbageCollection(),
        GarbageCollection(name="eu"),
        GarbageCollection(name="us", stores=said),
    ):
        names = component.names()
        keys = names.all_of("collector", "stores")
        defined = component.definitions().resources or {}
        with dg.build_resources({key: defined[key] for key in keys}) as given:
            roots[names.name] = Resources(given, names).root.url
    assert roots == {"": "s3://bucket/", "eu": "s3://bucket/_eu", "us": "s3://mine/lakegc"}
