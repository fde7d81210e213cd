"""What a prune removes of Dagster's records; the job, its schedule, and the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa

from lakegc_assets.cli.jobs import open_instance
from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.policy import Override
from lakegc_assets.defs.prune import DagsterRecords, forget_job
from lakegc_assets.mark.installation import MARKER, require_one_server
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.cli.calling import lakegc
from lakegc_assets_tests.defs import running
from lakegc_assets_tests.defs.running import own_instance
from lakegc_assets_tests.files import contents
from lakegc_assets_tests.prune.past import long_ago
from lakegc_assets_tests.site import Site

KEEP = timedelta(days=30)
NOW = datetime.now(timezone.utc)
ENDED = dg.DagsterRunStatus.SUCCESS
#: Dagster's table of runs, which tells when they were made.
_RUNS = sa.table(
    "runs",
    sa.column("run_id"),
    sa.column("create_timestamp", sa.DateTime),
    sa.column("update_timestamp", sa.DateTime),
)


def started(
    instance: dg.DagsterInstance,
    repository: str,
    run: str,
    days: float,
    *,
    status: dg.DagsterRunStatus = ENDED,
    job: str = "gc",
    assets: frozenset[dg.AssetKey] | None = None,
) -> str:
    """The id of a Dagster run of so many days ago."""
    instance.add_dynamic_partitions("repository", [repository])
    instance.add_dynamic_partitions("run", [run])
    tags = {"dagster/partition/repository": repository, "dagster/partition/run": run}
    made = instance.add_run(
        dg.DagsterRun(job_name=job, tags=tags, status=status, asset_selection=assets)
    )
    then = NOW - timedelta(days=days)
    with instance.run_storage.connect() as connection:  # type: ignore[attr-defined] # SQL has it
        connection.execute(
            sa.update(_RUNS)
            .where(_RUNS.c.run_id == made.run_id)
            .values(create_timestamp=then, update_timestamp=then)
        )
    return str(made.run_id)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with own_instance() as found:
        yield found


@pytest.fixture
def records(instance: dg.DagsterInstance, tmp_path: Path) -> DagsterRecords:
    return DagsterRecords(instance, ArtifactRoot(str(tmp_path), StoreConfig()), "alpha")


def ids(instance: dg.DagsterInstance) -> set[str]:
    return {run.run_id for run in instance.get_runs()}


def test_a_run_is_forgotten_with_its_key(records: DagsterRecords) -> None:
    instance = records.instance
    for job in ("gc_mark", "gc_sweep"):
        started(instance, "alpha", "w1", 60, job=job)
    other = started(instance, "alpha", "w2", 60)
    assert records.names() == {"w1", "w2"}
    records.forget("w1")
    assert ids(instance) == {other}
    assert instance.get_dynamic_partitions("run") == ["w2"]
    records.forget("w1")
    assert ids(instance) == {other}


def test_a_key_stays_that_another_repository_uses(records: DagsterRecords) -> None:
    instance = records.instance
    for how in range(4):
        run = f"w{how}"
        started(instance, "alpha", run, 60)
        if how == 0:
            started(instance, "beta", run, 60)
        elif how == 1:
            long_ago(records.root, run, 60, repository="gamma")
        elif how == 2:
            records.root.open("delta", run).put("pruning.json", b"{}")
        records.forget(run)
    assert set(instance.get_dynamic_partitions("run")) == {"w0", "w1", "w2"}
    assert {r.tags["dagster/partition/repository"] for r in instance.get_runs()} == {"beta"}


def test_the_runs_of_others_in_a_wave_are_counted_and_not_read(
    records: DagsterRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = records.instance
    for name in ("alpha", *(f"other-{number}" for number in range(20))):
        started(instance, name, "w1", 60)
    read: list[dg.RunRecord] = []
    asked = instance.get_run_records

    def counting(*chosen: Any, **more: Any) -> Any:
        found = asked(*chosen, **more)
        read.extend(found)
        return found

    monkeypatch.setattr(instance, "get_run_records", counting)
    records.forget("w1")
    assert len(read) == 1
    assert instance.get_dynamic_partitions("run") == ["w1"]


def test_what_is_not_over_and_what_is_not_ours_stays(records: DagsterRecords) -> None:
    instance = records.instance
    busy = started(instance, "alpha", "w1", 60, status=dg.DagsterRunStatus.STARTED)
    assert "has not ended" in records.last("w1")[1]
    last, why = records.last("w2")
    assert (last, why) == (None, "")
    foreign = started(instance, "alpha", "w2", 60, job="somebody's")
    asset = started(
        instance, "alpha", "w2", 60, job="__ASSET_JOB", assets=frozenset([dg.AssetKey("other")])
    )
    started(
        instance, "alpha", "w2", 60, job="__ASSET_JOB", assets=frozenset([dg.AssetKey("backup")])
    )
    long_ago(records.root, "w3", 60, repository="alpha")
    kept = started(instance, "alpha", "w3", 60)
    for run in ("w1", "w2", "w3"):
        records.forget(run)
    assert ids(instance) == {busy, foreign, asset, kept}
    assert set(instance.get_dynamic_partitions("run")) == {"w1", "w2", "w3"}


def test_old_runs_that_left_nothing_can_be_forgotten(records: DagsterRecords) -> None:
    instance = records.instance
    failed = dg.DagsterRunStatus.FAILURE
    for name, days, status in (
        ("old", 60, failed),
        ("young", 29, failed),
        ("known", 60, failed),
        ("running", 60, dg.DagsterRunStatus.STARTED),
        *((f"success-{n}", 50 - n, ENDED) for n in range(5)),
    ):
        started(instance, "alpha", name, days, status=status)
    started(instance, "beta", "other", 60, status=failed)
    found = records.forgettable({"known"}, KEEP, NOW)
    assert found == ["old", "success-0", "success-1"]
    long_ago(records.root, "old", 60, repository="alpha")
    assert records.forgettable({"known"}, KEEP, NOW) == ["success-0", "success-1"]


def test_runs_of_the_job_itself_are_old_at_last(instance: dg.DagsterInstance) -> None:
    made = [started(instance, "alpha", "w1", 60 - n, job="gc_prune") for n in range(5)]
    found = forget_job(instance, "gc_prune", KEEP, NOW)
    assert [one.dagster_run.run_id for one in found] == made[:2]
    assert forget_job(instance, "gc_prune", timedelta(days=61), NOW) == []


def test_dagster_plus_keeps_its_runs_with_their_events_and_loses_the_key(
    records: DagsterRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = records.instance
    kept = {started(instance, "alpha", "w1", 60)}
    kept |= {started(instance, "alpha", f"r{n}", 50, job="gc_prune") for n in range(5)}

    def refuse(_self: dg.DagsterInstance, _run_id: str) -> None:
        raise NotImplementedError

    plus = type("DagsterCloudInstance", (dg.DagsterInstance,), {"delete_run": refuse})
    plus.__module__ = "dagster_cloud.instance"
    monkeypatch.setattr(instance, "__class__", plus)
    monkeypatch.setattr(instance.event_log_storage, "delete_events", None)
    records.forget("w1")
    assert "w1" not in instance.get_dynamic_partitions("run")
    assert records.forgettable({"known"}, KEEP, NOW) == []
    assert forget_job(instance, "gc_prune", KEEP, NOW) == []
    assert ids(instance) == kept


# With a server


@pytest.fixture
def past(site: Site) -> Site:
    """Two repositories with runs of long ago, of which ``old`` may go."""
    for name in ("alpha", "beta"):
        if name not in {one.id for one in site.client.repositories()}:
            site.client.create_repository(name, f"local://{name}")
        store = open_store(f"local://{name}", site.server.store_config)
        require_one_server(site.client, name, store)
        for run, days in (("old", 90), ("r3", 80), ("r2", 70), ("r1", 60)):
            long_ago(site.root, run, days, repository=name)
    return site


def left(site: Site, repository: str) -> set[str]:
    return set(site.root.runs(repository))


def test_the_command_says_what_would_go_and_asks(past: Site) -> None:
    dry = lakegc("prune", "alpha", "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert "alpha, run old: would be removed\n" in dry.stdout
    assert "alpha, run r1: kept: it is one of the last 3 marks\n" in dry.stdout
    assert dry.stdout.splitlines()[-1].startswith("would be removed: 1 run, ")
    no = lakegc("prune", "alpha", answer="n\n")
    assert no.exit_code == 0, no.output
    assert "Remove it?" in no.output
    assert lakegc("prune", "alpha", answer="").exit_code == 1
    assert "old" in left(past, "alpha")
    yes = lakegc("prune", "alpha", answer="y\n")
    assert "alpha, run old: removed" in yes.stdout
    assert yes.stdout.splitlines()[-1].startswith("removed: 1 run, ")
    assert contents(Path(past.root.url, "alpha/old")) == {}
    assert "old" in left(past, "beta")
    assert lakegc("prune", "alpha").stdout.splitlines()[-1] == "nothing to remove"
    again = lakegc("prune", "alpha", "--yes").stdout
    assert again.splitlines()[-1] == "nothing was removed"


def test_the_command_says_what_it_could_not_prune(past: Site) -> None:
    open_store("local://alpha", past.server.store_config).delete_many([MARKER])
    found = lakegc("prune", "--dry-run")
    assert found.exit_code == 1, found.output
    last = found.stdout.splitlines()[-1]
    assert last.startswith("would be removed: 1 run, ")
    assert last.endswith(" (without 1 repository with a problem)")
    assert lakegc("prune", "alpha", "--dry-run").stdout.splitlines()[-1] == (
        "nothing to remove (without 1 repository with a problem)"
    )


def test_the_command_prunes_all_and_prints_json(past: Site) -> None:
    (Path(past.root.url) / "gone" / "x").mkdir(parents=True)
    (Path(past.root.url) / "gone" / "x" / "attempt.json").write_text("{}")
    assert lakegc("prune", "--json").exit_code == 3
    with open_instance() as instance:
        for repository in ("alpha", "beta"):
            started(instance, repository, "old", 89)
            started(instance, repository, "failed", 60, status=dg.DagsterRunStatus.FAILURE)
            for number in range(3):
                started(instance, repository, f"r{number + 1}", 45)
    found = lakegc("prune", "--yes", "--json", "--keep-runs", "40d")
    assert found.exit_code == 0, found.output
    reported = json.loads(found.stdout)
    by_name = {one["repository"]: one for one in reported["repositories"]}
    runs = {one["run"]: one for one in by_name["beta"]["runs"]}
    assert (runs["old"]["removed"], runs["old"]["kept"]) == (True, None)
    assert (runs["r3"]["removed"], runs["r3"]["kept"]) == (False, "it is one of the last 3 marks")
    (note,) = reported["notes"]
    assert note.startswith("the server lists no repository 'gone'")
    assert (Path(past.root.url) / "gone" / "x" / "attempt.json").exists()
    assert "old" not in left(past, "alpha") | left(past, "beta")
    assert by_name["beta"]["only_in_dagster"] == ["failed"]
    with open_instance() as instance:
        assert set(instance.get_dynamic_partitions("run")) == {"r1", "r2", "r3"}
        assert len(instance.get_runs()) == 6


def test_the_command_keeps_runs_as_long_as_the_policy_says(
    past: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert past
    file = tmp_path / "defs.yaml"
    file.write_text("type: lakegc_assets.GarbageCollection\nattributes: {keep_runs_days: 365}\n")
    monkeypatch.setenv("LAKEGC_DEFS", str(file))
    assert "nothing to remove\n" in lakegc("prune", "alpha", "--dry-run").stdout
    sooner = lakegc("prune", "alpha", "--dry-run", "--keep-runs", "40d")
    assert "alpha, run old: would be removed\n" in sooner.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["nowhere"], 2, "there is no repository 'nowhere'"),
        (["alpha", "--keep-runs", "1d"], 2, "keep_runs is 1 day, and must be at least 2 days"),
        (["alpha", "--keep-runs", "soon"], 2, "is not a duration"),
    ],
)
def test_what_makes_no_sense_is_refused(
    past: Site, arguments: list[str], status: int, words: str
) -> None:
    refused = lakegc("prune", *arguments, "--yes")
    assert refused.exit_code == status, refused.output
    assert words in refused.output
    assert "old" in left(past, "alpha")


def prune_job(
    definitions: dg.Definitions, config: dict[str, Any], **tags: str
) -> dg.ExecuteInProcessResult:
    with dg.DagsterInstance.ephemeral() as instance:
        ops = {"prune": {"config": config}}
        return running.run(definitions, "gc_prune", instance, ops=ops, raises=False, tags=tags)


def test_the_job_only_looks_until_it_is_said_to_remove(past: Site) -> None:
    definitions = GarbageCollection(keep_runs_days=75).definitions()
    assert prune_job(definitions, {}).success
    assert {"old", "r3"} <= left(past, "alpha")
    found = prune_job(definitions, {"dry_run": False, "repositories": ["alpha"]})
    assert found.success
    assert left(past, "alpha") == {"r3", "r2", "r1"}
    assert "old" in left(past, "beta")


def test_a_queued_run_of_the_schedule_removes_only_what_the_policy_still_says(past: Site) -> None:
    """As ``prune`` was true for both when the run was queued."""
    component = GarbageCollection(repositories=[Override(include=["beta"], prune=True)])
    config = {"dry_run": False, "repositories": ["alpha", "beta"]}
    tags = {"dagster/schedule_name": "gc_prune_schedule"}
    assert prune_job(component.definitions(), config, **tags).success
    assert "old" in left(past, "alpha")
    assert "old" not in left(past, "beta")


def test_the_job_fails_with_the_sentence_where_it_cannot_tell(past: Site) -> None:
    pins = past.namespace("alpha") / "_lakefs/retention/gc/lakegc/pins/a.parquet"
    pins.parent.mkdir(parents=True, exist_ok=True)
    pins.write_bytes(b"damaged")
    found = prune_job(GarbageCollection().definitions(), {"dry_run": False})
    pins.unlink()
    assert not found.success
    assert left(past, "alpha") >= {"old"}
    # What becomes of one is no matter of another.
    assert "old" not in left(past, "beta")


def test_the_schedule_removes_where_the_policy_says_so(past: Site) -> None:
    assert past
    component = GarbageCollection(repositories=[Override(include=["alpha"], prune=True)])
    definitions = component.definitions()
    schedule = definitions.resolve_schedule_def("gc_prune_schedule")
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    context = dg.build_schedule_context(
        scheduled_execution_time=NOW,
        repository_def=definitions.get_repository_def(),
        resources=definitions.resources or {},
    )
    with context:
        requests = schedule.evaluate_tick(context).run_requests or []
    configs = [dict(one.run_config["ops"]["prune"]["config"]) for one in requests]
    assert configs[0] == {"repositories": ["alpha"], "dry_run": False}
    assert "beta" in configs[1]["repositories"]
    assert configs[1]["dry_run"] is True
    assert len({one.run_key for one in requests}) == 2
