"""From a mark that nobody asked for to its sweep: what waits, who approves, and what follows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

from lakegc_assets.defs import notices
from lakegc_assets.defs.collection import Collection
from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.jobs import person
from lakegc_assets.defs.names import (
    add_partition,
    first_tags,
    is_unattended,
    partition_key,
    require_own_config,
    tag_value,
)
from lakegc_assets.defs.pending_marks import waiting_sensor
from lakegc_assets.defs.policy import AutoLimits, NoticeSection, Override
from lakegc_assets.defs.prune import DagsterRecords
from lakegc_assets.defs.staleness import staleness_sensor
from lakegc_assets.errors import RefusedError
from lakegc_assets.lakefs.client import utc_now
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep.approval import approved, withdraw
from lakegc_assets_tests.cli.calling import lakegc
from lakegc_assets_tests.defs import running
from lakegc_assets_tests.defs.daemon import Daemon
from lakegc_assets_tests.defs.running import instance_of
from lakegc_assets_tests.left import begun
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.site import Site

_RUN = "wave-1"


@pytest.fixture(scope="module")
def daemon(site: Site) -> Iterator[Daemon]:
    component = GarbageCollection(
        repositories=[
            Override(include=["auto*"], sweep="auto", auto=AutoLimits(share=0.5)),
            Override(include=["large*"], sweep="auto", auto=AutoLimits(objects=1)),
            Override(include=["never*"], sweep="never"),
        ]
    )
    with instance_of(site) as instance:
        yield Daemon(component.definitions(), instance)


def run(daemon: Daemon, job: str, repository: str, **tags: str) -> dg.ExecuteInProcessResult:
    names = {name.replace("__", "/"): value for name, value in tags.items()}
    key = add_partition(daemon.instance, repository, _RUN)
    return running.run(daemon.definitions, job, daemon.instance, key, tags=names)


def mark(site: Site, daemon: Daemon, repository: str, spark: Session) -> None:
    """Make a repository and a mark of it, of which Dagster knows the partition alone."""
    site.tell(repository)
    add_partition(daemon.instance, repository, _RUN)
    running.mark_outside(site, repository, _RUN, spark)


def waits(daemon: Daemon, result: dg.ExecuteInProcessResult) -> str | None:
    found = daemon.instance.get_run_by_id(result.run_id)
    assert found is not None
    return found.tags.get("lakegc/waits")


def unharmed(site: Site, repository: str) -> bool:
    reported = site.repositories[repository]
    return all(
        (site.namespace(repository) / a).exists() for a in (reported.expired, reported.unreferenced)
    )


@pytest.fixture(scope="module")
def marked(site: Site, daemon: Daemon) -> dg.ExecuteInProcessResult:
    """What a backfill of everything that is missing does."""
    site.tell("approved")
    return run(daemon, "gc", "approved", dagster__backfill="abcdefgh")


def test_a_backfill_ends_with_the_mark_and_says_so(
    site: Site, daemon: Daemon, marked: dg.ExecuteInProcessResult
) -> None:
    assert marked.success
    said = waits(daemon, marked)
    assert said is not None
    assert said.startswith(f"mark {_RUN} of approved waits for approval: read its report")
    assert unharmed(site, "approved")
    made = {e.asset_key for e in marked.get_asset_materialization_events()}
    assert dg.AssetKey("gc_report") in made
    assert dg.AssetKey("swept_set") not in made


def test_the_report_names_the_largest_objects_by_path_and_the_last_marks(
    site: Site, marked: dg.ExecuteInProcessResult
) -> None:
    (report,) = marked.asset_materializations_for_node("gc_report")
    largest: Any = report.metadata["largest"]
    rows = [dict(record.data) for record in largest.records]
    reported = site.repositories["approved"]
    paths = {row["address"]: row["path"] for row in rows}
    assert paths == {reported.expired: "a", reported.unreferenced: "not known"}
    marks: Any = report.metadata["last marks"]
    assert [record.data["marked"] for record in marks.records] == ["35 B"]


@pytest.mark.usefixtures("marked")
def test_a_prune_finds_what_is_recorded_of_a_run_and_leaves_it(site: Site, daemon: Daemon) -> None:
    records = DagsterRecords(daemon.instance, site.root, "approved")
    assert records.names() == {_RUN}
    last, busy = records.last(_RUN)
    assert last is not None
    assert busy == ""
    records.forget(_RUN)
    assert records.names() == {_RUN}


@pytest.mark.usefixtures("marked")
def test_failed_and_missing_sweeps_nothing_that_waits(site: Site, daemon: Daemon) -> None:
    again = run(daemon, "gc_sweep", "approved", dagster__backfill="ijklmnop")
    assert again.success
    assert waits(daemon, again) is not None
    assert unharmed(site, "approved")


@pytest.mark.usefixtures("marked")
def test_what_waits_is_listed(daemon: Daemon) -> None:
    assert daemon.sensor("gc_approvals") == []
    found = json.loads(lakegc("pending", "--json").stdout)
    (one,) = [one for one in found if one["repository"] == "approved"]
    assert (one["run"], one["objects"], one["bytes"]) == (_RUN, 2, 35)
    assert one["state"] == "waiting for approval"
    assert f"lakegc approve approved --run {_RUN}" in one["because"]
    assert (
        f"approved\t{_RUN}\twaiting for approval\t2 objects, 35 bytes" in lakegc("pending").stdout
    )


@pytest.mark.usefixtures("marked")
def test_one_that_cannot_be_read_hides_no_other_that_waits(site: Site) -> None:
    site.client.create_repository("broken", "local://broken")
    site.root.open("broken", "b1").put("attempt.json", b"{")
    found = {one["repository"]: one for one in json.loads(lakegc("pending", "--json").stdout)}
    assert found["approved"]["state"] == "waiting for approval"
    assert found["broken"]["state"] == "unreadable"
    assert "broken\tb1\tunreadable\trun b1 cannot be read: " in lakegc("pending").stdout


def waiting(daemon: Daemon, at: datetime | None = None) -> list[str]:
    """The list to approve, after one tick of ``gc_waiting``."""
    policies = GarbageCollection(
        repositories=[Override(include=["large"], sweep="auto", auto=AutoLimits(objects=1))]
    ).policies()
    hook = NoticeSection(url="http://127.0.0.1:9/hook", dagster_url="https://dagster.example.com")
    sensor = waiting_sensor(Collection(policies, notices=hook, now=lambda: at or utc_now()))
    daemon.sensor("gc_waiting", as_defined=sensor)
    return list(daemon.instance.get_dynamic_partitions("waiting"))


def test_a_mark_that_waits_is_listed_and_reported_once(
    site: Site, daemon: Daemon, marked: dg.ExecuteInProcessResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[dict[str, Any]] = []
    monkeypatch.setattr(notices, "post", lambda _url, made, _form: posted.append(made))
    # A forecast of the mark, still in the queue, sweeps nothing and says nothing about the mark.
    request = dg.RunRequest(partition_key=partition_key("approved", _RUN))
    forecast = daemon.launch(request, "gc_forecast", {})
    assert waiting(daemon) == [f"approved|{_RUN}"]
    daemon.instance.delete_run(forecast)
    (one,) = posted
    assert (one["event"], one["objects"], one["bytes"]) == ("waiting", 2, 35)
    assert "It names 2 objects, 35 B, 33.3% of what was listed" in one["sentence"]
    assert f"was made on {utc_now():%Y-%m}" in one["sentence"]
    # The title and what_to_do say the rest.
    assert one["sentence"].endswith("`sweep` is `approved`, max_candidate_share 0.5")
    digest = site.root.attempt("approved", _RUN).recorded("deletion_candidates").digest
    assert f"`lakegc approve approved --run {_RUN} --digest {digest}`" in one["what_to_do"]
    assert one["link"].startswith("https://dagster.example.com/runs/")
    assert not one["link"].endswith(forecast)
    # Nothing has changed, or all of it was looked at again.
    assert waiting(daemon, utc_now() + timedelta(minutes=10)) == [f"approved|{_RUN}"]
    assert waiting(daemon, utc_now() + timedelta(hours=2)) == [f"approved|{_RUN}"]
    # What a rule of the bucket has removed keeps no other mark from being listed.
    rows = Path(site.root.attempt("approved", _RUN).url, "deletion_candidates/data")
    rows.rename(rows.with_name("gone"))
    assert waiting(daemon, utc_now() + timedelta(hours=4)) == [f"approved|{_RUN}"]
    rows.with_name("gone").rename(rows)
    assert len(posted) == 1
    assert marked.success


@pytest.mark.usefixtures("marked")
def test_a_sensor_without_its_cursor_takes_back_what_it_has_listed(
    site: Site, daemon: Daemon
) -> None:
    """Else a mark that was swept since would stay in the list for ever."""
    assert waiting(daemon) == [f"approved|{_RUN}"]
    # The one has artifacts and waits no more, the other one is of another server.
    over, foreign = f"over|{_RUN}", f"elsewhere|{_RUN}"
    begun(site.root, "over", _RUN)
    daemon.instance.add_dynamic_partitions("waiting", [over, foreign])
    daemon.cursors.pop("gc_waiting")
    assert sorted(waiting(daemon)) == [f"approved|{_RUN}", foreign]
    daemon.instance.delete_dynamic_partition("waiting", foreign)
    site.root.open("over", _RUN).delete_many(["attempt.json"])


@pytest.mark.usefixtures("marked")
def test_who_approves_is_asked_for_where_dagster_knows_no_user(daemon: Daemon) -> None:
    job = daemon.definitions.resolve_job_def("gc_approve")
    key = f"approved|{_RUN}"
    assert job.partitioned_config is not None
    shown = job.partitioned_config.get_run_config_for_partition_key(key)
    assert shown == {"ops": {"approve": {"config": {"by": "", "digest": ""}}}}
    daemon.instance.add_dynamic_partitions("waiting", [key])
    refused = running.run(daemon.definitions, job.name, daemon.instance, key, raises=False)
    assert not refused.success
    (failure,) = refused.filter_events(lambda event: event.is_step_failure)
    assert failure.step_failure_data.user_failure_data is not None
    assert "the name of the person who approves is missing" in str(
        failure.step_failure_data.user_failure_data.description
    )
    # As Dagster+ says it.
    assert person("", {"user": "ada@example.com"}, "approves") == "ada@example.com"
    assert person(" Grace ", {"user": "ada@example.com"}, "approves") == "Grace"


@pytest.fixture(scope="module")
def swept(daemon: Daemon, marked: dg.ExecuteInProcessResult) -> list[str]:
    """The runs that the sensor asks for once a person has approved, after they were made."""
    assert marked.success
    approving = ("approve", "approved", "--run", _RUN, "--by", "Ada", "--digest")
    other = lakegc(*approving, "2-0123")
    assert other.exit_code == 3
    assert "and 2-0123 was to be approved: the mark was made again" in other.output
    (report,) = marked.asset_materializations_for_node("gc_report")
    approved = lakegc(*approving, str(report.metadata["digest"].value))
    assert approved.exit_code == 0, approved.output
    assert "is approved by Ada until" in approved.stdout
    (one,) = [o for o in json.loads(lakegc("pending", "--json").stdout) if o["run"] == _RUN]
    assert (one["state"], "by Ada" in one["because"]) == ("approved", True)
    assert daemon.instance.get_dynamic_partitions("waiting") == []
    (asked,) = daemon.sensor("gc_approvals")
    requested = daemon.instance.get_run_by_id(asked)
    assert requested is not None
    assert requested.job_name == "gc_sweep"
    assert requested.tags["lakegc/approved-by"] == "Ada"
    result = run(daemon, "gc_sweep", "approved", dagster__sensor_name="gc_approvals")
    assert waits(daemon, result) is None
    return [asked]


def test_an_approval_is_swept_once(site: Site, daemon: Daemon, swept: list[str]) -> None:
    assert swept
    reported = site.repositories["approved"]
    assert not (site.namespace("approved") / reported.expired).exists()
    assert (site.namespace("approved") / reported.live).exists()
    daemon.cursors.clear()
    assert daemon.sensor("gc_approvals") == []
    assert [o for o in json.loads(lakegc("pending", "--json").stdout) if o["run"] == _RUN] == []


@pytest.mark.usefixtures("swept")
def test_what_was_swept_is_reported_with_its_record_by_the_command_too(daemon: Daemon) -> None:
    again = lakegc("sweep", "approved", "--run", _RUN)
    assert again.exit_code == 0, again.output
    assert "deleted" in again.stdout
    assert f"swept on {utc_now():%Y-%m}" in again.stdout
    refused = lakegc("approve", "approved", "--run", _RUN)
    assert refused.exit_code == 3
    assert "there is nothing to approve" in refused.output
    refused = lakegc("approve", "approved", "--run", "nobody-made-it")
    assert refused.exit_code == 3
    # Nor does it leave anything to choose.
    assert daemon.instance.get_dynamic_partitions("waiting") == []
    assert "nobody-made-it" not in daemon.instance.get_dynamic_partitions("run")


def test_automatic_sweeps_keep_to_their_limits(site: Site, daemon: Daemon, spark: Session) -> None:
    site.tell("auto")
    within = run(daemon, "gc", "auto", dagster__schedule_name="gc_schedule")
    assert waits(daemon, within) is None
    assert not unharmed(site, "auto")
    mark(site, daemon, "large", spark)
    beyond = run(daemon, "gc_sweep", "large", dagster__schedule_name="gc_schedule")
    assert beyond.success
    assert "it names 2 objects, the limit is 1" in (waits(daemon, beyond) or "")
    found = daemon.instance.get_run_by_id(beyond.run_id)
    assert found is not None
    exceeds = found.tags["lakegc/exceeds"]
    assert exceeds.startswith("since it names 33.3% of what was listed, the limit is 20%; ")
    assert exceeds.endswith("; and it names 2 objects, the limit is 1")
    assert unharmed(site, "large")


def test_a_mark_of_nothing_waits_for_nobody_and_tries_nothing_out(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    for probe in ("probe_conditions", "probe_deadlines", "probe_recovery"):
        monkeypatch.setattr(f"lakegc_assets.sweep.sweep.{probe}", None)
    site.client.create_repository("empty", "local://empty")
    for name in ("a", "b"):
        site.upload("empty", name, name)
    site.client.commit_branch("empty", "main", "all there is")
    wave = run(daemon, "gc", "empty", dagster__schedule_name="gc_schedule")
    assert wave.success
    assert waits(daemon, wave) is None
    swept = dg.AssetKey("swept_set")
    assert swept in {one.asset_key for one in wave.get_asset_materialization_events()}
    assert "empty" not in lakegc("pending").stdout
    assert not any(key.startswith("empty|") for key in waiting(daemon))


def test_a_run_that_repeats_another_was_asked_for_by_who_asked_for_the_first() -> None:
    """Dagster gives it no tag of a backfill that has ended: it must not sweep for that."""

    @dg.job
    def any_job() -> None: ...

    with dg.DagsterInstance.ephemeral() as instance:

        def stored(parent: dg.DagsterRun | None = None, **tags: str) -> dg.DagsterRun:
            return instance.create_run_for_job(
                any_job,
                tags={f"dagster/{name}": value for name, value in tags.items()},
                parent_run_id=parent.run_id if parent else None,
                root_run_id=parent.run_id if parent else None,
            )

        by_backfill, by_hand = stored(backfill="abcdefgh"), stored()
        for first, unattended in ((by_backfill, True), (by_hand, False)):
            retry = stored(first, retry_number="1")
            again = stored(retry, retry_number="2")
            for run in (first, retry, again):
                assert is_unattended(first_tags(instance, run)) is unattended
            # "Re-execute", by a person.
            assert is_unattended(first_tags(instance, stored(retry))) is unattended
        # A backfill may go on with what a person has begun.
        assert is_unattended(first_tags(instance, stored(by_hand, backfill="ijklmnop")))
        resumed = stored(sensor_name="gc_resume")
        instance.add_run_tags(resumed.run_id, {"lakegc/asked": "by a person"})
        assert not is_unattended(first_tags(instance, stored(resumed)))
        instance.delete_run(by_hand.run_id)
        assert is_unattended(first_tags(instance, stored(by_hand, retry_number="3")))


def test_a_refused_share_is_approved_in_the_launchpad(
    site: Site, daemon: Daemon, spark: Session
) -> None:
    site.tell("refused")
    definitions, instance = daemon.definitions, daemon.instance
    key = add_partition(instance, "refused", _RUN)
    with pytest.raises(RefusedError, match="candidate_share"):
        running.mark_outside(site, "refused", _RUN, spark, max_candidate_share=0.1)
    (one,) = [o for o in json.loads(lakegc("pending", "--json").stdout) if o["run"] == _RUN
              and o["repository"] == "refused"]  # fmt: skip
    assert one["state"] == "refused"
    assert "candidate_share" in one["because"]
    daemon.cursors.pop("gc_waiting", None)
    assert f"refused|{_RUN}" in waiting(daemon)
    approve = {"approve": {"config": {"by": "Grace", "max_candidate_share": 0.9}}}
    approving = running.run(definitions, "gc_approve", instance, str(key), ops=approve)
    assert approving.success
    attempt = site.root.attempt("refused", _RUN)
    assert attempt.has("gc_report")
    assert dg.AssetKey("gc_report") in {
        e.asset_key for e in approving.get_asset_materialization_events()
    }
    (asked,) = daemon.sensor("gc_approvals")
    requested: Any = daemon.instance.get_run_by_id(asked)
    assert requested.job_name == "gc_sweep"
    # The approval itself says which share may go.
    tags = {"dagster/sensor_name": "gc_approvals"}
    assert running.run(
        definitions, "gc_sweep", instance, key, tags=tags, max_candidate_share=0.1
    ).success
    assert attempt.has("swept_set")


def test_a_sweep_that_a_person_has_cancelled_and_removed_does_not_start_again(
    site: Site, daemon: Daemon, spark: Session
) -> None:
    mark(site, daemon, "cancelled", spark)
    approving = ("approve", "cancelled", "--run", _RUN, "--by", "Ada")
    assert lakegc(*approving).exit_code == 0
    (asked,) = daemon.sensor("gc_approvals")
    sweeping = daemon.instance.get_run_by_id(asked)
    assert sweeping is not None
    daemon.instance.report_run_canceled(sweeping)
    # The sensor of another code location, or of one that has another name now, asks for nothing.
    elsewhere = Daemon(daemon.definitions, daemon.instance, location="elsewhere")
    assert elsewhere.sensor("gc_approvals") == []
    daemon.instance.delete_run(asked)
    assert daemon.sensor("gc_approvals") == []
    assert "the sweep of 1 approval was started before" in daemon.skipped[-1]
    # Nor is it forgotten while it holds, and a new one is another.
    assert daemon.sensor("gc_approvals") == []
    assert lakegc(*approving).exit_code == 0
    assert len(daemon.sensor("gc_approvals")) == 1
    assert unharmed(site, "cancelled")


def test_an_approval_that_no_sensor_sweeps_says_so(
    site: Site, daemon: Daemon, spark: Session
) -> None:
    mark(site, daemon, "never", spark)
    approve = {"approve": {"config": {"by": "Grace"}}}
    key = f"never|{_RUN}"
    daemon.instance.add_dynamic_partitions("waiting", [key])
    done = running.run(daemon.definitions, "gc_approve", daemon.instance, key, ops=approve)
    assert done.success
    said = [entry.user_message for entry in daemon.instance.all_logs(done.run_id)]
    assert any("`sweep` is `never`, so no sensor starts gc_sweep: `lakegc " in one for one in said)
    assert daemon.sensor("gc_approvals") == []


@pytest.mark.usefixtures("swept")
def test_a_stale_repository_fails_the_check(site: Site, daemon: Daemon) -> None:
    for name in ("fresh", "forgotten"):
        site.calendar.days_ago = {"fresh": 1, "forgotten": 40}[name]
        site.client.create_repository(name, f"local://{name}")
    site.calendar.days_ago = 0

    def judged(days: int) -> tuple[bool, str]:
        collection = GarbageCollection().collection()
        sensor = staleness_sensor(replace(collection, now=lambda: utc_now() + timedelta(days)))
        with dg.build_sensor_context(instance=daemon.instance) as context:
            (event,) = sensor.evaluate_tick(context).asset_events
        assert isinstance(event, dg.AssetCheckEvaluation)
        return event.passed, event.description or ""

    passed, said = judged(0)
    assert not passed
    assert re.search(r"(was|were) not marked for too long: forgotten$", said)
    passed, said = judged(21)
    assert "approved" in said
    assert "fresh" in said


@pytest.mark.parametrize(
    ("tags", "unattended"),
    [
        ({}, False),
        ({"dagster/partition": "a|b", "user": "Ada"}, False),
        ({"dagster/backfill": "abc"}, True),
        ({"dagster/schedule_name": "gc_schedule"}, True),
        ({"dagster/sensor_name": "gc_resume"}, True),
        ({"lakegc/wave": "1"}, True),
        ({"dagster/sensor_name": "gc_resume", "lakegc/asked": "by a person"}, False),
    ],
)
def test_who_asked_is_reported_by_tags(tags: dict[str, str], *, unattended: bool) -> None:
    assert is_unattended(tags) is unattended


def test_a_tag_fits_into_the_index_of_postgresql() -> None:
    assert tag_value("mark 1 waits") == "mark 1 waits"
    assert tag_value("é" * 601) == "é" * 599 + "…"
    assert len(tag_value("𝄞" * 9_000).encode()) < 2_704 - len("lakegc/approved-by")


def test_dagster_plus_is_asked_for_no_backfill_where_a_run_is_of_none() -> None:
    """It would fail, and so would each run that a person or a schedule starts."""
    require_own_config(cast("dg.DagsterInstance", None), dg.DagsterRun(job_name="gc"))


@pytest.mark.parametrize(
    ("typed", "had", "refused"),
    [
        (None, {"a": 1}, False),
        ({}, {"a": 1}, False),
        ({"a": 1}, {"a": 1}, False),
        ({"a": 2}, {"a": 1}, True),
    ],
)
def test_what_is_typed_for_a_backfill_is_not_forgotten(
    typed: dict[str, int] | None, had: dict[str, int], *, refused: bool
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        backfill = PartitionBackfill(
            backfill_id="abc",
            status=BulkActionStatus.REQUESTED,
            from_failure=False,
            tags={},
            backfill_timestamp=0.0,
            run_config=typed,
        )
        instance.add_backfill(backfill)
        run = dg.DagsterRun(job_name="gc", run_config=had, tags={"dagster/backfill": "abc"})
        require_own_config(instance, dg.DagsterRun(job_name="gc", run_config=had))
        if not refused:
            require_own_config(instance, run)
            return
        with pytest.raises(RefusedError, match="typed for this backfill does not reach its runs"):
            require_own_config(instance, run)


def test_an_approval_that_is_withdrawn_while_its_sweep_begins_deletes_nothing(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, spark: Session
) -> None:
    mark(site, daemon, "withdrawn", spark)
    approving = ("approve", "withdrawn", "--run", _RUN, "--by", "Ada")
    assert lakegc(*approving).exit_code == 0
    left = ["once"]

    def late(ctx: RunContext) -> RunContext:
        found = approved(ctx)
        if left:
            withdraw(ctx, left.pop())
        return found

    monkeypatch.setattr("lakegc_assets.defs.assets.approved", late)
    result = running.run(
        daemon.definitions,
        "gc_sweep",
        daemon.instance,
        add_partition(daemon.instance, "withdrawn", _RUN),
        raises=False,
        tags={"dagster/sensor_name": "gc_approvals"},
    )
    (failure,) = result.filter_events(lambda event: event.is_step_failure)
    data = failure.step_failure_data.user_failure_data
    assert data is not None
    assert f"mark {_RUN} of withdrawn waits for approval" in str(data.description)
    assert unharmed(site, "withdrawn")
    # A larger share that was approved counts no more either, whoever asks for the sweep.
    assert lakegc(*approving, "--max-candidate-share", "0.9").exit_code == 0
    left.append("again")
    by_hand = lakegc("sweep", "withdrawn", "--run", _RUN)
    assert "the approval of a larger share was withdrawn, or has ended" in by_hand.output
    assert lakegc(*approving).exit_code == 0
    both = lakegc(*approving, "--withdraw", "--max-candidate-share", "0.9")
    assert (both.exit_code, "is about all approvals" in both.stderr) == (2, True)
    before = daemon.instance.get_runs_count()
    taken = lakegc(*approving, "--withdraw")
    assert taken.stdout == f"mark {_RUN} of withdrawn is not approved any more\n"
    # No run of gc_approve says that something was approved.
    assert daemon.instance.get_runs_count() == before
    again = lakegc(*approving, "--withdraw")
    assert (again.exit_code, "is not approved" in again.stderr) == (3, True)
    run(daemon, "gc_sweep", "withdrawn", dagster__sensor_name="gc_approvals")
    assert unharmed(site, "withdrawn")
