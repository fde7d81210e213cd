"""What stops a run is shown on its own page: the sentence, figures, no retries, no frames."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest

from lakegc_assets.checks.invariants import NAMES
from lakegc_assets.definitions import defs
from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.failures import Stopped, failed_for_a_while, shown
from lakegc_assets.defs.names import add_partition
from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError, RefusedError
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.errors import StoreUnavailableError
from lakegc_assets_tests.defs import running
from lakegc_assets_tests.defs.running import QUIET, instance_of, mark_outside
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.site import Site


@pytest.fixture(scope="module")
def instance(site: Site) -> Iterator[dg.DagsterInstance]:
    with instance_of(site) as found:
        yield found


def _never(*_: object) -> object:
    raise AssertionError("Spark starts")


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever asks for Spark fails."""
    monkeypatch.setattr("lakegc_assets.defs.execution.session_of", _never)


def run(
    instance: dg.DagsterInstance,
    job: str,
    key: str,
    definitions: dg.Definitions | None = None,
    **collector: Any,
) -> list[dg.EventLogEntry]:
    """The event log of a run that fails, as its page shows it."""
    result = running.run(definitions or defs(), job, instance, key, raises=False, **collector)
    assert not result.success
    return list(instance.all_logs(result.run_id))


def failure_of(entries: list[dg.EventLogEntry], step: str) -> tuple[str, dict[str, Any], str]:
    """Description and metadata of the one failed step, and all that is shown of the error."""
    events = [entry.dagster_event for entry in entries if entry.dagster_event is not None]
    (failed,) = [e for e in events if e.event_type == dg.DagsterEventType.STEP_FAILURE]
    assert failed.step_key == step
    data = failed.step_failure_data
    assert data.user_failure_data is not None
    assert data.error is not None
    metadata = {name: value.value for name, value in data.user_failure_data.metadata.items()}
    return data.user_failure_data.description or "", metadata, data.error.to_string()


@pytest.mark.usefixtures("no_spark")
def test_a_check_that_refuses_says_what_it_found_and_what_to_do(
    site: Site, instance: dg.DagsterInstance
) -> None:
    site.tell("beta")
    key = add_partition(instance, "beta", "b1")
    entries = run(instance, "gc", key, max_candidate_share=0.1)
    said, figures, _ = failure_of(entries, "candidate_checks")
    events = [entry.dagster_event for entry in entries if entry.dagster_event is not None]
    materialized = {e.asset_key for e in events if e.is_step_materialization}
    assert dg.AssetKey("deletion_candidates") in materialized
    assert not {dg.AssetKey("gc_report"), dg.AssetKey("swept_set")} & materialized
    assert site.published("beta") == []
    assert not site.root.attempt("beta", "b1").has("gc_report")
    folder, reported = site.namespace("beta"), site.repositories["beta"]
    assert all((folder / one).exists() for one in (reported.expired, reported.unreferenced))
    assert said.startswith("refused: candidate_share: 2 of 6 listed objects are candidates")
    assert "approve this run by a higher max_candidate_share" in said
    assert figures["candidate_share: limit"] == 0.1
    assert not any("blocking asset check" in entry.user_message for entry in entries)
    evaluated = {
        e.asset_check_evaluation_data.check_name: e.asset_check_evaluation_data
        for e in events
        if e.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION
    }
    assert evaluated.keys() == set(NAMES)
    assert {name for name, one in evaluated.items() if not one.passed} == {"candidate_share"}
    assert evaluated["candidate_share"].blocking
    found = {name: one.metadata["what was found"].value for name, one in evaluated.items()}
    assert all(found.values())
    assert str(found["candidate_share"]) in said


@pytest.mark.usefixtures("no_spark", "site")
def test_a_server_that_is_away_is_waited_for_and_the_log_of_the_run_says_so(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("LAKECTL_SERVER_ENDPOINT_URL", endpoint)
    times = [0.0]
    monkeypatch.setattr(
        "lakegc_assets.lakefs.transport.sleep", lambda s: times.append(times[-1] + s)
    )
    monkeypatch.setattr("lakegc_assets.lakefs.transport.monotonic", lambda: 1.0 + times[-1])
    key = add_partition(instance, "beta", "away")
    entries = run(instance, "gc", key, lakefs_wait_seconds=60.0)
    said, _, _ = failure_of(entries, "store_listing")
    assert "lakegc waited for 60 s (lakefs_wait_seconds)" in said
    reported = [entry.user_message for entry in entries if "is away" in entry.user_message]
    assert reported[0].startswith(
        f"lakeFS at {endpoint}/api/v1 is away: waiting for it, 0 s of 60 s: "
    )
    assert len(reported) > 3


@pytest.mark.usefixtures("no_spark", "site")
@pytest.mark.parametrize(
    ("job", "function", "wait_s"),
    [("gc_mark", "list_store", 60.0), ("gc_sweep", "back_up", 0.0)],
)
def test_only_a_mark_waits_for_a_store_that_is_away(
    job: str,
    function: str,
    wait_s: float,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sweep holds a lease, whose renewals and deadlines must not wait."""
    seen: list[float] = []

    def stage(ctx: RunContext) -> object:
        seen.append(ctx.connections.stores.wait_s)
        raise RefusedError("seen")

    monkeypatch.setattr(f"lakegc_assets.defs.assets.{function}", stage)
    key = add_partition(instance, "beta", "away")
    run(instance, job, key, lakefs_wait_seconds=60.0)
    assert seen == [wait_s]


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize(
    ("keys", "settings", "words"),
    [
        (("no-such", "r"), {}, "configuration: there is no repository 'no-such'"),
        (("a b", "r"), {}, "configuration: 'a b' cannot be the name of a repository"),
        (("beta", "a b"), {}, "configuration: 'a b' cannot be the id of a run"),
        (("beta", "r"), {"min_age_hours": 1.0}, "configuration: min_age is 1:00:00, below"),
    ],
)
def test_what_is_wrong_is_reported_before_spark_starts(
    site: Site,
    instance: dg.DagsterInstance,
    keys: tuple[str, str],
    settings: dict[str, Any],
    words: str,
) -> None:
    if "beta" not in site.repositories:
        site.tell("beta")
    repository, mark = keys
    instance.add_dynamic_partitions("repository", [repository])
    instance.add_dynamic_partitions("run", [mark])
    key = dg.MultiPartitionKey({"repository": repository, "run": mark})
    said, _, shown_as = failure_of(
        run(instance, "gc_mark", key, engine="spark", **settings), "store_listing"
    )
    assert said.startswith(words)
    # The frames of what was raised inside would only hide it.
    assert "The above exception" not in shown_as


@pytest.mark.usefixtures("no_spark")
def test_wrong_credentials_and_a_read_only_repository_are_reported(
    site: Site, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.client.create_repository("mirror", "local://mirror", read_only=True)
    key = add_partition(instance, "mirror", "r")
    said, _, _ = failure_of(run(instance, "gc_mark", key, engine="spark"), "store_listing")
    assert said.startswith("refused: ")
    assert "the repository is read-only" in said
    monkeypatch.setenv("LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY", "wrong")
    said, _, _ = failure_of(run(instance, "gc_mark", key, engine="spark"), "store_listing")
    assert said.startswith("failed: ")
    assert "Check key and secret" in said


@pytest.mark.usefixtures("no_spark")
def test_a_setting_out_of_its_bounds_is_reported_before_any_step(
    site: Site, instance: dg.DagsterInstance
) -> None:
    assert site.server.endpoint
    key = add_partition(instance, "beta", "r9")
    run_id = str(uuid4())
    with pytest.raises(dg.DagsterError):
        defs().resolve_job_def("gc").execute_in_process(
            partition_key=key,
            instance=instance,
            run_id=run_id,
            run_config={"resources": {"collector": {"config": {"max_candidate_share": 2.0}}}},
        )
    entries = instance.all_logs(run_id)
    types = {entry.dagster_event_type for entry in entries if entry.dagster_event is not None}
    assert dg.DagsterEventType.STEP_START not in types
    reported = "".join(str(entry) for entry in entries)
    assert "max_candidate_share" in reported
    assert "2.0 is not from 0 to 1" in reported


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RefusedError("no"), "refused: no"),
        (ConfigurationError("set x"), "configuration: set x"),
        (IntegrityError("cut"), "failed: cut"),
    ],
)
def test_an_error_of_ours_is_shown_with_its_figures(error: LakegcError, words: str) -> None:
    error.figures = {"objects deleted": 3, "of": 5}
    with pytest.raises(Stopped) as raised, shown():
        raise error
    assert raised.value.description == words
    # Dagster's page shows this: no class stands before it.
    assert traceback.format_exception_only(raised.value) == [f"{words}\n"]
    assert {name: value.value for name, value in raised.value.metadata.items()} == {
        "objects deleted": 3,
        "of": 5,
    }
    assert not raised.value.allow_retries
    assert raised.value.error is error
    assert raised.value.__cause__ is None


def test_a_failure_that_may_pass_says_that_it_is_tried_again() -> None:
    with pytest.raises(Stopped) as raised, shown():
        raise StoreUnavailableError("no answer")
    assert "gc_resume" in str(raised.value.metadata["tried again"].value)


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(KeyError, match="x"), shown():
        raise KeyError("x")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(KeyboardInterrupt, marks=pytest.mark.conformance),
        dg.DagsterExecutionInterruptedError,
    ],
)
def test_an_interrupted_sweep_says_how_far_it_came(
    site: Site,
    spark: Session,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
) -> None:
    name = f"stopped-{len(site.repositories)}"
    site.tell(name)
    mark_outside(site, name, "m", spark)
    key = add_partition(instance, name, "m")
    job = defs().resolve_job_def("gc_sweep")
    run_id = str(uuid4())

    def interrupted(*_: object) -> None:
        raise kind

    monkeypatch.setattr("lakegc_assets.defs.assets.sweep", interrupted)
    with pytest.raises(kind, match="0 of the 2 objects of mark 'm' are deleted"):
        job.execute_in_process(
            partition_key=key, instance=instance, run_id=run_id, run_config=QUIET
        )
    events = [entry.dagster_event for entry in instance.all_logs(run_id)]
    (failed,) = [
        event.step_failure_data
        for event in events
        if event is not None and event.event_type == dg.DagsterEventType.STEP_FAILURE
    ]
    assert failed.error is not None
    assert f"To continue: `lakegc sweep {name} --run m`" in failed.error.message
    # So ``gc_resume`` leaves it alone.
    run = instance.get_run_by_id(run_id)
    assert run is not None
    assert failed_for_a_while(instance, run) is False


@pytest.mark.usefixtures("no_spark")
def test_what_is_excluded_is_refused_by_every_job_but_its_restore(
    site: Site, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six clicks have swept an excluded repository."""
    site.tell("barred")
    definitions = GarbageCollection(exclude=["b*"]).definitions()
    key = add_partition(instance, "barred", "by-hand")
    instance.add_dynamic_partitions("waiting", [str(key)])
    steps = {"gc": "store_listing", "gc_mark": "store_listing", "gc_backup": "swept_set"}
    steps |= {"gc_sweep": "swept_set", "gc_approve": "approve"}
    for job, step in steps.items():
        said, _, _ = failure_of(run(instance, job, str(key), definitions), step)
        assert said.startswith("refused: repository 'barred' is excluded, so nothing was done: ")
        assert "set collect_excluded: true for this run" in said
    assert site.root.runs("barred") == []
    said, _, _ = failure_of(run(instance, "gc_restore", key, definitions), "restored_set")
    assert "excluded" not in said

    def begun(_: RunContext) -> object:
        raise RefusedError("it is marked")

    monkeypatch.setattr("lakegc_assets.defs.assets.list_store", begun)
    begins = run(instance, "gc_mark", key, definitions, collect_excluded=True)
    said, _, _ = failure_of(begins, "store_listing")
    assert said == "refused: it is marked"
