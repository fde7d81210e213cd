"""``run_on``: marks and sweeps in a process that a Pipes client starts."""

from __future__ import annotations

import ast
import inspect
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import dagster_pipes
import pydantic
import pytest
import yaml
from dagster_aws.pipes import PipesEMRClient, PipesEMRServerlessClient

from lakegc_assets import pipes
from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.failures import failed_for_a_while
from lakegc_assets.defs.names import EXCEEDS_TAG, WAITS_TAG, add_partition
from lakegc_assets.defs.policy import NoticeSection, Override, ServerSection
from lakegc_assets.defs.run_on import Report, RunOnSection, event_message
from lakegc_assets.defs.stages import Result, Stage
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.run.manifest import MARK_ASSETS
from lakegc_assets_tests.defs import running
from lakegc_assets_tests.site import Site

# Dagster itself opens sessions of Pipes in this way.
pytestmark = pytest.mark.filterwarnings(
    "ignore:AssetExecutionContext.[a-z_]+ is deprecated:DeprecationWarning"
)

#: What two marks of the same objects differ in: the second finds tables in the cache.
_OF_A_MARK = {
    *("attempt", "start", "engine", "requests sent", "files", "below _lakefs/", "dagster/uri"),
    "last marks",
    *("ranges from cache", "ranges decoded", "metaranges from cache", "metaranges decoded"),
}
_MODULE = [sys.executable, "-m", "lakegc_assets.pipes"]


class InThisProcess(dg.PipesClient):
    """Runs the module here: to start a process that loads it takes longer than what it does."""

    def run(  # type: ignore[override]
        self, *, context: dg.AssetExecutionContext, extras: dict[str, Any]
    ) -> dg.PipesClientCompletedInvocation:
        injector, reader = dg.PipesTempFileContextInjector(), dg.PipesTempFileMessageReader()
        with (
            dg.open_pipes_session(context, injector, reader, extras) as session,
            pytest.MonkeyPatch.context() as patch,
        ):
            for name, value in session.get_bootstrap_env_vars().items():
                patch.setenv(name, value)
            patch.setattr(dagster_pipes.PipesContext, "_instance", None)
            assert pipes.main([]) == 0
        return dg.PipesClientCompletedInvocation(session)


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as found:
        yield found


def on(*command: str, **fields: Any) -> GarbageCollection:
    section = RunOnSection(
        client="dagster:PipesSubprocessClient", arguments={"command": list(command or _MODULE)}
    )
    return GarbageCollection(run_on=section, **fields)


def reporting() -> GarbageCollection:
    """As ``on``, without a process."""
    return GarbageCollection(run_on=RunOnSection(client=InThisProcess()))


def run(
    component: GarbageCollection,
    job: str,
    instance: dg.DagsterInstance,
    key: str,
    tags: dict[str, str] | None = None,
    **collector: Any,
) -> dg.ExecuteInProcessResult:
    repository, _, wave = key.partition("|")
    added = add_partition(instance, repository, wave)
    definitions = component.definitions()
    return running.run(definitions, job, instance, added, raises=False, tags=tags, **collector)


def made(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """What a run shows of its assets."""
    return {
        event.asset_key.to_user_string(): dict(event.materialization.metadata)
        for event in result.get_asset_materialization_events()
        if event.asset_key is not None
    }


def checked(result: dg.ExecuteInProcessResult) -> dict[str, tuple[Any, ...]]:
    """What it shows of its checks, but for their time."""
    return {
        one.check_name: (
            *(one.asset_key, one.passed, one.severity, one.description),
            {name: value for name, value in one.metadata.items() if name != "at"},
        )
        for one in result.get_asset_check_evaluations()
    }


def failure(result: dg.ExecuteInProcessResult) -> Any:
    """Why a run failed."""
    (event,) = (event for event in result.all_events if event.is_step_failure)
    return event.step_failure_data


def lasting(value: object) -> object:
    """A value of metadata, or only its kind where two marks of the same objects differ in it."""
    plain = isinstance(value, dg.TextMetadataValue | dg.IntMetadataValue | dg.TableMetadataValue)
    return value if plain else type(value)


def test_what_is_reported_is_what_a_run_in_process_shows(
    site: Site, instance: dg.DagsterInstance
) -> None:
    """A process of its own, which spark-submit starts, is in clusters/test_submit.py."""
    reported = site.tell("equal")
    there = run(reporting(), "gc_mark", instance, "equal|there", clean=True)
    here = run(GarbageCollection(), "gc_mark", instance, "equal|here", clean=True)
    assert there.success
    assert [*made(there)] == [*made(here)] == [*MARK_ASSETS, "storage_attribution"]
    for asset, metadata in made(here).items():
        found = made(there)[asset]
        assert found.keys() == metadata.keys()
        differing = {name for name in metadata if lasting(found[name]) != lasting(metadata[name])}
        assert differing <= _OF_A_MARK, {name: (found[name], metadata[name]) for name in differing}
    assert checked(there) == checked(here)
    assert (site.namespace("equal") / reported.expired).exists()

    asked_by_nobody = {"dagster/schedule_name": "gc_schedule"}
    waiting = run(reporting(), "gc_sweep", instance, "equal|there", asked_by_nobody)
    assert waiting.success, failure(waiting)
    assert not made(waiting)
    assert "approve" in instance.get_run_by_id(waiting.run_id).tags[WAITS_TAG]  # type: ignore[union-attr]
    assert (site.namespace("equal") / reported.expired).exists()

    # The process there would wait for commits that are under way.
    swept = run(reporting(), "gc_sweep", instance, "equal|there", longest_commit_seconds=0)
    assert not (site.namespace("equal") / reported.expired).exists()
    assert (site.namespace("equal") / reported.live).exists()
    # A mark that was swept is left alone, and its record is shown again.
    for component in (GarbageCollection(), reporting()):
        again = run(component, "gc_sweep", instance, "equal|there")
        assert not made(again)
        (event,) = again.get_asset_observation_events()
        seen = event.asset_observation_data.asset_observation
        assert {"swept_set": seen.metadata} == made(swept)


def test_a_check_that_blocks_blocks_there_too(site: Site, instance: dg.DagsterInstance) -> None:
    site.tell("blocked")
    there, here = (
        run(component, "gc", instance, f"blocked|{wave}", clean=True, max_candidate_share=0.01)
        for wave, component in (("there", reporting()), ("here", GarbageCollection()))
    )
    assert not there.success
    assert [*made(there)] == [*made(here)] == [*MARK_ASSETS[: MARK_ASSETS.index("gc_report")]]
    assert checked(there) == checked(here)
    assert not checked(there)["candidate_share"][1]
    assert site.published("blocked") == []
    assert failure(there).error.message == failure(here).error.message
    assert failure(there).user_failure_data.metadata == failure(here).user_failure_data.metadata


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("false",), "PipesSubprocessClient has started ended without a report.*code 1"),
        (("sh", "-c", "kill -9 $$"), "ended without a report.*code -9"),
        (("true",), "ended without a report of its end"),
    ],
)
def test_a_process_that_ends_without_a_report_is_a_failed_asset(
    instance: dg.DagsterInstance, command: tuple[str, ...], said: str
) -> None:
    result = run(on(*command), "gc_mark", instance, "any|lost")
    assert not made(result)
    assert re.search(said, failure(result).error.message)
    assert failed_for_a_while(instance, result.dagster_run)


def test_of_a_run_that_waits_only_the_sentence_is_logged(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags = {WAITS_TAG: "it waits, since it is large: approve it", EXCEEDS_TAG: "since it is large"}

    def waiting(_: object) -> int:
        with dagster_pipes.open_dagster_pipes() as process:
            process.report_custom_message(Report(tags=tags).to_json())
        return 0

    monkeypatch.setattr(pipes, "main", waiting)
    found = instance.get_run_by_id(run(reporting(), "gc_sweep", instance, "any|large").run_id)
    assert found is not None
    assert tags.items() <= found.tags.items()
    said = [
        entry.user_message
        for entry in instance.all_logs(found.run_id)
        if entry.level == logging.WARNING
    ]
    assert [one for one in said if "it is large" in one] == [tags[WAITS_TAG]]


@pytest.mark.parametrize(
    ("settings", "said"),
    [({}, "cannot be read here.*version of Dagster"), ({"max_candidate_share": 0.01}, "candidate")],
    ids=["done", "refused"],
)
def test_what_another_version_of_dagster_writes_hides_no_refusal(
    site: Site,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    said: str,
) -> None:
    name = f"other-{len(settings)}"
    site.tell(name)
    event = next(iter(event_message(dg.AssetMaterialization("a"))))
    monkeypatch.setattr(pipes, "event_message", lambda _: {event: '{"__class__": "NotYetKnown"}'})
    result = run(reporting(), "gc", instance, f"{name}|there", clean=True, **settings)
    assert not made(result)
    assert re.search(said, failure(result).error.message, re.DOTALL)


def test_what_is_sent_holds_no_secret_and_makes_the_component_again(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEGC_BACKUP_URL", str(tmp_path / "backups"))
    monkeypatch.setenv("THE_SECRET", "not to be seen")
    component = on(
        name="eu",
        lakefs=ServerSection(
            access_key_id_variable="THE_KEY", secret_access_key_variable="THE_SECRET"
        ),
        notices=NoticeSection(url="https://example.com/hook-with-a-secret"),
        repositories=[Override(include=["a*"], min_age_hours=48, inventory_place="lists")],
        protect_tags=True,
    )
    fields = json.loads(json.dumps(component.remote_fields()))
    for secret in (site.server.secret_key, "not to be seen", "hook-with-a-secret"):
        assert secret not in json.dumps(fields)
    again = GarbageCollection(**fields)
    assert again.usual_settings("abc") == component.usual_settings("abc")
    assert again.usual_settings("abc")["min_age_hours"] == 48
    assert again.usual_settings("abc")["backup_url"] == str(tmp_path / "backups")
    assert (again.lakefs.endpoint or "").startswith(site.server.endpoint)
    assert fields["repositories"][0]["inventory_place"] == str(Path("lists").resolve())
    assert again.lakefs.secret_access_key_variable == "THE_SECRET"
    assert again.remote_fields() == fields


class Stricter(GarbageCollection):
    """A component whose defaults protect more."""

    min_age_hours: float = 720
    protect_tags: bool = True
    sweep: str = "never"


@pytest.mark.usefixtures("site")
def test_the_defaults_of_a_subclass_reach_the_process() -> None:
    """Else its marks would take younger objects than the component allows."""
    component = Stricter(run_on=RunOnSection(client=InThisProcess()))
    again = GarbageCollection(**json.loads(json.dumps(component.remote_fields())))
    assert again.usual_settings("abc") == component.usual_settings("abc")
    assert again.usual_settings("abc")["min_age_hours"] == 720
    assert again.policies().of("abc").sweep == "never"


@pytest.mark.parametrize(
    ("client", "said"),
    [
        ("dagster.PipesSubprocessClient", "write package.module:name"),
        ("dagster:NoSuchClient", "cannot be imported"),
        ("no_such_package:client", "cannot be imported"),
    ],
)
def test_a_client_that_is_not_there_is_refused_with_its_line(client: str, said: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=said) as refused:
        GarbageCollection.resolve_from_yaml(f"min_age_hours: 24\nrun_on:\n  client: {client}\n")
    assert "<string>:2" in str(refused.value)


def test_what_does_not_reach_the_process_is_refused_before_it_starts(
    site: Site,  # noqa: ARG001 - its environment
    instance: dg.DagsterInstance,
) -> None:
    class Noisy(GarbageCollection):
        def execute(self, stage: Stage, execution: Execution) -> Result:
            return stage.function(execution)

    section = RunOnSection(client="dagster:PipesSubprocessClient", arguments={"command": ["false"]})
    with pytest.raises(ConfigurationError, match="Noisy overrides execute"):
        Noisy(run_on=section).definitions()
    job = on("false").definitions().resolve_job_def("gc_mark")
    result = job.execute_in_process(
        partition_key=add_partition(instance, "any", "typed"),
        instance=instance,
        raise_on_error=False,
        run_config={"resources": {"lakefs": {"config": {"secret_access_key": "x"}}}},
    )
    assert "this run configures lakefs, which does not reach" in failure(result).error.message


# What docs/clusters.md says of managed services


def test_the_yaml_of_each_managed_service_fits_its_client_and_is_said_not_to_be_run() -> None:
    text = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    takes = {
        "emr": _parameters(PipesEMRServerlessClient.run),
        "emr_cluster": _parameters(PipesEMRClient.run),
    }
    for node in ast.parse(code).body:
        if isinstance(node, ast.ClassDef):
            (method,) = node.body
            assert isinstance(method, ast.FunctionDef)
            takes[node.name] = {one.arg for one in method.args.kwonlyargs}
    found = {}
    for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
        values = yaml.safe_load(block)
        if "run_on" in values:
            module, _, name = values["run_on"]["client"].partition(":")
            assert module == "my_gc.clients"
            found[name] = values["run_on"]["arguments"].keys()
    assert found.keys() == takes.keys()
    for name, arguments in found.items():
        assert arguments <= takes[name]
    for service in ("EMR Serverless", "EMR", "Dataproc", "Databricks"):
        assert f"{service} (not run)" in text


def _parameters(function: Callable[..., object]) -> set[str]:
    return set(inspect.signature(function).parameters)
